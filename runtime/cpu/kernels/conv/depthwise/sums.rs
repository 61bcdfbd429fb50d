//! The loops over the planes of a depthwise convolution.

use super::super::DEPTH;
use super::lines::Lines;
use crate::math::Real;
use crate::simd::{sum, vectorized};
use program::convolution::depthwise::{BLOCK, LANES};

/// The largest number of taps whose products are summed at once: as many partial sums stay in registers.
const MOST_TAPS: usize = 9;

vectorized! {
    /// `sums[i] = Σ_tap weights[tap] · planes[i + offsets[tap]]` for the first `count` sums. The sums after them, up to the end of the last
    /// block, are arbitrary.
    pub(super) fn shifted_sums<'a; T: Real>(
        planes: &'a [T],
        offsets: &'a [usize],
        weights: &'a [T],
        count: usize,
        sums: &'a mut [T],
    ) {
        if offsets.is_empty() {
            return sums[..count].fill(T::ZERO);
        }
        for (part, (offsets, weights)) in offsets.chunks(DEPTH).zip(weights.chunks(DEPTH)).enumerate() {
            let (mut start, add) = (0, part > 0);
            while start < count {
                let (planes, sums) = (&planes[start..], &mut sums[start..]);
                // Blocks of 64 numbers of eight bytes do not fit into the registers.
                start += match count - start {
                    33.. if size_of::<T>() <= 4 => block::<T, BLOCK, 1>(planes, offsets, weights, add, sums),
                    17.. => block::<T, { BLOCK / 2 }, 1>(planes, offsets, weights, add, sums),
                    9.. => block::<T, { BLOCK / 4 }, 2>(planes, offsets, weights, add, sums),
                    _ => block::<T, { BLOCK / 8 }, 4>(planes, offsets, weights, add, sums),
                };
            }
        }
    }
}

/// Computes the first `WIDTH` sums, or adds them. Returns their number. Each sum has `WAYS` partial sums, since additions to the same
/// register wait for each other.
#[inline(always)]
fn block<T: Real, const WIDTH: usize, const WAYS: usize>(
    planes: &[T],
    offsets: &[usize],
    weights: &[T],
    add: bool,
    sums: &mut [T],
) -> usize {
    let mut partial = [[T::ZERO; WIDTH]; WAYS];
    let (whole, rest) = offsets.as_chunks::<WAYS>();
    let (whole_weights, rest_weights) = weights.as_chunks::<WAYS>();
    for (offsets, weights) in whole.iter().zip(whole_weights) {
        for way in 0..WAYS {
            add_scaled(&planes[offsets[way]..], weights[way], &mut partial[way]);
        }
    }
    for (&offset, &weight) in rest.iter().zip(rest_weights) {
        add_scaled(&planes[offset..], weight, &mut partial[0]);
    }
    let (total, others) = partial.split_first_mut().expect("there is at least one way");
    for other in others {
        total.iter_mut().zip(other.iter()).for_each(|(total, &other)| *total = *total + other);
    }
    for (sum, &total) in sums[..WIDTH].iter_mut().zip(total.iter()) {
        *sum = if add { *sum + total } else { total };
    }
    WIDTH
}

/// `sums += x · weight`
#[inline(always)]
fn add_scaled<T: Real, const WIDTH: usize>(x: &[T], weight: T, sums: &mut [T; WIDTH]) {
    for (sum, &x) in sums.iter_mut().zip(&x[..WIDTH]) {
        *sum = x.mul_add(weight, *sum);
    }
}

