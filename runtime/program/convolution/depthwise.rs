//! The scratch of a depthwise convolution on the CPU: each group has a single input channel. Multiplying matrices is slow there, since the
//! weight of a group is a single row or a few.
//!
//! The kernel copies a channel of an image into a **plane** in scratch, with the zeros around it. All sums of a plane are then computed in
//! the same way: `y[place] = Σ_tap weight[tap] · plane[place + offset[tap]]`. Places count through the lines of the plane, so short lines
//! are computed together. Sums between the last position of a line and the first one of the next line are computed too, and dropped.
//! There are few of them, since the zeros after a line are also the zeros before the next line.
//!
//! A side with stride s has a plane for each **phase** p: the padded elements p, p + s, p + 2s, …. Element `tap` of a window reads phase
//! `tap·dilation mod s`, shifted by `⌊tap·dilation / s⌋`. The gradient of the input reads `d y` as it is, and computes a phase of `d x`
//! at a time: `d x[place] = Σ_tap weight[tap] · plane[place - shift[tap]]`, over the taps of this phase. For the gradient of the weight,
//! `d y` is copied to the places of its sums: `d weight[tap] = Σ_place d y[place] · plane[place + offset[tap]]`.
//!
//! Large channels are computed in **strips** along the first side.

use super::ConvolutionResult;
use ir::ops::conv::{Geometry, Side};
use std::iter;
use std::ops::Range;

/// The largest number of sums that the kernel computes at once. Planes have this number of further elements, so that the last block
/// of sums may be a whole one.
pub const BLOCK: usize = 64;
/// The number of partial sums of an element of the gradient of the weight.
pub const LANES: usize = 8;
/// The approximate number of sums of a strip. Its planes stay in a core's cache.
const STRIP: usize = 1 << 14;
/// The largest number of elements of scratch of a task.
const MOST_SHARE: usize = 1 << 18;
/// The largest number of outputs of a group. With more of them, the multiplication of the weight with windows is fast enough.
const MOST_OUTPUTS: usize = 32;
/// The largest stride, pad or length of a window, so that places can be computed without overflow.
const MOST_DISTANCE: usize = 1 << 32;

/// The planes of a depthwise convolution.
#[derive(Clone, Debug)]
pub struct Depthwise {
    /// The spatial dims, at least one. Dims of a single element are left out.
    sides: Vec<DepthwiseSide>,
    /// For each side, the distance in a plane between neighbouring elements.
    pub pitches: Vec<usize>,
    /// The number of sums along the first side that a strip has; the last strip may have fewer.
    strip: usize,
    /// The elements of a window that meet the image somewhere.
    pub taps: Vec<Tap>,
    made: ConvolutionResult,
    outputs: usize,
}

/// A spatial dim of a depthwise convolution.
#[derive(Clone, Debug)]
struct DepthwiseSide {
    /// The side of the tensor that is read, in phase 0: `x`, or `d y` for the gradient of the input.
    read: Alignment,
    /// The side of the other tensor with spatial dims, in phase 0: `y` or `d y`, or `d x` for the gradient of the input.
    other: Alignment,
    /// The number of sums along the side.
    sums: usize,
    /// The largest shift of a tap.
    reach: usize,
    /// The phases that windows read.
    phases: Vec<usize>,
    taps: Vec<Tap>,
}

/// An element of a window, or its part along a side. Each field is the sum of the parts along all sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tap {
    /// The number of its phase among those of all sides.
    pub phase: usize,
    /// The distance in a plane from the place of a sum to the element that is read.
    pub shift: usize,
    /// The place in the weight of an output channel.
    pub place: usize,
}

/// The places of a tensor's side in the columns of a plane: column `j` has the element `j·stride - before`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// The number of elements of the tensor.
    pub size: usize,
    /// The number of columns of the plane.
    pub columns: usize,
    /// The distance in the tensor between the elements of neighbouring columns.
    pub stride: usize,
    /// The number of zeros before the first element. A negative number counts elements that no column has.
    pub before: isize,
}

impl Alignment {
    /// Returns the columns that have an element of the tensor.
    pub fn inside(&self) -> Range<usize> {
        let column = |element: usize| {
            let padded = (element as isize + self.before).max(0) as usize;
            padded.div_ceil(self.stride).min(self.columns)
        };
        column(0)..column(self.size)
    }

