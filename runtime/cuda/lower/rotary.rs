//! Rotary position embeddings: a thread rotates neighbouring pairs.

use super::source::{KernelDraft, ROTARY, index_type, is_aligned, layout};
use ir::ops::rotary::Rotary;
use program::layout::{Layout, Sizes};
use program::{Instruction, View};

pub(super) fn rotary(op: &Rotary, instruction: &Instruction) -> KernelDraft {
    let ([x, cos, sin], [out]) = (&instruction.operands[..], &instruction.results[..]) else {
        unreachable!("infer has counted");
    };
    let last = out.layout.sizes.len() - 1;
    let mut sizes = out.layout.sizes.clone();
    sizes[last] /= 2;
    let half = sizes[last];
    let tables = [cos, sin].map(|table| (table, table.layout.broadcast(&sizes)));
    let count = neighbours(half, &[(x, x.layout.clone()), (out, out.layout.clone())], &tables);
    let places = |from: &Layout, step: usize| layout(&packs(from, out, [half / count, count * step]));
    // The distance between the elements of a pair. 0 stands for pairs of neighbours that are read in packs.
    let (apart, step) = match (op.interleaved, count) {
        (false, _) => (half, 1),
        (true, 1) => (1, 2),
        (true, _) => (0, 2),
    };
    let mut run = KernelDraft::of("rotary", &ROTARY);
    let pointers = [run.reads(x), run.reads(cos), run.reads(sin), run.writes(out)].join(", ");
    let [x, to] = [x, out].map(|view| places(&view.layout, step));
    let [cos, sin] =
        tables.map(|(_, table)| format!("{}, {}", places(&table, 1), table.strides[last].signum()));
    let threads = sizes.iter().product::<usize>() / count;
    let index = index_type(threads);
    run.line(format!("rotary::run<{apart}, {count}, {x}, {to}, {cos}, {sin}, {index}>({pointers});"));
    run.threads(threads)
}

/// Returns how many pairs a thread rotates: as many elements of half a row as 16 bytes hold, if all tensors are aligned for that, else
/// one.
fn neighbours(half: usize, rows: &[(&View, Layout)], tables: &[(&View, Layout)]) -> usize {
    let count = 16 / rows[0].0.dtype.bytes() as usize;
    let lies_well = |(view, layout): &(&View, Layout)| {
        let width = view.dtype.bytes() as usize;
        let bytes = 16.min(count * width);
        let mut outer = layout.strides.iter().rev().skip(1);
        is_aligned(view, bytes) && outer.all(|stride| (stride.unsigned_abs() * width).is_multiple_of(bytes))
    };
    let fits = half.is_multiple_of(count) && rows.iter().chain(tables).all(lies_well);
    if fits { count } else { 1 }
}

/// Returns the layout of the threads' first pairs, in the order of the result in memory: `count` in a row, at the distance `step`.
fn packs(from: &Layout, result: &View, [count, step]: [usize; 2]) -> Layout {
    let last = from.sizes.len() - 1;
    let mut packs = from.clone();
    packs.sizes[last] = count;
    packs.strides[last] *= step as isize;
    let order = result.layout.memory_order().filter(|order| order.last() == Some(&last));
    packs.transpose(&order.unwrap_or_else(|| (0..=last).collect::<Sizes>()))
}
