//! The scratch of a convolution on the CPU: lowering plans it, and the kernel divides it. All sizes count numbers of the type in which the
//! kernel computes.

pub mod depthwise;

use crate::Multiprocessors;
use crate::kernel_contract::Unplaced;
use depthwise::Depthwise;
use ir::ops::conv::{Geometry, Side};
use ir::{DType, Op};
use std::ops::Range;

/// The approximate number of elements of windows that are laid side by side at once: they stay in a core's cache.
const TILE: usize = 1 << 17;
/// The smallest number of windows at once that make an efficient multiplication.
const LEAST_WINDOWS: usize = 128;
/// The largest number of tasks among which scratch is divided.
pub const MOST_SHARES: usize = 16;
/// The largest number of elements for all tasks together, unless a single task needs more.
const MOST_SCRATCH: usize = 1 << 20;

/// Returns the number of f32 elements of scratch that a convolution or one of its gradients takes.
pub fn scratch(op: &Op, operands: &[Unplaced], results: &[Unplaced], _: Multiprocessors) -> usize {
    let (sizes, result) = ([0, 1].map(|operand| &operands[operand].layout.sizes[..]), &results[0]);
    let convolution = Convolution::of(op, result.dtype, sizes, &result.layout.sizes);
    let width = if result.dtype == DType::F64 { 2 } else { 1 };
    convolution.expect("the contracts of convolutions name this").scratch() * width
}

/// A convolution as its kernel runs it.
#[derive(Clone, Debug)]
pub struct Convolution {
    /// The windows.
    pub geometry: Geometry,
    /// The tensor that is computed.
    pub made: ConvolutionResult,
    /// The planes of a depthwise convolution. Other convolutions, which have none, multiply the weight with windows.
    pub depthwise: Option<Depthwise>,
    /// The number of elements of a window of one channel in the weight, and the first of them that is computed.
    taps: usize,
    tap: usize,
    /// Whether tensors are stored in f16 or bf16, in which the kernel does not compute.
    half: bool,
}

/// The tensor that is computed from the other two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvolutionResult {
    /// `y`.
    Output,
    /// `d x`.
    Input,
    /// `d weight`.
    Weight,
}

impl Convolution {
    /// Returns the convolution of an operator on tensors of these sizes. `None` if the operator is no convolution.
    pub fn of(op: &Op, dtype: DType, operands: [&[usize]; 2], result: &[usize]) -> Option<Self> {
        let (windows, x, weight, made) = match op {
            Op::Conv(conv) => (conv.windows(), operands[0], operands[1], ConvolutionResult::Output),
            Op::ConvGradInput(conv) => (conv.windows(), result, operands[0], ConvolutionResult::Input),
            Op::ConvGradWeight(conv) => (conv.windows(), operands[0], result, ConvolutionResult::Weight),
            _ => return None,
        };
        let half = matches!(dtype, DType::F16 | DType::BF16);
        let mut geometry = Geometry::new(windows, x, weight);
        let taps = geometry.taps();
        let depthwise = Depthwise::of(&geometry, made);
        // The gradient of the weight has zeros at the other taps in any case. It is faster to compute them than to write around them.
        let all = depthwise.is_some() || made == ConvolutionResult::Weight;
        let tap = if all { 0 } else { only_tap(&mut geometry).unwrap_or(0) };
        Some(Self { geometry, made, depthwise, taps, tap, half })
    }

    /// Returns the place of the matrix `[outputs, terms]` that is computed, in the weight of a group: the offset of its first element, the
    /// distance between rows, and the distance between columns.
    pub fn weight_matrix(&self) -> [usize; 3] {
        if self.geometry.taps() < self.taps {
            [self.tap, self.geometry.inputs * self.taps, self.taps]
        } else {
            [0, self.geometry.terms(), 1]
        }
    }

    /// Returns the number of elements of the channels of one group of one image.
    pub fn image(&self) -> usize {
        self.geometry.inputs * self.geometry.area()
    }

    /// Returns the number of elements that one group computes for one image.
    pub fn outputs(&self) -> usize {
        self.geometry.outputs * self.geometry.positions()
    }

    /// Returns the number of elements of the weight of one group.
    pub fn weight(&self) -> usize {
        self.geometry.outputs * self.geometry.inputs * self.taps
    }

    /// Returns the number of elements of the result that one task computes: those of one group, and of [`Self::images`] images if the
    /// result has images.
    pub fn block(&self) -> usize {
        match self.made {
            ConvolutionResult::Output => self.images() * self.outputs(),
            ConvolutionResult::Input => self.images() * self.image(),
            ConvolutionResult::Weight => self.weight(),
        }
    }

    fn tasks(&self) -> usize {
        let Geometry { batch, groups, .. } = self.geometry;
        match self.made {
            ConvolutionResult::Weight => groups * self.parts(),
            ConvolutionResult::Output | ConvolutionResult::Input => batch.div_ceil(self.images()) * groups,
        }
    }

    /// Returns the number of parts of the batch whose gradients of the weight are computed apart and then added: as many as have scratch
    /// together. With several groups, which are tasks already, there is one.
    pub fn parts(&self) -> usize {
        let Geometry { batch, groups, .. } = self.geometry;
        if self.made != ConvolutionResult::Weight || groups > 1 || self.depthwise.is_some() {
            return 1;
        }
        let room = MOST_SCRATCH / self.share_of(true).iter().sum::<usize>().max(1);
        batch.div_ceil(self.images()).min(room).clamp(1, MOST_SHARES)
    }

    /// Returns the images of a part of the batch.
    pub fn images_of(&self, part: usize) -> Range<usize> {
        let (batch, images, parts) = (self.geometry.batch, self.images(), self.parts());
        let of_parts = batch.div_ceil(images);
        let start = |part: usize| (part * of_parts / parts * images).min(batch);
        start(part)..start(part + 1)
    }

