//! Windows of an image laid side by side, a row for each of their elements, and back into the image: a line of windows
//! at a time, of which an element reads neighbours, a stride apart.

use super::super::PARALLEL;
use crate::cpu::math::Real;
use crate::cpu::simd::vectorized;
use crate::cpu::storage::{Float, widen};
use ir::ops::conv::{Geometry, Side};
use rayon::prelude::*;
use std::ops::Range;

/// Lays a tile of windows of every image side by side: zero where an element of a window lies outside of the image.
pub(super) fn unfold<S: Float>(
    geometry: &Geometry,
    images: &[S],
    tile: &Range<usize>,
    windows: &mut [S::Real],
    parallel: bool,
) {
    let (area, taps, stride) = (geometry.area(), geometry.taps(), stride(geometry));
    let image = geometry.inputs * area;
    let columns = images.len() / image * tile.len();
    let shifts = shifts(geometry, tile);
    let row = |(term, row): (usize, &mut [S::Real])| {
        let channels = images.chunks_exact(image).map(|image| &image[term / taps * area..][..area]);
        let channels = channels.zip(row.chunks_exact_mut(tile.len()));
        if let Some(shifts) = &shifts {
            let Shift { channel: from, tile: to, inside } = &shifts[term % taps];
            return channels.for_each(|(channel, row)| {
                row[..to.start].fill(S::Real::ZERO);
                row[to.end..].fill(S::Real::ZERO);
                keep(&channel[from.clone()], inside, &mut row[to.clone()]);
            });
        }
        let lines = lines(geometry, term % taps, tile);
        for (channel, row) in channels {
            for Line { places, inside, start } in &lines {
                row[places.start..inside.start].fill(S::Real::ZERO);
                row[inside.end..places.end].fill(S::Real::ZERO);
                let to = &mut row[inside.clone()];
                match stride {
                    1 => widen(&channel[*start..*start + to.len()], to),
                    _ => to
                        .iter_mut()
                        .enumerate()
                        .for_each(|(i, to)| *to = channel[start + i * stride].widen()),
                }
            }
        }
    };
    if parallel {
        let rows = windows.par_chunks_exact_mut(columns).enumerate();
        rows.with_min_len((PARALLEL / 8 / columns).max(1)).for_each(row);
    } else {
        windows.chunks_exact_mut(columns).enumerate().for_each(row);
    }
}

/// Adds every element of a tile of windows of every image to where it stands in the image.
pub(super) fn fold<T: Real>(
    geometry: &Geometry,
    windows: &[T],
    tile: &Range<usize>,
    images: &mut [T],
    parallel: bool,
) {
    let (area, taps, stride) = (geometry.area(), geometry.taps(), stride(geometry));
    let columns = images.len() / (geometry.inputs * area) * tile.len();
    let shifts = shifts(geometry, tile);
    let lines: Vec<Vec<Line>> = (0..taps).map(|tap| lines(geometry, tap, tile)).collect();
    let channel = |(index, channel): (usize, &mut [T])| {
        let (image, input) = (index / geometry.inputs, index % geometry.inputs);
        for (tap, lines) in lines.iter().enumerate() {
            let row = &windows[(input * taps + tap) * columns + image * tile.len()..][..tile.len()];
            if let Some(shifts) = &shifts {
                let Shift { channel: to, tile: from, inside } = &shifts[tap];
                add_kept(&row[from.clone()], inside, &mut channel[to.clone()]);
                continue;
            }
            for Line { inside, start, .. } in lines {
                for (i, &x) in row[inside.clone()].iter().enumerate() {
                    let at = &mut channel[start + i * stride];
                    *at = *at + x;
                }
            }
        }
    };
    if parallel {
        let channels = images.par_chunks_exact_mut(area).enumerate();
        channels.with_min_len((PARALLEL / 8 / (taps * tile.len())).max(1)).for_each(channel);
    } else {
        images.chunks_exact_mut(area).enumerate().for_each(channel);
    }
}

/// For one element of the windows: what they read is a stretch of the channel, as long as the tile but for what is
/// outside of the channel.
struct Shift {
    /// The stretch of the channel.
    channel: Range<usize>,
    /// Its windows in the tile.
    tile: Range<usize>,
    /// 1 for those of them whose element lies in the image, 0 for those that reach around its edge.
    inside: Vec<u8>,
}