vectorized! {
    /// `sums[tap][lane] += Σ dy[place] · planes[place + offsets[tap]]`, over the places up to `count` whose remainder modulo [`LANES`] is
    /// the lane. Places that are no position have a zero in `dy`, and so have those after `count` up to a multiple of [`LANES`].
    pub(super) fn tap_sums<'a; T: Real>(
        planes: &'a [T],
        offsets: &'a [usize],
        dy: &'a [T],
        count: usize,
        sums: &'a mut [T],
    ) {
        let dy = &dy[..count.next_multiple_of(LANES)];
        let parts = offsets.len().div_ceil(MOST_TAPS);
        for part in 0..parts {
            let [from, to] = [part, part + 1].map(|part| offsets.len() * part / parts);
            let (offsets, sums) = (&offsets[from..to], &mut sums[from * LANES..to * LANES]);
            match offsets.len() {
                9 => add_products::<T, 9>(planes, offsets, dy, sums),
                8 => add_products::<T, 8>(planes, offsets, dy, sums),
                7 => add_products::<T, 7>(planes, offsets, dy, sums),
                6 => add_products::<T, 6>(planes, offsets, dy, sums),
                5 => add_products::<T, 5>(planes, offsets, dy, sums),
                4 => add_products::<T, 4>(planes, offsets, dy, sums),
                3 => add_products::<T, 3>(planes, offsets, dy, sums),
                2 => add_products::<T, 2>(planes, offsets, dy, sums),
                _ => add_products::<T, 1>(planes, offsets, dy, sums),
            }
        }
    }

    /// Returns whether all elements are finite.
    pub(super) fn are_finite<'a; T: Real>(elements: &'a [T]) -> bool {
        sum([elements], |[x]| x * T::ZERO) == T::ZERO
    }
}

/// Adds the products of `TAPS` taps.
#[inline(always)]
fn add_products<T: Real, const TAPS: usize>(planes: &[T], offsets: &[usize], dy: &[T], sums: &mut [T]) {
    let offsets: &[usize; TAPS] = offsets.try_into().expect("the caller has counted them");
    for (part, dy) in dy.chunks(DEPTH * LANES).enumerate() {
        let first = part * DEPTH * LANES;
        // All slices have the same length, so that one check of bounds is enough.
        let mut taps = [&[][..]; TAPS];
        for (tap, offset) in taps.iter_mut().zip(offsets) {
            *tap = planes[first + offset..][..dy.len()].as_chunks::<LANES>().0;
        }
        let mut partial = [[T::ZERO; LANES]; TAPS];
        for (i, &dy) in dy.as_chunks::<LANES>().0.iter().enumerate() {
            for tap in 0..TAPS {
                partial[tap] = add_product(taps[tap][i], dy, partial[tap]);
            }
        }
        for (partial, sums) in partial.iter().zip(sums.as_chunks_mut::<LANES>().0) {
            for lane in 0..LANES {
                sums[lane] = sums[lane] + partial[lane];
            }
        }
    }
}

/// `x · y + sum`. With results as values, LLVM keeps sums in registers.
#[inline(always)]
fn add_product<T: Real>(x: [T; LANES], y: [T; LANES], mut sum: [T; LANES]) -> [T; LANES] {
    for lane in 0..LANES {
        sum[lane] = x[lane].mul_add(y[lane], sum[lane]);
    }
    sum
}

/// Does the same as [`tap_sums`], one product after the other and for positions alone: an infinite element is not multiplied with the
/// zeros of other places.
pub(super) fn tap_sums_by_lines<T: Real>(
    planes: &[T],
    offsets: &[usize],
    dy: &[T],
    lines: &Lines,
    sums: &mut [T],
) {
    for (&offset, sums) in offsets.iter().zip(sums.chunks_exact_mut(LANES)) {
        for place in lines.in_plane() {
            let sum = &mut sums[place % LANES];
            *sum = planes[place + offset].mul_add(dy[place], *sum);
        }
    }
}

/// Returns the sum of all lanes, added in pairs.
#[inline(always)]
pub(super) fn sum_of_lanes<T: Real>(mut lanes: [T; LANES]) -> T {
    for count in [LANES / 2, LANES / 4, LANES / 8] {
        for lane in 0..count {
            lanes[lane] = lanes[lane] + lanes[lane + count];
        }
    }
    lanes[0]
}
