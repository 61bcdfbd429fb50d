//! Attention on tensor cores: for f16 and bf16, for rows that are whole packs and not too wide, under any mask.

use super::{Call, Gradient, rows};
use crate::lower::source::{ATTENTION_MMA, ATTENTION_MMA_GRAD, KernelDraft, address, is_aligned};
use crate::program::Argument;
use ir::DType;
use program::View;

/// The queries of a head in scratch are a multiple of this number; `PAIRS` of attention_mma_grad.cuh.
const PAIRS: usize = 64;

/// The widest rows of queries, keys and values: a warp holds 16 rows of sums in registers, and a block holds
/// its tiles in 48 KiB of shared memory.
const WIDEST: usize = 128;

/// Warps of a block, of 16 rows each.
const WARPS: usize = 4;

/// Whether tensor cores take a call, which also reads or writes `others`. The types decide, never a mask's elements. The scale must be
/// positive, because the largest score is found before scores are scaled.
pub(super) fn take(call: &Call, others: &[&View]) -> bool {
    let halves = matches!(call.q.dtype, DType::F16 | DType::BF16);
    let widths = (1..=WIDEST).contains(&call.width) && (1..=WIDEST).contains(&call.value_width);
    halves && widths && call.scale > 0.0 && call.queries > 0 && call.keys > 0 && call.in_packs(others)
}

/// Returns the f32 numbers of scratch that the gradient takes: a pair for each query, and a factor if a mask is added to scores.
pub(super) fn scratch(heads: usize, queries: usize, adds: bool) -> usize {
    (if adds { 3 } else { 2 }) * heads * queries.next_multiple_of(PAIRS)
}

/// Launches a block for each tile of rows. `together` is the number of blocks that a multiprocessor must have at once.
fn blocks(run: KernelDraft, call: &Call, rows: usize, heads: usize, together: Option<u32>) -> KernelDraft {
    let run = run.blocks(rows.div_ceil(16 * WARPS) * heads * call.batch, 32 * WARPS as u32);
    match together {
        Some(blocks) => run.together(blocks),
        None => run,
    }
}

/// Whether a mask's elements for two neighbouring keys can be read at once.
fn is_paired(call: &Call) -> bool {
    call.mask.is_some_and(|mask| {
        let layout = mask.layout.broadcast(&[call.batch, call.heads, call.queries, call.keys]);
        let whole = call.keys.is_multiple_of(2)
            && layout.strides[..3].iter().all(|stride| stride.unsigned_abs().is_multiple_of(2));
        whole && layout.strides[3] == 1 && is_aligned(mask, 2 * mask.dtype.bytes() as usize)
    })
}

pub(super) fn forward(call: &Call, out: &View, logsumexp: &View) -> KernelDraft {
    let mut run = KernelDraft::of("attention_mma", &ATTENTION_MMA);
    let mut arguments: Vec<String> = [call.q, call.k, call.v].iter().map(|view| run.reads(view)).collect();
    arguments.push(call.mask(&mut run));
    arguments.extend([out, logsumexp].iter().map(|view| run.writes(view)));
    arguments.extend(call.numbers(&mut run));
    let types =
        [call.text(), rows(call.q), rows(call.k), rows(call.v), rows(out), call.mask_text()].join(", ");
    let (paired, [keys, stages]) = (is_paired(call), stages(call));
    run.line(format!(
        "attention::forward_mma<{types}, {paired}, {WARPS}, {keys}, {stages}>({});",
        arguments.join(", ")
    ));
    blocks(run, call, call.queries, call.heads, forward_together(call))
}

/// Returns the number of blocks of the forward that share a multiprocessor. Three leave a thread 168 registers. Rows of more than 96
/// elements need about as many: without a mask the assembler keeps to 168 if no number is given, but under a mask it would spill.
fn forward_together(call: &Call) -> Option<u32> {
    match (call.width.max(call.value_width), call.mask) {
        (..=96, _) => Some(3),
        (_, None) => None,
        (_, Some(_)) => Some(2),
    }
}

/// Returns the keys of a tile of the forward, and the number of tiles in shared memory: 32 KiB for rows of 64, 48 KiB for rows of 128.
fn stages(call: &Call) -> [usize; 2] {
    if is_narrow(call) { [64, 2] } else { [32, 3] }
}

/// Whether all rows are at most 64 wide.
fn is_narrow(call: &Call) -> bool {
    call.width.max(call.value_width) <= 64
}

