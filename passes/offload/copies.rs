//! The copies between memories: nodes that update states of the host compute there, and every node reads values that lie in its
//! memory.

use super::{Offload, copy_to};
use crate::pass::Transform;
use ir::{
    At, Builder, Changed, Definition, EVERY_STAGE, Module, Node, NodeId, Op, Phase, Tier, TypeError, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

/// Places every node, and adds the missing copies. A value of `fetched` is copied to the device for its readers; other values that
/// microbatches read are copied once a step.
pub(super) fn add(module: &mut Module, fetched: &BTreeSet<ValueId>) -> Result<Changed, TypeError> {
    let order = module.order().to_vec();
    let fetched = casts_of(module, fetched);
    let mut copies = Copies {
        b: Builder::new(module, Offload::NAME),
        fetched,
        kept: BTreeMap::new(),
        windows: BTreeMap::new(),
        traffic: 0,
    };
    for id in order {
        copies.node(id)?;
    }
    copies.states()?;
    Ok(copies.b.finish())
}

/// Returns these values, and the values that `prepare` computes from them: casts of weights, and parts of them.
fn casts_of(module: &Module, values: &BTreeSet<ValueId>) -> BTreeSet<ValueId> {
    let mut all = values.clone();
    for (_, node) in module.nodes().filter(|(_, node)| node.phase == Phase::Prepare) {
        if node.operands.iter().any(|operand| all.contains(operand)) {
            all.extend(&node.results);
        }
    }
    all
}

/// A node that reads a value.
#[derive(Clone, Copy)]
struct Reader {
    id: NodeId,
    phase: Phase,
    stage: u32,
}

struct Copies<'m> {
    b: Builder<'m>,
    /// The values that are copied to the device for their readers.
    fetched: BTreeSet<ValueId>,
    /// Copies that serve all later readers of a stage, by the value, the tier, the stage, and whether the readers are in the update.
    kept: BTreeMap<(ValueId, Tier, u32, bool), ValueId>,
    /// The newest copy of each fetched value on each stage, and the traffic at its last reader.
    windows: BTreeMap<(ValueId, u32), (ValueId, u64)>,
    /// The bytes that were fetched for readers so far.
    traffic: u64,
}

impl Copies<'_> {
    /// Places a node, and replaces operands that lie in another memory by copies.
    fn node(&mut self, id: NodeId) -> Result<(), TypeError> {
        let node = self.b.module().node(id).clone();
        if matches!(node.op, Op::Copy(_)) {
            return Ok(());
        }
        let place = self.place(&node);
        self.b.set_place(id, place);
        for (index, &operand) in node.operands.iter().enumerate() {
            if self.b.module().tier_of(operand) != place {
                let copy = self.copy(operand, place, Reader { id, phase: node.phase, stage: node.stage })?;
                self.b.set_operand(id, index, copy);
            }
        }
        Ok(())
    }

    /// Returns the memory in which a node computes: outside of microbatches, the memory of its tensors. Scalars follow the tensors.
    fn place(&self, node: &Node) -> Tier {
        let moves = match &node.op {
            Op::Collective(collective) => collective.communicates(),
            Op::Transfer(_) => true,
            // A sum of gradients was placed with its operand.
            Op::Accumulate(_) => return node.place,
            // A look-up in an embedding, or its gradient, stays on the host.
            _ if node.place == Tier::Host => return Tier::Host,
            _ => false,
        };
        let module = self.b.module();
        let is_elsewhere =
            |&value: &ValueId| module.tier_of(value) != Tier::Device && module.ty(value).ndim() > 0;
        let on_host = !node.phase.is_microbatch() && !moves && node.operands.iter().any(is_elsewhere);
        if on_host { Tier::Host } else { Tier::Device }
    }

    /// Returns a value in another memory, for a reader.
    fn copy(&mut self, value: ValueId, to: Tier, reader: Reader) -> Result<ValueId, TypeError> {
        let Reader { id, phase, stage } = reader;
        // The reader may be a transfer, which reads a value of another stage.
        let stage = match self.b.module().stage_of(value) {
            EVERY_STAGE => stage,
            own => own,
        };
        if to == Tier::Device && phase.is_microbatch() && self.fetched.contains(&value) {
            return self.fetch(value, id, stage);
        }
        let key = (value, to, stage, phase == Phase::Update);
        if let Some(&copy) = self.kept.get(&key) {
            return Ok(copy);
        }
        // A value of microbatches is known only after its own node.
        let is_once_a_step = phase.is_microbatch() && !self.is_of_microbatch(value);
        let at = if is_once_a_step { At::End(Phase::Prepare) } else { At::Before(id) };
        let copy = self.moved(value, to, at, stage)?;
        self.kept.insert(key, copy);
        Ok(copy)
    }

    /// Whether a value is an input, or computed by a microbatch.
    fn is_of_microbatch(&self, value: ValueId) -> bool {
        let module = self.b.module();
        match module.value(value).definition {
            Definition::Input(_) => true,
            Definition::Node(node, _) => module.node(node).phase.is_microbatch(),
            Definition::State(_) => false,
        }
    }

    /// Returns a weight on the device, for a reader in a microbatch. The copy stays for the next reader if the weights that are fetched in
    /// between have no more bytes than it has.
    fn fetch(&mut self, value: ValueId, reader: NodeId, stage: u32) -> Result<ValueId, TypeError> {
        let bytes = self.b.ty(value).local_bytes(&self.b.module().mesh).unwrap_or(0);
        let copy = match self.windows.get(&(value, stage)) {
            Some(&(copy, last)) if self.traffic - last <= bytes => copy,
            _ => {
                self.traffic += bytes;
                self.moved(value, Tier::Device, At::Before(reader), stage)?
            }
        };
        self.windows.insert((value, stage), (copy, self.traffic));
        Ok(copy)
    }

    /// Adds a copy. Between the device and a file it goes over the host.
    fn moved(&mut self, value: ValueId, to: Tier, at: At, stage: u32) -> Result<ValueId, TypeError> {
        self.b.at(at).copy(0).stage(stage);
        if let At::End(_) = at {
            self.b.origin("");
        }
        let from = self.b.module().tier_of(value);
        let is_past_host = matches!((from, to), (Tier::Device, Tier::Disk) | (Tier::Disk, Tier::Device));
        let value = if is_past_host { copy_to(&mut self.b, value, Tier::Host)? } else { value };
        copy_to(&mut self.b, value, to)
    }

    /// Copies the new value of each state to the tier of the state.
    fn states(&mut self) -> Result<(), TypeError> {
        for id in self.b.module().states.keys().collect::<Vec<_>>() {
            let (tier, output) = (self.b.module().states[id].tier, self.b.module().states[id].output);
            let Some(value) = output.filter(|&value| self.b.module().tier_of(value) != tier) else {
                continue;
            };
            let Definition::Node(maker, _) = self.b.module().value(value).definition else { continue };
            let stage = self.b.module().node(maker).stage;
            let copy = self.moved(value, tier, At::After(maker), stage)?;
            self.b.tables().states[id].output = Some(copy);
        }
        Ok(())
    }
}
