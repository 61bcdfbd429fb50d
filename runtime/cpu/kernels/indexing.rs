//! Reading by index, and its gradient, in which no two tasks write one element.

use super::PARALLEL;
use crate::cpu::call::Call;
use crate::cpu::element::{with_float, with_width};
use crate::cpu::storage::{Float, Scratch};
use ir::Span;
use ir::ops::indexing::{Gather, GatherElements, GatherGrad, GatherNd};
use rayon::prelude::*;

/// The element that an index reads, in a dim of that size.
fn element(index: i64, size: usize) -> Option<usize> {
    element_of_part(index, Span { start: 0, size: size as u64 }, size)
}

/// The element that an index into a dim reads of a part of that size; none if it is another device's.
fn element_of_part(index: i64, span: Span, size: usize) -> Option<usize> {
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
    // The rows of this device; an index that is none of them is past the end.
    let row = |index: &i64| element_of_part(*index, span, size).map_or(size as i64, |row| row as i64);
    let indices: Vec<i64> = call.integers(0).iter().map(row).collect();
    let add = call.add;
    with_float!(call.dtype(), T => {
        let updates = call.dense::<T>(1);
        scatter(&indices, updates, call.take_result::<T>(), size, width, add);
    });
}

/// Adds `updates[outer, position, ..width]` to `result[outer, indices[position], ..width]`. Each task has its own
/// rows of the result; what goes into one row is added in the order of the positions, and rounded once.
fn scatter<T: Float>(indices: &[i64], updates: &[T], result: &mut [T], size: usize, width: usize, add: bool) {
    let rows = size.div_ceil(2 * rayon::current_num_threads());
    let hits =
        indices.iter().enumerate().filter_map(|(position, &index)| Some((element(index, size)?, position)));
    let mut hits: Vec<(usize, usize)> = hits.collect();
    hits.sort_unstable();
    for (outer, result) in result.chunks_exact_mut(size * width).enumerate() {
        let updates = &updates[outer * indices.len() * width..][..indices.len() * width];
        result.par_chunks_mut(rows * width).enumerate().for_each(|(task, result)| {
            if !add {
                result.fill(T::from_i64(0));
            }
            let first = task * rows;
            let before = |end: usize| hits.partition_point(|&(row, _)| row < end);
            let own = &hits[before(first)..before(first + result.len() / width)];
            let mut wide = Scratch::new();
            for of_row in own.chunk_by(|one, other| one.0 == other.0) {
                wide.update(&mut result[(of_row[0].0 - first) * width..][..width], |out| {
                    for &(_, position) in of_row {
                        let update = &updates[position * width..];
                        out.iter_mut().zip(update).for_each(|(out, x)| *out = *out + x.widen());
                    }
                });
            }
        });
    }
}

pub(super) fn gather_elements(op: &GatherElements, mut call: Call) {
    let dim = op.dim as usize;
    let size = call.operand_view(0).layout.sizes[dim];
    let sizes = &call.result_view(0).layout.sizes;
    let (along, inner): (usize, usize) = (sizes[dim], sizes[dim + 1..].iter().product());
    let span = call.operand_span(0, dim);
    let indices = call.integers(1);
    with_width!(call.dtype().bytes(), T => {
        let data = call.dense::<T>(0);
        let result = call.take_result::<T>();
        for (i, (out, &index)) in result.iter_mut().zip(&indices).enumerate() {
            let (outer, column) = (i / (along * inner), i % inner);
            let index = element_of_part(index, span, size);
            *out = index.map_or(0, |index| data[(outer * size + index) * inner + column]);
        }
    });
}

pub(super) fn gather_nd(op: &GatherNd, mut call: Call) {
    let sizes = &call.operand_view(0).layout.sizes;
    let index_sizes = &call.operand_view(1).layout.sizes;
    let batch = op.batch_dims as usize;
    let indexed = index_sizes[index_sizes.len() - 1];
    let width = sizes[batch + indexed..].iter().product::<usize>() * call.dtype().bytes() as usize;
    let batches: usize = sizes[..batch].iter().product();
    let per_batch: usize = sizes[batch..batch + indexed].iter().product();
    let indices = call.integers(1);
    let data = call.dense::<u8>(0);
    let [result] = call.take_results();
    let positions = (result.len() / width / batches.max(1)).max(1);
    for (position, out) in result.chunks_exact_mut(width).enumerate() {
        let coordinates = &indices[position * indexed..][..indexed];
        let row = coordinates
            .iter()
            .enumerate()
            .try_fold(0, |row, (i, &index)| Some(row * sizes[batch + i] + element(index, sizes[batch + i])?));
        match row {
            Some(row) => {
                out.copy_from_slice(&data[(position / positions * per_batch + row) * width..][..width])
            }
            None => out.fill(0),
        }
    }
}
