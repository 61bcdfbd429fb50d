//! Rotary position embeddings: a thread rotates neighbouring pairs.

use super::Step;
use super::source::{KernelDraft, ROTARY, index_type, is_aligned, layout};
use crate::layout::{Layout, Sizes};
use crate::program::{Instruction, View};
use ir::Diagnostic;
use ir::ops::rotary::Rotary;

pub(super) fn rotary(op: &Rotary, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
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
    // Neighbours that make a pair are read pair after pair, if not one by one.
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
    Ok(vec![Step::Kernel(run.threads(threads))])
}

/// How many pairs a thread rotates: what 16 bytes hold of one half of a row, if all lie where packs may.
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

/// Where every so many pairs begin, in the order in which the result lies: so many a row, so far apart.
fn packs(from: &Layout, result: &View, [count, step]: [usize; 2]) -> Layout {
    let last = from.sizes.len() - 1;
    let mut packs = from.clone();
    packs.sizes[last] = count;
    packs.strides[last] *= step as isize;
    let order = result.layout.memory_order().filter(|order| order.last() == Some(&last));
    packs.transpose(&order.unwrap_or_else(|| (0..=last).collect::<Sizes>()))
}
