//! Direct convolutions: sums over planes, without windows. [`program::convolution::direct`] says how channels lie in scratch.
//!
//! A task computes some channels of one group of one image, or the gradient of the weight of some output channels over a division of the
//! batch. So the result does not depend on the number of threads.

mod tiles;

use super::super::PARALLEL;
use super::planes::{Lines, are_finite, for_each_block, read, write};
use crate::math::{Float, Real};
use program::convolution::direct::{Direct, ROWS};
use program::convolution::{Convolution, ConvolutionResult};
use rayon::prelude::*;
use std::ops::Range;
use std::slice::from_ref;
use tiles::{Products, add_products, add_products_by_lines, add_sums};

/// Computes a convolution or one of its gradients.
pub(super) fn run<S: Float>(
    c: &Convolution,
    direct: &Direct,
    operands: [&[S]; 2],
    result: &mut [S],
    scratch: &mut [S::Real],
) {
    let [first, second] = operands;
    match c.made {
        ConvolutionResult::Output => convolve(c, direct, [first, second], result, scratch),
        ConvolutionResult::Input => convolve(c, direct, [second, first], result, scratch),
        ConvolutionResult::Weight => weight_gradient(c, direct, operands, result, scratch),
    }
}

/// A part of the planes along the first side.
struct Strip {
    /// The lines of a channel that is read, in each of its phases.
    read: Vec<Lines>,
    /// The lines of a channel of the other tensor with spatial dims, in each of its phases.
    other: Vec<Lines>,
    /// The number of sums of a plane.
    sums: usize,
}

impl Strip {
    fn new(direct: &Direct, strip: &Range<usize>) -> Self {
        let planes = &direct.planes;
        let read = |phase: usize| {
            Lines::new(&planes.read(strip, phase), &planes.pitches, [0, phase * planes.plane()])
        };
        let other = |phase: usize| Lines::new(&planes.other(strip, phase), &planes.pitches, [0, 0]);
        Self {
            read: (0..planes.phases() / direct.passes()).map(read).collect(),
            other: (0..direct.passes()).map(other).collect(),
            sums: planes.sums(strip.len()),
        }
    }
}

/// A pass over the planes: it gives the sums of `y`, or of a phase of `d x`.
struct Pass {
    /// The number of terms of a sum for each channel that is read.
    taps: usize,
    /// For each term of a chunk of channels, the distance in the planes from the place of the sum to the element that is read.
    offsets: Vec<usize>,
    /// For each term of the first channel, the place in the weight of its factor.
    places: Vec<usize>,
    /// The place of its first factor in the packed weight of a group.
    start: usize,
}

/// Returns the passes of a convolution.
fn passes(direct: &Direct) -> Vec<Pass> {
    let (planes, passes) = (&direct.planes, direct.passes());
    let mut start = 0;
    let pass = |phase: usize| {
        let taps: Vec<_> = planes.taps.iter().filter(|tap| passes == 1 || tap.phase == phase).collect();
        let first = start;
        start += taps.len() * direct.read * direct.made.next_multiple_of(ROWS);
        let of_phase = |phase: usize| if passes == 1 { phase * planes.plane() } else { 0 };
        let offset = |channel: usize| {
            taps.iter().map(move |tap| channel * direct.stride() + of_phase(tap.phase) + tap.shift)
        };
        Pass {
            taps: taps.len(),
            offsets: (0..direct.chunk).flat_map(offset).collect(),
            places: taps.iter().map(|tap| tap.place).collect(),
            start: first,
        }
    };
    (0..passes).map(pass).collect()
}

