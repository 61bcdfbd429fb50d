//! A step predicted on a machine that need not be here, and where its time goes: `inspect --target` and `--cluster`.

mod text;

use crate::failure::Failure;
use crate::{sizes, training};
use bytes::Bytes;
use ir::machine::{DeviceKind, Machine, Unit};
use ir::ops::collective::Collective;
use ir::units::grouped;
use ir::{AxisId, Blob, DType, Mesh, Module, Op, Operator, Phase};
use program::backend::Declined;
use program::commands::CommandClass;
use program::simulator::{ExchangeTime, SimulatedCommand, SimulatedPart, SimulatedStep};
use program::{Memory, MemoryByClass, Part, Program, Target, UpdateTime};
use serde::{Serialize, Serializer};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A step on a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictionFacts {
    /// The device.
    pub device: String,
    /// The kind of the device.
    #[serde(skip)]
    pub kind: DeviceKind,
    /// The microbatches of a step.
    pub microbatches: u64,
    /// The commands and the time of one run of each section.
    pub sections: Vec<SectionFacts>,
    /// Launches of a step.
    pub launches: u64,
    /// Milliseconds of a step.
    pub step_ms: f64,
    /// Milliseconds of a step in which every command waits for the command before it.
    pub in_turn_ms: f64,
    /// The work of the step, with its rate, energy and cost.
    #[serde(flatten)]
    pub throughput: Throughput,
    /// Bytes that each device allocates to train, by the plan for this machine.
    pub planned: u64,
    /// These bytes by class, where most of the memory is in use.
    pub memory: MemoryClassFacts,
    /// The time of the collectives. Collectives of one kind over the same axes are one entry.
    pub exchanges: Vec<ExchangeFacts>,
    /// The attention and the convolutions that cuDNN does not run.
    pub not_by_cudnn: Vec<Declined>,
    /// Commands by their kind, the longest first.
    pub kinds: Vec<KindFacts>,
    /// The commands of one run of each section, in order.
    pub commands: Vec<CommandFacts>,
}

/// The work of a step on a machine, with its rate, energy and cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Throughput {
    /// Tokens that a step trains on; samples of a model without tokens.
    pub samples: u64,
    /// Whether `samples` counts tokens.
    pub tokens: bool,
    /// Tokens or samples per second.
    pub samples_per_s: f64,
    /// Operations that the model needs: three times the products of its forward pass. Causal attention needs half of its products.
    /// For all devices.
    pub model_flops: u64,
    /// The model's operations as a share of the operations that the devices could do in the time of the step, for the element type of
    /// most multiplications.
    pub mfu: f64,
    /// Joules of a step, of all devices under load.
    pub joules: f64,
    /// Dollars of a step, of all devices.
    pub dollars: f64,
}

/// Bytes of a device's memory, by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryClassFacts {
    /// The classes of the arena.
    #[serde(flatten)]
    pub classes: MemoryByClass,
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

/// The commands of one run of a section.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SectionFacts {
    /// Its name.
    pub section: &'static str,
    /// Its runs in a step.
    pub runs: u64,
    /// The number of commands of each of the `CLASSES`.
    #[serde(flatten, serialize_with = "by_class")]
    pub counts: [usize; CLASSES.len()],
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
    /// The sizes `[batch, rows, terms, columns]` of a multiplication, or the sizes of the largest tensor of another command.
    pub sizes: Vec<usize>,
    /// The number of launches in it.
    pub layers: u32,
    /// The node of the file that it runs, or the first of several.
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
    /// The microseconds from the start of the section to the start of the command.
    pub begin_us: f64,
    /// Microseconds that it takes.
    pub us: f64,
}

impl PredictionFacts {
    /// Predicts a step of a program's microbatches on a machine.
    ///
    /// # Errors
    /// An operator without a kernel for the machine's device.
    pub fn of(
        module: &Module,
        microbatches: u64,
        update: UpdateTime,
        machine: &Machine,
    ) -> Result<Self, Failure> {
        let (programs, target) =
            training::lower_step_on(module.clone(), microbatches, update, machine.device())?;
        Self::of_program(module, programs.first(), target, microbatches, machine)
    }

    /// Predicts a step whose program was lowered for the machine's device.
    ///
    /// # Errors
    /// As of [`Self::of`].
    pub(super) fn of_program(
        module: &Module,
        program: &Arc<Program>,
        target: Target,
        microbatches: u64,
        machine: &Machine,
    ) -> Result<Self, Failure> {
        let step = SimulatedStep::of(&target.commands(program, microbatches)?, machine);
        let (seconds, device) = (step.seconds(), machine.device());
        // A microbatch that runs whole has no rest.
        let has_commands = |(part, _): &(Part, _)| {
            *part != Part::RestOfMicrobatch || !step.parts[*part as usize].commands.is_empty()
        };
        let parts = || Part::ALL.into_iter().filter(has_commands);
        let all = || parts().flat_map(|(part, name)| commands(&step, part, name));
        let in_turn: f64 = all().map(|(_, runs, one)| one.alone * runs as f64).sum();
        Ok(Self {
            device: device.name.clone(),
            kind: device.kind,
            microbatches: step.microbatches,
            launches: all().map(|(_, runs, _)| runs).sum(),
            sections: parts().map(|(part, name)| SectionFacts::of(&step, part, name)).collect(),
            step_ms: seconds * 1e3,
            in_turn_ms: in_turn * 1e3,
            throughput: Throughput::of(module, machine, step.microbatches, seconds, &step.parts),
            planned: program.memory.peak(),
            memory: MemoryClassFacts::of(program.memory),
            exchanges: ExchangeFacts::all(module, &step),
            not_by_cudnn: target.declined(program),
            kinds: KindFacts::all(all().map(|(_, runs, one)| (runs, one))),
            commands: all().map(|(section, _, one)| CommandFacts::of(section, one, &module.mesh)).collect(),
        })
    }
}