    /// Returns the element of a column that has one.
    pub fn element(&self, column: usize) -> usize {
        (column * self.stride).wrapping_add_signed(-self.before)
    }

    /// Returns the columns from `start` on.
    fn from(self, start: usize) -> Self {
        let before = self.before - (start * self.stride) as isize;
        Self { columns: self.columns - start, before, ..self }
    }

    /// Returns the alignment of a phase.
    fn of_phase(self, phase: usize) -> Self {
        Self { before: self.before - phase as isize, ..self }
    }
}

impl DepthwiseSide {
    /// Makes a side whose taps have their places in the weight counted in steps of `step`. `None` if no window meets the image.
    fn new(side: &Side, step: usize, made: ConvolutionResult) -> Option<Self> {
        let mut met = (0..side.kernel).filter(|&tap| !side.inside(tap).is_empty());
        let first = met.next()?;
        let last = met.next_back().unwrap_or(first);
        let distance = |tap: usize| (tap - first) * side.dilation;
        let reach = distance(last) / side.stride;
        let mut phases: Vec<usize> = (first..=last).map(|tap| distance(tap) % side.stride).collect();
        phases.sort_unstable();
        phases.dedup();
        let makes_input = made == ConvolutionResult::Input;
        let tap = |tap: usize| {
            let phase = distance(tap) % side.stride;
            let shift = distance(tap) / side.stride;
            Tap {
                phase: phases.partition_point(|&other| other < phase),
                shift: if makes_input { reach - shift } else { shift },
                place: tap * step,
            }
        };
        let taps = (first..=last).map(tap).collect();
        let before = side.before as isize - (first * side.dilation) as isize;
        let image =
            Alignment { size: side.image, columns: side.positions + reach, stride: side.stride, before };
        let positions = Alignment { size: side.positions, columns: side.positions, stride: 1, before: 0 };
        if !makes_input {
            return Some(Self { read: image, other: positions, sums: side.positions, reach, phases, taps });
        }
        // The columns from the first to the last that has an element of the image in some phase.
        let (start, end) = (before.max(0) as usize / side.stride, image.inside().end);
        let sums = end - start;
        let read = Alignment { columns: sums + reach, before: reach as isize - start as isize, ..positions };
        let other = Alignment { columns: end, ..image }.from(start);
        Some(Self { read, other, sums, reach, phases, taps })
    }

    /// Returns whether the side has a single element everywhere.
    fn is_single(&self) -> bool {
        self.sums == 1 && self.reach == 0 && self.read.size == 1 && self.other.size == 1
    }

    /// Returns the number of columns from a line to the next: zeros at the end of a line are also those at the start of the next one.
    fn width(&self) -> usize {
        let columns = self.read.columns;
        let zeros_before = self.read.before.max(0) as usize / self.read.stride;
        let zeros_after = columns - self.read.inside().end;
        (columns - zeros_before.min(zeros_after)).max(self.sums)
    }
}

impl Depthwise {
    /// Returns the planes of a convolution. `None` if it is not depthwise, or is faster in another way.
    pub(super) fn of(geometry: &Geometry, made: ConvolutionResult) -> Option<Self> {
        let Geometry { groups, inputs, outputs, .. } = *geometry;
        // Windows of a single element need no copies in the other way.
        if groups < 2 || inputs != 1 || !(1..=MOST_OUTPUTS).contains(&outputs) || geometry.is_pointwise() {
            return None;
        }
        let mut step = 1;
        let mut sides = Vec::new();
        for side in geometry.sides.iter().rev() {
            let window = side.kernel.saturating_mul(side.dilation);
            if side.before.max(side.stride).max(window) > MOST_DISTANCE {
                return None;
            }
            sides.push(DepthwiseSide::new(side, step, made)?);
            step *= side.kernel;
        }
        sides.reverse();
        let depthwise = Self::with_sides(sides, made, outputs);
        let share = depthwise.share().into_iter().fold(0, usize::saturating_add);
        (share <= MOST_SHARE).then_some(depthwise)
    }

