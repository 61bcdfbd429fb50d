//! Convolutions, as multiplications of the weight with an image's windows laid side by side ("im2col"), one tile of windows at a time.
//! Depthwise convolutions are computed another way.
//!
//! Tiles depend on the sizes alone, so the result does not depend on the number of threads. f16 and bf16 are converted to f32 in scratch;
//! their results are summed there in f32 and rounded once.

mod depthwise;
mod windows;

use crate::call::Call;
use crate::element::with_float;
use crate::gemm::{Matrix, Multiply, gemm};
use crate::math::{Float, Real};
use crate::storage::{narrow, widen};
use ir::Op;
use program::convolution::{Convolution, ConvolutionResult, MOST_SHARES};
use rayon::prelude::*;
use smallvec::SmallVec;
use std::ops::Range;
use windows::{fold, unfold};

pub(super) fn run(op: &Op, mut call: Call) {
    let [first, second] = [0, 1].map(|index| &call.operand_view(index).layout.sizes[..]);
    let result = &call.result_view(0).layout.sizes;
    let Some(convolution) = Convolution::of(op, call.dtype(), [first, second], result) else {
        unreachable!("`{}` is no convolution", op.name());
    };
    with_float!(call.dtype(), S => {
        let operands = [call.dense::<S>(0), call.dense::<S>(1)];
        let scratch = call.take_scratch::<<S as Float>::Real>();
        let result = call.take_result::<S>();
        if let Some(planes) = &convolution.depthwise {
            return depthwise::run(&convolution, planes, operands, result, scratch);
        }
        match convolution.made {
            ConvolutionResult::Output => convolve(&convolution, operands, result, scratch),
            ConvolutionResult::Input => input_gradient(&convolution, operands, result, scratch),
            ConvolutionResult::Weight => weight_gradient(&convolution, operands, result, scratch),
        }
    });
}

/// The number of terms of an output that are summed one after the other, before these sums are added up. Rounding errors grow with this
/// number instead of the size of a window. With it, the weights of a small ResNet have 0.81 times the error after five steps; dividing the
/// sums of gradients as well gained little or nothing.
const DEPTH: usize = 128;

/// The scratch of a task.
struct TaskScratch<'a, T> {
    /// Scratch for a tile of windows.
    windows: &'a mut [T],
    /// Scratch for the part of `d y` that the task reads, converted to f32.
    read: &'a mut [T],
    /// Scratch for the task's result before it is rounded.
    made: &'a mut [T],
}

impl<'a, T> TaskScratch<'a, T> {
    fn of(convolution: &Convolution, share: &'a mut [T]) -> Self {
        let [windows, read, _] = convolution.share();
        let (windows, rest) = share.split_at_mut(windows);
        let (read, made) = rest.split_at_mut(read);
        Self { windows, read, made }
    }
}

/// Computes `y = weight · windows` for each group of each image, or for several images side by side.
fn convolve<S: Float>(c: &Convolution, [x, weight]: [&[S]; 2], y: &mut [S], scratch: &mut [S::Real]) {
    let geometry = &c.geometry;
    let (outputs, terms, positions) = (geometry.outputs, geometry.terms(), geometry.positions());
    let (shared, scratch) = scratch.split_at_mut(c.shared());
    let weight = reals(weight, shared);
    for_each_block(c, y, scratch, |task, y, TaskScratch { windows, made, .. }, parallel| {
        let images = y.len() / c.outputs();
        let image = &x[task * c.images() * c.image()..][..images * c.image()];
        let weight = &weight[task % geometry.groups * c.weight()..][..c.weight()];
        let mut multiply = |to: &mut [S::Real], matrix: Matrix, tile: &Range<usize>| {
            let (windows, windows_matrix) = side_by_side(c, image, tile, windows, parallel);
            for first in (0..terms.max(1)).step_by(DEPTH) {
                gemm(
                    [outputs, DEPTH.min(terms - first), images * tile.len()],
                    (&mut *to, matrix),
                    (weight, weight_matrix(c).skip_columns(first)),
                    (windows, windows_matrix.skip_rows(first)),
                    Multiply { factor: S::Real::ONE, add: first > 0, parallel },
                );
            }
        };
        if images > 1 {
            let made = &mut made[..y.len()];
            multiply(made, Matrix::with_rows(images * positions), &(0..positions));
            return one_by_one(made, outputs, positions, y);
        }
        make(y, made, |y| {
            c.tiles().for_each(|tile| multiply(y, tile_of(&tile, positions), &tile));
        });
    });
}