/// Computes the channels of `y` from `x`, or those of `d x` from `d y`.
fn convolve<S: Float>(
    c: &Convolution,
    direct: &Direct,
    [channels, weight]: [&[S]; 2],
    made: &mut [S],
    scratch: &mut [S::Real],
) {
    let (passes, strips) = (passes(direct), strips(direct));
    let (packed, scratch) = scratch.split_at_mut(c.shared());
    for (weight, packed) in weight.chunks_exact(c.weight()).zip(packed.chunks_exact_mut(direct.packed())) {
        passes.iter().for_each(|pass| pack(c, direct, pass, weight, packed));
    }
    let packed = &*packed;
    let area = if c.made == ConvolutionResult::Output { c.geometry.area() } else { c.geometry.positions() };
    for_each_block(c, made, c.block(), scratch, |task, made, [planes, sums, _]| {
        let (block, part) = (task / direct.parts(), task % direct.parts());
        let channels = &channels[block * direct.read * area..][..direct.read * area];
        let packed = &packed[block % c.geometry.groups * direct.packed()..][..direct.packed()];
        let rows = direct.part.next_multiple_of(ROWS);
        made.fill(S::narrow(S::Real::ZERO)); // some elements of an image may be read by no window
        for strip in &strips {
            planes.fill(S::Real::ZERO);
            for first in (0..direct.read).step_by(direct.chunk) {
                let chunk = direct.chunk.min(direct.read - first);
                let of_chunk = channels[first * area..].chunks_exact(area).take(chunk);
                for (channel, plane) in of_chunk.zip(planes.chunks_exact_mut(direct.stride())) {
                    read(&strip.read, channel, plane);
                }
                for (pass, sums) in passes.iter().zip(sums.chunks_exact_mut(rows * direct.pitch())) {
                    let weights = &packed[pass.of_chunk(direct, first, chunk)];
                    let terms = chunk * pass.taps;
                    let weights = &weights[part * direct.part * terms..][..rows * terms];
                    let sizes = [strip.sums, direct.pitch()];
                    add_sums(planes, &pass.offsets[..terms], weights, sizes, first > 0, sums);
                }
            }
            let area = made.len() / direct.part;
            for (lines, sums) in strip.other.iter().zip(sums.chunks_exact(rows * direct.pitch())) {
                for (sums, made) in sums.chunks_exact(direct.pitch()).zip(made.chunks_exact_mut(area)) {
                    write(lines, sums, made);
                }
            }
        }
    });
}

fn strips(direct: &Direct) -> Vec<Strip> {
    direct.planes.strips().map(|strip| Strip::new(direct, &strip)).collect()
}

impl Pass {
    /// Returns the range of the factors for the channels from `first` on in the packed weight of a group.
    fn of_chunk(&self, direct: &Direct, first: usize, chunk: usize) -> Range<usize> {
        let of_channel = self.taps * direct.made.next_multiple_of(ROWS);
        self.start + first * of_channel..self.start + (first + chunk) * of_channel
    }
}

/// Lays the weight of a group in the order in which a pass reads it: for each chunk of channels, for [`ROWS`] channels of the result at a
/// time, term by term.
fn pack<S: Float>(c: &Convolution, direct: &Direct, pass: &Pass, weight: &[S], packed: &mut [S::Real]) {
    let (of_input, of_output) = (c.geometry.taps(), c.geometry.inputs * c.geometry.taps());
    let makes_output = c.made == ConvolutionResult::Output;
    let (of_made, of_read) = if makes_output { (of_output, of_input) } else { (of_input, of_output) };
    for first in (0..direct.read).step_by(direct.chunk) {
        let chunk = direct.chunk.min(direct.read - first);
        let panel = |(block, panel): (usize, &mut [S::Real])| {
            let rows = ROWS.min(direct.made - block * ROWS);
            for (channel, panel) in panel.chunks_exact_mut(pass.taps * ROWS).enumerate() {
                let weight = &weight[block * ROWS * of_made + (first + channel) * of_read..];
                for (place, factors) in pass.places.iter().zip(panel.as_chunks_mut::<ROWS>().0) {
                    for (row, factor) in factors.iter_mut().enumerate() {
                        let known = row < rows;
                        *factor = if known { weight[row * of_made + place].widen() } else { S::Real::ZERO };
                    }
                }
            }
        };
        let size = chunk * pass.taps * ROWS;
        let panels = packed[pass.of_chunk(direct, first, chunk)].par_chunks_exact_mut(size).enumerate();
        panels.with_min_len((PARALLEL / size).max(1)).for_each(panel);
    }
}

