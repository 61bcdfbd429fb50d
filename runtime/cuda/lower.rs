//! Lowers a program to commands of a GPU: each instruction becomes one command or a few, then each command gets its stream and its
//! waits.

mod attention;
mod batch_norm;
mod beside;
mod chain;
mod collective;
mod compression;
mod contract;
mod copy;
mod det;
mod dropout;
mod experts;
mod halt;
mod indexing;
pub(super) mod kernel_contracts;
mod loss;
mod merge;
mod norm;
mod optimizer;
mod order;
mod packing;
mod pool;
mod ranking;
mod recurrent;
mod reduce;
mod rotary;
mod rows;
mod scatter;
mod shape;
mod softmax;
pub(crate) mod source;

pub(super) use collective::scratch as exchange_scratch;
pub(super) use contract::batches;
pub use order::races;
pub use source::stored;

use super::program::{
    Collective, Command, CudaProgram, MemoryCopy, Multiply, PlacedMessage, Task, TouchedBytes, ValueStart,
    Waves,
};
use ir::{Diagnostic, Op};
use program::Multiprocessors;
use program::kernel_contract::Unplaced;
use program::{Instruction, Kernel, Program, Section, View};
use smallvec::{SmallVec, smallvec};
use source::{KernelDraft, Kernels};
use std::ops::Range;
use std::sync::Arc;

/// Lowers a program for a GPU, once for all ranks of its mesh. Numbers that differ between ranks are arguments.
///
/// # Errors
/// An instruction without a kernel.
pub fn lower(program: Arc<Program>) -> Result<CudaProgram, Diagnostic> {
    lower_with(program, &mut AbsentLibraries)
}

/// Answers which work the libraries of a device take, and whether the device has a side stream.
pub trait Libraries {
    /// Returns whether cuDNN is to run an instruction for which there are kernels.
    fn runs(&mut self, _instruction: &Instruction) -> bool {
        false
    }

    /// Returns whether cuBLASLt takes a multiplication with its epilogue. If not, kernels do the work of the epilogue.
    fn takes(&mut self, _multiply: &Multiply) -> bool {
        true
    }

    /// Returns whether the gradients of weights have a stream of their own.
    fn has_side_stream(&self) -> bool {
        true
    }
}

/// Stands for the libraries of a device that is not here: cuDNN runs nothing for which there are kernels, and cuBLASLt takes
/// every epilogue.
struct AbsentLibraries;

impl Libraries for AbsentLibraries {}

/// Lowers a program as [`lower`] does, for a device whose libraries answer.
///
/// # Errors
/// An instruction without a kernel.
pub fn lower_with(program: Arc<Program>, libraries: &mut dyn Libraries) -> Result<CudaProgram, Diagnostic> {
    let mut kernels = Kernels::of(program.memory.peak());
    let (mut sections, mut tables) = ([vec![], vec![], vec![]], vec![]);
    let mut halts = true;
    for (section, _) in Section::ALL {
        let mut drafts = Vec::new();
        for (index, instruction) in program.section(section).iter().enumerate() {
            let is_message = instruction.message().is_some();
            if !is_message && instruction.results.iter().all(|result| result.layout.is_empty()) {
                continue;
            }
            let steps = match beside::step(instruction) {
                Ok(Some(step)) => Ok(vec![step]),
                Ok(None) if libraries.runs(instruction) => Ok(vec![Step::Library]),
                Ok(None) => steps(instruction, program.multiprocessors, libraries),
                Err(error) => Err(error),
            };
            let mut steps = steps.map_err(|error| error.at(instruction.origin.to_string()))?;
            if section == Section::Update && !instruction.of_microbatch {
                halts &= steps.iter_mut().all(|step| halt::guard(&program, instruction, step));
            }
            let steps = steps.into_iter().enumerate();
            drafts.extend(steps.map(|(number, step)| Draft::of(step, instruction, index, number > 0)));
            drafts.extend(halt::watches(&program, section, index));
        }
        let drafts = merge::merged(&program, section, drafts, &mut tables);
        let command = |draft: Draft| {
            let origin = &program.section(section)[draft.instructions().start].origin;
            draft.command(&mut kernels).map_err(|error| error.at(origin.to_string()))
        };
        sections[section as usize] = drafts.into_iter().map(command).collect::<Result<_, _>>()?;
    }
    let update: &[Command] = &sections[Section::Update as usize];
    let in_all =
        |command: &&Command| program.section(Section::Update)[command.instructions.start].of_microbatch;
    let rest_of_microbatch = update.iter().filter(in_all).cloned().collect();
    let kernels = kernels.finish();
    let mut cuda = CudaProgram { program, kernels, sections, rest_of_microbatch, events: 0, tables, halts };
    order::order(&mut cuda, libraries.has_side_stream());
    Ok(cuda)
}

