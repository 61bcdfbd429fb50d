//! Batch norm: statistics, normalization, gradient.

use super::source::{BATCH_NORM, BLOCK, KernelDraft, address, computed, index_type, is_aligned};
use super::{Multiprocessors, Step, Unplaced};
use ir::ops::batch_norm::{BatchNorm, BatchNormGrad, BatchStatistics};
use ir::{DType, Op};
use program::layout::Layout;
use program::{Instruction, View};

pub(super) fn statistics(_: &BatchStatistics, instruction: &Instruction, on: Multiprocessors) -> Vec<Step> {
    let (x, results) = (&instruction.operands[0], &instruction.results);
    let slices = Slices::of(&x.layout, on);
    let width = slices.neighbours(&[x]);
    let ty = slices.ty(width);
    let mut parts = KernelDraft::of("statistics_of_slices", &BATCH_NORM);
    let (source, scratch) = (parts.reads(x), scratch_of(&mut parts, instruction));
    parts.line(format!("batch_norm::statistics_of_slices<{ty}>({source}, {scratch});"));
    let mut whole = KernelDraft::of("statistics", &BATCH_NORM);
    let scratch = scratch_of(&mut whole, instruction);
    let targets: Vec<String> = results.iter().map(|result| whole.writes(result)).collect();
    whole.line(format!("batch_norm::statistics<{ty}>({scratch}, {});", targets.join(", ")));
    slices.steps(parts, whole, width)
}

pub(super) fn gradient(op: &BatchNormGrad, instruction: &Instruction, on: Multiprocessors) -> Vec<Step> {
    let Instruction { operands, results, .. } = instruction;
    let slices = Slices::of(&operands[0].layout, on);
    let width = slices.neighbours(&[&operands[0], &operands[4], &results[0]]);
    let (ty, eps) = (slices.ty(width), op.eps.get());
    let mut parts = KernelDraft::of("gradient_of_slices", &BATCH_NORM);
    let sources: Vec<String> = operands.iter().map(|operand| parts.reads(operand)).collect();
    let (target, scratch) = (parts.writes(&results[0]), scratch_of(&mut parts, instruction));
    let sources = sources.join(", ");
    parts.line(format!("batch_norm::gradient_of_slices<{ty}>({sources}, {target}, {scratch}, {eps:?});"));
    let mut whole = KernelDraft::of("gradient", &BATCH_NORM);
    let scratch = scratch_of(&mut whole, instruction);
    let [variance, scale] = [2, 3].map(|operand| whole.reads(&operands[operand]));
    let targets: Vec<String> = results[1..].iter().map(|result| whole.writes(result)).collect();
    let targets = targets.join(", ");
    whole.line(format!("batch_norm::gradient<{ty}>({scratch}, {variance}, {scale}, {targets}, {eps:?});"));
    slices.steps(parts, whole, width)
}

pub(super) fn normalize(op: &BatchNorm, instruction: &Instruction) -> KernelDraft {
    let Instruction { operands, results, .. } = instruction;
    let (x, y) = (&operands[0], &results[0]);
    let count = y.layout.len();
    let width = 16 / y.dtype.bytes() as usize;
    let fits = count.is_multiple_of(width) && is_aligned(x, 16) && is_aligned(y, 16);
    let width = if fits { width } else { 1 };
    let mut run = KernelDraft::of("normalize", &BATCH_NORM);
    let sources: Vec<String> = operands.iter().map(|operand| run.reads(operand)).collect();
    let (sources, target) = (sources.join(", "), run.writes(y));
    let (shape, index, eps) = (shape(extents(&x.layout)), index_type(count), op.eps.get());
    run.line(format!("batch_norm::normalize<{shape}, {width}, {index}>({sources}, {target}, {eps:?});"));
    run.threads(count / width)
}

/// Returns the f32 numbers of scratch that the kernels take: two for each slice.
pub(super) fn scratch(_: &Op, operands: &[Unplaced], _: &[Unplaced], on: Multiprocessors) -> usize {
    let Unplaced { dtype, layout } = &operands[0];
    let slices = Slices::of(layout, on);
    slices.channels * slices.count() * 2 * if *dtype == DType::F64 { 2 } else { 1 }
}

fn scratch_of(run: &mut KernelDraft, instruction: &Instruction) -> String {
    let sums = computed(instruction.operands[0].dtype);
    let scratch = instruction.scratch.as_ref().expect("slices leave their sums in scratch");
    run.parameter(format!("{sums}*"), address(scratch))
}

/// Returns the numbers of samples, of channels, and of elements of a channel in a sample.
fn extents(layout: &Layout) -> [usize; 3] {
    let sizes = &layout.sizes;
    [sizes[0], sizes[1], sizes[2..].iter().product()]
}

/// Returns the name of a shape.
fn shape([samples, channels, plane]: [usize; 3]) -> String {
    format!("batch_norm::Shape<{samples}, {channels}, {plane}>")
}

/// A tensor `[samples, channels, ..]`, and the division of its channels into slices.
struct Slices {
    samples: usize,
    channels: usize,
    /// The elements of a channel in a sample.
    plane: usize,
    /// The elements of a thread.
    each: usize,
}

/// The channels of a block if planes are shorter than the bytes that memory gives at once.
const LANES: usize = 32;

impl Slices {
    fn of(layout: &Layout, on: Multiprocessors) -> Self {
        let [samples, channels, plane] = extents(layout);
        let mut slices = Self { samples, channels, plane, each: 32 };
        while slices.each > 8 && slices.blocks() < 2 * on.blocks() {
            slices.each /= 2;
        }
        slices
    }

    fn lanes(&self) -> usize {
        if self.plane < 8 { LANES } else { 1 }
    }

    /// Returns the elements of a slice.
    fn elements(&self) -> usize {
        BLOCK as usize / self.lanes() * self.each
    }

    /// Returns the slices of a channel.
    fn count(&self) -> usize {
        (self.samples * self.plane).div_ceil(self.elements())
    }

    fn blocks(&self) -> usize {
        self.channels.div_ceil(self.lanes()) * self.count()
    }

    /// Returns how many neighbours of these views a thread takes at once.
    fn neighbours(&self, views: &[&View]) -> usize {
        let width = 16 / views[0].dtype.bytes() as usize;
        let fits = self.lanes() == 1
            && self.plane.is_multiple_of(width)
            && views.iter().all(|view| is_aligned(view, 16));
        if fits { width } else { 1 }
    }

    fn ty(&self, width: usize) -> String {
        let (shape, elements, lanes, packs) = (
            shape([self.samples, self.channels, self.plane]),
            self.elements(),
            self.lanes(),
            self.each / width,
        );
        format!("batch_norm::Slices<{shape}, {elements}, {lanes}, {width}, {packs}>")
    }

    /// Returns the launch over slices, and the launch that combines their results.
    fn steps(&self, parts: KernelDraft, whole: KernelDraft, width: usize) -> Vec<Step> {
        let warps = |threads: usize| (threads.next_multiple_of(32) as u32).min(BLOCK);
        let threads =
            if self.lanes() == 1 { warps((self.samples * self.plane).div_ceil(width)) } else { BLOCK };
        let of_slices = warps(self.count());
        vec![
            Step::Kernel(parts.blocks(self.blocks(), threads)),
            Step::Kernel(whole.blocks(self.channels, of_slices)),
        ]
    }
}
