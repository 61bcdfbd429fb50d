//! The lowered program: a flat list of instructions over one arena, with fixed offsets. All ranks of a mesh share one program, and each
//! runs it on its own parts of the tensors.

mod memory;
mod pipeline;
mod stages;
mod text;
mod values;
mod view;

use crate::kernel_contract::Multiprocessors;
use bytes::Bytes;
use ir::ops::collective::Collective;
use ir::ops::contract::Contract;
use ir::timetable;
use ir::{AxisId, DType, Mesh, NodeId, Op, PartialKind, Phase, Role, Signature, Type};
pub use memory::{Memory, MemoryByClass, TierMemory};
pub use pipeline::{Block, BlockId, Message, RankPipeline, Turn};
use smallvec::SmallVec;
pub use stages::StagePrograms;
use std::sync::Arc;
pub use values::{InstructionValues, Values};
pub use view::{RankStep, RankSteps, Region, View};

/// The program of a device, made by [`crate::lower::lower`].
#[derive(Clone, Debug)]
pub struct Program {
    /// The module's name.
    pub name: String,
    /// The devices. Places, sizes and memory are those of one device; types are those of whole tensors.
    pub mesh: Mesh,
    /// The instructions of each section, by [`Section`].
    pub sections: [Vec<Instruction>; 3],
    /// The number of instructions at the start of `prepare` that the next step need not run after an update: they cast weights, and the
    /// optimizer writes the same casts beside the new weights. They run only if the casts are not in memory: in the first step, and after a
    /// state was written or another program ran.
    pub renewed: usize,
    /// The inputs of a microbatch, in the module's order.
    pub inputs: Vec<InputSlot>,
    /// The outputs, in the module's order.
    pub outputs: Vec<OutputSlot>,
    /// The states, which outlive a step, in the module's order. They lie at the start of the arena.
    pub states: Vec<StateSlot>,
    /// Bytes that never change. They have a region of their own.
    pub constants: Vec<ConstantSlot>,
    /// The number of microbatches that a step may have.
    pub microbatches: Microbatches,
    /// The turns of a pipeline rank in the microbatches of a step.
    pub pipeline: Option<RankPipeline>,
    /// The time at which updates run.
    pub update: UpdateTime,
    /// The name of the target whose kernels it is for.
    pub target: &'static str,
    /// The size of the GPU; the scratch of kernels is sized for it.
    pub multiprocessors: Multiprocessors,
    /// The values in the program's places.
    pub values: Values,
    /// The program's memory.
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

/// A unit that a device runs at once: a section, or the rest of a microbatch.
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

    /// Returns the section that contains the part's instructions.
    pub fn section(self) -> Section {
        match self {
            Self::Prepare => Section::Prepare,
            Self::Microbatch => Section::Microbatch,
            Self::RestOfMicrobatch | Self::Update => Section::Update,
        }
    }

    /// Returns the number of times that a step of this number of microbatches runs the part.
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

/// The number of microbatches that a step may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Microbatches {
    /// Exactly one: nothing is summed, and a gradient stays in the buffer in which it was made.
    One,
    /// One or more: sums over microbatches have buffers of their own.
    #[default]
    Many,
}

/// The time at which an update runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UpdateTime {
    /// After backward: all gradients are complete, and their norm is known before a weight changes.
    #[default]
    Late,
    /// As soon as its gradient is complete, in a step of one microbatch.
    Early,
}

/// One kernel on fixed places.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// The computation.
    pub kernel: Kernel,
    /// The tensors that it reads.
    pub operands: Vec<View>,
    /// The tensors that it writes.
    pub results: Vec<View>,
    /// Temporary memory of the kernel, planned like every other buffer. Its contents are dead when the kernel is done.
    pub scratch: Option<View>,
    /// Pairs (operand, result) that share one place. For a gather, the operand is this device's part of the result.
    pub in_place: SmallVec<[(u32, u32); 2]>,
    /// Whether results are added to the old contents from the second microbatch on.
    pub accumulates: bool,
    /// Whether the instruction is in the section `update` but runs in every microbatch: see [`Program::rest_of_microbatch`].
    pub of_microbatch: bool,
    /// The types of the whole tensors with their shardings, for an operator whose numbers depend on the places of a device's parts. `None`
    /// if no tensor is split.
    pub parts: Option<Box<Signature>>,
    /// The node of the instruction, or the last of several.
    pub node: NodeId,
    /// The ONNX node of that node.
    pub origin: Arc<str>,
}