/// For each element of the windows, if there is a window for each element of the image, in the same order.
fn shifts(geometry: &Geometry, tile: &Range<usize>) -> Option<Vec<Shift>> {
    if geometry.sides.iter().any(|side| side.stride != 1 || side.positions != side.image) {
        return None;
    }
    let shift = |tap: usize| {
        let (mut rest, mut distance, mut step) = (tap, 0, 1);
        for side in geometry.sides.iter().rev() {
            distance += ((rest % side.kernel * side.dilation) as isize - side.before as isize) * step;
            (rest, step) = (rest / side.kernel, step * side.image as isize);
        }
        let within = |at: usize| at.saturating_add_signed(distance).min(geometry.area());
        let channel = within(tile.start)..within(tile.end);
        let from = channel.start.saturating_add_signed(-distance).saturating_sub(tile.start);
        let from = from.min(tile.len());
        let own = from..from + channel.len();
        let mut inside = vec![0; tile.len()];
        lines(geometry, tap, tile).into_iter().for_each(|line| inside[line.inside].fill(1));
        Shift { channel, inside: inside[own.clone()].to_vec(), tile: own }
    };
    Some((0..geometry.taps()).map(shift).collect())
}

vectorized! {
    /// `to = from` where it is inside, else 0.
    fn keep<'a; S: Float>(from: &'a [S], inside: &'a [u8], to: &'a mut [S::Real]) {
        for ((to, from), inside) in to.iter_mut().zip(from).zip(inside) {
            *to = if *inside != 0 { from.widen() } else { S::Real::ZERO };
        }
    }
}

vectorized! {
    /// `to += from` where it is inside.
    fn add_kept<'a; T: Real>(from: &'a [T], inside: &'a [u8], to: &'a mut [T]) {
        for ((to, from), inside) in to.iter_mut().zip(from).zip(inside) {
            *to = *to + if *inside != 0 { *from } else { T::ZERO };
        }
    }
}

/// The distance in the image between what neighbouring windows read.
fn stride(geometry: &Geometry) -> usize {
    geometry.sides.last().map_or(1, |side| side.stride)
}

/// A stretch of a tile that lies along the last dim.
struct Line {
    /// Where its windows stand in the tile.
    places: Range<usize>,
    /// Those of them of which the element at hand lies in the image.
    inside: Range<usize>,
    /// Where that of the first of these stands in the image's channel.
    start: usize,
}

/// The lines of a tile, for one element of the windows.
fn lines(geometry: &Geometry, tap: usize, tile: &Range<usize>) -> Vec<Line> {
    let mut lines = Vec::new();
    let Some((last, outer)) = geometry.sides.split_last() else { return lines };
    let (outer_tap, tap) = (tap / last.kernel, tap % last.kernel);
    let all_inside = inside(last, tap);
    let mut position = tile.start;
    while position < tile.end {
        let (line, first) = (position / last.positions, position % last.positions);
        let end = last.positions.min(first + tile.end - position);
        let cut = |at: usize| at.clamp(first, end);
        let (from, to) = (cut(all_inside.start), cut(all_inside.end));
        let start = row(outer, outer_tap, line)
            .filter(|_| from < to)
            .and_then(|row| Some(row * last.image + last.at(tap, from)?));
        let place = |at: usize| at - first + position - tile.start;
        let inside = if start.is_some() { place(from)..place(to) } else { place(first)..place(first) };
        lines.push(Line { places: place(first)..place(end), inside, start: start.unwrap_or(0) });
        position += end - first;
    }
    lines
}

/// The windows of which this element lies in the image.
fn inside(side: &Side, tap: usize) -> Range<usize> {
    let tap = tap * side.dilation;
    let before = |zeros: usize| zeros.saturating_sub(tap).div_ceil(side.stride).min(side.positions);
    before(side.before)..before(side.before + side.image)
}

/// Which line of the image an element of a line of windows reads; `None`: it lies outside.
fn row(outer: &[Side], mut tap: usize, mut line: usize) -> Option<usize> {
    let (mut row, mut step) = (0, 1);
    for side in outer.iter().rev() {
        row += step * side.at(tap % side.kernel, line % side.positions)?;
        step *= side.image;
        tap /= side.kernel;
        line /= side.positions;
    }
    Some(row)
}