impl Throughput {
    /// The throughput of a step of so many microbatches that takes `seconds`. `parts` are its simulated commands.
    pub(super) fn of<'p>(
        module: &Module,
        machine: &Machine,
        microbatches: u64,
        seconds: f64,
        parts: impl IntoIterator<Item = &'p SimulatedPart>,
    ) -> Self {
        let device = machine.device();
        let (samples, tokens) = samples(module);
        let samples = samples.saturating_mul(microbatches);
        let model_flops = products(module).saturating_mul(3).saturating_mul(microbatches);
        let most = seconds * device.matrices.of(multiplied(parts)) * module.ranks() as f64;
        let rented = machine.rented(module.ranks()) as f64;
        Self {
            samples,
            tokens,
            samples_per_s: samples as f64 / seconds,
            model_flops,
            mfu: model_flops as f64 / most,
            joules: device.watts * rented * seconds,
            dollars: device.price_per_hour * rented * seconds / 3600.0,
        }
    }
}

/// The element type of most operations of the multiplications in some parts.
fn multiplied<'p>(parts: impl IntoIterator<Item = &'p SimulatedPart>) -> DType {
    let mut flops: BTreeMap<DType, u64> = BTreeMap::new();
    for one in parts.into_iter().flat_map(|part| &part.commands) {
        let work = &one.command.work;
        if let Unit::Matrices(dtype) | Unit::Attention(dtype) = work.unit {
            *flops.entry(dtype).or_default() += work.flops;
        }
    }
    flops.into_iter().max_by_key(|(_, flops)| *flops).map_or(DType::F32, |(dtype, _)| dtype)
}

/// The commands of a part, each with the name of the part and the number of its runs in a step.
fn commands<'s>(
    step: &'s SimulatedStep,
    part: Part,
    name: &'static str,
) -> impl Iterator<Item = (&'static str, u64, &'s SimulatedCommand)> {
    let runs = step.runs(part);
    step.parts[part as usize].commands.iter().map(move |one| (name, runs, one))
}

/// The tokens of a microbatch of all data ranks, and `true`. For a model without tokens, its samples, and `false`.
fn samples(module: &Module) -> (u64, bool) {
    let batched = module.inputs.iter().filter(|input| input.batched).map(|input| module.ty(input.value));
    let mut tokens = batched.filter(|ty| ty.dtype.is_integer() && ty.ndim() == 2);
    let tokens = tokens.next().and_then(ir::Type::numel);
    (tokens.or_else(|| sizes::batch(module)).unwrap_or(1), tokens.is_some())
}

/// A program that was read as text, with zeros as the constants of the model's file. A prediction does not depend on their values.
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

/// The floating-point operations of the operators of a forward pass that multiply matrices.
fn products(module: &Module) -> u64 {
    let forward = module.nodes().filter(|(_, node)| node.phase == Phase::Forward);
    let products = forward.filter(|(_, node)| {
        matches!(
            node.op,
            Op::Contract(_) | Op::Attention(_) | Op::Conv(_) | Op::Experts(_) | Op::Recurrent(_)
        )
    });
    products.map(|(_, node)| node.op.cost(&module.signature(node)).flops).fold(0, u64::saturating_add)
}

impl MemoryClassFacts {
    pub(super) fn of(Memory { by_class: classes, constants, .. }: Memory) -> Self {
        Self { classes, constants }
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

/// A class of commands: the key in JSON, the names for one command and for several, and whether a command belongs to the class.
type NamedClass = (&'static str, [&'static str; 2], fn(&CommandClass) -> bool);

/// The classes of commands.
const CLASSES: [NamedClass; 7] = [
    ("kernels", ["kernel", "kernels"], |class| matches!(class, CommandClass::Kernel)),
    ("multiplications", ["multiplication", "multiplications"], |class| {
        matches!(class, CommandClass::Multiplication)
    }),
    ("libraries", ["call of cuDNN", "calls of cuDNN"], |class| matches!(class, CommandClass::Library)),
    ("collectives", ["collective", "collectives"], |class| matches!(class, CommandClass::Collective(_))),
    ("copies", ["copy with the host", "copies with the host"], |class| {
        matches!(class, CommandClass::Upload(_) | CommandClass::Download(_))
    }),
    ("on_host", ["instruction on the host", "instructions on the host"], |class| {
        matches!(class, CommandClass::OnHost)
    }),
    ("with_file", ["copy with a file", "copies with a file"], |class| matches!(class, CommandClass::Disk(_))),
];

/// Writes the number of commands of each class under the key of the class.
fn by_class<S: Serializer>(counts: &[usize; CLASSES.len()], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(CLASSES.iter().map(|(key, ..)| key).zip(counts))
}

impl SectionFacts {
    fn of(step: &SimulatedStep, part: Part, name: &'static str) -> Self {
        let SimulatedPart { commands, seconds } = &step.parts[part as usize];
        let counts =
            CLASSES.map(|(_, _, is_of)| commands.iter().filter(|one| is_of(&one.command.class)).count());
        Self { section: name, runs: step.runs(part), counts, ms: seconds * 1e3 }
    }

    /// `12 kernels, 8 multiplications`
    fn commands(&self) -> String {
        let present = CLASSES.iter().zip(self.counts).filter(|(_, number)| *number > 0);
        let text = present.map(|((_, names, _), number)| {
            format!("{} {}", grouped(number as u64), names[usize::from(number > 1)])
        });
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

    /// The bound of the commands that take most of the time.
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
