//! The lowered program: a flat list of instructions over one arena, every offset fixed. One program serves all ranks of
//! a mesh: each runs it on its own parts of the tensors.

mod memory;
mod pipeline;
mod stages;
mod text;
mod values;
mod view;

use crate::target::{Multiprocessors, Target};
use bytes::Bytes;
use ir::ops::collective::Collective;
use ir::ops::contract::Contract;
use ir::timetable;
use ir::{AxisId, DType, Mesh, NodeId, Op, PartialKind, Phase, Role, Signature, Type};
pub use memory::{Memory, TierMemory};
pub use pipeline::{Block, BlockId, Message, RankPipeline, Turn};
use smallvec::SmallVec;
pub use stages::StagePrograms;
use std::sync::Arc;
pub use values::{InstructionValues, Values};
pub use view::{RankStep, RankSteps, Region, View};

/// What a device runs. Made by [`crate::lower::lower`].
#[derive(Clone, Debug)]
pub struct Program {
    /// The module's name.
    pub name: String,
    /// The devices. Places, sizes and memory are those of one of them; types are of whole tensors.
    pub mesh: Mesh,
    /// The instructions of each section, by [`Section`].
    pub sections: [Vec<Instruction>; 3],
    /// How many instructions at the start of `prepare` the update makes unnecessary for the next step: they cast weights, and
    /// the optimizer writes the same casts beside the new weights. They run in a step whose casts are not in memory: the first
    /// one, and one after a state was written or another program ran.
    pub renewed: usize,
    /// What a microbatch is fed, in the module's order.
    pub inputs: Vec<InputSlot>,
    /// What is reported, in the module's order.
    pub outputs: Vec<OutputSlot>,
    /// What outlives a step, in the module's order. States lie at the start of the arena.
    pub states: Vec<StateSlot>,
    /// Bytes that never change, in a region of their own.
    pub constants: Vec<ConstantSlot>,
    /// How many microbatches a step may have.
    pub microbatches: Microbatches,
    /// Of a pipeline rank, its turns in the microbatches of a step.
    pub pipeline: Option<RankPipeline>,
    /// When its updates run.
    pub update: UpdateTime,
    /// Whose kernels it is for.
    pub target: Target,
    /// The size of the GPU that it is for, by which its scratch is sized.
    pub multiprocessors: Multiprocessors,
    /// The values that lie in its places.
    pub values: Values,
    /// How much memory it takes.
    pub memory: Memory,
    /// FNV-1a of the program's text and constants: equal for equal programs, on every machine.
    pub hash: u64,
}

/// The parts of a step, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Section {
    /// Once a step, before the first microbatch.
    Prepare,
    /// Forward and backward, once per microbatch.
    Microbatch,
    /// Once a step, after the last microbatch.
    Update,
}

impl Section {
    /// Every section, in order, with its name.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::Prepare, "prepare"), (Self::Microbatch, "microbatch"), (Self::Update, "update")];
}

impl From<Phase> for Section {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Prepare => Self::Prepare,
            Phase::Forward | Phase::Backward | Phase::Weight => Self::Microbatch,
            Phase::Update => Self::Update,
        }
    }
}

/// What a device runs at once: a section, or the rest of a microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The section `prepare`.
    Prepare,
    /// The section `microbatch`.
    Microbatch,
    /// The rest of a microbatch that is not the last of its step: [`Program::rest_of_microbatch`].
    RestOfMicrobatch,
    /// The section `update`.
    Update,
}

impl Part {
    /// Every part, in the order in which a step of several microbatches runs them, with its name.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Prepare, "prepare"),
        (Self::Microbatch, "microbatch"),
        (Self::RestOfMicrobatch, "rest of a microbatch"),
        (Self::Update, "update"),
    ];

    /// The section that has its instructions.
    pub fn section(self) -> Section {
        match self {
            Self::Prepare => Section::Prepare,
            Self::Microbatch => Section::Microbatch,
            Self::RestOfMicrobatch | Self::Update => Section::Update,
        }
    }

    /// How often a step of so many microbatches runs it.
    pub fn runs(self, microbatches: u64) -> u64 {
        match self {
            Self::Prepare | Self::Update => 1,
            Self::Microbatch => microbatches,
            Self::RestOfMicrobatch => microbatches.saturating_sub(1),
        }
    }
}

