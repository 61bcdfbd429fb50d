//! Adam and AdamW with moments in 8 bits.

mod codes;

use super::adam::{AdamRule, adam_block};
use super::{Gradient, Optional};
use crate::call::Call;
use crate::element::{Element, with_float};
use crate::math::{Float, Real};
use crate::simd::vectorized;
use crate::storage::Scratch;
use codes::{Map, Share, Signed, Unsigned};
use ir::ops::optimizer::Adam8bit;
use ir::ops::optimizer::quantization::Blocks;
use rayon::prelude::*;
use std::ops::Range;

/// The number of blocks of a task.
const TOGETHER: usize = 32;

pub(in crate::kernels) fn adam_8bit(op: &Adam8bit, mut call: Call) {
    let [rate, decay, step] = [6, 7, 8].map(|index| call.scalar::<f64>(index));
    let dims: Vec<ir::Dim> =
        call.result_view(0).layout.sizes.iter().map(|&size| ir::Dim::known(size as u64)).collect();
    let blocks = Blocks::of(&dims, op.block).expect("sizes are known");
    with_float!(call.dtype(), S => {
        let Optional { scale, skips } = Optional::of::<S>(&call, 9);
        let (betas, eps) = ([op.beta1.get(), op.beta2.get()], op.eps.get());
        let rule = AdamRule::new(betas, eps, op.decoupled, scale, [rate, decay, step]);
        let gradient = Gradient::<S>::of(&call);
        let old: [Option<&[u8]>; 5] = [0, 2, 3, 4, 5].map(|index| call.dense_or_in_place(index));
        let tasks = tasks(blocks, size_of::<S>(), old, call.take_results());
        tasks.into_par_iter().for_each(|mut task| {
            task.copy_old();
            if skips {
                return;
            }
            let mut room = BlockScratch::default();
            for part in task.parts::<S>() {
                room.update(rule, &gradient, part);
            }
        });
    });
}

/// Neighbouring blocks, as bytes of five tensors: the parameter, and for each moment the codes and the largest magnitudes.
struct Task<'a> {
    /// The range of elements of each block.
    blocks: Vec<Range<usize>>,
    /// The old values, unless the results lie in their place.
    old: [Option<&'a [u8]>; 5],
    results: [&'a mut [u8]; 5],
}

fn tasks<'a>(
    blocks: Blocks,
    width: usize,
    old: [Option<&'a [u8]>; 5],
    results: [&'a mut [u8]; 5],
) -> Vec<Task<'a>> {
    let elements = results[1].len();
    let mut ranges = blocks.ranges(elements).peekable();
    let (mut old, mut results, mut tasks) = (old, results, vec![]);
    while ranges.peek().is_some() {
        let blocks: Vec<Range<usize>> = ranges.by_ref().take(TOGETHER).collect();
        let elements = blocks.iter().map(Range::len).sum::<usize>();
        let largest = blocks.len() * width;
        let bytes = [elements * width, elements, largest, elements, largest];
        let old = std::array::from_fn(|i| old[i].as_mut().and_then(|old| old.split_off(..bytes[i])));
        let results =
            std::array::from_fn(|i| results[i].split_off_mut(..bytes[i]).expect("results have all blocks"));
        tasks.push(Task { blocks, old, results });
    }
    tasks
}

impl<'a> Task<'a> {
    fn copy_old(&mut self) {
        for (old, new) in self.old.iter().zip(&mut self.results) {
            if let Some(old) = old {
                new.copy_from_slice(old);
            }
        }
    }

    fn parts<S: Element>(self) -> impl Iterator<Item = BlockResults<'a, S>> {
        let [parameter, first, first_largest, second, second_largest] = self.results;
        let [mut parameter, first_largest, second_largest] =
            [parameter, first_largest, second_largest].map(bytemuck::cast_slice_mut::<u8, S>);
        let mut codes = [first, second];
        let largest = first_largest.iter_mut().zip(second_largest);
        self.blocks.into_iter().zip(largest).map(move |(block, (first_largest, second_largest))| {
            let len = block.len();
            BlockResults {
                start: block.start,
                parameter: parameter.split_off_mut(..len).expect("the task has its blocks"),
                codes: codes
                    .each_mut()
                    .map(|codes| codes.split_off_mut(..len).expect("the task has its blocks")),
                largest: [first_largest, second_largest],
            }
        })
    }
}

