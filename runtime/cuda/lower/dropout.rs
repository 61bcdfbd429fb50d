//! Dropout and uniform numbers, with the same random words as the interpreter.

use super::source::{DROPOUT, KernelDraft, computed, index_type, is_aligned, layout};
use crate::program::{Argument, ByRank, CutDim};
use ir::ops::draws::{DrawnDim, Draws, Positions};
use ir::ops::dropout::Dropout;
use ir::ops::random::RandomUniform;
use ir::{Span, Type};
use program::layout::Layout;
use program::{Instruction, View};

pub(super) fn dropout(op: &Dropout, instruction: &Instruction) -> KernelDraft {
    let ([x, numbers], [y]) = (&instruction.operands[..], &instruction.results[..]) else {
        // Samples without numbers lose no element.
        return super::copy::copy(instruction);
    };
    let draws = op.draws();
    let (positions, start) = positions(&draws, instruction, 1);
    let width = neighbours(&positions, &[x, y], instruction.parts.is_some());
    let count = y.layout.len();
    let mut run = KernelDraft::of("dropout", &DROPOUT);
    let (from, samples, to) = (run.reads(x), run.reads(numbers), run.writes(y));
    let [key, id, start] = counters(&mut run, &draws, start);
    let [elements, of_samples] = layouts(&positions).map(|own| layout(&own));
    let (index, sums) = (index_type(count), computed(y.dtype));
    run.line(format!(
        "dropout::apply<{elements}, {of_samples}, {index}, {width}, {sums}>({from}, {samples}, {to}, {key}, \
         {id}, {start}, {}ull, ({sums}){:?});",
        op.threshold(),
        op.scale()
    ));
    run.threads(count / width)
}

/// Returns the kernel of uniform numbers. Without numbers of samples it writes their mean.
pub(super) fn uniform(op: &RandomUniform, instruction: &Instruction) -> KernelDraft {
    let y = &instruction.results[0];
    let (count, sums) = (y.layout.len(), computed(y.dtype));
    let mut run = KernelDraft::of("random_uniform", &DROPOUT);
    let index = index_type(count);
    let [numbers] = &instruction.operands[..] else {
        let to = run.writes(y);
        run.line(format!("dropout::fill<{count}, {index}>({to}, ({sums}){:?});", RandomUniform::MEAN));
        return run.threads(count);
    };
    let draws = op.draws();
    let (positions, start) = positions(&draws, instruction, 0);
    let width = neighbours(&positions, &[y], instruction.parts.is_some());
    let (samples, to) = (run.reads(numbers), run.writes(y));
    let [key, id, start] = counters(&mut run, &draws, start);
    let [elements, of_samples] = layouts(&positions).map(|own| layout(&own));
    run.line(format!(
        "dropout::uniform<{elements}, {of_samples}, {index}, {width}, {sums}>({samples}, {to}, {key}, {id}, {start});"
    ));
    run.threads(count / width)
}

/// Returns the parameters that determine the random words. The run's seed and the operator's id are arguments, so that all dropouts of
/// a model share a kernel.
fn counters(run: &mut KernelDraft, draws: &Draws, start: Argument) -> [String; 3] {
    let numbers = [draws.key() as i64, i64::from(draws.id)].map(Argument::Number);
    let [key, id] = numbers.map(|number| run.parameter("i64", number));
    [key, id, run.parameter("i64", start)]
}

/// Returns the positions of the elements in their samples, and the position of the first element. The operand with this index has the
/// numbers of the samples.
fn positions(draws: &Draws, instruction: &Instruction, operand: usize) -> (Positions, Argument) {
    let (x, numbers) = (&instruction.results[0].layout.sizes, &instruction.operands[operand].layout.sizes);
    let whole = |ty: Option<&Type>, dim: usize, own: usize| {
        ty.and_then(|ty| ty.dims[dim].size()).unwrap_or(own as u64)
    };
    let parts = instruction.parts.as_ref();
    let samples = whole(parts.map(|parts| &parts.operands[operand]), 0, numbers[0]);
    let span = |dim| Span { start: 0, size: whole(parts.map(|parts| &parts.results[0]), dim, x[dim]) };
    let positions = draws.positions(x, numbers[0], samples, span);
    let start = start(&positions, parts.map(|parts| &parts.results[0]), x, samples);
    (positions, start)
}

/// Returns the position of the first element of a rank's part in its sample.
fn start(positions: &Positions, whole: Option<&Type>, own: &[usize], samples: u64) -> Argument {
    let Some(whole) = whole else { return Argument::Number(0) };
    // The dim of the samples counts as two: the samples, which have numbers of their own, and the rest.
    let dims = positions.dims.iter().enumerate().filter(|(place, _)| *place != positions.samples);
    let cut = |(place, along): (usize, &DrawnDim)| {
        let dim = if place > positions.samples { place - 1 } else { place };
        let mut cut = CutDim { step: along.stride as i64, ..CutDim::of(whole, dim, own[dim]) };
        if dim == positions.samples {
            cut.whole /= samples.max(1);
        }
        cut
    };
    Argument::NumberByRank(Box::new(ByRank { first: 0, cuts: dims.map(cut).collect() }))
}

/// Returns the layouts that map an element's index to its place in its sample, and to its sample.
fn layouts(positions: &Positions) -> [Layout; 2] {
    let of = |stride: &dyn Fn(usize) -> isize| Layout {
        sizes: positions.dims.iter().map(|along| along.size).collect(),
        strides: (0..positions.dims.len()).map(stride).collect(),
        offset: 0,
    };
    [of(&|dim| positions.dims[dim].stride as isize), of(&|dim| isize::from(dim == positions.samples))]
}

/// Returns how many neighbours a thread takes: 4 or more if they share random words, else 1.
fn neighbours(positions: &Positions, views: &[&View], split: bool) -> usize {
    let width = (16 / views[0].dtype.bytes() as usize).max(4);
    let shares = |&(size, stride): &(usize, isize)| match stride {
        1 => size.is_multiple_of(width),
        stride => stride.unsigned_abs().is_multiple_of(4),
    };
    let runs = layouts(positions)[0].collapsed();
    // A rank's part may begin at a multiple of its size along any dim.
    let begins =
        |stride: u64, size: usize| stride.is_multiple_of(4) || (stride * size as u64).is_multiple_of(4);
    let begins = !split || positions.dims.iter().all(|along| begins(along.stride, along.size));
    let in_order = runs.last().is_some_and(|run| run.1 == 1);
    let fits = in_order && runs.iter().all(shares) && begins;
    if fits && views.iter().all(|view| is_aligned(view, 16)) { width } else { 1 }
}
