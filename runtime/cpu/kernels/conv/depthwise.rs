//! Depthwise convolutions: each group has one input channel. [`program::convolution::depthwise`] says how channels lie in scratch.
//!
//! A task computes one group of one image, or one group of the gradient of the weight over all images. So the result does not depend on
//! the number of threads.

mod lines;
mod sums;
#[cfg(test)]
mod tests;

use crate::math::{Float, Real};
use lines::{Lines, read, write};
use program::convolution::depthwise::{Depthwise, LANES, Tap};
use program::convolution::{Convolution, ConvolutionResult};
use rayon::prelude::*;
use std::ops::Range;
use sums::{are_finite, shifted_sums, sum_of_lanes, tap_sums, tap_sums_by_lines};

/// Computes a depthwise convolution or one of its gradients.
pub(super) fn run<S: Float>(
    c: &Convolution,
    planes: &Depthwise,
    operands: [&[S]; 2],
    result: &mut [S],
    scratch: &mut [S::Real],
) {
    match c.made {
        ConvolutionResult::Output => convolve(c, planes, operands, result, scratch),
        ConvolutionResult::Input => input_gradient(c, planes, operands, result, scratch),
        ConvolutionResult::Weight => weight_gradient(c, planes, operands, result, scratch),
    }
}

/// Calls `task` with the number of each block of the result, the block, and scratch. Before the first call with a part of the scratch,
/// that part is set to zero.
fn for_each_block<S: Float>(
    c: &Convolution,
    result: &mut [S],
    scratch: &mut [S::Real],
    task: impl Fn(usize, &mut [S], [&mut [S::Real]; 3]) + Sync,
) {
    let (block, share, shares) = (c.block(), c.share(), c.shares());
    let each = result.len().div_ceil(block).div_ceil(shares);
    let scratch = scratch.par_chunks_exact_mut(share.iter().sum());
    result.par_chunks_mut(block * each).zip(scratch).enumerate().for_each(|(part, (result, scratch))| {
        scratch.fill(S::Real::ZERO);
        for (i, result) in result.chunks_mut(block).enumerate() {
            let (first, rest) = scratch.split_at_mut(share[0]);
            let (second, third) = rest.split_at_mut(share[1]);
            task(part * each + i, result, [first, second, third]);
        }
    });
}

/// A part of the planes along the first side.
struct Strip {
    /// The lines of the tensor that is read into planes: of each phase of `x`, or of each output channel of `d y`.
    read: Vec<Lines>,
    /// The lines of the other tensor: of each output channel of `y` or `d y`, or of each phase of `d x`.
    other: Vec<Lines>,
    /// The number of sums of a plane.
    sums: usize,
}

impl Strip {
    /// Returns the part of a group of `x`, and of `y` or `d y`.
    fn of_output(c: &Convolution, planes: &Depthwise, strip: &Range<usize>) -> Self {
        let (outputs, positions) = (c.geometry.outputs, c.geometry.positions());
        let read = |phase: usize| {
            Lines::new(&planes.read(strip, phase), &planes.pitches, [0, phase * planes.plane()])
        };
        let sides = planes.other(strip, 0);
        let other = |output: usize| Lines::new(&sides, &planes.pitches, [output * positions, 0]);
        Self {
            read: (0..planes.phases()).map(read).collect(),
            other: (0..outputs).map(other).collect(),
            sums: planes.sums(strip.len()),
        }
    }

    /// Returns the part of a group of `d y`, and of `d x`.
    fn of_input(c: &Convolution, planes: &Depthwise, strip: &Range<usize>) -> Self {
        let (outputs, positions) = (c.geometry.outputs, c.geometry.positions());
        let sides = planes.read(strip, 0);
        let read = |output: usize| {
            Lines::new(&sides, &planes.pitches, [output * positions, output * planes.plane()])
        };
        let other = |phase: usize| Lines::new(&planes.other(strip, phase), &planes.pitches, [0, 0]);
        Self {
            read: (0..outputs).map(read).collect(),
            other: (0..planes.phases()).map(other).collect(),
            sums: planes.sums(strip.len()),
        }
    }
}

/// A pass over the planes: it gives an output channel, or a phase of `d x`.
struct Pass {
    /// For each term of a sum, the distance in the planes from the place of the sum to the element that is read.
    offsets: Vec<usize>,
    /// For each term of a sum, the place of its factor in the weight of the group.
    places: Vec<usize>,
}

impl Pass {
    /// Returns the pass that gives an output channel.
    fn of_output(c: &Convolution, planes: &Depthwise, output: usize) -> Self {
        let place = |tap: &Tap| output * c.geometry.taps() + tap.place;
        Self { offsets: offsets(planes), places: planes.taps.iter().map(place).collect() }
    }

    /// Returns the pass that gives a phase of `d x`, over its taps for all output channels.
    fn of_input(c: &Convolution, planes: &Depthwise, phase: usize) -> Self {
        let (plane, taps) = (planes.plane(), c.geometry.taps());
        let term = |output: usize, tap: &Tap| (output * plane + tap.shift, output * taps + tap.place);
        let in_phase = || planes.taps.iter().filter(|tap| tap.phase == phase);
        let terms = (0..c.geometry.outputs).flat_map(|output| in_phase().map(move |tap| term(output, tap)));
        let (offsets, places) = terms.unzip();
        Self { offsets, places }
    }
}

