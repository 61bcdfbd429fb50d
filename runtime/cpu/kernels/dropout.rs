//! Dropout and uniform numbers: draws random words a few blocks at a time, and applies them to the elements.

use super::PARALLEL;
use crate::call::Call;
use crate::element::with_float;
use crate::math::{Float, Real};
use crate::simd::vectorized;
use ir::ops::draws::{Draws, Positions};
use ir::ops::dropout::Dropout;
use ir::ops::random::RandomUniform;
use ir::random::philox_lanes;
use rayon::prelude::*;
use std::array;

/// The number of elements that a task takes at a time.
const CHUNK: usize = 2048;
/// The number of blocks of four words that are drawn together.
const LANES: usize = 8;
/// The number of words of such a group.
const GROUP: usize = 4 * LANES;

pub(super) fn run(op: &Dropout, mut call: Call) {
    with_float!(call.dtype(), T => {
        let x = call.dense_or_in_place::<T>(0);
        let words = (call.operands.len() > 1).then(|| Words::new(op.draws(), 1, &call));
        let result = call.take_result::<T>();
        let task = |(index, out): (usize, &mut [T])| {
            if let Some(x) = x {
                out.copy_from_slice(&x[index * CHUNK..][..out.len()]);
            }
            if let Some(words) = &words {
                drop(op, words, index * CHUNK, out);
            }
        };
        result.par_chunks_mut(CHUNK).enumerate().with_min_len(PARALLEL / CHUNK).for_each(task);
    });
}

/// Drops elements of a slice whose first element has the index `first`.
fn drop<T: Float>(op: &Dropout, words: &Words, first: usize, elements: &mut [T]) {
    let Ok(threshold) = u32::try_from(op.threshold()) else {
        return elements.fill(T::from_i64(0));
    };
    let scale = <T::Real>::of(op.scale());
    words.each(first, elements, |words, elements| keep(threshold, scale, words, elements));
}

/// Writes uniform numbers, or their mean if the operator has no sample numbers.
pub(super) fn uniform(op: &RandomUniform, mut call: Call) {
    with_float!(call.dtype(), T => {
        let words = (!call.operands.is_empty()).then(|| Words::new(op.draws(), 0, &call));
        let result = call.take_result::<T>();
        let task = |(index, out): (usize, &mut [T])| match &words {
            Some(words) => words.each(index * CHUNK, out, become_numbers),
            None => out.fill(T::narrow(<T as Float>::Real::of(RandomUniform::MEAN))),
        };
        result.par_chunks_mut(CHUNK).enumerate().with_min_len(PARALLEL / CHUNK).for_each(task);
    });
}

/// The data from which a task draws its random words.
struct Words {
    draws: Draws,
    key: u64,
    numbers: Vec<i64>,
    positions: Positions,
    /// The number of elements of a sample that are consecutive both in the whole sample and in this result.
    run: usize,
}

impl Words {
    /// Returns the words of the result. `operand` has the numbers of the samples.
    fn new(draws: Draws, operand: usize, call: &Call) -> Self {
        let numbers = call.integers(operand);
        let samples = call.operand_span(operand, 0).size;
        let sizes = &call.result_view(0).layout.sizes;
        let positions = draws.positions(sizes, numbers.len(), samples, |dim| call.result_span(0, dim));
        let of_a_sample = positions.dims[positions.samples + 1..].iter().rev();
        let run = of_a_sample.fold((1, true), |(run, on), along| {
            let on = on && along.stride == run as u64;
            (if on { run * along.size } else { run }, on)
        });
        Self { key: draws.key(), draws, numbers, positions, run: run.0 }
    }

    /// Calls `f` with the words of these elements, one piece after the other. The first element has the index `first`.
    fn each<T>(&self, first: usize, elements: &mut [T], mut f: impl FnMut(&[u32], &mut [T])) {
        // Room for elements that begin and end within a group.
        let mut words = [0; CHUNK + 2 * GROUP];
        let mut done = 0;
        while done < elements.len() {
            let index = first + done;
            let length = (self.run - index % self.run).min(elements.len() - done);
            let (sample, element) = self.positions.of(index);
            let skipped = element as usize % 4;
            let groups = &mut words[..(skipped + length).next_multiple_of(GROUP)];
            draw(&self.draws, self.key, self.numbers[sample], element / 4, groups);
            f(&words[skipped..][..length], &mut elements[done..done + length]);
            done += length;
        }
    }
}

vectorized! {
    /// Draws the words of a sample from block `block` on.
    fn draw<'a, 'b;>(draws: &'a Draws, key: u64, sample: i64, block: u64, words: &'b mut [u32]) {
        for (group, words) in words.chunks_exact_mut(GROUP).enumerate() {
            let first = block + (group * LANES) as u64;
            let counters: [[u32; 4]; LANES] = array::from_fn(|lane| draws.counter(sample, first + lane as u64));
            let drawn = philox_lanes(key, array::from_fn(|word| counters.map(|counter| counter[word])));
            for (i, word) in words.iter_mut().enumerate() {
                *word = drawn[i % 4][i / 4];
            }
        }
    }

    /// Sets elements whose word is below the threshold to 0, and scales the others.
    fn keep<'a, 'b; T: Float>(threshold: u32, scale: T::Real, words: &'a [u32], elements: &'b mut [T]) {
        for (x, &word) in elements.iter_mut().zip(words) {
            let kept = T::narrow(x.widen() * scale);
            *x = if word >= threshold { kept } else { T::from_i64(0) };
        }
    }

    /// Replaces elements by the uniform numbers of their words.
    fn become_numbers<'a, 'b; T: Float>(words: &'a [u32], elements: &'b mut [T]) {
        for (x, &word) in elements.iter_mut().zip(words) {
            *x = T::narrow(<T::Real>::of(RandomUniform::number(word)));
        }
    }
}