/// A step of an instruction.
enum Step {
    /// A kernel.
    Kernel(KernelDraft),
    /// A multiplication.
    Multiply(Multiply),
    /// The whole instruction, by a library.
    Library,
    /// A collective with other ranks.
    Collective(Collective),
    /// A message to or from another pipeline rank.
    Message(PlacedMessage),
    /// A copy from or to the host.
    Copy(MemoryCopy),
    /// The whole instruction, on the host.
    Host,
    /// A copy between the host and a file.
    Disk,
}

/// A command whose kernel has no number yet.
struct Draft {
    step: Step,
    reads: SmallVec<[TouchedBytes; 6]>,
    writes: SmallVec<[TouchedBytes; 3]>,
    waves: Waves,
}

impl Draft {
    /// Returns the draft of a step. It reads and writes the memory of its instruction; a multiplication whose epilogue at most adds a
    /// matrix touches only its own matrices. A later step also reads the results, which an earlier step may have written.
    fn of(step: Step, instruction: &Instruction, index: usize, is_later: bool) -> Self {
        let all =
            |views: &[View]| views.iter().map(TouchedBytes::of).collect::<SmallVec<[TouchedBytes; 3]>>();
        let scratch = instruction.scratch.iter().map(TouchedBytes::of);
        let mut reads: SmallVec<[TouchedBytes; 6]> =
            all(&instruction.operands).into_iter().chain(scratch.clone()).collect();
        let mut writes: SmallVec<[TouchedBytes; 3]> =
            all(&instruction.results).into_iter().chain(scratch).collect();
        if instruction.accumulates || is_later {
            reads.extend(all(&instruction.results));
        }
        // If an instruction became several multiplications, each touches only its own part.
        if let Step::Multiply(multiply) = &step
            && multiply.epilogue.is_addition()
        {
            (reads, writes) = touched(multiply);
        }
        Self { step, reads, writes, waves: smallvec![smallvec![index]] }
    }

    /// Returns the range of the section's instructions from the draft's first to its last.
    fn instructions(&self) -> Range<usize> {
        let all = || self.waves.iter().flatten().copied();
        let [first, last] =
            [all().min(), all().max()].map(|index| index.expect("a command is of an instruction"));
        first..last + 1
    }

    fn touches(&self) -> order::Touches<'_> {
        [&self.reads, &self.writes]
    }

    fn command(self, kernels: &mut Kernels) -> Result<Command, Diagnostic> {
        let instructions = self.instructions();
        let Self { step, reads, writes, waves } = self;
        let task = match step {
            Step::Kernel(run) => Task::Launch(kernels.launch(run)?),
            Step::Multiply(multiply) => Task::Multiply(Box::new(multiply)),
            Step::Library => Task::Library,
            Step::Collective(collective) => Task::Collective(Box::new(collective)),
            Step::Message(message) => Task::Message(message),
            Step::Copy(copy) => Task::Copy(copy),
            Step::Host => Task::Host,
            Step::Disk => Task::Disk,
        };
        let stream = super::program::Stream::Main;
        let waits = SmallVec::new();
        Ok(Command { stream, waits, records: None, task, reads, writes, instructions, waves })
    }
}

