//! Lays the windows of an image side by side, one row for each element of a window, and adds them back into the image. It works on lines of
//! windows: one element of them reads neighbours in the image that are a stride apart.

use super::super::PARALLEL;
use crate::math::{Float, Real};
use crate::simd::vectorized;
use crate::storage::widen;
use ir::ops::conv::{Geometry, Side};
use rayon::prelude::*;
use std::ops::Range;

/// Lays a tile of windows of every image side by side. Elements of a window outside of the image are zero.
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

/// Adds every element of a tile of windows to its place in its image.
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

/// The elements of a channel that one element (tap) of all windows of a tile reads. They are one range, as long as the tile except for
/// elements outside of the channel.
struct Shift {
    /// The range in the channel.
    channel: Range<usize>,
    /// The windows of the tile that read this range.
    tile: Range<usize>,
    /// 1 for each of these windows whose tap lies in the image, 0 for those whose tap is beyond an edge.
    inside: Vec<u8>,
}

/// Returns the shift of each tap. `None` unless the windows have stride 1 and there is one for each element of the image.
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
    /// `to = from` where `inside` is not 0, else 0.
    fn keep<'a; S: Float>(from: &'a [S], inside: &'a [u8], to: &'a mut [S::Real]) {
        for ((to, from), inside) in to.iter_mut().zip(from).zip(inside) {
            *to = if *inside != 0 { from.widen() } else { S::Real::ZERO };
        }
    }

    /// `to += from` where `inside` is not 0.
    fn add_kept<'a; T: Real>(from: &'a [T], inside: &'a [u8], to: &'a mut [T]) {
        for ((to, from), inside) in to.iter_mut().zip(from).zip(inside) {
            *to = *to + if *inside != 0 { *from } else { T::ZERO };
        }
    }
}

/// Returns the distance in the image between the elements that neighbouring windows read.
fn stride(geometry: &Geometry) -> usize {
    geometry.sides.last().map_or(1, |side| side.stride)
}

/// A part of a tile that lies along the last dim.
struct Line {
    /// The places of its windows in the tile.
    places: Range<usize>,
    /// The places of those windows whose tap lies in the image.
    inside: Range<usize>,
    /// The place in the image's channel of the tap of the first of these.
    start: usize,
}

/// Returns the lines of a tile for one tap of the windows.
fn lines(geometry: &Geometry, tap: usize, tile: &Range<usize>) -> Vec<Line> {
    let mut lines = Vec::new();
    let Some((last, outer)) = geometry.sides.split_last() else { return lines };
    let (outer_tap, tap) = (tap / last.kernel, tap % last.kernel);
    let all_inside = last.inside(tap);
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

/// Returns the line of the image that a tap of a line of windows reads. `None` if it lies outside.
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
