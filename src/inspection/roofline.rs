//! How long a step takes on a device that need not be here, and where the time goes: `inspect --target`.

mod text;
mod timeline;

pub(super) use text::milliseconds;

use crate::failure::Failure;
use crate::lowering::Lowering;
use crate::training;
use bytes::Bytes;
use ir::machine::{Device, DeviceKind};
use ir::{Blob, Diagnostic, Module, Op, Operator, Phase};
use passes::Manager;
use runtime::cuda::cudnn::{Declined, declined};
use runtime::cuda::launches::Launches;
use runtime::cuda::lower::lower;
use runtime::cuda::program::Stream;
use runtime::cuda::roofline::{CommandCost, Roofline};
use runtime::program::{Section, UpdateTime};
use runtime::target::{Multiprocessors, Target};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A step on a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RooflineFacts {
    /// The device.
    pub device: String,
    /// Microbatches of a step.
    pub microbatches: u64,
    /// What one run of each section launches, and how long it takes.
    pub sections: Vec<SectionFacts>,
    /// Launches of a step.
    pub launches: u64,
    /// Milliseconds of a step.
    pub step_ms: f64,
    /// What a step takes, if every command waited for the one before it: milliseconds.
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
    /// These, as a share of what the devices could do in half precision in that time.
    pub mfu: f64,
    /// Bytes that are allocated to train, by the plan for this device.
    pub planned: u64,
    /// The attention and the convolutions that cuDNN is not asked for.
    pub not_by_cudnn: Vec<DeclinedFacts>,
    /// Commands by their kind, the longest first.
    pub kinds: Vec<KindFacts>,
    /// Every command of a step, in order; of the microbatches' those of one.
    pub commands: Vec<CommandFacts>,
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

/// One run of a section.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SectionFacts {
    /// The section.
    pub section: &'static str,
    /// Kernels.
    pub kernels: usize,
    /// Multiplications.
    pub multiplications: usize,
    /// What cuDNN does.
    pub libraries: usize,
    /// Exchanges with other devices.
    pub collectives: usize,
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
    /// What it waits for most: `memory`, `compute`, `link` or `launch`.
    pub bound: &'static str,
    /// Microseconds after the section's beginning when it begins.
    pub begin_us: f64,
    /// Microseconds that it takes.
    pub us: f64,
}

impl RooflineFacts {
    /// The roofline of a program's step. Errors: a device that is no GPU; an operator that a GPU has no kernel for.
    pub fn of(
        module: &Module,
        microbatches: u64,
        update: UpdateTime,
        device: &Device,
    ) -> Result<Self, Failure> {
        if device.kind != DeviceKind::Gpu {
            let error = Diagnostic::new(format!(
                "cannot predict a step on the {}: a step is predicted from the commands of a GPU",
                device.name
            ));
            return Err(error.note("give a GPU: --target h200").into());
        }
        let manager = Manager::default();
        let (mut lowering, size) = (Lowering::new(&manager, 0), Multiprocessors(device.multiprocessors));
        let program =
            training::lower_step(&mut lowering, module.clone(), microbatches, update, Target::Cuda, size)?;
        let planned = program.memory.peak();
        let not_by_cudnn = declined(&program).into_iter().map(DeclinedFacts::of).collect();
        let cuda = lower(Arc::new(program))?;
        let launched = |(section, _)| cuda.launches(section);
        let launches = Section::ALL.map(launched);
        let roofline = Roofline::of(&cuda, device.clone(), microbatches);
        Ok(Self { planned, not_by_cudnn, ..Self::new(module, &roofline, launches) })
    }

