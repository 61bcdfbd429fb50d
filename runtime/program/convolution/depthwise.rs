//! The scratch of a depthwise convolution on the CPU: each group has a single input channel. Multiplying matrices is slow there, since the
//! weight of a group is a single row or a few. So a group is computed on the [planes](super::planes) of its channels, one by one.

use super::ConvolutionResult;
use super::planes::{BLOCK, LANES, MOST_SHARE, Planes};
use ir::ops::conv::Geometry;

/// The approximate number of sums of a strip. Its planes stay in a core's cache.
const STRIP: usize = 1 << 14;
/// The largest number of outputs of a group. With more of them, the multiplication of the weight with windows is fast enough.
const MOST_OUTPUTS: usize = 32;

/// A depthwise convolution.
#[derive(Clone, Debug)]
pub struct Depthwise {
    /// The planes of a channel that is read.
    pub planes: Planes,
    outputs: usize,
    made: ConvolutionResult,
}

impl Depthwise {
    /// Returns the planes of a convolution. `None` if it is not depthwise, or is faster in another way.
    pub(super) fn of(geometry: &Geometry, made: ConvolutionResult) -> Option<Self> {
        let Geometry { groups, inputs, outputs, .. } = *geometry;
        // Windows of a single element need no copies in the other way.
        if groups < 2 || inputs != 1 || !(1..=MOST_OUTPUTS).contains(&outputs) || geometry.is_pointwise() {
            return None;
        }
        let depthwise = Self { planes: Planes::of(geometry, made, STRIP)?, outputs, made };
        let share = depthwise.share().into_iter().fold(0, usize::saturating_add);
        (share <= MOST_SHARE).then_some(depthwise)
    }

    /// Returns the numbers of elements of one task's scratch: the planes that are read; the weights of a pass, or `d y` for the gradient
    /// of the weight; the sums.
    pub(super) fn share(&self) -> [usize; 3] {
        let Self { planes, outputs, made } = self;
        let terms = outputs.saturating_mul(planes.taps.len());
        let read = if *made == ConvolutionResult::Input { *outputs } else { planes.phases() };
        let read = read.saturating_mul(planes.plane());
        let sums = planes.sums(planes.strip()).saturating_add(BLOCK);
        if *made == ConvolutionResult::Weight {
            return [read, sums, terms.saturating_mul(LANES)];
        }
        [read, terms, sums]
    }
}