/// Computes `d weight[tap] = Σ d y[place] · plane[place + offset[tap]]`, over the places of all images. Each division of the batch has
/// sums of its own, which are added up.
fn weight_gradient<S: Float>(
    c: &Convolution,
    direct: &Direct,
    [x, dy]: [&[S]; 2],
    dweight: &mut [S],
    scratch: &mut [S::Real],
) {
    let (pass, strips) = (&passes(direct)[0], strips(direct));
    let (divisions, length) = (direct.divisions, direct.gradient());
    let (gradients, scratch) = scratch.split_at_mut(c.shared());
    for_each_block(c, gradients, length, scratch, |task, sums, [of_x, of_dy, _]| {
        let (part, division) = (task / divisions, task % divisions);
        let [start, end] = [division, division + 1].map(|division| c.geometry.batch * division / divisions);
        let of_part = Part { c, direct, pass, strips: &strips, part, images: start..end };
        of_part.add_images([x, dy], [&mut *of_x, &mut *of_dy, &mut *sums], false);
        if !are_finite(sums) {
            // An infinite element may have been multiplied with zeros of places that are no position.
            of_part.add_images([x, dy], [of_x, of_dy, sums], true);
        }
    });
    let parts = dweight.par_chunks_mut(c.block()).zip(gradients.par_chunks_exact(divisions * length));
    parts.for_each(|(dweight, gradients)| {
        dweight.fill(S::narrow(S::Real::ZERO)); // some taps may lie outside of every image
        for (channel, dweight) in dweight.chunks_exact_mut(c.geometry.taps()).enumerate() {
            for (tap, place) in pass.places.iter().enumerate() {
                let sums = gradients[channel * pass.taps + tap..].iter().step_by(length);
                dweight[*place] = S::narrow(sums.fold(S::Real::ZERO, |sum, &x| sum + x));
            }
        }
    });
}

/// The gradient of the weight of some output channels over some images.
struct Part<'a> {
    c: &'a Convolution,
    direct: &'a Direct,
    pass: &'a Pass,
    strips: &'a [Strip],
    /// The number of the part, among those of all groups.
    part: usize,
    images: Range<usize>,
}

impl Part<'_> {
    /// Computes the sums for each channel of `d y`, each channel of `x` and each tap.
    fn add_images<S: Float>(
        &self,
        [x, dy]: [&[S]; 2],
        [of_x, of_dy, sums]: [&mut [S::Real]; 3],
        by_lines: bool,
    ) {
        let Self { c, direct, pass, .. } = *self;
        let (group, part) = (self.part / direct.parts(), self.part % direct.parts());
        let [area, positions] = [c.geometry.area(), c.geometry.positions()];
        let (rows, inputs) = (direct.part.next_multiple_of(ROWS), c.geometry.inputs);
        let block = |image: usize| image * c.geometry.groups + group;
        sums.fill(S::Real::ZERO);
        let images = self.images.clone().step_by(direct.images);
        for (first, strip) in images.flat_map(|first| self.strips.iter().map(move |strip| (first, strip))) {
            let images = first..(first + direct.images).min(self.images.end);
            of_x.fill(S::Real::ZERO);
            of_dy.fill(S::Real::ZERO);
            for (image, rows) in images.clone().zip(of_dy.chunks_exact_mut(rows * direct.pitch())) {
                let of_part = direct.part * positions;
                let dy = &dy[block(image) * c.outputs() + part * of_part..][..of_part];
                for (channel, row) in dy.chunks_exact(positions).zip(rows.chunks_exact_mut(direct.pitch())) {
                    read(from_ref(&strip.other[0]), channel, row);
                }
            }
            for input in (0..inputs).step_by(direct.chunk) {
                let chunk = direct.chunk.min(inputs - input);
                let planes = of_x.chunks_exact_mut(direct.chunk * direct.stride());
                for (image, planes) in images.clone().zip(planes) {
                    let x = &x[block(image) * c.image() + input * area..][..chunk * area];
                    let channels = x.chunks_exact(area).zip(planes.chunks_exact_mut(direct.stride()));
                    channels.for_each(|(x, plane)| read(&strip.read, x, plane));
                }
                let products = Products {
                    images: images.len(),
                    planes: of_x,
                    of_image: direct.chunk * direct.stride(),
                    offsets: &pass.offsets[..chunk * pass.taps],
                    dy: of_dy,
                    pitch: direct.pitch(),
                    rows,
                    places: strip.sums,
                };
                let (distance, sums) = (inputs * pass.taps, &mut sums[input * pass.taps..]);
                if by_lines {
                    add_products_by_lines(products, &strip.other[0], distance, sums);
                } else {
                    add_products(products, distance, sums);
                }
            }
        }
    }
}
