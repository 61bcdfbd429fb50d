//! The loops over the planes of a direct convolution.

use super::super::planes::{Lines, sum_of_lanes};
use crate::math::Real;
use crate::simd::vectorized;
use program::convolution::direct::{DEPTH, ROWS};
use program::convolution::planes::LANES;

/// The number of elements of the gradient of the weight that are summed at once for each row of `d y`.
const TERMS: usize = 3;

vectorized! {
    /// `sums[row][i] (+)= Σ_term weights[term][row] · planes[i + offsets[term]]` for the first sums of each row. `sizes` has their number and
    /// the distance between rows. The sums after them, up to the end of the last tile, are arbitrary.
    pub(super) fn add_sums<'a; T: Real>(
        planes: &'a [T],
        offsets: &'a [usize],
        weights: &'a [T],
        sizes: [usize; 2],
        add: bool,
        sums: &'a mut [T],
    ) {
        let [count, pitch] = sizes;
        let mut start = 0;
        while start < count {
            let (planes, sums) = (&planes[start..], &mut sums[start..]);
            // Wider tiles do not fit into the registers.
            start += match count - start {
                9.. if size_of::<T>() <= 4 => column::<T, 2>(planes, offsets, weights, pitch, add, sums),
                _ => column::<T, 1>(planes, offsets, weights, pitch, add, sums),
            };
        }
    }
}

/// Computes the first sums of all rows. Returns their number.
#[inline(always)]
fn column<T: Real, const VECTORS: usize>(
    planes: &[T],
    offsets: &[usize],
    weights: &[T],
    pitch: usize,
    add: bool,
    sums: &mut [T],
) -> usize {
    for (block, weights) in weights.chunks_exact(offsets.len() * ROWS).enumerate() {
        let tile = tile::<T, VECTORS>(planes, offsets, weights.as_chunks().0);
        for (row, tile) in tile.iter().enumerate() {
            let sums = &mut sums[(block * ROWS + row) * pitch..][..VECTORS * LANES];
            for (sums, tile) in sums.as_chunks_mut::<LANES>().0.iter_mut().zip(tile) {
                for lane in 0..LANES {
                    sums[lane] = if add { sums[lane] + tile[lane] } else { tile[lane] };
                }
            }
        }
    }
    VECTORS * LANES
}

/// Returns some sums of [`ROWS`] rows.
#[inline(always)]
fn tile<T: Real, const VECTORS: usize>(
    planes: &[T],
    offsets: &[usize],
    weights: &[[T; ROWS]],
) -> [[[T; LANES]; VECTORS]; ROWS] {
    let mut sums = [[[T::ZERO; LANES]; VECTORS]; ROWS];
    for (&offset, weights) in offsets.iter().zip(weights) {
        let x = &planes[offset..][..VECTORS * LANES];
        let mut vectors = [[T::ZERO; LANES]; VECTORS];
        vectors.copy_from_slice(x.as_chunks().0);
        // Row by row: a tile leaves registers for its vectors and one factor.
        for row in 0..ROWS {
            let weight = weights[row];
            for vector in 0..VECTORS {
                sums[row][vector] = add_scaled(vectors[vector], weight, sums[row][vector]);
            }
        }
    }
    sums
}

/// `x · weight + sum`. With results as values, LLVM keeps sums in registers.
#[inline(always)]
fn add_scaled<T: Real>(x: [T; LANES], weight: T, mut sum: [T; LANES]) -> [T; LANES] {
    for lane in 0..LANES {
        sum[lane] = x[lane].mul_add(weight, sum[lane]);
    }
    sum
}

/// `x · y + sum`
#[inline(always)]
fn add_product<T: Real>(x: [T; LANES], y: [T; LANES], mut sum: [T; LANES]) -> [T; LANES] {
    for lane in 0..LANES {
        sum[lane] = x[lane].mul_add(y[lane], sum[lane]);
    }
    sum
}

