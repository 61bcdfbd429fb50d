//! Adam and AdamW with moments in 8 bits.

use super::adam::{AdamRule, adam_block};
use super::{Gradient, Optional};
use crate::cpu::call::Call;
use crate::cpu::element::{Element, with_float};
use crate::cpu::math::Real;
use crate::cpu::storage::{Float, Scratch};
use ir::ops::optimizer::Adam8bit;
use ir::ops::optimizer::quantization::{Blocks, SIGNED, UNSIGNED, midpoints};
use rayon::prelude::*;
use std::ops::Range;

/// Blocks of a task.
const TOGETHER: usize = 32;

pub(in crate::cpu::kernels) fn adam_8bit(op: &Adam8bit, mut call: Call) {
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
            let mut room = Room::default();
            for part in task.parts::<S>() {
                room.update(rule, &gradient, part);
            }
        });
    });
}

/// Blocks beside each other, in bytes: of the parameter, of the first moment's codes and its largest numbers, and of the second
/// moment's.
struct Task<'a> {
    /// The elements of each block.
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
            old.iter().for_each(|old| new.copy_from_slice(old));
        }
    }

    fn parts<S: Element>(self) -> impl Iterator<Item = Part<'a, S>> {
        let [parameter, first, first_largest, second, second_largest] = self.results;
        let [mut parameter, first_largest, second_largest] =
            [parameter, first_largest, second_largest].map(bytemuck::cast_slice_mut::<u8, S>);
        let mut codes = [first, second];
        let largest = first_largest.iter_mut().zip(second_largest);
        self.blocks.into_iter().zip(largest).map(move |(block, (first_largest, second_largest))| {
            let len = block.len();
            Part {
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

/// A block of the results.
struct Part<'a, S> {
    /// The number of its first element.
    start: usize,
    parameter: &'a mut [S],
    /// Of both moments.
    codes: [&'a mut [u8]; 2],
    /// Of both moments.
    largest: [&'a mut S; 2],
}

/// Room for a block in the type that it is computed in.
struct Room<T> {
    gradient: Scratch<T>,
    parameter: Scratch<T>,
    moments: [Vec<T>; 2],
}

impl<T: Real> Default for Room<T> {
    fn default() -> Self {
        Self { gradient: Scratch::new(), parameter: Scratch::new(), moments: [vec![], vec![]] }
    }
}

impl<T: Real> Room<T> {
    fn update<S: Float<Real = T>>(&mut self, rule: AdamRule<T>, gradient: &Gradient<S>, part: Part<S>) {
        let gradient = gradient.block(part.start, part.parameter.len());
        let gradient = self.gradient.read(&gradient);
        let ([first, second], [first_codes, second_codes]) = (&mut self.moments, part.codes);
        let [first_largest, second_largest] = part.largest;
        read(first_codes, first_largest.widen(), Signed, first);
        read(second_codes, second_largest.widen(), Unsigned, second);
        self.parameter
            .update(part.parameter, |parameter| adam_block(rule, gradient, parameter, first, second));
        *first_largest = S::narrow(write(first, Signed, first_codes));
        *second_largest = S::narrow(write(second, Unsigned, second_codes));
    }
}

/// The numbers of codes.
trait Map: Copy {
    fn value(self, code: u8) -> f64;
    /// The code of the nearest number: it is found by the count of numbers halfway between two values that are below.
    fn code<T: Real>(self, x: T) -> u8;
}

#[derive(Clone, Copy)]
struct Signed;

#[derive(Clone, Copy)]
struct Unsigned;

impl Map for Signed {
    #[inline(always)]
    fn value(self, code: u8) -> f64 {
        const VALUES: [f64; 256] = {
            let mut values = [0.0; 256];
            let mut code = 0;
            while code < 256 {
                values[code] = if code <= 128 { SIGNED[code] } else { -SIGNED[256 - code] };
                code += 1;
            }
            values
        };
        VALUES[usize::from(code)]
    }

    #[inline(always)]
    fn code<T: Real>(self, x: T) -> u8 {
        const MIDPOINTS: [f64; 128] = midpoints(&SIGNED);
        // No negative number has the magnitude 1.
        let count = below(&MIDPOINTS, x.abs().to_f64());
        if x < T::ZERO { count.min(127).wrapping_neg() } else { count }
    }
}

impl Map for Unsigned {
    #[inline(always)]
    fn value(self, code: u8) -> f64 {
        UNSIGNED[usize::from(code)]
    }

    #[inline(always)]
    fn code<T: Real>(self, x: T) -> u8 {
        const MIDPOINTS: [f64; 255] = midpoints(&UNSIGNED);
        below(&MIDPOINTS, x.to_f64())
    }
}

/// How many of ascending numbers are below `x`, by halving.
#[inline(always)]
fn below<const N: usize>(numbers: &[f64; N], x: f64) -> u8 {
    let (mut count, mut step) = (0, 128);
    while step > 0 {
        if count + step <= N && numbers[count + step - 1] < x {
            count += step;
        }
        step /= 2;
    }
    count as u8
}

/// The numbers of a block of codes.
fn read<T: Real>(codes: &[u8], largest: T, map: impl Map, numbers: &mut Vec<T>) {
    numbers.clear();
    numbers.extend(codes.iter().map(|&code| T::of(map.value(code)) * largest));
}

/// Writes the codes of a block, and returns its largest magnitude; NaN if one of its numbers is NaN.
fn write<T: Real>(numbers: &[T], map: impl Map, codes: &mut [u8]) -> T {
    let largest = numbers.iter().fold(T::ZERO, |largest, x| largest.larger(x.abs()));
    for (code, &x) in codes.iter_mut().zip(numbers) {
        *code = if x == T::ZERO { 0 } else { map.code(x / largest) };
    }
    largest
}
