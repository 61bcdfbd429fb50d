//! Concatenation, padding, and running sums.

use super::copy::between;
use super::source::{
    BLOCK, KernelDraft, SHAPE, address, computed, index_type, is_aligned, layout, stored, word,
};
use super::{Multiprocessors, Step, Unplaced};
use crate::program::Argument;
use ir::ops::reduce::CumulativeSum;
use ir::ops::shape::{Concat, Pad};
use ir::{DType, Op, Tensor};
use program::layout::{Layout, Sizes};
use program::{Instruction, View};

/// Returns a copy for each operand.
pub(super) fn concat(op: &Concat, instruction: &Instruction) -> Vec<Step> {
    let (result, dim) = (&instruction.results[0], op.dim as usize);
    let mut start = 0;
    let mut steps = vec![];
    for operand in &instruction.operands {
        let size = operand.layout.sizes[dim];
        let mut place = result.clone();
        place.layout = place.layout.slice(dim, start, 1, size);
        start += size as i64;
        if !place.layout.is_empty() {
            steps.push(Step::Kernel(copied("concat", operand, &place)));
        }
    }
    steps
}

/// Returns a copy between two places.
pub(super) fn copied(name: &str, from: &View, to: &View) -> KernelDraft {
    between(name, &from.layout, address(from), to)
}

/// Returns how many neighbours of a view can be read at once everywhere: a power of two, 16 bytes at most.
fn widest(view: &View) -> usize {
    let runs = view.layout.collapsed();
    let Some(((size, 1), outer)) = runs.split_last() else { return 1 };
    let bytes = view.dtype.bytes() as usize;
    let fits = |width: usize| {
        size.is_multiple_of(width)
            && outer.iter().all(|(_, stride)| stride.unsigned_abs().is_multiple_of(width))
            && is_aligned(view, width * bytes)
    };
    [16, 8, 4, 2].into_iter().find(|width| width * bytes <= 16 && fits(*width)).unwrap_or(1)
}

/// Returns the layout in words of `width` neighbours.
fn in_words(layout: &Layout, width: usize) -> Layout {
    let mut runs = layout.collapsed();
    if let (2.., Some((last, outer))) = (width, runs.split_last_mut()) {
        last.0 /= width;
        outer.iter_mut().for_each(|(_, stride)| *stride /= width as isize);
    }
    let sizes: Sizes = runs.iter().map(|run| run.0).collect();
    Layout { sizes, strides: runs.iter().map(|run| run.1).collect(), offset: 0 }
}

/// Returns the type of `width` neighbours, for kernels that only move them.
fn word_of(dtype: DType, width: usize) -> &'static str {
    match dtype.bytes() as usize * width {
        16 => "Pack<u32, 4>",
        8 => "u64",
        4 => "u32",
        2 => "u16",
        _ => word(dtype),
    }
}

pub(super) fn pad(op: &Pad, instruction: &Instruction) -> KernelDraft {
    let ([from], [to]) = (&instruction.operands[..], &instruction.results[..]) else {
        unreachable!("one is padded")
    };
    let dim = op.dim as usize;
    let inner: usize = to.layout.sizes[dim + 1..].iter().product();
    let in_a_row =
        [to.layout.sizes[dim], op.before as usize, from.layout.sizes[dim]].map(|size| size * inner);
    // An empty operand is not read.
    let of_from = if from.layout.is_empty() { widest(to) } else { widest(from) };
    let mut width = of_from.min(widest(to));
    while !in_a_row.iter().all(|count| count.is_multiple_of(width)) {
        width /= 2;
    }
    let [row, start, count] = in_a_row.map(|count| count / width);
    let total = to.layout.len() / width;
    let (ty, index) = (word_of(to.dtype, width), index_type(total));
    let mut run = KernelDraft::of("pad", &SHAPE);
    let source = run.parameter(format!("const {ty}*"), address(from));
    let target = run.parameter(format!("{ty}*"), address(to));
    let (from, rows, pattern) =
        (layout(&in_words(&from.layout, width)), total / row, pattern(to.dtype, op.value.get()));
    run.line(format!(
        "shape::pad<{from}, {rows}, {row}, {start}, {count}, {index}>({source}, {target}, {pattern:#x}ull);"
    ));
    run.threads(total)
}