    fn with_sides(sides: Vec<DepthwiseSide>, made: ConvolutionResult, outputs: usize) -> Self {
        let (mut single, mut sides): (Vec<_>, Vec<_>) = sides.into_iter().partition(DepthwiseSide::is_single);
        if sides.is_empty() {
            sides.extend(single.pop());
        }
        let mut pitches = vec![1_usize; sides.len()];
        for i in (1..sides.len()).rev() {
            pitches[i - 1] = pitches[i].saturating_mul(sides[i].width());
        }
        let strip = (STRIP / pitches[0]).clamp(1, sides[0].sums);
        // A side that is left out has one tap.
        let place = single.iter().map(|side| side.taps[0].place).sum();
        let mut taps = vec![Tap { place, ..Tap::default() }];
        for (side, &pitch) in sides.iter().zip(&pitches) {
            let extend = |outer: &Tap, tap: &Tap| Tap {
                phase: outer.phase * side.phases.len() + tap.phase,
                shift: outer.shift.saturating_add(tap.shift.saturating_mul(pitch)),
                place: outer.place + tap.place,
            };
            taps =
                taps.iter().flat_map(|outer| side.taps.iter().map(move |tap| extend(outer, tap))).collect();
        }
        Self { sides, pitches, strip, taps, made, outputs }
    }

    /// Returns the number of combinations of phases of all sides.
    pub fn phases(&self) -> usize {
        self.sides.iter().map(|side| side.phases.len()).product()
    }

    /// Returns the strips, as ranges of the sums along the first side.
    pub fn strips(&self) -> impl Iterator<Item = Range<usize>> {
        let (sums, strip) = (self.sides[0].sums, self.strip);
        (0..sums).step_by(strip).map(move |start| start..(start + strip).min(sums))
    }

    /// Returns the sides of the tensor that is read, in the planes of a strip. `phase` is 0 for `d y`, which has no phases.
    pub fn read(&self, strip: &Range<usize>, phase: usize) -> Vec<Alignment> {
        self.part(strip, phase, |side| side.read)
    }

    /// Returns the sides of the other tensor, in the sums of a strip. `phase` is 0 for `y` and `d y`, which have no phases.
    pub fn other(&self, strip: &Range<usize>, phase: usize) -> Vec<Alignment> {
        self.part(strip, phase, |side| side.other)
    }

    fn part(
        &self,
        strip: &Range<usize>,
        mut phase: usize,
        of: impl Fn(&DepthwiseSide) -> Alignment,
    ) -> Vec<Alignment> {
        let mut sides = Vec::with_capacity(self.sides.len());
        for side in self.sides.iter().rev() {
            sides.push(of(side).of_phase(side.phases[phase % side.phases.len()]));
            phase /= side.phases.len();
        }
        sides.reverse();
        sides[0] = sides[0].from(strip.start);
        sides[0].columns -= self.sides[0].sums - strip.end;
        sides
    }

    /// Returns the number of sums that are computed for a plane, including the dropped sums, if a strip has `strip` sums along the first side.
    pub fn sums(&self, strip: usize) -> usize {
        let sides = iter::once(strip).chain(self.sides.iter().skip(1).map(|side| side.sums));
        let last = sides.zip(&self.pitches).map(|(sums, pitch)| (sums - 1).saturating_mul(*pitch));
        last.fold(1, usize::saturating_add)
    }

    /// Returns the number of elements of a plane that is read.
    pub fn plane(&self) -> usize {
        let sides = self.sides.iter().zip(&self.pitches);
        let reach = sides.map(|(side, pitch)| side.reach.saturating_mul(*pitch));
        reach.fold(self.sums(self.strip).saturating_add(BLOCK), usize::saturating_add)
    }

    /// Returns the numbers of elements of one task's scratch: the planes that are read; the weights of a pass, or `d y` for the gradient
    /// of the weight; the sums.
    pub(super) fn share(&self) -> [usize; 3] {
        let terms = self.outputs.saturating_mul(self.taps.len());
        let planes = if self.made == ConvolutionResult::Input { self.outputs } else { self.phases() };
        let planes = planes.saturating_mul(self.plane());
        let sums = self.sums(self.strip).saturating_add(BLOCK);
        if self.made == ConvolutionResult::Weight {
            return [planes, sums, terms.saturating_mul(LANES)];
        }
        [planes, terms, sums]
    }
}