impl From<Section> for Part {
    fn from(section: Section) -> Self {
        match section {
            Section::Prepare => Self::Prepare,
            Section::Microbatch => Self::Microbatch,
            Section::Update => Self::Update,
        }
    }
}

/// How many microbatches a step may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Microbatches {
    /// Exactly one: nothing is summed, a gradient lies nowhere but where it was made.
    One,
    /// Any number from one: sums over microbatches have buffers of their own.
    #[default]
    Many,
}

/// When an update runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UpdateTime {
    /// After backward: all gradients are there, and their norm is known before a weight changes.
    #[default]
    Late,
    /// As soon as its gradient is complete, in a step of one microbatch.
    Early,
}

/// One kernel on fixed places.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// What is computed.
    pub kernel: Kernel,
    /// What it reads.
    pub operands: Vec<View>,
    /// What it writes.
    pub results: Vec<View>,
    /// Room that the kernel needs besides, of which nothing is left when it is done. Planned like every other buffer.
    pub scratch: Option<View>,
    /// Pairs (operand, result) that are the same place. Of a gather: the operand is this device's part of the result.
    pub in_place: SmallVec<[(u32, u32); 2]>,
    /// Whether results are added to what is there, from the second microbatch on.
    pub accumulates: bool,
    /// Whether it is of the section `update` and runs in every microbatch: see [`Program::rest_of_microbatch`].
    pub of_microbatch: bool,
    /// For an operator whose numbers depend on where a device's parts lie: the types of the whole tensors, with their
    /// shardings, if any is split.
    pub parts: Option<Box<Signature>>,
    /// The node it came from, or the last of them.
    pub node: NodeId,
    /// Where that came from: the ONNX node.
    pub origin: Arc<str>,
}

impl Instruction {
    /// Whether it computes on the host: its tensors lie there, but for constants.
    pub fn is_on_host(&self) -> bool {
        let mut touched = self.operands.iter().chain(&self.results).chain(&self.scratch);
        let on_host = |view: &View| view.region.is_on_host();
        touched.clone().any(on_host) && touched.all(|view| on_host(view) || view.region == Region::Constants)
    }
}

/// What an instruction computes.
#[derive(Clone, Debug)]
pub enum Kernel {
    /// An operator of the IR.
    Op(Op),
    /// A chain of elementwise operators, run block by block.
    Elementwise(Chain),
    /// A contraction with its epilogue, on a backend whose multiplications have epilogues.
    Contract(Box<FusedContract>),
    /// The operand's elements in the result's layout.
    Copy,
    /// The operand, added to what the result held before; in a step's first microbatch instead of it.
    Accumulate,
    /// Of the operand, which every device has, this device's part.
    Part(LocalPart),
    /// A collective: operands and results are dense, each in its own place.
    Collective(Exchange),
    /// A message between pipeline ranks: the sender has the operand, and the receiver the result, both dense.
    Message(Message),
}

/// `out = activation(lhs · rhs + bias + addend)`, row by row. Operands: both sides, then, those that there are, bias, addend,
/// and what the gradient of an activation was applied to. Results: `out`, then, those that there are, what the activation
/// was applied to, and the sum over the rows of a side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusedContract {
    /// The contraction. What it sums over is no dim of its result, whose last dim counts columns.
    pub contract: Contract,
    /// Whether there is a bias: one number a column.
    pub bias: bool,
    /// Whether there is an addend, of the result's dims.
    pub addend: bool,
    /// What is done after that.
    pub activation: Activation,
    /// Whether what the activation is applied to is a result as well.
    pub keeps: bool,
    /// The side (0 or 1) whose rows are summed to another result.
    pub sums: Option<u32>,
}

