//! The scratch of a direct convolution on the CPU: the [planes](super::planes) of groups of several channels.
//!
//! Windows are not laid side by side. A sum over the channels that are read and the taps of a window reads each channel's plane at the
//! distance of the tap. Neighbouring sums are neighbours in the planes, so vectors of sums are computed for several channels of the result
//! at once. This pays off if windows overlap and few sums of a plane are dropped.

use super::ConvolutionResult;
use super::planes::{BLOCK, MOST_SHARE, Planes};
use ir::ops::conv::Geometry;

/// The number of channels of the result that are computed at once, and the number of channels of `d y` for the gradient of the weight.
pub const ROWS: usize = 4;
/// The largest number of terms of a sum that are summed one after the other, before these sums are added up. Rounding errors grow with this
/// number instead of the size of a window. With it, the weights of a small ResNet have 0.81 times the error after five steps.
pub const DEPTH: usize = 128;
/// The largest number of sums along the places of a strip.
const STRIP: usize = 1 << 10;
/// The smallest number of sums of a strip, if its channels have as many.
const LEAST_STRIP: usize = 192;
/// The approximate number of sums of all channels of a task in a strip.
const SUMS: usize = 1 << 16;
/// The approximate number of elements of `x` that the gradient of the weight reads at once.
const READ: usize = 1 << 14;
/// The number of tasks that are wanted.
const TASKS: usize = 16;
/// The smallest number of channels of a task, if a convolution is divided: each task copies the channels that it reads.
const LEAST_PART: usize = 16;
/// The smallest number of sums of a plane. Fewer are multiplied faster as windows of several images.
const LEAST_SUMS: usize = 40;
/// The largest number of elements of the weight. A larger one has few places in its planes in the usual networks.
const MOST_WEIGHT: usize = 1 << 22;

/// A direct convolution.
#[derive(Clone, Debug)]
pub struct Direct {
    /// The planes of a channel that is read.
    pub planes: Planes,
    /// The number of channels of a group that are read: of `x`, or of `d y` for the gradient of the input.
    pub read: usize,
    /// The number of channels of a group that are made: of `y` or `d x`, or of `d y` for the gradient of the weight.
    pub made: usize,
    /// The number of these channels that one task makes.
    pub part: usize,
    /// The number of channels that are copied into planes at once.
    pub chunk: usize,
    /// The number of images that the gradient of the weight reads at once.
    pub images: usize,
    /// The number of divisions of the batch whose gradients of the weight are added up.
    pub divisions: usize,
    result: ConvolutionResult,
}

impl Direct {
    /// Returns the planes of a convolution. `None` if it is faster in another way.
    pub(super) fn of(geometry: &Geometry, result: ConvolutionResult) -> Option<Self> {
        let Geometry { batch, groups, inputs, outputs, .. } = *geometry;
        if inputs * outputs <= ROWS
            || geometry.is_pointwise()
            || geometry.sides.iter().any(|side| side.stride > 2)
        {
            return None;
        }
        let of_weight = result == ConvolutionResult::Weight;
        let (read, made) =
            if result == ConvolutionResult::Input { (outputs, inputs) } else { (inputs, outputs) };
        let blocks = if of_weight { groups } else { batch.saturating_mul(groups) }.max(1);
        let part = part(made, TASKS.div_ceil(blocks));
        let planes = Planes::of(geometry, result, (SUMS / part).clamp(LEAST_STRIP, STRIP))?;
        let (sums, dropped) = planes.whole();
        if planes.taps.len() < 2 || sums < LEAST_SUMS || dropped * 4 > sums {
            return None;
        }
        let most_taps =
            (0..planes.phases()).map(|phase| planes.taps.iter().filter(|tap| tap.phase == phase).count());
        let terms = if result == ConvolutionResult::Input { most_taps.max()? } else { planes.taps.len() };
        if terms > DEPTH {
            return None;
        }
        let chunk = (DEPTH / terms).min(read);
        let mut direct = Self { planes, read, made, part, chunk, images: 1, divisions: 1, result };
        if of_weight {
            let places = direct.planes.sums(direct.planes.strip());
            if direct.planes.strips().count() == 1 {
                direct.images = (STRIP / places).clamp(1, batch.max(1));
            }
            direct.chunk = (READ / (direct.images * direct.stride())).clamp(1, read);
            let wanted = TASKS.div_ceil(blocks * direct.parts());
            direct.divisions = wanted.min(batch.div_ceil(direct.images)).max(1);
        }
        let share = direct.share().into_iter().fold(0, usize::saturating_add);
        let weight = groups.saturating_mul(direct.packed());
        (share <= MOST_SHARE && weight <= MOST_WEIGHT).then_some(direct)
    }

    /// Returns the number of tasks for a batch of this many images in each of these groups.
    pub(super) fn tasks(&self, batch: usize, groups: usize) -> usize {
        let images = if self.result == ConvolutionResult::Weight { self.divisions } else { batch };
        images * groups * self.parts()
    }

    /// Returns the number of elements that the tasks of these groups share: the packed weight, or the gradients of the weight of each
    /// division.
    pub(super) fn shared(&self, groups: usize) -> usize {
        if self.result == ConvolutionResult::Weight {
            return groups * self.parts() * self.divisions * self.gradient();
        }
        groups * self.packed()
    }

    /// Returns the number of elements of the gradient of the weight that a task makes.
    pub fn gradient(&self) -> usize {
        self.part.next_multiple_of(ROWS) * self.read * self.planes.taps.len()
    }

    /// Returns the number of elements of the planes of a channel that is read.
    pub fn stride(&self) -> usize {
        let phases = if self.result == ConvolutionResult::Input { 1 } else { self.planes.phases() };
        phases * self.planes.plane()
    }

    /// Returns the distance between the sums of neighbouring channels.
    pub fn pitch(&self) -> usize {
        self.planes.sums(self.planes.strip()) + BLOCK
    }

    /// Returns the number of passes over the planes: one for each phase of `d x`.
    pub fn passes(&self) -> usize {
        if self.result == ConvolutionResult::Input { self.planes.phases() } else { 1 }
    }

    /// Returns the number of parts into which the channels of a group are divided.
    pub fn parts(&self) -> usize {
        self.made / self.part
    }

    /// Returns the number of elements of the weight of a group, in the order in which the kernel reads it.
    pub fn packed(&self) -> usize {
        self.planes.taps.len() * self.read * self.made.next_multiple_of(ROWS)
    }

    /// Returns the numbers of elements of one task's scratch: the planes that are read; the sums, or `d y` for the gradient of the weight.
    pub(super) fn share(&self) -> [usize; 3] {
        let planes = self.images.saturating_mul(self.chunk).saturating_mul(self.stride());
        let sums = self.part.next_multiple_of(ROWS).saturating_mul(self.pitch());
        let copies = if self.result == ConvolutionResult::Weight { self.images } else { self.passes() };
        [planes, copies.saturating_mul(sums), 0]
    }
}

/// Returns the number of channels of a task, if so many parts are wanted.
fn part(channels: usize, wanted: usize) -> usize {
    let fits = |parts: &usize| channels.is_multiple_of(parts * ROWS) && channels / parts >= LEAST_PART;
    channels / (1..=wanted).rev().find(fits).unwrap_or(1)
}
