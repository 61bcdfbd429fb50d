//! Windows of an image laid side by side, a row for each of their elements, and back into the image: a line of windows
//! at a time, of which an element reads neighbours, a stride apart.

use super::super::PARALLEL;
use crate::cpu::math::Real;
use crate::cpu::storage::{Float, widen};
use ir::ops::conv::{Geometry, Side};
use rayon::prelude::*;
use std::ops::Range;

/// Lays a tile of windows side by side: zero where an element of a window lies outside of the image.
pub(super) fn unfold<S: Float>(
    geometry: &Geometry,
    image: &[S],
    tile: &Range<usize>,
    windows: &mut [S::Real],
    parallel: bool,
) {
    let (area, taps, stride) = (geometry.area(), geometry.taps(), stride(geometry));
    let row = |(term, row): (usize, &mut [S::Real])| {
        let channel = &image[term / taps * area..][..area];
        for_each_line(geometry, term % taps, tile, |Line { places, inside, start }| {
            row[places.start..inside.start].fill(S::Real::ZERO);
            row[inside.end..places.end].fill(S::Real::ZERO);
            let to = &mut row[inside];
            match stride {
                1 => widen(&channel[start..start + to.len()], to),
                _ => to.iter_mut().enumerate().for_each(|(i, to)| *to = channel[start + i * stride].widen()),
            }
        });
    };
    if parallel {
        let rows = windows.par_chunks_exact_mut(tile.len()).enumerate();
        rows.with_min_len((PARALLEL / 8 / tile.len()).max(1)).for_each(row);
    } else {
        windows.chunks_exact_mut(tile.len()).enumerate().for_each(row);
    }
}

/// Adds every element of a tile of windows to where it stands in the image.
pub(super) fn fold<T: Real>(
    geometry: &Geometry,
    windows: &[T],
    tile: &Range<usize>,
    image: &mut [T],
    parallel: bool,
) {
    let (area, stride) = (geometry.area(), stride(geometry));
    let rows = geometry.taps() * tile.len();
    let channel = |(channel, windows): (&mut [T], &[T])| {
        for (tap, row) in windows.chunks_exact(tile.len()).enumerate() {
            for_each_line(geometry, tap, tile, |Line { inside, start, .. }| {
                for (i, &x) in row[inside].iter().enumerate() {
                    let at = &mut channel[start + i * stride];
                    *at = *at + x;
                }
            });
        }
    };
    if parallel {
        let channels = image.par_chunks_exact_mut(area).zip(windows.par_chunks_exact(rows));
        channels.with_min_len((PARALLEL / 8 / rows).max(1)).for_each(channel);
    } else {
        image.chunks_exact_mut(area).zip(windows.chunks_exact(rows)).for_each(channel);
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

/// Calls for every line of a tile, for one element of the windows.
fn for_each_line(geometry: &Geometry, tap: usize, tile: &Range<usize>, mut each: impl FnMut(Line)) {
    let Some((last, outer)) = geometry.sides.split_last() else { return };
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
        each(Line { places: place(first)..place(end), inside, start: start.unwrap_or(0) });
        position += end - first;
    }
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