impl Instruction {
    /// Returns whether the instruction computes on the host: all its tensors but constants lie there.
    pub fn is_on_host(&self) -> bool {
        let mut touched = self.operands.iter().chain(&self.results).chain(&self.scratch);
        let on_host = |view: &View| view.region.is_on_host();
        touched.clone().any(on_host) && touched.all(|view| on_host(view) || view.region == Region::Constants)
    }
}

/// The computation of an instruction.
#[derive(Clone, Debug)]
pub enum Kernel {
    /// An operator of the IR.
    Op(Op),
    /// A chain of elementwise operators, run block by block.
    Elementwise(Chain),
    /// A contraction with its epilogue, on a backend whose multiplications have epilogues.
    Contract(Box<FusedContract>),
    /// A copy of the operand in the result's layout.
    Copy,
    /// The sum of the operand and the old result. In a step's first microbatch, the operand alone.
    Accumulate,
    /// This device's part of the operand, which every device has whole.
    Part(LocalPart),
    /// A collective: operands and results are dense, each in its own place.
    Collective(Exchange),
    /// A message between pipeline ranks: the sender has the operand, and the receiver the result, both dense.
    Message(Message),
}

/// `out = activation(lhs · rhs + bias + addend)`, row by row. Operands: both sides, and then, if present, the bias, the addend, and the
/// saved argument of the activation whose gradient is applied. Results: `out`, and then, if present, the argument of the activation, and
/// the sum over the rows of a side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusedContract {
    /// The contraction. A label that it sums over is no dim of its result, and the last dim of the result counts columns.
    pub contract: Contract,
    /// Whether there is a bias with one number for each column.
    pub bias: bool,
    /// Whether there is an addend with the result's dims.
    pub addend: bool,
    /// The activation, applied last.
    pub activation: Activation,
    /// Whether the argument of the activation is a result as well.
    pub keeps: bool,
    /// The side (0 or 1) whose rows are summed into another result.
    pub sums: Option<u32>,
}

/// The last step of a contraction's epilogue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// GELU, computed with tanh.
    GeluTanh,
    /// The product with the derivative of tanh GELU at an operand.
    GeluTanhGrad,
}

/// The part of a tensor that a device keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPart {
    /// The dims that are cut. Each has the axes that split it, major first.
    pub dims: SmallVec<[(usize, SmallVec<[AxisId; 2]>); 2]>,
}

/// A collective that devices carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The collective, which is one that communicates.
    pub collective: Collective,
    /// The axes of its groups ([`Mesh::group`]), major first. Each has more than one device.
    pub axes: SmallVec<[AxisId; 2]>,
    /// The combination of parts, if the collective combines them.
    pub reduced: Option<PartialKind>,
    /// The changes of dims, for each operand.
    pub dims: Vec<Moved>,
}

/// The effect of a collective on the dims of one operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// The dim along which parts are concatenated.
    pub gathered: Option<usize>,
    /// The dim that is cut into parts.
    pub split: Option<usize>,
}

/// Elementwise operators run as one: all steps of the chain compute a block of elements while it is in cache.
#[derive(Clone, Debug)]
pub struct Chain {
    /// The steps, in order. A step reads operands of the instruction and results of earlier steps.
    pub steps: Vec<ChainStep>,
    /// The step that makes each result of the instruction. All results have the same layout.
    pub stores: SmallVec<[u32; 2]>,
}

/// One operator of a chain.
#[derive(Clone, Debug)]
pub struct ChainStep {
    /// An elementwise operator.
    pub op: Op,
    /// The tensors that it reads.
    pub sources: SmallVec<[ChainSource; 3]>,
    /// The element type of the result.
    pub dtype: DType,
    /// The node of the step.
    pub node: NodeId,
    /// The ONNX node of that node.
    pub origin: Arc<str>,
}