/// Returns the memory that a multiplication reads and writes, if its epilogue at most adds a matrix.
fn touched(multiply: &Multiply) -> (SmallVec<[TouchedBytes; 6]>, SmallVec<[TouchedBytes; 3]>) {
    let ([m, k, n], dtype, batch) = (multiply.sizes, multiply.dtype, multiply.batch);
    let out = multiply.out.touched(multiply.out_dtype, batch, [m, n]);
    let mut reads = SmallVec::from_iter([
        multiply.lhs.touched(dtype, batch, [m, k]),
        multiply.rhs.touched(dtype, batch, [k, n]),
    ]);
    reads.extend(multiply.accumulates.then(|| out.clone()));
    let addend = multiply.epilogue.addend.iter();
    reads.extend(addend.map(|addend| addend.touched(multiply.out_dtype, batch, [m, n])));
    (reads, SmallVec::from_iter([out]))
}

/// Returns the steps of an instruction on a GPU of this size.
fn steps(
    instruction: &Instruction,
    on: Multiprocessors,
    libraries: &mut dyn Libraries,
) -> Result<Vec<Step>, Diagnostic> {
    let one = |run| Ok(vec![Step::Kernel(run)]);
    match &instruction.kernel {
        Kernel::Op(op) => operator(op, instruction, on),
        Kernel::Elementwise(chain) => one(chain::run(chain, instruction)),
        Kernel::Contract(fused) => contract::fused(fused, instruction, on, libraries),
        Kernel::Copy => one(copy::copy(instruction)),
        Kernel::Accumulate => one(copy::accumulate(instruction)),
        Kernel::Part(part) => one(collective::part(part, instruction)),
        Kernel::Collective(exchange) => collective::steps(exchange, instruction),
        Kernel::Message(message) => {
            let view = instruction.results.first().unwrap_or_else(|| &instruction.operands[0]);
            let bytes = view.layout.len() as u64 * view.dtype.bytes();
            Ok(vec![Step::Message(PlacedMessage { message: *message, at: ValueStart::of(view), bytes })])
        }
    }
}

fn missing(what: &str) -> Diagnostic {
    Diagnostic::new(format!("{what}: there is no kernel for CUDA yet"))
        .note("--device cpu runs every operator")
}