/// Computes `d x = weightᵀ · d y` for each group of each image, or for several images side by side. Each element of a window is added to
/// the element from which it was read.
fn input_gradient<S: Float>(c: &Convolution, [weight, dy]: [&[S]; 2], dx: &mut [S], scratch: &mut [S::Real]) {
    let geometry = &c.geometry;
    let (outputs, terms, positions) = (geometry.outputs, geometry.terms(), geometry.positions());
    let (shared, scratch) = scratch.split_at_mut(c.shared());
    let weight = reals(weight, shared);
    for_each_block(c, dx, scratch, |task, dx, TaskScratch { windows, read, made }, parallel| {
        let images = dx.len() / c.image();
        let dy = &dy[task * c.images() * c.outputs()..][..images * c.outputs()];
        let dy = columns(dy, outputs, positions, read);
        let weight = &weight[task % geometry.groups * c.weight()..][..c.weight()];
        let multiply = |to: &mut [S::Real], matrix: Matrix, tile: &Range<usize>| {
            gemm(
                [terms, outputs, images * tile.len()],
                (to, matrix),
                (weight, weight_matrix(c).transposed()),
                (dy, tile_of(tile, images * positions)),
                Multiply { factor: S::Real::ONE, add: false, parallel },
            );
        };
        make(dx, made, |dx| {
            if geometry.is_pointwise() && images == 1 {
                return multiply(dx, Matrix::with_rows(positions), &(0..positions));
            }
            dx.fill(S::Real::ZERO);
            for tile in c.tiles() {
                let windows = &mut windows[..terms * images * tile.len()];
                multiply(windows, Matrix::with_rows(images * tile.len()), &tile);
                fold(geometry, windows, &tile, dx, parallel);
            }
        });
    });
}

/// Computes `d weight = d y · windowsᵀ` for each group, summed over the images. If the batch is divided, the sums of its parts are added in
/// their order.
fn weight_gradient<S: Float>(
    c: &Convolution,
    operands: [&[S]; 2],
    dweight: &mut [S],
    scratch: &mut [S::Real],
) {
    let parts = c.parts();
    if parts == 1 {
        let all = 0..c.geometry.batch;
        return for_each_block(
            c,
            dweight,
            scratch,
            |group, dweight, TaskScratch { windows, read, made }, parallel| {
                make(dweight, made, |sums| {
                    weight_sums(c, operands, group, all.clone(), sums, [windows, read], parallel);
                });
            },
        );
    }
    let share = c.share().iter().sum();
    let one = |(part, scratch): (usize, &mut [S::Real]), parallel: bool| {
        let TaskScratch { windows, read, made } = TaskScratch::of(c, scratch);
        weight_sums(c, operands, 0, c.images_of(part), made, [windows, read], parallel);
    };
    if parts < rayon::current_num_threads() {
        scratch.chunks_exact_mut(share).enumerate().for_each(|part| one(part, true));
    } else {
        scratch.par_chunks_exact_mut(share).enumerate().for_each(|part| one(part, false));
    }
    let made: SmallVec<[&[S::Real]; MOST_SHARES]> =
        scratch.chunks_exact(share).map(|share| &share[share.len() - c.weight()..]).collect();
    dweight.par_chunks_mut(SUMMED).enumerate().for_each(|(chunk, dweight)| {
        let first = chunk * SUMMED;
        for (i, dweight) in dweight.iter_mut().enumerate() {
            let sum = made[1..].iter().fold(made[0][first + i], |sum, made| sum + made[first + i]);
            *dweight = S::narrow(sum);
        }
    });
}

/// The number of elements of a weight's gradient that a task adds.
const SUMMED: usize = 1 << 12;

/// Sums `d y · windowsᵀ` of one group over some images.
fn weight_sums<S: Float>(
    c: &Convolution,
    [x, dy]: [&[S]; 2],
    group: usize,
    of: Range<usize>,
    sums: &mut [S::Real],
    [windows, read]: [&mut [S::Real]; 2],
    parallel: bool,
) {
    let geometry = &c.geometry;
    let (outputs, terms, positions) = (geometry.outputs, geometry.terms(), geometry.positions());
    let mut add = false;
    for first in of.clone().step_by(c.images()) {
        let images = c.images().min(of.end - first);
        let block = first * geometry.groups + group;
        let image = &x[block * c.image()..][..images * c.image()];
        let dy = columns(&dy[block * c.outputs()..][..images * c.outputs()], outputs, positions, read);
        for tile in c.tiles() {
            let (windows, matrix) = side_by_side(c, image, &tile, windows, parallel);
            gemm(
                [outputs, images * tile.len(), terms],
                (&mut *sums, weight_matrix(c)),
                (dy, tile_of(&tile, images * positions)),
                (windows, matrix.transposed()),
                Multiply { factor: S::Real::ONE, add, parallel },
            );
            add = true;
        }
    }
    if !add {
        sums.fill(S::Real::ZERO); // no image
    }
}