/// What a contraction does to its result at last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// GELU by tanh.
    GeluTanh,
    /// It is multiplied by the derivative of GELU by tanh at an operand.
    GeluTanhGrad,
}

/// The part of a tensor that a device keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPart {
    /// The dims that are cut, each with the axes that split it, major first.
    pub dims: SmallVec<[(usize, SmallVec<[AxisId; 2]>); 2]>,
}

/// What devices exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The collective; one that communicates.
    pub collective: Collective,
    /// The axes of its groups ([`Mesh::group`]), first one major. Each has more than one device.
    pub axes: SmallVec<[AxisId; 2]>,
    /// How parts combine, where they do.
    pub reduced: Option<PartialKind>,
    /// For each operand what changes.
    pub dims: Vec<Moved>,
}

/// What a collective does to the dims of one operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// The dim along which parts are put together.
    pub gathered: Option<usize>,
    /// The dim that is cut into parts.
    pub split: Option<usize>,
}

/// Elementwise operators run as one: each element is computed through all steps while it is in cache.
#[derive(Clone, Debug)]
pub struct Chain {
    /// In order; a step reads operands of the instruction and earlier steps.
    pub steps: Vec<ChainStep>,
    /// For each result of the instruction the step that makes it. All have the same layout.
    pub stores: SmallVec<[u32; 2]>,
}

/// One operator of a chain.
#[derive(Clone, Debug)]
pub struct ChainStep {
    /// An elementwise operator.
    pub op: Op,
    /// What it reads.
    pub sources: SmallVec<[ChainSource; 3]>,
    /// Element type of what it makes.
    pub dtype: DType,
    /// The node it came from.
    pub node: NodeId,
    /// Where that came from.
    pub origin: Arc<str>,
}

/// What a step of a chain reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainSource {
    /// This operand of the instruction, broadcast to the chain's sizes.
    Operand(u32),
    /// What this step made.
    Step(u32),
}

/// A program input.
#[derive(Clone, Debug)]
pub struct InputSlot {
    /// Its name.
    pub name: String,
    /// Its type, of the whole tensor.
    pub ty: Type,
    /// Whether dim 0 counts the samples of a microbatch.
    pub batched: bool,
    /// The stage that is fed, of a pipeline rank.
    pub stage: u32,
    /// Where it goes; `None` if nothing reads it.
    pub view: Option<View>,
}

/// A program output.
#[derive(Clone, Debug)]
pub struct OutputSlot {
    /// Its name.
    pub name: String,
    /// Its type, of the whole tensor.
    pub ty: Type,
    /// After which section it is there, until the next begins.
    pub section: Section,
    /// Of a pipeline, the part of a microbatch after which it is there, until the next begins.
    pub part: Option<timetable::Part>,
    /// Where it is.
    pub view: View,
}

/// A state.
#[derive(Clone, Debug)]
pub struct StateSlot {
    /// Its name.
    pub name: String,
    /// Its type, of the whole tensor.
    pub ty: Type,
    /// What it is for.
    pub role: Role,
    /// Where it is, dense.
    pub view: View,
}

/// Bytes in the region of constants.
#[derive(Clone, Debug)]
pub struct ConstantSlot {
    /// Where they go, in bytes.
    pub base: u64,
    /// The bytes.
    pub bytes: Bytes,
}

impl Program {
    /// The instructions of a section.
    pub fn section(&self, section: Section) -> &[Instruction] {
        &self.sections[section as usize]
    }

    /// The part of a microbatch that runs in the section `update` in a step's last microbatch, since exchanges or updates run among
    /// it: the instructions, with their places in that section. In every other microbatch they run behind its section.
    pub fn rest_of_microbatch(&self) -> impl Iterator<Item = (usize, &Instruction)> {
        self.section(Section::Update).iter().enumerate().filter(|(_, instruction)| instruction.of_microbatch)
    }