/// Returns the steps of an operator.
fn operator(op: &Op, instruction: &Instruction, on: Multiprocessors) -> Result<Vec<Step>, Diagnostic> {
    let one = |run| Ok(vec![Step::Kernel(run)]);
    match op {
        Op::Contract(op) => Ok(contract::steps(op, instruction, on)),
        Op::Recurrent(op) => Ok(recurrent::layer(op, instruction)),
        Op::RecurrentGrad(op) => Ok(recurrent::gradient(op, instruction)),
        Op::Reduce(op) => Ok(reduce::steps(op, instruction, on)),
        Op::Accumulate(_) => one(copy::accumulate(instruction)),
        Op::Bitcast(_)
        | Op::Broadcast(_)
        | Op::Reshape(_)
        | Op::Slice(_)
        | Op::Transpose(_)
        | Op::Collective(_)
        | Op::Copy(_)
        | Op::Detach(_)
        | Op::Transfer(_)
        | Op::InTraining(_) => one(copy::copy(instruction)),
        Op::Unary(_) | Op::Binary(_) | Op::Bitwise(_) | Op::Compare(_) | Op::Logical(_) => {
            one(chain::run(&program::Chain::of_one(op, instruction), instruction))
        }
        Op::Select(_) | Op::Cast(_) => one(chain::run(&program::Chain::of_one(op, instruction), instruction)),
        // Lowering puts these among the constants.
        Op::Constant(_) | Op::Iota(_) | Op::Splat(_) => Ok(vec![]),
        Op::Conv(_) | Op::ConvGradInput(_) | Op::ConvGradWeight(_) => Ok(vec![Step::Library]),
        Op::Adagrad(op) => one(optimizer::adagrad(op, instruction, on)),
        Op::Adam(op) => one(optimizer::adam(op, instruction, on)),
        Op::Adam8bit(op) => optimizer::adam_8bit(op, instruction, on),
        Op::Addends(_) => one(compression::addends(instruction)),
        Op::Attention(op) => one(attention::attention(op, instruction)),
        Op::AttentionGrad(op) => Ok(attention::attention_grad(op, instruction)),
        Op::AvgPool(op) => one(pool::avg_pool(op, instruction)),
        Op::AvgPoolGrad(op) => one(pool::avg_pool_grad(op, instruction)),
        Op::BatchNorm(op) => one(batch_norm::normalize(op, instruction)),
        Op::BatchNormGrad(op) => Ok(batch_norm::gradient(op, instruction, on)),
        Op::BatchStatistics(op) => Ok(batch_norm::statistics(op, instruction, on)),
        Op::Concat(op) => Ok(shape::concat(op, instruction)),
        Op::CrossEntropy(op) => Ok(loss::cross_entropy(op, instruction)),
        Op::CrossEntropyGrad(op) => one(loss::cross_entropy_grad(op, instruction)),
        Op::CumulativeSum(op) => Ok(shape::cumulative_sum(op, instruction)),
        Op::Det(op) => one(det::det(op, instruction)),
        Op::Dropout(op) => one(dropout::dropout(op, instruction)),
        Op::Experts(op) => Ok(experts::experts(op, instruction, on)),
        Op::ExpertsGrad(op) => Ok(experts::experts_grad(op, instruction, on)),
        Op::Gather(_) | Op::GatherElements(_) | Op::GatherNd(_) => one(indexing::gather(op, instruction)),
        Op::GatherGrad(_) | Op::GatherElementsGrad(_) | Op::GatherNdGrad(_) => {
            Ok(scatter::sums(op, instruction))
        }
        Op::LayerNorm(op) => one(norm::forward("layer_norm", op.eps.get(), instruction, on)),
        Op::LayerNormGrad(_) => Ok(norm::gradient("layer_norm_grad", instruction, on)),
        Op::Lion(op) => one(optimizer::lion(op, instruction, on)),
        Op::LogSoftmax(op) => one(softmax::by_rows("log_softmax", op.dim, instruction, on)),
        Op::MaxPool(op) => one(pool::largest("max_pool", &op.windows, instruction)),
        Op::MaxPoolGrad(op) => Ok(pool::max_pool_grad(op, instruction)),
        Op::MaxPoolGradAt(op) => one(pool::max_pool_grad_at(op, instruction)),
        Op::MaxPoolIndices(op) => one(pool::largest("max_pool_indices", &op.windows, instruction)),
        Op::Orthogonalize(_) => compression::orthogonalize(instruction),
        Op::MaxPoolOffsets(op) => one(pool::largest("max_pool_offsets", &op.windows, instruction)),
        Op::PackBits(_) => one(packing::pack(instruction)),
        Op::Pad(op) => one(shape::pad(op, instruction)),
        Op::RandomUniform(op) => one(dropout::uniform(op, instruction)),
        Op::RmsNorm(op) => one(norm::forward("rms_norm", op.eps.get(), instruction, on)),
        Op::RmsNormGrad(_) => Ok(norm::gradient("rms_norm_grad", instruction, on)),
        Op::Rotary(op) => one(rotary::rotary(op, instruction)),
        Op::ScatterElements(_) | Op::ScatterNd(_) => Ok(scatter::changed(op, instruction)),
        Op::Sgd(op) => one(optimizer::sgd(op, instruction, on)),
        Op::Softmax(op) => one(softmax::by_rows("softmax", op.dim, instruction, on)),
        Op::SoftmaxGrad(op) => one(softmax::by_rows("gradient", op.dim, instruction, on)),
        Op::TopK(op) => one(ranking::top_k(op, instruction)),
        Op::UnpackBits(_) => one(packing::unpack(instruction)),
    }
}
