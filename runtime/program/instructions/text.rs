//! The listing of a program: the text that `inspect` shows, and from which the hash is computed.

use super::{
    Activation, Chain, ChainSource, Exchange, Instruction, Kernel, Memory, Message, Moved, Program, Region,
    Section, TierMemory, View,
};
use ir::text::type_text;
use ir::{Op, PartialKind, Type};
use std::fmt;

/// `f32 @ 4096 [8, 128]`; constants are `f32 @ c64 [8]`; a place in a block is `f32 @ b0+64 [8]`; on the host it is `f32 @ h64 [8]`, and in
/// a file `f32 @ d64 [8]`. A part whose place depends on the device is `f32 @ 4096 [8, 128] + 1024 per place along [axis0]`.
impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} @ ", self.dtype)?;
        match self.region {
            Region::Arena => {}
            Region::Constants => f.write_str("c")?,
            Region::Block(block) => write!(f, "b{block}+")?,
            Region::Host => f.write_str("h")?,
            Region::HostBlock(block) => write!(f, "hb{block}+")?,
            Region::Disk => f.write_str("d")?,
        }
        write!(f, "{} {}", self.base, self.layout)?;
        self.by_rank
            .iter()
            .try_for_each(|step| write!(f, " + {} per place along {:?}", step.elements, step.axes.as_slice()))
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())?;
        match &self.kernel {
            Kernel::Op(op) => {
                op.attributes().iter().try_for_each(|(key, text)| write!(f, " {key}={text}"))?
            }
            Kernel::Elementwise(chain) => write_chain(f, chain)?,
            Kernel::Contract(fused) => {
                let labels = Op::from(fused.contract.clone()).attributes();
                labels.iter().try_for_each(|(key, text)| write!(f, " {key}={text}"))?;
                let extras = [(fused.bias, "bias"), (fused.addend, "addend"), (fused.keeps, "kept")];
                extras.iter().filter(|(there, _)| *there).try_for_each(|(_, name)| write!(f, " {name}"))?;
                if fused.activation != Activation::None {
                    write!(f, " {:?}", fused.activation)?;
                }
                fused.sums.map_or(Ok(()), |side| write!(f, " sums {side}"))?;
            }
            Kernel::Copy | Kernel::Accumulate => {}
            Kernel::Part(part) => write!(f, " {:?}", part.dims.as_slice())?,
            Kernel::Collective(exchange) => write!(f, "{exchange}")?,
            Kernel::Message(Message { from, to, channel }) => write!(f, " {channel} from {from} to {to}")?,
        }
        let views = |views: &[View]| views.iter().map(View::to_string).collect::<Vec<_>>().join(", ");
        let arrow = if self.accumulates { "=> +" } else { "=>" };
        write!(f, "({}) {arrow} {}", views(&self.operands), views(&self.results))?;
        if let Some(scratch) = &self.scratch {
            write!(f, " scratch {scratch}")?;
        }
        if !self.in_place.is_empty() {
            write!(f, " in place {:?}", self.in_place.as_slice())?;
        }
        if let Some(parts) = &self.parts {
            let types = parts.operands.iter().chain(&parts.results);
            types.clone().try_for_each(|ty| write!(f, " part of {ty} {:?}", ty.sharding.dims.as_slice()))?;
        }
        if self.of_microbatch {
            f.write_str(" in every microbatch")?;
        }
        if !self.origin.is_empty() {
            write!(f, " origin {:?}", self.origin)?;
        }
        Ok(())
    }
}

/// ` sum over [axis1] split 0, split 1`
impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reduced {
            Some(PartialKind::Sum) => write!(f, " sum")?,
            Some(PartialKind::Max) => write!(f, " max")?,
            Some(PartialKind::Min) => write!(f, " min")?,
            None => {}
        }
        write!(f, " over {:?}", self.axes.as_slice())?;
        for (i, Moved { gathered, split }) in self.dims.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "," })?;
            gathered.map_or(Ok(()), |dim| write!(f, " gathered {dim}"))?;
            split.map_or(Ok(()), |dim| write!(f, " split {dim}"))?;
        }
        Ok(())
    }
}

fn write_chain(f: &mut fmt::Formatter<'_>, chain: &Chain) -> fmt::Result {
    for (index, step) in chain.steps.iter().enumerate() {
        write!(f, " t{index}:{}", step.dtype)?;
        let attributes = step.op.attributes();
        attributes.iter().try_for_each(|(key, text)| write!(f, " {key}={text}"))?;
        for source in &step.sources {
            match source {
                ChainSource::Operand(operand) => write!(f, " {operand}")?,
                ChainSource::Step(step) => write!(f, " t{step}")?,
            }
        }
    }
    write!(f, " stores {:?}", chain.stores.as_slice())
}

/// The listing, which `inspect` shows and from which the hash is computed.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Memory { states, arena, lower_bound, constants, host, disk, by_class: _ } = self.memory;
        writeln!(f, "program {:?} microbatches {:?}", self.name, self.microbatches)?;
        // With several devices, the type of the whole tensor follows. With one device, the view has its dims already.
        let alone = self.mesh.axes.is_empty();
        let whole = |ty: &Type| if alone { String::new() } else { format!(" {}", type_text(&self.mesh, ty)) };
        if !alone {
            writeln!(f, "mesh {}", self.mesh)?;
        }
        writeln!(f, "memory states {states} arena {arena} lower bound {lower_bound} constants {constants}")?;
        for (name, tier) in [("host", host), ("disk", disk)].into_iter().filter(|(_, tier)| tier.total > 0) {
            let TierMemory { states, total, lower_bound } = tier;
            writeln!(f, "{name} states {states} total {total} lower bound {lower_bound}")?;
        }
        for state in &self.states {
            writeln!(f, "state {:?} {:?} {}{}", state.name, state.role, state.view, whole(&state.ty))?;
        }
        for input in &self.inputs {
            let place = input.view.as_ref().map_or("unused".into(), View::to_string);
            writeln!(f, "input {:?} {} {place}{}", input.name, input.ty, whole(&input.ty))?;
        }
        for (section, name) in Section::ALL {
            let renewed = if section == Section::Prepare { self.renewed } else { 0 };
            let note =
                if renewed > 0 { format!(", of which the update rewrites {renewed}") } else { String::new() };
            writeln!(f, "{name}{note}:")?;
            self.section(section).iter().try_for_each(|instruction| writeln!(f, "  {instruction}"))?;
        }
        if let Some(pipeline) = &self.pipeline {
            writeln!(f, "pipeline rank {} of {}", pipeline.rank, pipeline.ranks)?;
            for (id, block) in pipeline.blocks.iter().enumerate() {
                let parts: Vec<String> = block.parts.iter().map(|part| part.to_string()).collect();
                writeln!(f, "block b{id} of {} bytes {}", parts.join(" "), block.bytes)?;
            }
            for turn in &pipeline.turns {
                writeln!(
                    f,
                    "turn {} instructions {:?} blocks {:?}",
                    turn.task, turn.instructions, turn.bases
                )?;
            }
        }
        let outputs = &mut self.outputs.iter();
        outputs.try_for_each(|output| {
            writeln!(f, "output {:?} {:?} {}{}", output.name, output.section, output.view, whole(&output.ty))
        })
    }
}
