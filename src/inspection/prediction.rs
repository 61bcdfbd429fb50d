//! A step predicted on a machine that need not be here, and where its time goes: `inspect --target` and `--cluster`.

mod text;
mod timeline;

pub(crate) use text::milliseconds;
pub(super) use text::price;

use super::units::grouped;
use crate::failure::Failure;
use crate::lowering::Lowering;
use crate::targets;
use crate::training;
use bytes::Bytes;
use ir::machine::{DeviceKind, Machine, Unit};
use ir::ops::collective::Collective;
use ir::{AxisId, Blob, DType, Mesh, Module, Op, Operator, Phase};
use passes::Manager;
use program::MemoryByClass;
use program::Multiprocessors;
use program::backend::Declined;
use program::commands::CommandClass;
use program::simulator::{ExchangeTime, SimulatedCommand, SimulatedPart, SimulatedStep};
use program::{Part, Program, UpdateTime};
use serde::Serialize;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// A step on a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictionFacts {
    /// The device.
    pub device: String,
    /// Its kind.
    #[serde(skip)]
    pub kind: DeviceKind,
    /// Microbatches of a step.
    pub microbatches: u64,
    /// The commands and the time of one run of each section.
    pub sections: Vec<SectionFacts>,
    /// Launches of a step.
    pub launches: u64,
    /// Milliseconds of a step.
    pub step_ms: f64,
    /// Milliseconds of a step in which every command waits for the command before it.
    pub in_turn_ms: f64,
    /// Tokens that a step trains on; samples of a model without tokens.
    pub samples: u64,
    /// Whether these are tokens.
    pub tokens: bool,
    /// Of these in a second.
    pub samples_per_s: f64,
    /// Operations that the model needs: three times the products of its forward pass, of attention that is causal half of
    /// them; for all devices.
    pub model_flops: u64,
    /// The model's operations as a share of the devices' peak in that time, for the element type of most operations.
    pub mfu: f64,
    /// Joules of a step, of all devices under load.
    pub joules: f64,
    /// Dollars of a step, of all devices.
    pub dollars: f64,
    /// Bytes that each device allocates to train, by the plan for this machine.
    pub planned: u64,
    /// These bytes by class, where most of the memory is in use.
    pub memory: MemoryClassFacts,
    /// The time of the collectives, of those of one kind over the same axes together.
    pub exchanges: Vec<ExchangeFacts>,
    /// The attention and the convolutions that cuDNN is not asked for.
    pub not_by_cudnn: Vec<DeclinedFacts>,
    /// Commands by their kind, the longest first.
    pub kinds: Vec<KindFacts>,
    /// Every command of a step, in order; of the microbatches' those of one.
    pub commands: Vec<CommandFacts>,
}

/// Bytes of a device's memory, by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryClassFacts {
    /// Parameters and buffers of the model, and casts of weights.
    pub parameters: u64,
    /// States of the optimizer.
    pub optimizer: u64,
    /// Gradients that wait for the update.
    pub gradients: u64,
    /// Activations that are saved for backward.
    pub activations: u64,
    /// Everything else of the arena.
    pub workspace: u64,
    /// Constants.
    pub constants: u64,
}

/// Collectives of one kind over the same axes, of a whole step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExchangeFacts {
    /// The kind.
    pub kind: &'static str,
    /// The names of the axes.
    pub axes: Vec<String>,
    /// The number of collectives.
    pub count: u64,
    /// Milliseconds in which they run.
    pub ms: f64,
    /// Milliseconds of these in which the device does nothing else.
    pub not_hidden_ms: f64,
}

/// Instructions of one kind that cuDNN is not asked for, for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeclinedFacts {
    /// The kind: `attention`, `gradient of attention` or `convolution`.
    pub kind: &'static str,
    /// The reason.
    pub reason: String,
    /// The instructions in one run of each section.
    pub count: usize,
}

