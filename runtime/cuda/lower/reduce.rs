//! Reductions.

use super::Unplaced;
use super::source::{REDUCE, Run, computed, layout};
use crate::cuda::program::Argument;
use crate::layout::Layout;
use crate::program::Instruction;
use ir::DType;
use ir::ops::reduce::{Reduce, ReduceKind};

/// A block an element of the result where many elements make one, else a thread.
pub(super) fn run(reduce: &Reduce, instruction: &Instruction) -> Run {
    let (from, to) = (&instruction.operands[0], &instruction.results[0]);
    let (kept, gone) = split(&from.layout, &reduce.dims);
    let combine = match reduce.kind {
        ReduceKind::Sum | ReduceKind::Mean => "Sum",
        ReduceKind::Max => "Largest",
        ReduceKind::Min => "Smallest",
    };
    let (terms, results) = (gone.len(), to.layout.len());
    let sums =
        if from.dtype.is_integer() || from.dtype == DType::Bool { "i64" } else { computed(from.dtype) };
    let factor = match reduce.kind {
        ReduceKind::Mean => format!("({sums})(1.0 / {terms})"),
        _ => format!("({sums})1"),
    };
    let mut run = Run::of("reduce", &REDUCE);
    let (source, target) = (run.reads(from), run.writes(to));
    let adds = match instruction.accumulates {
        true => run.parameter("i64", Argument::Adds),
        false => "0".into(),
    };
    // Few results leave most of a device idle, unless blocks share the work on each.
    let by_block = terms >= 64 && results < 1 << 14 || terms >= 1024;
    let way = if by_block { "by_block" } else { "by_thread" };
    let layouts = [layout(&kept), layout(&gone), layout(&to.layout)].join(", ");
    run.line(format!("reduce::{way}<{combine}, {layouts}, {sums}>({source}, {target}, {factor}, {adds});"));
    match by_block {
        true => run.blocks(results, if terms >= 1024 { 256 } else { 64 }),
        false => run.threads(results),
    }
}

/// The dims of the operand that stay, and those that go; the first keep the offset out, which the pointer has.
fn split(from: &Layout, gone: &[u32]) -> (Layout, Layout) {
    let pick = |wanted: bool| {
        let dims = (0..from.sizes.len()).filter(|dim| gone.contains(&(*dim as u32)) == wanted);
        let dims: Vec<usize> = dims.collect();
        Layout {
            sizes: dims.iter().map(|&dim| from.sizes[dim]).collect(),
            strides: dims.iter().map(|&dim| from.strides[dim]).collect(),
            offset: 0,
        }
    };
    (pick(false), pick(true))
}

/// The f32 numbers of scratch that the kernels take.
pub(super) fn scratch(reduce: &Reduce, operands: &[Unplaced], results: &[Unplaced]) -> usize {
    let _ = (reduce, operands, results);
    0
}
