//! The scratch of a convolution on the CPU: lowering plans it, the kernel divides it. Counted in numbers of the type that
//! is computed in.

use ir::ops::conv::Geometry;
use ir::{DType, Op};
use std::ops::Range;

/// The numbers that windows laid side by side take at once, about: what stays in a core's cache.
const TILE: usize = 1 << 16;
/// Fewer windows than this at once make no good multiplication.
const LEAST_WINDOWS: usize = 64;
/// Scratch is not divided among more tasks than this.
pub(crate) const MOST_SHARES: usize = 16;
/// The most numbers for all tasks together, unless a single one needs more.
const MOST_SCRATCH: usize = 1 << 20;

/// A convolution as its kernel runs it.
#[derive(Clone, Debug)]
pub(crate) struct Convolution {
    pub(crate) geometry: Geometry,
    pub(crate) made: Made,
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
        Some(Self { geometry: Geometry::new(windows, x, weight), made, half })
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
        self.geometry.outputs * self.geometry.terms()
    }

    /// Elements of the result that one task makes: those of one group, of one image where the result has images.
    pub(crate) fn block(&self) -> usize {
        match self.made {
            Made::Output => self.outputs(),
            Made::Input => self.image(),
            Made::Weight => self.weight(),
        }
    }

    fn tasks(&self) -> usize {
        let Geometry { batch, groups, .. } = self.geometry;
        if self.made == Made::Weight { groups } else { batch * groups }
    }

    /// Windows that are laid side by side at once.
    fn tile(&self) -> usize {
        (TILE / self.geometry.terms().max(1)).max(LEAST_WINDOWS).min(self.geometry.positions())
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

    /// The numbers of one task: a tile of windows; what it reads of `d y`, widened; what it makes, before it is rounded.
    pub(crate) fn share(&self) -> [usize; 3] {
        let windows = self.geometry.terms() * self.tile();
        if !self.half {
            return [windows, 0, 0];
        }
        [windows, if self.made == Made::Output { 0 } else { self.outputs() }, self.block()]
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