    fn new(module: &Module, roofline: &Roofline, launches: [Launches; 3]) -> Self {
        let seconds = roofline.seconds();
        let (samples, tokens) = samples(module);
        let samples = samples.saturating_mul(roofline.microbatches);
        let model_flops = products(module).saturating_mul(3).saturating_mul(roofline.microbatches);
        let most = seconds * roofline.device.matrices.f16 * module.mesh.devices() as f64;
        let all = || Section::ALL.into_iter().flat_map(|(section, name)| commands(roofline, section, name));
        let runs = |section| roofline.runs(section);
        let in_turn: f64 = all().map(|(_, runs, cost)| cost.seconds * runs as f64).sum();
        Self {
            device: roofline.device.name.clone(),
            microbatches: roofline.microbatches,
            launches: Section::ALL
                .map(|(section, _)| launches[section as usize].total() as u64 * runs(section))
                .iter()
                .sum(),
            sections: Section::ALL
                .map(|(section, name)| SectionFacts::of(roofline, launches[section as usize], section, name))
                .into(),
            step_ms: seconds * 1e3,
            in_turn_ms: in_turn * 1e3,
            samples,
            tokens,
            samples_per_s: samples as f64 / seconds,
            model_flops,
            mfu: model_flops as f64 / most,
            planned: 0,
            not_by_cudnn: vec![],
            kinds: KindFacts::all(all().map(|(_, runs, cost)| (runs, cost))),
            commands: all().map(|(section, _, cost)| CommandFacts::of(section, cost)).collect(),
        }
    }
}

/// The commands of a section, each with the section's name and how often it runs in a step.
fn commands<'r>(
    roofline: &'r Roofline,
    section: Section,
    name: &'static str,
) -> impl Iterator<Item = (&'static str, u64, &'r CommandCost)> {
    let runs = roofline.runs(section);
    roofline.sections[section as usize].commands.iter().map(move |cost| (name, runs, cost))
}

/// The tokens of a microbatch, of all data ranks, and that they are such; samples, if the model takes none.
fn samples(module: &Module) -> (u64, bool) {
    let batched = || module.inputs.iter().filter(|input| input.batched).map(|input| module.ty(input.value));
    let tokens = batched().find(|ty| ty.dtype.is_integer() && ty.ndim() == 2).and_then(ir::Type::numel);
    let batch = || batched().find_map(|ty| ty.dims.first()?.size());
    (tokens.or_else(batch).unwrap_or(1), tokens.is_some())
}

/// A program that was read as text, with zeros for constants that stand in the model's file: what they are does not matter
/// here.
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
fn products(module: &Module) -> u64 {
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

impl SectionFacts {
    fn of(roofline: &Roofline, launches: Launches, section: Section, name: &'static str) -> Self {
        Self {
            section: name,
            kernels: launches.kernels,
            multiplications: launches.multiplications,
            libraries: launches.libraries,
            collectives: launches.collectives,
            ms: roofline.sections[section as usize].seconds * 1e3,
        }
    }

    fn launches(&self) -> Launches {
        let Self { kernels, multiplications, libraries, collectives, .. } = *self;
        Launches { kernels, multiplications, libraries, collectives }
    }
}

impl KindFacts {
    fn all<'c>(commands: impl Iterator<Item = (u64, &'c CommandCost)>) -> Vec<Self> {
        let mut kinds: BTreeMap<&str, Self> = BTreeMap::new();
        for (runs, cost) in commands {
            let kind = kinds.entry(&cost.kind).or_default();
            let ms = cost.seconds * 1e3 * runs as f64;
            kind.launches += runs;
            kind.bytes += cost.work.bytes() * runs;
            kind.flops += cost.work.flops * runs;
            kind.ms += ms;
            *kind.ms_by_bound.entry(cost.bound.name()).or_default() += ms;
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

/// The name of a stream.
fn track(stream: Stream) -> &'static str {
    match stream {
        Stream::Main => "main",
        Stream::Side => "side",
    }
}

impl CommandFacts {
    fn of(section: &'static str, cost: &CommandCost) -> Self {
        Self {
            section,
            stream: track(cost.stream),
            kind: cost.kind.clone(),
            sizes: cost.sizes.clone(),
            layers: cost.layers,
            origin: cost.origin.to_string(),
            read: cost.work.read,
            written: cost.work.written,
            sent: cost.work.sent,
            flops: cost.work.flops,
            bound: cost.bound.name(),
            begin_us: cost.begin * 1e6,
            us: cost.seconds * 1e6,
        }
    }
}