/// Planes of some images, whose products are summed.
#[derive(Clone, Copy)]
pub(super) struct Products<'a, T> {
    pub(super) images: usize,
    /// The planes of the channels that are read, and the distance between the images.
    pub(super) planes: &'a [T],
    pub(super) of_image: usize,
    /// For each term, the distance from a place to the element that is read.
    pub(super) offsets: &'a [usize],
    /// `d y`: rows for the channels of each image. Places that are no position have a zero.
    pub(super) dy: &'a [T],
    /// The distance between rows.
    pub(super) pitch: usize,
    /// The number of rows of an image, a multiple of [`ROWS`].
    pub(super) rows: usize,
    /// The number of places.
    pub(super) places: usize,
}

vectorized! {
    /// `sums[row · distance + term] += Σ dy[row][place] · planes[place + offsets[term]]` over all places of all images.
    pub(super) fn add_products<'a; T: Real>(products: Products<'a, T>, distance: usize, sums: &'a mut [T]) {
        let places = products.places.next_multiple_of(LANES);
        for first in (0..places).step_by(DEPTH * LANES) {
            let count = (places - first).min(DEPTH * LANES);
            for row in (0..products.rows).step_by(ROWS) {
                for (part, offsets) in products.offsets.chunks(TERMS).enumerate() {
                    // The sums of a repeated term are dropped.
                    let offset = |term: usize| offsets[term.min(offsets.len() - 1)];
                    let offsets_of_terms = [offset(0), offset(1), offset(2)];
                    let block: [[T; TERMS]; ROWS] = if size_of::<T>() <= 4 {
                        block(&products, row, offsets_of_terms, first, count)
                    } else {
                        // More numbers of eight bytes do not fit into the registers.
                        std::array::from_fn(|i| {
                            let [sums] = block(&products, row + i, offsets_of_terms, first, count);
                            sums
                        })
                    };
                    for (i, block) in block.iter().enumerate() {
                        let sums = &mut sums[(row + i) * distance + part * TERMS..];
                        for (sum, made) in sums.iter_mut().zip(&block[..offsets.len()]) {
                            *sum = *sum + *made;
                        }
                    }
                }
            }
        }
    }
}

/// Returns the sums of some terms for the rows from `row` on, over `count` places of each image from `first` on.
#[inline(always)]
fn block<T: Real, const COUNT: usize>(
    products: &Products<T>,
    row: usize,
    offsets: [usize; TERMS],
    first: usize,
    count: usize,
) -> [[T; TERMS]; COUNT] {
    let mut sums = [[[T::ZERO; LANES]; TERMS]; COUNT];
    for image in 0..products.images {
        let planes = &products.planes[image * products.of_image + first..];
        // All slices have the same length, so that one check of bounds is enough.
        let planes = offsets.map(|offset| planes[offset..][..count].as_chunks::<LANES>().0);
        let mut rows = [&[][..]; COUNT];
        for (i, to) in rows.iter_mut().enumerate() {
            let start = (image * products.rows + row + i) * products.pitch + first;
            *to = products.dy[start..][..count].as_chunks::<LANES>().0;
        }
        for at in 0..count / LANES {
            let x = [planes[0][at], planes[1][at], planes[2][at]];
            for i in 0..COUNT {
                let dy = rows[i][at];
                for term in 0..TERMS {
                    sums[i][term] = add_product(x[term], dy, sums[i][term]);
                }
            }
        }
    }
    let mut totals = [[T::ZERO; TERMS]; COUNT];
    for i in 0..COUNT {
        for term in 0..TERMS {
            totals[i][term] = sum_of_lanes(sums[i][term]);
        }
    }
    totals
}

/// Does the same as [`add_products`], one product after the other and for positions alone: an infinite element is not multiplied with the
/// zeros of other places.
pub(super) fn add_products_by_lines<T: Real>(
    products: Products<T>,
    lines: &Lines,
    distance: usize,
    sums: &mut [T],
) {
    let Products { images, planes, of_image, offsets, dy, pitch, rows, .. } = products;
    for row in 0..rows {
        for (term, offset) in offsets.iter().enumerate() {
            let sum = &mut sums[row * distance + term];
            for image in 0..images {
                let dy = &dy[(image * rows + row) * pitch..][..pitch];
                for place in lines.in_plane() {
                    *sum = planes[image * of_image + place + offset].mul_add(dy[place], *sum);
                }
            }
        }
    }
}