/// Returns for each tap the distance from the place of a sum to the element of `x` that is read.
fn offsets(planes: &Depthwise) -> Vec<usize> {
    let plane = planes.plane();
    planes.taps.iter().map(|tap| tap.phase * plane + tap.shift).collect()
}

/// Computes `y` from `x` and `weight`, with a pass for each output channel.
fn convolve<S: Float>(
    c: &Convolution,
    planes: &Depthwise,
    [x, weight]: [&[S]; 2],
    y: &mut [S],
    scratch: &mut [S::Real],
) {
    let strips: Vec<_> = planes.strips().map(|strip| Strip::of_output(c, planes, &strip)).collect();
    let passes: Vec<_> = (0..c.geometry.outputs).map(|output| Pass::of_output(c, planes, output)).collect();
    for_each_block(c, y, scratch, |task, y, scratch| {
        let x = &x[task * c.image()..][..c.image()];
        let weight = &weight[task % c.geometry.groups * c.weight()..][..c.weight()];
        run_passes(&strips, &passes, [x, weight], y, scratch);
    });
}

/// Computes `d x` from `weight` and `d y`, with a pass for each phase.
fn input_gradient<S: Float>(
    c: &Convolution,
    planes: &Depthwise,
    [weight, dy]: [&[S]; 2],
    dx: &mut [S],
    scratch: &mut [S::Real],
) {
    let strips: Vec<_> = planes.strips().map(|strip| Strip::of_input(c, planes, &strip)).collect();
    let passes: Vec<_> = (0..planes.phases()).map(|phase| Pass::of_input(c, planes, phase)).collect();
    for_each_block(c, dx, scratch, |task, dx, scratch| {
        let dy = &dy[task * c.outputs()..][..c.outputs()];
        let weight = &weight[task % c.geometry.groups * c.weight()..][..c.weight()];
        dx.fill(S::narrow(S::Real::ZERO)); // some elements may be read by no window
        run_passes(&strips, &passes, [dy, weight], dx, scratch);
    });
}

/// Computes the channels of a group of an image from the channels that are read, and the weight of the group.
fn run_passes<S: Float>(
    strips: &[Strip],
    passes: &[Pass],
    [channels, weight]: [&[S]; 2],
    made: &mut [S],
    [planes, weights, sums]: [&mut [S::Real]; 3],
) {
    for strip in strips {
        if strips.len() > 1 {
            planes.fill(S::Real::ZERO);
        }
        read(&strip.read, channels, planes);
        for (pass, lines) in passes.iter().zip(&strip.other) {
            let weights = &mut weights[..pass.places.len()];
            weights.iter_mut().zip(&pass.places).for_each(|(to, &place)| *to = weight[place].widen());
            shifted_sums(planes, &pass.offsets, weights, strip.sums, sums);
            write(lines, sums, made);
        }
    }
}

/// Computes `d weight[tap] = Σ d y[place] · plane[place + offset[tap]]`, over the places of all images.
fn weight_gradient<S: Float>(
    c: &Convolution,
    planes: &Depthwise,
    [x, dy]: [&[S]; 2],
    dweight: &mut [S],
    scratch: &mut [S::Real],
) {
    let strips: Vec<_> = planes.strips().map(|strip| Strip::of_output(c, planes, &strip)).collect();
    let (offsets, taps) = (offsets(planes), c.geometry.taps());
    for_each_block(c, dweight, scratch, |group, dweight, [of_x, of_dy, sums]| {
        let mut add_images = |sums: &mut [S::Real], by_lines: bool| {
            sums.fill(S::Real::ZERO);
            for image in 0..c.geometry.batch {
                let block = image * c.geometry.groups + group;
                let x = &x[block * c.image()..][..c.image()];
                let dy = &dy[block * c.outputs()..][..c.outputs()];
                for strip in &strips {
                    if strips.len() > 1 {
                        of_x.fill(S::Real::ZERO);
                        of_dy.fill(S::Real::ZERO);
                    }
                    let scratch = [&mut *of_x, &mut *of_dy, &mut *sums];
                    add_products(strip, &offsets, [x, dy], scratch, by_lines);
                }
            }
        };
        add_images(sums, false);
        if !are_finite(sums) {
            // An infinite element may have been multiplied with zeros of places that are no position.
            add_images(sums, true);
        }
        dweight.fill(S::narrow(S::Real::ZERO)); // some taps may lie outside of every image
        let channels = dweight.chunks_exact_mut(taps).zip(sums.chunks_exact(offsets.len() * LANES));
        for (weight, sums) in channels {
            for (tap, lanes) in planes.taps.iter().zip(sums.as_chunks().0) {
                weight[tap.place] = S::narrow(sum_of_lanes(*lanes));
            }
        }
    });
}

/// Adds the products of a strip of an image to the sums of each tap.
fn add_products<S: Float>(
    strip: &Strip,
    offsets: &[usize],
    [x, dy]: [&[S]; 2],
    [of_x, of_dy, sums]: [&mut [S::Real]; 3],
    by_lines: bool,
) {
    read(&strip.read, x, of_x);
    for (lines, sums) in strip.other.iter().zip(sums.chunks_exact_mut(offsets.len() * LANES)) {
        read(std::slice::from_ref(lines), dy, of_dy);
        if by_lines {
            tap_sums_by_lines(of_x, offsets, of_dy, lines, sums);
        } else {
            tap_sums(of_x, offsets, of_dy, strip.sums, sums);
        }
    }
}
