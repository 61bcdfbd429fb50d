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

/// First what is needed of each row of the scores; then each result's kernel.
pub(super) fn gradient(gradient: &Gradient) -> Vec<Run> {
    let call = &gradient.call;
    let [dq, dk, dv] = &gradient.instruction.results[..] else { unreachable!("infer has counted") };
    // Registers and shared memory hold half as much where rows are twice as wide.
    let size = if call.width == 64 { 64 } else { 32 };
    let groups = warps(call, call.keys, call.groups);
    let by_keys = [if call.width == 64 { groups } else { 4 }, size];
    let by_queries = [warps(call, call.queries, call.heads), size];
    vec![
        prepare(gradient),
        by(gradient, "by_queries", by_queries, &[dq], [call.queries, call.heads]),
        by(gradient, "by_keys", by_keys, &[dk, dv], [call.keys, call.groups]),
    ]
}

fn prepare(gradient: &Gradient) -> Run {
    let Gradient { call, out, logsumexp, dout, .. } = gradient;
    let mut run = Run::of("attention_pairs", &ATTENTION_MMA_GRAD);
    let sources = [out, dout, logsumexp].map(|view| run.reads(view)).join(", ");
    let (pairs, count) = (pairs(gradient, &mut run), scratch(call.batch * call.heads, call.queries) / 2);
    let types = [call.text(), rows(out), rows(dout)].join(", ");
    run.line(format!("attention::prepare_mma<{types}>({sources}, {pairs}, {count});"));
    run.threads(count * 32)
}

/// The kernel that computes these results, for so many rows and heads, by so many warps a block; tiles of the other side
/// have so many rows.
fn by(
    gradient: &Gradient,
    name: &str,
    [warps, size]: [usize; 2],
    results: &[&View],
    [count, heads]: [usize; 2],
) -> Run {
    let call = &gradient.call;
    let mut run = Run::of(format!("attention_{name}_mma"), &ATTENTION_MMA_GRAD);
    let read = [call.q, call.k, call.v, gradient.dout];
    let mut arguments = read.map(|view| run.reads(view)).to_vec();
    arguments.push(pairs(gradient, &mut run));
    arguments.extend(results.iter().map(|view| run.writes(view)));
    arguments.extend(call.numbers(&mut run));
    let views = read.iter().chain(results).map(|view| rows(view));
    let types = [call.text()].into_iter().chain(views).collect::<Vec<_>>().join(", ");
    run.line(format!("attention::{name}_mma<{types}, {warps}, {size}>({});", arguments.join(", ")));
    blocks(run, call, warps, count, heads)
}

/// What is kept of each row, in scratch, as an argument.
fn pairs(gradient: &Gradient, run: &mut Run) -> String {
    let scratch = gradient.instruction.scratch.as_ref().expect("`scratch` has asked for it");
    run.parameter("attention::Pair*", address(scratch))
}