/// One run of a section, or of the rest of a microbatch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SectionFacts {
    /// Its name.
    pub section: &'static str,
    /// Its runs in a step.
    pub runs: u64,
    /// Kernels.
    pub kernels: usize,
    /// Multiplications of matrices.
    pub multiplications: usize,
    /// Operators that cuDNN runs.
    pub libraries: usize,
    /// Exchanges with other devices.
    pub collectives: usize,
    /// Copies from the host and to it.
    pub copies: usize,
    /// Instructions that the host runs.
    pub on_host: usize,
    /// Copies between the host and a file.
    pub with_file: usize,
    /// Milliseconds.
    pub ms: f64,
}

/// The commands of one kind, of a whole step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KindFacts {
    /// The kind.
    pub kind: String,
    /// Launches.
    pub launches: u64,
    /// Bytes to and from memory.
    pub bytes: u64,
    /// Operations that are done.
    pub flops: u64,
    /// Milliseconds in each bound.
    pub ms_by_bound: BTreeMap<&'static str, f64>,
    /// Milliseconds, together.
    pub ms: f64,
}

/// A command.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommandFacts {
    /// The section.
    pub section: &'static str,
    /// The stream: `main` or `side`.
    pub stream: &'static str,
    /// The kind.
    pub kind: String,
    /// The sizes it works on: of a multiplication `[batch, rows, terms, columns]`, else of its largest tensor.
    pub sizes: Vec<usize>,
    /// How many launches are in it.
    pub layers: u32,
    /// The node of the file that it belongs to, or the first of them.
    pub origin: String,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Bytes sent to other devices.
    pub sent: u64,
    /// Operations.
    pub flops: u64,
    /// The longest part of its time: `memory`, `compute`, `link`, `host`, `disk` or `launch`.
    pub bound: &'static str,
    /// Microseconds after the section's beginning when it begins.
    pub begin_us: f64,
    /// Microseconds that it takes.
    pub us: f64,
}

impl PredictionFacts {
    /// Predicts a step of a program's microbatches on a machine. Errors: an operator that the machine's device has no kernel for.
    pub fn of(
        module: &Module,
        microbatches: u64,
        update: UpdateTime,
        machine: &Machine,
    ) -> Result<Self, Failure> {
        let manager = Manager::default();
        let device = machine.device();
        let (mut lowering, size) = (Lowering::new(&manager, 0), Multiprocessors(device.multiprocessors));
        let target = targets::of(device.kind);
        let programs =
            training::lower_step(&mut lowering, module.clone(), microbatches, update, target, size)?;
        let program = programs.first();
        let list = target.commands(program, microbatches)?;
        let step = SimulatedStep::of(&list, machine);
        Ok(Self::new(module, program, &step, machine))
    }

    fn new(module: &Module, program: &Program, step: &SimulatedStep, machine: &Machine) -> Self {
        let (seconds, device) = (step.seconds(), machine.device());
        let (samples, tokens) = samples(module);
        let samples = samples.saturating_mul(step.microbatches);
        let model_flops = products(module).saturating_mul(3).saturating_mul(step.microbatches);
        let devices = module.mesh.devices() as f64;
        let most = seconds * device.matrices.of(multiplied(&step.parts)) * devices;
        // A microbatch that runs whole has no rest.
        let has_commands = |(part, _): &(Part, _)| {
            *part != Part::RestOfMicrobatch || !step.parts[*part as usize].commands.is_empty()
        };
        let parts = || Part::ALL.into_iter().filter(has_commands);
        let all = || parts().flat_map(|(part, name)| commands(step, part, name));
        let in_turn: f64 = all().map(|(_, runs, one)| one.alone * runs as f64).sum();
        let rented = machine.rented(module.mesh.devices()) as f64;
        let not_by_cudnn = targets::of(device.kind).declined(program);
        Self {
            device: device.name.clone(),
            kind: device.kind,
            microbatches: step.microbatches,
            launches: all().map(|(_, runs, _)| runs).sum(),
            sections: parts().map(|(part, name)| SectionFacts::of(step, part, name)).collect(),
            step_ms: seconds * 1e3,
            in_turn_ms: in_turn * 1e3,
            samples,
            tokens,
            samples_per_s: samples as f64 / seconds,
            model_flops,
            mfu: model_flops as f64 / most,
            joules: device.watts * rented * seconds,
            dollars: device.price_per_hour * rented * seconds / 3600.0,
            planned: program.memory.peak(),
            memory: MemoryClassFacts::of(program.memory.by_class, program.memory.constants),
            exchanges: ExchangeFacts::all(module, step),
            not_by_cudnn: not_by_cudnn.into_iter().map(DeclinedFacts::of).collect(),
            kinds: KindFacts::all(all().map(|(_, runs, one)| (runs, one))),
            commands: all().map(|(section, _, one)| CommandFacts::of(section, one, &module.mesh)).collect(),
        }
    }
}

