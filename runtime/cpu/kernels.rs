//! The CPU kernels: one for each operator of the IR. A missing one does not compile.

pub(super) mod attention;
mod attention_grad;
mod batch_norm;
mod compression;
mod contract;
mod conv;
pub(super) mod copy;
mod det;
mod dropout;
mod elementwise;
mod exchange;
mod experts;
mod indexing;
mod loss;
mod message;
mod norm;
mod optimizer;
mod packing;
mod pool;
mod ranking;
mod recurrent;
mod reduce;
mod rotary;
mod scatter;
mod shape;
mod softmax;

use super::call::Call;
use comm::{CommError, Communicator};
use ir::Op;
use program::{Chain, Kernel};

/// The number of elements below which a second thread costs more than it gains.
const PARALLEL: usize = 1 << 15;

/// Runs an instruction. Errors: a collective failed.
pub(super) fn run(call: Call, communicator: Option<&dyn Communicator>) -> Result<(), CommError> {
    let sends = matches!(call.instruction.kernel, Kernel::Message(_));
    if !sends && call.results.iter().all(|result| result.is_empty()) {
        return Ok(());
    }
    match &call.instruction.kernel {
        Kernel::Op(op) => {
            let contract =
                super::kernel_contracts::of(op, call.instruction.operands.len(), call.device.products);
            debug_assert!(!call.add || contract.accumulates(call.dtype()), "`{}` cannot add", op.name());
            run_operator(op, call);
        }
        Kernel::Elementwise(chain) => elementwise::run(chain, call),
        Kernel::Contract(_) => unreachable!("`Cpu::new` takes no program for a GPU"),
        Kernel::Copy => copy::run(call),
        Kernel::Accumulate => copy::accumulate(call),
        Kernel::Part(part) => copy::part(part, call),
        Kernel::Collective(exchange) => return exchange::run(exchange, call, communicator),
        Kernel::Message(message) => return message::run(*message, call, communicator),
    }
    Ok(())
}

fn run_operator(op: &Op, call: Call) {
    match op {
        Op::Accumulate(_) => copy::accumulate(call),
        Op::Adagrad(adagrad) => optimizer::adagrad(adagrad, call),
        Op::Adam(adam) => optimizer::adam(adam, call),
        Op::Adam8bit(adam) => optimizer::adam_8bit(adam, call),
        Op::Addends(_) => compression::addends(call),
        Op::Attention(attention) => attention::run(attention, call),
        Op::AttentionGrad(attention) => attention_grad::run(attention, call),
        Op::AvgPool(pool) => pool::avg_pool(pool, call),
        Op::AvgPoolGrad(pool) => pool::avg_pool_grad(pool, call),
        Op::BatchNorm(norm) => batch_norm::normalize(norm, call),
        Op::BatchNormGrad(norm) => batch_norm::gradient(norm, call),
        Op::BatchStatistics(_) => batch_norm::statistics(call),
        // A copy of the same bytes: only their type changes.
        Op::Bitcast(_) => copy::run(call),
        Op::Concat(concat) => shape::concat(concat, call),
        Op::Contract(contract) => contract::run(contract, call),
        Op::Conv(_) | Op::ConvGradInput(_) | Op::ConvGradWeight(_) => conv::run(op, call),
        Op::CrossEntropy(loss) => loss::cross_entropy(loss, call),
        Op::CrossEntropyGrad(loss) => loss::cross_entropy_grad(loss, call),
        Op::CumulativeSum(sum) => reduce::cumulative_sum(sum, call),
        Op::Det(_) => det::run(call),
        Op::TopK(op) => ranking::top_k(op, call),
        Op::Dropout(dropout) => dropout::run(dropout, call),
        Op::Experts(op) => experts::run(op, call),
        Op::ExpertsGrad(_) => experts::gradient(call),
        Op::Gather(gather) => indexing::gather(gather, call),
        Op::GatherElements(gather) => indexing::gather_elements(gather, call),
        Op::GatherElementsGrad(gather) => scatter::gather_elements_grad(gather, call),
        Op::GatherGrad(gather) => indexing::gather_grad(gather, call),
        Op::GatherNd(gather) => indexing::gather_nd(gather, call),
        Op::GatherNdGrad(gather) => scatter::gather_nd_grad(gather, call),
        Op::LayerNorm(norm) => norm::layer_norm(norm, call),
        Op::LayerNormGrad(_) => norm::layer_norm_grad(call),
        Op::Lion(lion) => optimizer::lion(lion, call),
        Op::LogSoftmax(softmax) => softmax::log_softmax(softmax.dim, call),
        Op::MaxPool(pool) => pool::max_pool(pool, call),
        Op::MaxPoolGrad(pool) => pool::max_pool_grad(pool, call),
        Op::MaxPoolGradAt(pool) => pool::max_pool_grad_at(pool, call),
        Op::MaxPoolIndices(pool) => pool::max_pool_indices(pool, call),
        Op::Orthogonalize(_) => compression::orthogonalize(call),
        Op::MaxPoolOffsets(pool) => pool::max_pool_offsets(pool, call),
        Op::PackBits(_) => packing::pack(call),
        Op::UnpackBits(_) => packing::unpack(call),
        Op::Pad(pad) => shape::pad(pad, call),
        Op::RandomUniform(random) => dropout::uniform(random, call),
        Op::Recurrent(op) => recurrent::run(op, call),
        Op::RecurrentGrad(op) => recurrent::gradient(op, call),
        Op::Reduce(reduce) => reduce::run(reduce, call),
        Op::RmsNorm(norm) => norm::rms_norm(norm, call),
        Op::RmsNormGrad(_) => norm::rms_norm_grad(call),
        Op::Rotary(rotary) => rotary::run(rotary, call),
        Op::ScatterElements(scatter) => scatter::scatter_elements(scatter, call),
        Op::ScatterNd(scatter) => scatter::scatter_nd(scatter, call),
        Op::Sgd(sgd) => optimizer::sgd(sgd, call),
        Op::Softmax(softmax) => softmax::softmax(softmax.dim, call),
        Op::SoftmaxGrad(softmax) => softmax::softmax_grad(softmax.dim, call),
        // Lowering makes chains of these. A single operator runs as a chain of one step.
        Op::Unary(_) | Op::Binary(_) | Op::Bitwise(_) | Op::Compare(_) | Op::Logical(_) => {
            elementwise::run(&Chain::of_one(op, call.instruction), call);
        }
        Op::Select(_) | Op::Cast(_) => elementwise::run(&Chain::of_one(op, call.instruction), call),
        // Lowering turns these into views, or into `Kernel::Copy` where it copies. Collectives do nothing on one device; on several
        // devices they are `Kernel::Part` and `Kernel::Collective`.
        Op::Broadcast(_) | Op::Reshape(_) | Op::Slice(_) | Op::Transpose(_) | Op::Collective(_) => {
            copy::run(call)
        }
        // In a step these read the first operand, or the only one.
        Op::Copy(_) | Op::Detach(_) | Op::InTraining(_) | Op::Transfer(_) => copy::run(call),
        // Lowering puts these among the constants.
        Op::Constant(_) | Op::Iota(_) | Op::Splat(_) => {}
    }
}