/// Returns the kernels of the gradient. The gradient of queries comes first, because it writes numbers of each query to scratch that
/// the other kernel reads.
pub(super) fn gradient(gradient: &Gradient) -> Vec<KernelDraft> {
    vec![by_queries(gradient), by_keys(gradient)]
}

/// Returns the number of blocks of the gradient that share a multiprocessor. Wide rows, and any rows under a mask that is added, need
/// more than the 168 registers of three blocks; two blocks leave a thread 255. If no number is given, the assembler may spill to make
/// room for a third block.
fn gradient_together(call: &Call) -> Option<u32> {
    let adds = call.mask.is_some_and(|mask| mask.dtype.is_float());
    Some(if is_narrow(call) && !adds { 3 } else { 2 })
}

/// Keys of a tile of the gradient of queries. Scores of 64 keys would spill in 168 registers.
const KEYS: usize = 32;

fn by_queries(gradient: &Gradient) -> KernelDraft {
    let Gradient { call, out, logsumexp, dout, instruction } = gradient;
    let (dq, paired) = (&instruction.results[0], is_paired(call));
    let mut run = KernelDraft::of("attention_by_queries_mma", &ATTENTION_MMA_GRAD);
    let mut arguments: Vec<String> = [call.q, call.k, call.v].iter().map(|view| run.reads(view)).collect();
    arguments.push(call.mask(&mut run));
    arguments.extend([out, dout, logsumexp].iter().map(|view| run.reads(view)));
    arguments.extend(kept(gradient, &mut run));
    arguments.push(run.writes(dq));
    arguments.extend(call.numbers(&mut run));
    let views = [call.q, call.k, call.v, out, dout, dq].map(rows);
    let types = [vec![call.text()], views.to_vec(), vec![call.mask_text()]].concat().join(", ");
    run.line(format!(
        "attention::by_queries_mma<{types}, {paired}, {WARPS}, {KEYS}>({});",
        arguments.join(", ")
    ));
    blocks(run, call, call.queries, call.heads, gradient_together(call))
}

fn by_keys(gradient: &Gradient) -> KernelDraft {
    let Gradient { call, dout, instruction, .. } = gradient;
    let [_, dk, dv] = &instruction.results[..] else { unreachable!("infer has counted") };
    let mut run = KernelDraft::of("attention_by_keys_mma", &ATTENTION_MMA_GRAD);
    let mut arguments: Vec<String> = [call.q, call.k, call.v].iter().map(|view| run.reads(view)).collect();
    arguments.extend([call.mask(&mut run), run.reads(dout)]);
    arguments.extend(kept(gradient, &mut run));
    arguments.extend([dk, dv].map(|view| run.writes(view)));
    arguments.extend(call.numbers(&mut run));
    let views = [call.q, call.k, call.v, dout, dk, dv].map(rows);
    let types = [vec![call.text()], views.to_vec(), vec![call.mask_text()]].concat().join(", ");
    let [queries, part] = query_tile(call);
    run.line(format!(
        "attention::by_keys_mma<{types}, {WARPS}, {queries}, {part}>({});",
        arguments.join(", ")
    ));
    blocks(run, call, call.keys, call.groups, gradient_together(call))
}

/// Returns the queries of a tile of the gradient of keys and values, and of a part of it. A warp holds the scores of a part in
/// registers: 32 queries would spill. Under a mask, shared memory holds wide keys, which leaves room for 16 queries.
fn query_tile(call: &Call) -> [usize; 2] {
    if is_narrow(call) || call.mask.is_none() { [32, 16] } else { [16, 16] }
}

/// Returns the pairs and the factors of the queries, in scratch, as arguments. Only a mask that is added to scores needs factors.
fn kept(gradient: &Gradient, run: &mut KernelDraft) -> [String; 2] {
    let Gradient { call, instruction, .. } = gradient;
    let scratch = address(instruction.scratch.as_ref().expect("`scratch` has asked for it"));
    let pairs = run.parameter("attention::Pair*", scratch.clone());
    let Argument::Address(region, byte) = scratch else { unreachable!("a view is at an address") };
    if !call.mask.is_some_and(|mask| mask.dtype.is_float()) {
        return [pairs, "(float*)0".into()];
    }
    let bytes = 4 * self::scratch(call.batch * call.heads, call.queries, false);
    [pairs, run.parameter("float*", Argument::Address(region, byte + bytes as i64))]
}