/// The element type that most operations of the multiplications in some parts have.
pub(super) fn multiplied<'p>(parts: impl IntoIterator<Item = &'p SimulatedPart>) -> DType {
    let mut flops: BTreeMap<DType, u64> = BTreeMap::new();
    for one in parts.into_iter().flat_map(|part| &part.commands) {
        let work = &one.command.work;
        if let Unit::Matrices(dtype) | Unit::Attention(dtype) = work.unit {
            *flops.entry(dtype).or_default() += work.flops;
        }
    }
    flops.into_iter().max_by_key(|(_, flops)| *flops).map_or(DType::F32, |(dtype, _)| dtype)
}

/// The commands of a part, each with the part's name and its runs in a step.
fn commands<'s>(
    step: &'s SimulatedStep,
    part: Part,
    name: &'static str,
) -> impl Iterator<Item = (&'static str, u64, &'s SimulatedCommand)> {
    let runs = step.runs(part);
    step.parts[part as usize].commands.iter().map(move |one| (name, runs, one))
}

/// The tokens of a microbatch, of all data ranks, and that they are such; samples, if the model takes none.
pub(super) fn samples(module: &Module) -> (u64, bool) {
    let batched = || module.inputs.iter().filter(|input| input.batched).map(|input| module.ty(input.value));
    let tokens = batched().find(|ty| ty.dtype.is_integer() && ty.ndim() == 2).and_then(ir::Type::numel);
    let batch = || batched().find_map(|ty| ty.dims.first()?.size());
    (tokens.or_else(batch).unwrap_or(1), tokens.is_some())
}

/// A program that was read as text, with zeros for the constants that stand in the model's file. A prediction does not depend on their
/// values.
pub(super) fn filled(module: &Module) -> Module {
    let mut module = module.clone();
    let read = module.nodes().filter_map(|(_, node)| match &node.op {
        Op::Constant(constant) => Some(constant.data),
        _ => None,
    });
    for data in read.collect::<Vec<_>>() {
        let row = &mut module.data[data];
        if let (None, Some(size)) = (row.bytes(), row.ty.bytes()) {
            row.blob = Blob::File(Some(Bytes::from(vec![0; size as usize])));
        }
    }
    module
}

/// The operations of a forward pass that multiply.
pub(super) fn products(module: &Module) -> u64 {
    let forward = module.nodes().filter(|(_, node)| node.phase == Phase::Forward);
    let products = forward.filter(|(_, node)| {
        matches!(node.op, Op::Contract(_) | Op::Attention(_) | Op::Conv(_) | Op::Experts(_))
    });
    products.map(|(_, node)| node.op.cost(&module.signature(node)).flops).fold(0, u64::saturating_add)
}

impl DeclinedFacts {
    fn of(Declined { kind, reason, count }: Declined) -> Self {
        Self { kind, reason, count }
    }
}

impl MemoryClassFacts {
    pub(super) fn of(classes: MemoryByClass, constants: u64) -> Self {
        let MemoryByClass { parameters, optimizer, gradients, activations, workspace } = classes;
        Self { parameters, optimizer, gradients, activations, workspace, constants }
    }
}