/// One block of the results.
struct BlockResults<'a, S> {
    /// The number of its first element.
    start: usize,
    parameter: &'a mut [S],
    /// The codes of both moments.
    codes: [&'a mut [u8]; 2],
    /// The largest magnitudes of both moments.
    largest: [&'a mut S; 2],
}

/// Scratch for a block, in the type in which it is computed.
struct BlockScratch<T> {
    gradient: Scratch<T>,
    parameter: Scratch<T>,
    moments: [Vec<T>; 2],
    /// The magnitudes of a moment, divided by the largest of them.
    shares: Vec<T>,
}

impl<T: Real> Default for BlockScratch<T> {
    fn default() -> Self {
        Self {
            gradient: Scratch::new(),
            parameter: Scratch::new(),
            moments: [vec![], vec![]],
            shares: vec![],
        }
    }
}

impl<T: Share> BlockScratch<T> {
    fn update<S: Float<Real = T>>(
        &mut self,
        rule: AdamRule<T>,
        gradient: &Gradient<S>,
        part: BlockResults<S>,
    ) {
        let gradient = gradient.block(part.start, part.parameter.len());
        let gradient = self.gradient.read(&gradient);
        let ([first, second], [first_codes, second_codes]) = (&mut self.moments, part.codes);
        let [first_largest, second_largest] = part.largest;
        first.resize(gradient.len(), T::ZERO);
        second.resize(gradient.len(), T::ZERO);
        self.shares.resize(gradient.len(), T::ZERO);
        read(first_codes, first_largest.widen(), Signed, first);
        read(second_codes, second_largest.widen(), Unsigned, second);
        self.parameter
            .update(part.parameter, |parameter| adam_block(rule, gradient, parameter, first, second));
        *first_largest = S::narrow(write(first, Signed, &mut self.shares, first_codes));
        *second_largest = S::narrow(write(second, Unsigned, &mut self.shares, second_codes));
    }
}

vectorized! {
    /// Decodes a block of codes into numbers.
    fn read<'a, 'b; T: Share, M: Map>(codes: &'a [u8], largest: T, map: M, numbers: &'b mut [T]) {
        let tables = map.tables::<T>();
        for (number, &code) in numbers.iter_mut().zip(codes) {
            *number = tables.value(code) * largest;
        }
    }

    /// Writes the codes of a block, and returns its largest magnitude; NaN if one of its numbers is NaN. `shares` is scratch of the same
    /// length.
    fn write<'a, 'b; T: Share, M: Map>(numbers: &'a [T], map: M, shares: &'b mut [T], codes: &'b mut [u8]) -> T {
        let largest = largest(numbers);
        if !(T::ZERO < largest && largest < -T::NEG_INFINITY) {
            // The shares of such a largest number are 0 or NaN.
            codes.fill(0);
            return largest;
        }
        // One joint loop would not be vectorized, because it reads tables.
        for (share, &x) in shares.iter_mut().zip(numbers) {
            *share = (x / largest).abs().larger(T::LEAST);
        }
        let tables = map.tables::<T>();
        for (code, &share) in codes.iter_mut().zip(&*shares) {
            *code = tables.code(share);
        }
        for (code, &x) in codes.iter_mut().zip(numbers) {
            *code = map.with_sign(*code, x < T::ZERO);
        }
        largest
    }
}

/// The number of magnitudes that are compared side by side.
const LANES: usize = 32;

/// Returns the largest magnitude; NaN if a number is NaN.
#[inline(always)]
fn largest<T: Real>(numbers: &[T]) -> T {
    let mut lanes = [T::ZERO; LANES];
    let chunks = numbers.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = lane.larger(x.abs());
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = lane.larger(x.abs());
    }
    lanes.into_iter().fold(T::ZERO, T::larger)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::ops::optimizer::quantization::{signed_code, unsigned_code};

    /// Returns the codes of a block, and its largest magnitude.
    fn written<T: Share>(numbers: &[T], map: impl Map) -> (Vec<u8>, T) {
        let (mut shares, mut codes) = (vec![T::ONE; numbers.len()], vec![7; numbers.len()]);
        let largest = write(numbers, map, &mut shares, &mut codes);
        (codes, largest)
    }

    /// Blocks of 1 to 69 numbers and of about 256, with zeros among them: whole vectors, and remainders of every length.
    #[test]
    fn a_block_has_the_codes_of_its_shares_in_the_largest_number() {
        for len in (1..70).chain([255, 256, 257]) {
            let number = |i: u64| (ir::random::normal(3, len, i) * 10f64.powi(-(i as i32 % 9))) as f32;
            let numbers: Vec<f32> = (0..len).map(|i| if i % 11 == 5 { 0.0 } else { number(i) }).collect();
            let largest = numbers.iter().fold(0f32, |largest, x| largest.max(x.abs()));
            let share = |x: &f32| f64::from(x / largest);
            let expected: Vec<u8> = numbers.iter().map(|x| signed_code(share(x))).collect();
            assert_eq!(written(&numbers, Signed), (expected, largest), "{len}");
            let squares: Vec<f32> = numbers.iter().map(|x| x.abs()).collect();
            let expected: Vec<u8> = squares.iter().map(|x| unsigned_code(share(x))).collect();
            assert_eq!(written(&squares, Unsigned), (expected, largest), "{len}");
        }
    }

    #[test]
    fn a_block_without_a_finite_largest_number_has_codes_of_zero() {
        for largest in [0.0, f64::INFINITY, f64::NAN] {
            for at in [0, 31, 32, 39] {
                let mut numbers = vec![0.0; 40];
                numbers[7] = if largest == 0.0 { -0.0 } else { -3.0 };
                numbers[at] = largest;
                let (codes, found) = written(&numbers, Signed);
                assert_eq!((codes, found.to_bits()), (vec![0; 40], largest.to_bits()), "{largest} at {at}");
            }
        }
    }
}
