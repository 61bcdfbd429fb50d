//! The scratch of a convolution on the CPU: lowering plans it, the kernel divides it. Counted in numbers of the type that
//! is computed in.

use crate::kernel_contract::Unplaced;
use crate::target::Multiprocessors;
use ir::ops::conv::{Geometry, Side};
use ir::{DType, Op};
use std::ops::Range;

/// The numbers that windows laid side by side take at once, about: what stays in a core's cache.
const TILE: usize = 1 << 17;
/// Fewer windows than this at once make no good multiplication.
const LEAST_WINDOWS: usize = 128;
/// Scratch is not divided among more tasks than this.
pub(crate) const MOST_SHARES: usize = 16;
/// The most numbers for all tasks together, unless a single one needs more.
const MOST_SCRATCH: usize = 1 << 20;

/// Returns the f32 numbers of scratch that a convolution or a gradient of it takes.
pub(crate) fn scratch(op: &Op, operands: &[Unplaced], results: &[Unplaced], _: Multiprocessors) -> usize {
    let (sizes, result) = ([0, 1].map(|operand| &operands[operand].layout.sizes[..]), &results[0]);
    let convolution = Convolution::of(op, result.dtype, sizes, &result.layout.sizes);
    let width = if result.dtype == DType::F64 { 2 } else { 1 };
    convolution.expect("the contracts of convolutions name this").scratch() * width
}

/// A convolution as its kernel runs it.
#[derive(Clone, Debug)]
pub(crate) struct Convolution {
    pub(crate) geometry: Geometry,
    pub(crate) made: Made,
    /// Elements of a window of one channel as the weight has them, and the first of those that are computed.
    taps: usize,
    tap: usize,
    /// Whether tensors are stored in a type that is not computed in.
    half: bool,
}

/// Which of the three tensors is made of the other two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// `y`.
    Output,
    /// `d x`.
    Input,
    /// `d weight`.
    Weight,
}

impl Convolution {
    /// Of an operator on tensors of these sizes; `None` if it is no convolution.
    pub(crate) fn of(op: &Op, dtype: DType, operands: [&[usize]; 2], result: &[usize]) -> Option<Self> {
        let (windows, x, weight, made) = match op {
            Op::Conv(conv) => (conv.windows(), operands[0], operands[1], Made::Output),
            Op::ConvGradInput(conv) => (conv.windows(), result, operands[0], Made::Input),
            Op::ConvGradWeight(conv) => (conv.windows(), operands[0], result, Made::Weight),
            _ => return None,
        };
        let half = matches!(dtype, DType::F16 | DType::BF16);
        let mut geometry = Geometry::new(windows, x, weight);
        let taps = geometry.taps();
        // A gradient has its zeros anyway, and is made faster with them than between them.
        let tap = if made == Made::Weight { None } else { only_tap(&mut geometry) };
        let tap = tap.unwrap_or(0);
        Some(Self { geometry, made, taps, tap, half })
    }

    /// Where the weight of a group has what is computed, `[outputs, terms]`: from which element on, from row to row, from
    /// column to column.
    pub(crate) fn weight_matrix(&self) -> [usize; 3] {
        if self.geometry.taps() < self.taps {
            [self.tap, self.geometry.inputs * self.taps, self.taps]
        } else {
            [0, self.geometry.terms(), 1]
        }
    }

    /// Elements of the channels of one group of one image.
    pub(crate) fn image(&self) -> usize {
        self.geometry.inputs * self.geometry.area()
    }

    /// Elements that one group makes of one image.
    pub(crate) fn outputs(&self) -> usize {
        self.geometry.outputs * self.geometry.positions()
    }

    /// Elements of the weight of one group.
    pub(crate) fn weight(&self) -> usize {
        self.geometry.outputs * self.geometry.inputs * self.taps
    }

    /// Elements of the result that one task makes: those of one group, of [`Self::images`] where the result has images.
    pub(crate) fn block(&self) -> usize {
        match self.made {
            Made::Output => self.images() * self.outputs(),
            Made::Input => self.images() * self.image(),
            Made::Weight => self.weight(),
        }
    }

    fn tasks(&self) -> usize {
        let Geometry { batch, groups, .. } = self.geometry;
        if self.made == Made::Weight { groups } else { batch.div_ceil(self.images()) * groups }
    }

    /// Windows that are worth laying side by side at once.
    fn wanted(&self) -> usize {
        (TILE / self.geometry.terms().max(1)).max(LEAST_WINDOWS)
    }

    /// Windows of an image that are laid side by side at once.
    fn tile(&self) -> usize {
        self.wanted().min(self.geometry.positions())
    }

    /// Images whose windows are laid side by side: more than one if a single one has few. Of several groups each is
    /// convolved apart, image by image.
    pub(crate) fn images(&self) -> usize {
        let Geometry { batch, groups, .. } = self.geometry;
        if groups > 1 { 1 } else { (self.wanted() / self.geometry.positions().max(1)).clamp(1, batch.max(1)) }
    }

    /// All windows of an image, tile by tile.
    pub(crate) fn tiles(&self) -> impl Iterator<Item = Range<usize>> {
        let (positions, tile) = (self.geometry.positions(), self.tile());
        (0..positions).step_by(tile).map(move |start| start..(start + tile).min(positions))
    }

    /// The numbers that all tasks share: the weight, widened.
    pub(crate) fn shared(&self) -> usize {
        let widened = self.half && self.made != Made::Weight;
        if widened { self.geometry.groups * self.weight() } else { 0 }
    }

    /// The numbers of one task: a tile of windows; what it reads of `d y`, widened or side by side; what it makes, before
    /// it is rounded or divided among images.
    pub(crate) fn share(&self) -> [usize; 3] {
        let (images, makes_output) = (self.images(), self.made == Made::Output);
        let reads = !makes_output && (self.half || images > 1);
        let makes = self.half || (makes_output && images > 1);
        [
            self.geometry.terms() * images * self.tile(),
            if reads { images * self.outputs() } else { 0 },
            if makes { self.block() } else { 0 },
        ]
    }

    /// How many tasks have scratch at the same time.
    pub(crate) fn shares(&self) -> usize {
        let share = self.share().iter().sum::<usize>().max(1);
        let room = MOST_SCRATCH.saturating_sub(self.shared()) / share;
        self.tasks().min(MOST_SHARES).min(room).max(1)
    }

    /// The numbers of all tasks, and those that they share.
    pub(crate) fn scratch(&self) -> usize {
        self.shared() + self.shares() * self.share().iter().sum::<usize>()
    }
}

/// Where of every window one element at most lies in the image, and that the same: makes it a window of this element, and
/// gives its place. So it is deep in networks whose images have shrunk to a single element.
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