/// Returns 8 bytes that repeat an element.
fn pattern(dtype: DType, value: f64) -> u64 {
    let element = Tensor::splat(dtype, vec![], value).to_bytes();
    let bytes: Vec<u8> = element.iter().copied().cycle().take(8).collect();
    bytes.iter().rev().fold(0, |pattern, byte| pattern << 8 | u64::from(*byte))
}

pub(super) fn cumulative_sum(op: &CumulativeSum, instruction: &Instruction) -> Vec<Step> {
    let (from, to) = (&instruction.operands[0], &instruction.results[0]);
    let rows = Rows::of(op, &to.layout);
    let sums = sums_of(from.dtype);
    let way = if rows.by_block { "block" } else { "thread" };
    let run = |phase: &str| {
        let mut run = KernelDraft::of(format!("cumulative_{phase}"), &SHAPE);
        let source = run.reads(from);
        let target = if phase == "run" { run.writes(to) + ", " } else { String::new() };
        let scratch = match &instruction.scratch {
            Some(scratch) => run.parameter(format!("{sums}*"), address(scratch)),
            None => run.parameter(format!("{sums}*"), Argument::Number(0)),
        };
        let Rows { outer, size, inner, chunk, .. } = rows;
        let numbers = format!("{outer}, {size}, {inner}, {chunk}, {}, {}", op.exclusive, op.reverse);
        let of = format!("shape::Rows<{numbers}>, {sums}, {}", stored(from.dtype));
        run.line(format!("shape::{phase}_by_{way}<{of}>({source}, {target}{scratch});"));
        let count = rows.count() * rows.chunks();
        let threads = size.min(chunk).next_multiple_of(32).min(BLOCK as usize) as u32;
        Step::Kernel(if rows.by_block { run.blocks(count, threads) } else { run.threads(count) })
    };
    if rows.chunks() > 1 { vec![run("sums"), run("run")] } else { vec![run("run")] }
}

/// Returns the type of running sums; integers wrap.
fn sums_of(dtype: DType) -> &'static str {
    if dtype.is_float() { computed(dtype) } else { "u64" }
}

/// The division of rows into chunks.
struct Rows {
    outer: usize,
    size: usize,
    inner: usize,
    chunk: usize,
    /// Whether a block takes a chunk; if not, a thread does.
    by_block: bool,
}

impl Rows {
    fn of(op: &CumulativeSum, layout: &Layout) -> Self {
        let (before, after) = layout.sizes.split_at(op.dim as usize);
        let (outer, size, inner) = (before.iter().product(), after[0], after[1..].iter().product());
        let by_block = inner == 1 && size > 32;
        let has_many = outer * inner >= 1 << 16;
        let (whole, part) = match (by_block, has_many) {
            (true, _) => (4096, 2048),
            (false, true) => (256, size.isqrt().clamp(64, 256)),
            (false, false) => (64, size.isqrt().clamp(64, 256)),
        };
        let chunk = if size <= whole { size } else { part };
        Self { outer, size, inner, chunk: chunk.max(1), by_block }
    }

    fn count(&self) -> usize {
        self.outer * self.inner
    }

    fn chunks(&self) -> usize {
        self.size.div_ceil(self.chunk)
    }
}

/// Returns the f32 numbers of scratch that the kernels take: a sum for each chunk.
pub(super) fn scratch(op: &Op, operands: &[Unplaced], _: &[Unplaced], _: Multiprocessors) -> usize {
    let Op::CumulativeSum(op) = op else { unreachable!("the contract of cumulative sums names this") };
    let Unplaced { dtype, layout } = &operands[0];
    let rows = Rows::of(op, layout);
    let width = if sums_of(*dtype) == "float" { 1 } else { 2 };
    if rows.chunks() > 1 { rows.count() * rows.chunks() * width } else { 0 }
}
