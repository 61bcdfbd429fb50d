//! Reading by index, and its gradient, in which no two tasks write the same element.

use super::PARALLEL;
use super::scatter::Places;
use crate::call::Call;
use crate::element::{with_float, with_width};
use ir::Span;
use ir::ops::indexing::{Gather, GatherElements, GatherGrad, GatherNd};
use rayon::prelude::*;

/// Returns the element that an index reads in a dim of this size.
fn element(index: i64, size: usize) -> Option<usize> {
    element_of_part(index, Span { start: 0, size: size as u64 }, size)
}

/// Returns the element that an index into a whole dim reads in this device's part, which has `size` elements. `None` if another device has
/// it.
pub(super) fn element_of_part(index: i64, span: Span, size: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(span.size as i64)? } else { index };
    let index = index.checked_sub(span.start as i64)?;
    usize::try_from(index).ok().filter(|&index| index < size)
}

pub(super) fn gather(op: &Gather, mut call: Call) {
    let sizes = &call.operand_view(0).layout.sizes;
    let dim = op.dim as usize;
    let width = sizes[dim + 1..].iter().product::<usize>() * call.dtype().bytes() as usize;
    let span = call.operand_span(0, dim);
    let indices = call.integers(1);
    let data = call.dense::<u8>(0);
    let [result] = call.take_results();
    let read = |(position, out): (usize, &mut [u8])| {
        let (outer, index) = (position / indices.len(), indices[position % indices.len()]);
        match element_of_part(index, span, sizes[dim]) {
            Some(index) => out.copy_from_slice(&data[(outer * sizes[dim] + index) * width..][..width]),
            None => out.fill(0),
        }
    };
    let least = (PARALLEL / width).max(1);
    result.par_chunks_exact_mut(width).enumerate().with_min_len(least).for_each(read);
}

pub(super) fn gather_grad(op: &GatherGrad, mut call: Call) {
    let sizes = &call.result_view(0).layout.sizes;
    let dim = op.dim as usize;
    let (size, width) = (sizes[dim], sizes[dim + 1..].iter().product());
    let span = call.result_span(0, dim);
    let rows = call.integers(0).into_iter().map(|index| element_of_part(index, span, size));
    let places = Places::new(rows, width);
    let (count, add) = (call.operand_view(0).layout.len(), call.add);
    with_float!(call.dtype(), T => {
        let updates = call.dense::<T>(1);
        for (outer, result) in call.take_result::<T>().chunks_exact_mut(size * width).enumerate() {
            places.sum(&updates[outer * count * width..][..count * width], result, add);
        }
    });
}

pub(super) fn gather_elements(op: &GatherElements, mut call: Call) {
    let dim = op.dim as usize;
    let sizes = [0, 1].map(|index| &call.operand_view(index).layout.sizes[..]);
    let indices = call.integers(1);
    let places = element_places(sizes, &indices, dim, call.operand_span(0, dim));
    with_width!(call.dtype().bytes(), T => {
        let data = call.dense::<T>(0);
        let result = call.take_result::<T>();
        result.iter_mut().zip(places).for_each(|(out, place)| *out = place.map_or(0, |place| data[place]));
    });
}

/// Returns for each index the place of the element of the data that it reads. The sizes are those of the data and of the indices.
pub(super) fn element_places<'i>(
    [data, sizes]: [&[usize]; 2],
    indices: &'i [i64],
    dim: usize,
    span: Span,
) -> impl Iterator<Item = Option<usize>> + use<'i> {
    let (size, along) = (data[dim], sizes[dim]);
    let inner: usize = sizes[dim + 1..].iter().product();
    indices.iter().enumerate().map(move |(i, &index)| {
        let (outer, column) = (i / (along * inner), i % inner);
        Some((outer * size + element_of_part(index, span, size)?) * inner + column)
    })
}

pub(super) fn gather_nd(op: &GatherNd, mut call: Call) {
    let sizes = [0, 1].map(|index| &call.operand_view(index).layout.sizes[..]);
    let (rows, width) = nd_rows(sizes, &call.integers(1), op.batch_dims as usize);
    let width = width * call.dtype().bytes() as usize;
    let data = call.dense::<u8>(0);
    let [result] = call.take_results();
    for (row, out) in rows.into_iter().zip(result.chunks_exact_mut(width)) {
        match row {
            Some(row) => out.copy_from_slice(&data[row * width..][..width]),
            None => out.fill(0),
        }
    }
}

/// Returns for each position the row of the data that its coordinates select, and the number of elements of a row. The sizes are those of
/// the data and of the indices.
pub(super) fn nd_rows(
    [data, sizes]: [&[usize]; 2],
    indices: &[i64],
    batch: usize,
) -> (Vec<Option<usize>>, usize) {
    let (positions, indexed) = (&sizes[..sizes.len() - 1], sizes[sizes.len() - 1]);
    let (dims, rest) = data[batch..].split_at(indexed);
    let per_batch: usize = dims.iter().product();
    let positions_of_batch = positions[batch..].iter().product::<usize>().max(1);
    let row = |position: usize| {
        let mut coordinates = indices[position * indexed..][..indexed].iter().zip(dims);
        let row = coordinates.try_fold(0, |row, (&index, &size)| Some(row * size + element(index, size)?));
        Some(position / positions_of_batch * per_batch + row?)
    };
    ((0..positions.iter().product()).map(row).collect(), rest.iter().product())
}