    /// Returns the number of windows that are worth laying side by side at once.
    fn wanted(&self) -> usize {
        (TILE / self.geometry.terms().max(1)).max(LEAST_WINDOWS)
    }

    /// Returns the number of windows of an image that are laid side by side at once.
    fn tile(&self) -> usize {
        self.wanted().min(self.geometry.positions())
    }

    /// Returns the number of images whose windows are laid side by side: several if one image has few windows. With several groups, each
    /// image is convolved by itself.
    pub fn images(&self) -> usize {
        let Geometry { batch, groups, .. } = self.geometry;
        if groups > 1 { 1 } else { (self.wanted() / self.geometry.positions().max(1)).clamp(1, batch.max(1)) }
    }

    /// Returns all windows of an image, tile by tile.
    pub fn tiles(&self) -> impl Iterator<Item = Range<usize>> {
        let (positions, tile) = (self.geometry.positions(), self.tile());
        (0..positions).step_by(tile).map(move |start| start..(start + tile).min(positions))
    }

    /// Returns the number of elements that all tasks share: the weight, converted to f32 if it is f16 or bf16.
    pub fn shared(&self) -> usize {
        let widened = self.half && self.made != ConvolutionResult::Weight && self.depthwise.is_none();
        if widened { self.geometry.groups * self.weight() } else { 0 }
    }

    /// Returns the numbers of elements of one task's scratch: a tile of windows; the part of `d y` that it reads, converted to f32 or laid
    /// side by side; its result, before it is rounded, divided among images or added to those of other parts of the batch. A depthwise convolution divides its scratch another way.
    pub fn share(&self) -> [usize; 3] {
        if let Some(depthwise) = &self.depthwise {
            return depthwise.share();
        }
        self.share_of(self.parts() > 1)
    }

    /// Returns [`Self::share`] of a convolution whose batch is, or is not, divided.
    fn share_of(&self, is_divided: bool) -> [usize; 3] {
        let (images, makes_output) = (self.images(), self.made == ConvolutionResult::Output);
        let reads = !makes_output && (self.half || images > 1);
        let makes = self.half || is_divided || (makes_output && images > 1);
        [
            self.geometry.terms() * images * self.tile(),
            if reads { images * self.outputs() } else { 0 },
            if makes { self.block() } else { 0 },
        ]
    }

    /// Returns the number of tasks that have scratch at the same time.
    pub fn shares(&self) -> usize {
        let share = self.share().iter().sum::<usize>().max(1);
        let room = MOST_SCRATCH.saturating_sub(self.shared()) / share;
        self.tasks().min(MOST_SHARES).min(room).max(1)
    }

    /// Returns the number of elements of scratch in all: those of each task, and those that tasks share.
    pub fn scratch(&self) -> usize {
        self.shared() + self.shares() * self.share().iter().sum::<usize>()
    }
}

/// Shrinks the windows to one element if every window meets the image in at most one element, which is at the same place in each. Returns
/// that place. This happens deep in networks, where images have shrunk to a single element.
fn only_tap(geometry: &mut Geometry) -> Option<usize> {
    let meets =
        |side: &Side, tap: usize| (0..side.positions).any(|position| side.at(tap, position).is_some());
    let only = |side: &Side| {
        let mut taps = (0..side.kernel).filter(|&tap| meets(side, tap));
        let tap = taps.next()?;
        (taps.next().is_none() && side.before >= tap * side.dilation).then_some(tap)
    };
    let taps = geometry.sides.iter().map(only).collect::<Option<Vec<usize>>>()?;
    let mut place = 0;
    for (side, tap) in geometry.sides.iter_mut().zip(taps) {
        place = place * side.kernel + tap;
        (side.before, side.kernel) = (side.before - tap * side.dilation, 1);
    }
    Some(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::ops::conv::ConvGradWeight;
    use smallvec::smallvec;

    /// Returns the gradient of a weight `[outputs, 3, 3, 3]` from images of this size.
    fn weight_gradient(batch: usize, outputs: usize, size: usize, dtype: DType) -> Convolution {
        let (x, dy) = ([batch, 3, size, size], [batch, outputs, size, size]);
        let (strides, dilations, pads) = (smallvec![1, 1], smallvec![1, 1], smallvec![1, 1, 1, 1]);
        let op = Op::from(ConvGradWeight { strides, dilations, pads });
        Convolution::of(&op, dtype, [&x, &dy], &[outputs, 3, 3, 3]).expect("it is a convolution")
    }

    #[test]
    fn the_parts_of_a_batch_cover_it_and_have_scratch_together() {
        for batch in [1, 2, 3, 7, 40] {
            for (outputs, size) in [(4, 3), (8, 40), (64, 200), (40_000, 8)] {
                for dtype in [DType::F32, DType::BF16] {
                    let c = weight_gradient(batch, outputs, size, dtype);
                    let mut next = 0;
                    for part in 0..c.parts() {
                        let images = c.images_of(part);
                        assert!(images.start == next && images.end > next, "{images:?} of {batch}");
                        assert!(images.end == batch || images.end.is_multiple_of(c.images()));
                        next = images.end;
                    }
                    assert_eq!(next, batch);
                    let of_each: usize = c.share().iter().sum();
                    assert!(c.parts() == 1 || c.parts() * of_each <= MOST_SCRATCH.min(c.scratch()));
                }
            }
        }
        assert_eq!(weight_gradient(7, 8, 100, DType::F32).parts(), 7);
        assert_eq!(weight_gradient(7, 40_000, 8, DType::F32).parts(), 1);
    }
}