impl ExchangeFacts {
    fn all(module: &Module, step: &SimulatedStep) -> Vec<Self> {
        let facts = |((kind, axes), time): ((Collective, SmallVec<[AxisId; 2]>), ExchangeTime)| Self {
            kind: Op::from(kind).name(),
            axes: axes.iter().map(|&axis| module.mesh.axes[axis].name.clone()).collect(),
            count: time.count,
            ms: time.seconds * 1e3,
            not_hidden_ms: time.not_hidden * 1e3,
        };
        step.exchanges().into_iter().map(facts).collect()
    }
}

impl SectionFacts {
    fn of(step: &SimulatedStep, part: Part, name: &'static str) -> Self {
        let SimulatedPart { commands, seconds } = &step.parts[part as usize];
        let count = |is_of: fn(&CommandClass) -> bool| {
            commands.iter().filter(|one| is_of(&one.command.class)).count()
        };
        Self {
            section: name,
            runs: step.runs(part),
            kernels: count(|class| matches!(class, CommandClass::Kernel)),
            multiplications: count(|class| matches!(class, CommandClass::Multiplication)),
            libraries: count(|class| matches!(class, CommandClass::Library)),
            collectives: count(|class| matches!(class, CommandClass::Collective(_))),
            copies: count(|class| matches!(class, CommandClass::Upload(_) | CommandClass::Download(_))),
            on_host: count(|class| matches!(class, CommandClass::OnHost)),
            with_file: count(|class| matches!(class, CommandClass::Disk(_))),
            ms: seconds * 1e3,
        }
    }

    /// `12 kernels, 8 multiplications`
    fn commands(&self) -> String {
        let counts = [
            (self.kernels, ["kernel", "kernels"]),
            (self.multiplications, ["multiplication", "multiplications"]),
            (self.libraries, ["call of cuDNN", "calls of cuDNN"]),
            (self.collectives, ["collective", "collectives"]),
            (self.copies, ["copy with the host", "copies with the host"]),
            (self.on_host, ["instruction on the host", "instructions on the host"]),
            (self.with_file, ["copy with a file", "copies with a file"]),
        ];
        let present = counts.into_iter().filter(|(number, _)| *number > 0);
        let text = present
            .map(|(number, names)| format!("{} {}", grouped(number as u64), names[usize::from(number > 1)]));
        let text = text.collect::<Vec<_>>().join(", ");
        if text.is_empty() { "nothing".into() } else { text }
    }
}

impl KindFacts {
    fn all<'c>(commands: impl Iterator<Item = (u64, &'c SimulatedCommand)>) -> Vec<Self> {
        let mut kinds: BTreeMap<&str, Self> = BTreeMap::new();
        for (runs, one) in commands {
            let work = &one.command.work;
            let kind = kinds.entry(&one.command.kind).or_default();
            let ms = one.alone * 1e3 * runs as f64;
            kind.launches += runs;
            kind.bytes += work.bytes() * runs;
            kind.flops += work.flops * runs;
            kind.ms += ms;
            *kind.ms_by_bound.entry(one.bound.name()).or_default() += ms;
        }
        let mut kinds: Vec<Self> =
            kinds.into_iter().map(|(kind, facts)| Self { kind: kind.into(), ..facts }).collect();
        kinds.sort_by(|a, b| b.ms.total_cmp(&a.ms));
        kinds
    }

    /// The bound that most of the time is spent in.
    fn bound(&self) -> &'static str {
        let longest = self.ms_by_bound.iter().max_by(|a, b| a.1.total_cmp(b.1));
        longest.map_or("", |(bound, _)| bound)
    }
}

impl CommandFacts {
    fn of(section: &'static str, simulated: &SimulatedCommand, mesh: &Mesh) -> Self {
        let SimulatedCommand { command, bound, span, .. } = simulated;
        Self {
            section,
            stream: command.stream.name(),
            kind: command.kind.clone(),
            sizes: command.sizes.clone(),
            layers: command.layers,
            origin: command.origin.to_string(),
            read: command.work.read,
            written: command.work.written,
            sent: command.exchange().map_or(0, |exchange| exchange.sent(mesh)),
            flops: command.work.flops,
            bound: bound.name(),
            begin_us: span.begin * 1e6,
            us: (span.end - span.begin) * 1e6,
        }
    }
}