/// Returns the matrix of the weight of a group that is computed.
fn weight_matrix(c: &Convolution) -> Matrix {
    let [offset, rows, columns] = c.weight_matrix().map(|x| x as isize);
    Matrix { offset, rows, columns }
}

/// Calls `task` for every block of the result, with the block's number and scratch. Blocks run in parallel, as many as have scratch, if
/// that keeps all threads busy. Otherwise they run one after the other, each with all threads (the last argument is true). The last block
/// may have fewer images than the others.
fn for_each_block<S: Float>(
    c: &Convolution,
    result: &mut [S],
    scratch: &mut [S::Real],
    task: impl Fn(usize, &mut [S], TaskScratch<S::Real>, bool) + Sync,
) {
    let (block, share, shares) = (c.block(), c.share().iter().sum::<usize>(), c.shares());
    if shares < 2 || shares < rayon::current_num_threads().min(MOST_SHARES) {
        for (i, result) in result.chunks_mut(block).enumerate() {
            task(i, result, TaskScratch::of(c, &mut scratch[..share]), true);
        }
        return;
    }
    let each = result.len().div_ceil(block).div_ceil(shares);
    let parts = result.par_chunks_mut(block * each).zip(scratch.par_chunks_exact_mut(share)).enumerate();
    parts.for_each(|(part, (result, scratch))| {
        for (i, result) in result.chunks_mut(block).enumerate() {
            task(part * each + i, result, TaskScratch::of(c, scratch), false);
        }
    });
}

/// Lays images `[n, channels, positions]` side by side, one row for each channel, in the type in which the kernel computes. A single image
/// is not copied if it has that type; otherwise the result is in `room`.
fn columns<'a, S: Float>(
    images: &'a [S],
    channels: usize,
    positions: usize,
    room: &'a mut [S::Real],
) -> &'a [S::Real] {
    let (image, all) = (channels * positions, images.len() / channels.max(1));
    if images.len() == image {
        return reals(images, room);
    }
    let room = &mut room[..images.len()];
    for (i, image) in images.chunks_exact(image).enumerate() {
        let rows = room.chunks_exact_mut(all).zip(image.chunks_exact(positions));
        rows.for_each(|(row, image)| widen(image, &mut row[i * positions..][..positions]));
    }
    room
}

/// Stores rows with the layout of [`columns`] as separate images.
fn one_by_one<S: Float>(rows: &[S::Real], channels: usize, positions: usize, images: &mut [S]) {
    let all = rows.len() / channels.max(1);
    for (i, image) in images.chunks_exact_mut(channels * positions).enumerate() {
        let rows = rows.chunks_exact(all).zip(image.chunks_exact_mut(positions));
        rows.for_each(|(row, image)| narrow(&row[i * positions..][..positions], image));
    }
}

/// Returns the elements in the type in which the kernel computes: unchanged, or converted to f32 in `room`.
pub(super) fn reals<'a, S: Float>(elements: &'a [S], room: &'a mut [S::Real]) -> &'a [S::Real] {
    if let Some(reals) = S::as_reals(elements) {
        return reals;
    }
    let room = &mut room[..elements.len()];
    widen(elements, room);
    room
}

/// Lets `numbers` write a block of the result: in place, or in `room`, from where it is rounded into the block.
pub(super) fn make<S: Float>(block: &mut [S], room: &mut [S::Real], numbers: impl FnOnce(&mut [S::Real])) {
    if let Some(reals) = S::as_reals_mut(block) {
        return numbers(reals);
    }
    let room = &mut room[..block.len()];
    numbers(room);
    narrow(room, block);
}

/// Returns the columns of a tile in a matrix that has one column for every window.
fn tile_of(tile: &Range<usize>, positions: usize) -> Matrix {
    Matrix { offset: tile.start as isize, ..Matrix::with_rows(positions) }
}

/// Returns a tile of the windows of every image side by side, one row for each element of a window. A single image whose windows are single
/// elements is returned itself; otherwise windows are laid out in `room`.
fn side_by_side<'a, S: Float>(
    c: &Convolution,
    images: &'a [S],
    tile: &Range<usize>,
    room: &'a mut [S::Real],
    parallel: bool,
) -> (&'a [S::Real], Matrix) {
    let geometry = &c.geometry;
    let single = images.len() == c.image() && geometry.is_pointwise();
    if let Some(image) = S::as_reals(images).filter(|_| single) {
        return (image, tile_of(tile, geometry.positions()));
    }
    let columns = images.len() / c.image() * tile.len();
    let windows = &mut room[..geometry.terms() * columns];
    unfold(geometry, images, tile, windows, parallel);
    (windows, Matrix::with_rows(columns))
}