    /// The instructions of a part, with their places in its section.
    pub fn part(&self, part: Part) -> Vec<(usize, &Instruction)> {
        match part {
            Part::RestOfMicrobatch => self.rest_of_microbatch().collect(),
            _ => self.section(part.section()).iter().enumerate().collect(),
        }
    }

    /// All instructions of a microbatch, with their sections and their places there.
    pub fn microbatch(&self) -> impl Iterator<Item = (Section, usize, &Instruction)> {
        let first = self.section(Section::Microbatch).iter().enumerate();
        let first = first.map(|(index, instruction)| (Section::Microbatch, index, instruction));
        first.chain(
            self.rest_of_microbatch().map(|(index, instruction)| (Section::Update, index, instruction)),
        )
    }

    /// The program with the places of one device: a view that lies elsewhere on each device lies where it does on that rank.
    pub(crate) fn on_rank(self: &Arc<Self>, rank: u64) -> Arc<Self> {
        let used = self.sections.iter().flatten().flat_map(|own| own.operands.iter().chain(&own.results));
        let mut views = used.chain(self.outputs.iter().map(|output| &output.view));
        // Threads of one process share a program that is the same for all.
        if views.all(|view| view.by_rank.is_empty()) {
            return self.clone();
        }
        let mut program = Self::clone(self);
        let instructions = program.sections.iter_mut().flatten();
        let used = instructions.flat_map(|own| own.operands.iter_mut().chain(&mut own.results));
        let views = used.chain(program.outputs.iter_mut().map(|output| &mut output.view));
        views.for_each(|view| view.put_on_rank(&program.mesh, rank));
        Arc::new(program)
    }

    /// The index of the input of that name.
    pub fn input(&self, name: &str) -> Option<usize> {
        self.inputs.iter().position(|input| input.name == name)
    }

    /// The index of the output of that name.
    pub fn output(&self, name: &str) -> Option<usize> {
        self.outputs.iter().position(|output| output.name == name)
    }

    /// FNV-1a, 64 bits, of everything that decides what the program computes.
    pub(crate) fn content_hash(&self) -> u64 {
        let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let text = self.to_string();
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, fold);
        self.constants.iter().flat_map(|constant| constant.bytes.iter().copied()).fold(hash, fold)
    }
}

impl Chain {
    /// An elementwise instruction of one operator, as a chain of one step.
    pub(crate) fn of_one(op: &Op, instruction: &Instruction) -> Self {
        let step = ChainStep {
            op: op.clone(),
            sources: (0..instruction.operands.len() as u32).map(ChainSource::Operand).collect(),
            dtype: instruction.results[0].dtype,
            node: instruction.node,
            origin: instruction.origin.clone(),
        };
        Self { steps: vec![step], stores: SmallVec::from_slice(&[0]) }
    }
}

impl Instruction {
    /// The kernel's name: the operator's, or the operators' of a chain.
    pub fn name(&self) -> String {
        match &self.kernel {
            Kernel::Op(op) => op.name().into(),
            Kernel::Elementwise(chain) => {
                chain.steps.iter().map(|step| step.op.name()).collect::<Vec<_>>().join("+")
            }
            Kernel::Contract(_) => "contract".into(),
            Kernel::Copy => "copy".into(),
            Kernel::Accumulate => "accumulate".into(),
            Kernel::Part(_) => Op::from(Collective::AllSlice).name().into(),
            Kernel::Collective(exchange) => Op::from(exchange.collective).name().into(),
            Kernel::Message(_) => if self.results.is_empty() { "send" } else { "receive" }.into(),
        }
    }

    /// The message that it sends or receives, if it does.
    pub fn message(&self) -> Option<Message> {
        match self.kernel {
            Kernel::Message(message) => Some(message),
            _ => None,
        }
    }
}