/// A value that a step of a chain reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainSource {
    /// This operand of the instruction, broadcast to the chain's sizes.
    Operand(u32),
    /// The result of this step.
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
    /// The stage that reads the input, in a pipeline.
    pub stage: u32,
    /// The place of the input. `None` if nothing reads it.
    pub view: Option<View>,
}

/// A program output.
#[derive(Clone, Debug)]
pub struct OutputSlot {
    /// Its name.
    pub name: String,
    /// Its type, of the whole tensor.
    pub ty: Type,
    /// The section after which the output can be read, until the next section begins.
    pub section: Section,
    /// In a pipeline, the part of a microbatch after which the output can be read, until the next part begins.
    pub part: Option<timetable::ChunkPhase>,
    /// The place of the output.
    pub view: View,
}

/// A state.
#[derive(Clone, Debug)]
pub struct StateSlot {
    /// Its name.
    pub name: String,
    /// Its type, of the whole tensor.
    pub ty: Type,
    /// The state's purpose.
    pub role: Role,
    /// The place of the state, dense.
    pub view: View,
}

/// Bytes in the region of constants.
#[derive(Clone, Debug)]
pub struct ConstantSlot {
    /// The offset of the place, in bytes.
    pub base: u64,
    /// The bytes.
    pub bytes: Bytes,
}

impl Program {
    /// Returns the instructions of a section.
    pub fn section(&self, section: Section) -> &[Instruction] {
        &self.sections[section as usize]
    }

    /// Returns the instructions of the section `update` that belong to a microbatch, with their places in that section. They stand there
    /// because exchanges or updates run among them. In the last microbatch of a step, `update` runs them; in every other microbatch, they
    /// run after the section `microbatch`.
    pub fn rest_of_microbatch(&self) -> impl Iterator<Item = (usize, &Instruction)> {
        self.section(Section::Update).iter().enumerate().filter(|(_, instruction)| instruction.of_microbatch)
    }

    /// Returns the instructions of a part, with their places in its section.
    pub fn part(&self, part: Part) -> Vec<(usize, &Instruction)> {
        match part {
            Part::RestOfMicrobatch => self.rest_of_microbatch().collect(),
            _ => self.section(part.section()).iter().enumerate().collect(),
        }
    }

    /// Returns all instructions of a microbatch, with their sections and their places there.
    pub fn microbatch(&self) -> impl Iterator<Item = (Section, usize, &Instruction)> {
        let first = self.section(Section::Microbatch).iter().enumerate();
        let first = first.map(|(index, instruction)| (Section::Microbatch, index, instruction));
        first.chain(
            self.rest_of_microbatch().map(|(index, instruction)| (Section::Update, index, instruction)),
        )
    }

    /// Returns the program with the addresses of one rank: views whose place depends on the rank get their place on this rank.
    pub fn on_rank(self: &Arc<Self>, rank: u64) -> Arc<Self> {
        let used = self.sections.iter().flatten().flat_map(|own| own.operands.iter().chain(&own.results));
        let mut views = used.chain(self.outputs.iter().map(|output| &output.view));
        // Threads of one process share a program whose places are the same on all ranks.
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

    /// Returns the index of the input of that name.
    pub fn input(&self, name: &str) -> Option<usize> {
        self.inputs.iter().position(|input| input.name == name)
    }

    /// Returns the index of the output of that name.
    pub fn output(&self, name: &str) -> Option<usize> {
        self.outputs.iter().position(|output| output.name == name)
    }

    /// Returns the FNV-1a hash, 64 bits, of everything that decides what the program computes.
    pub fn content_hash(&self) -> u64 {
        let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let text = self.to_string();
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, fold);
        self.constants.iter().flat_map(|constant| constant.bytes.iter().copied()).fold(hash, fold)
    }
}

impl Chain {
    /// Returns an elementwise instruction of one operator as a chain of one step.
    pub fn of_one(op: &Op, instruction: &Instruction) -> Self {
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
    /// Returns the name of the operator, or the names of a chain's operators.
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

    /// Returns the message that the instruction sends or receives, if it does.
    pub fn message(&self) -> Option<Message> {
        match self.kernel {
            Kernel::Message(message) => Some(message),
            _ => None,
        }
    }
}
