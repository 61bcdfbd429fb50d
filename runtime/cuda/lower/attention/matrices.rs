//! Attention by tensor cores: of f16 and bf16, of heads that are 64 or 128 wide, without a mask.

use super::{Call, Gradient, rows};
use crate::cuda::lower::source::{ATTENTION_MMA, ATTENTION_MMA_GRAD, Run, address};
use crate::program::View;
use ir::DType;

/// Queries of which a head has whole multiples in scratch; `PAIRS` of attention_mma_grad.cuh.
const PAIRS: usize = 64;

/// Blocks that keep a large device busy.
const ENOUGH: usize = 256;

/// Whether tensor cores take it, with what is read and written besides. Powers of two of scores that the factor turned
/// around would be beyond all bounds.
pub(super) fn take(call: &Call, others: &[&View]) -> bool {
    let halves = matches!(call.q.dtype, DType::F16 | DType::BF16);
    let widths = call.width == call.value_width && matches!(call.width, 64 | 128);
    let plain = call.mask.is_none() && call.scale > 0.0 && call.queries > 0 && call.keys > 0;
    halves && widths && plain && call.in_packs(others)
}

/// The f32 numbers of scratch that the gradient takes.
pub(super) fn scratch(heads: usize, queries: usize) -> usize {
    2 * heads * queries.next_multiple_of(PAIRS)
}

/// How many warps a block has, of 16 rows each.
fn warps(call: &Call, rows: usize, heads: usize) -> usize {
    if rows.div_ceil(128) * heads * call.batch < ENOUGH { 4 } else { 8 }
}

fn blocks(run: Run, call: &Call, warps: usize, rows: usize, heads: usize) -> Run {
    run.blocks(rows.div_ceil(16 * warps) * heads * call.batch, 32 * warps as u32)
}

pub(super) fn forward(call: &Call, out: &View, logsumexp: &View) -> Run {
    let mut run = Run::of("attention_mma", &ATTENTION_MMA);
    let warps = warps(call, call.queries, call.heads);
    let mut arguments: Vec<String> = [call.q, call.k, call.v].iter().map(|view| run.reads(view)).collect();
    arguments.extend([out, logsumexp].iter().map(|view| run.writes(view)));
    arguments.extend(call.numbers(&mut run));
    let types = [call.text(), rows(call.q), rows(call.k), rows(call.v), rows(out)].join(", ");
    run.line(format!("attention::forward_mma<{types}, {warps}, 64>({});", arguments.join(", ")));
    blocks(run, call, warps, call.queries, call.heads)
}

/// The gradient of queries first: it leaves in scratch what the other needs of each row of the scores.
pub(super) fn gradient(gradient: &Gradient) -> Vec<Run> {
    vec![by_queries(gradient), by_keys(gradient)]
}

/// Rows of a tile of the other side: registers and shared memory hold half as many where rows are twice as wide.
fn size(call: &Call) -> usize {
    if call.width == 64 { 64 } else { 32 }
}

fn by_queries(gradient: &Gradient) -> Run {
    let Gradient { call, out, logsumexp, dout, instruction } = gradient;
    let (dq, warps, size) = (&instruction.results[0], warps(call, call.queries, call.heads), size(call));
    let mut run = Run::of("attention_by_queries_mma", &ATTENTION_MMA_GRAD);
    let read = [call.q, call.k, call.v, out, dout];
    let mut arguments = read.map(|view| run.reads(view)).to_vec();
    arguments.extend([run.reads(logsumexp), pairs(gradient, &mut run), run.writes(dq)]);
    arguments.extend(call.numbers(&mut run));
    let views = read.into_iter().chain([dq]).map(rows);
    let types = [call.text()].into_iter().chain(views).collect::<Vec<_>>().join(", ");
    run.line(format!("attention::by_queries_mma<{types}, {warps}, {size}>({});", arguments.join(", ")));
    blocks(run, call, warps, call.queries, call.heads)
}

fn by_keys(gradient: &Gradient) -> Run {
    let Gradient { call, dout, instruction, .. } = gradient;
    let [_, dk, dv] = &instruction.results[..] else { unreachable!("infer has counted") };
    let warps = if call.width == 64 { warps(call, call.keys, call.groups) } else { 4 };
    let mut run = Run::of("attention_by_keys_mma", &ATTENTION_MMA_GRAD);
    let read = [call.q, call.k, call.v, dout];
    let mut arguments = read.map(|view| run.reads(view)).to_vec();
    arguments.extend([pairs(gradient, &mut run), run.writes(dk), run.writes(dv)]);
    arguments.extend(call.numbers(&mut run));
    let views = read.into_iter().chain([dk, dv]).map(rows);
    let types = [call.text()].into_iter().chain(views).collect::<Vec<_>>().join(", ");
    let size = size(call);
    run.line(format!("attention::by_keys_mma<{types}, {warps}, {size}>({});", arguments.join(", ")));
    blocks(run, call, warps, call.keys, call.groups)
}

/// What is kept of each row, in scratch, as an argument.
fn pairs(gradient: &Gradient, run: &mut Run) -> String {
    let scratch = gradient.instruction.scratch.as_ref().expect("`scratch` has asked for it");
    run.parameter("attention::Pair*", address(scratch))
}
