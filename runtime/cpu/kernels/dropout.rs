//! Dropout: random words a few blocks at a time, and the elements that they keep.

use super::PARALLEL;
use crate::cpu::call::Call;
use crate::cpu::element::with_float;
use crate::cpu::math::Real;
use crate::cpu::simd::vectorized;
use crate::cpu::storage::Float;
use ir::ops::dropout::{Dropout, Positions};
use ir::random::philox_lanes;
use rayon::prelude::*;
use std::array;

/// Elements that a task takes at a time.
const CHUNK: usize = 2048;
/// Blocks of four words that are drawn together.
const LANES: usize = 8;
/// Words of such a group.
const GROUP: usize = 4 * LANES;

pub(super) fn run(op: &Dropout, mut call: Call) {
    with_float!(call.dtype(), T => {
        let x = call.dense_or_in_place::<T>(0);
        let draws = (call.operands.len() > 1).then(|| Draws::new(op, &call));
        let result = call.take_result::<T>();
        let task = |(index, out): (usize, &mut [T])| {
            if let Some(x) = x {
                out.copy_from_slice(&x[index * CHUNK..][..out.len()]);
            }
            if let Some(draws) = &draws {
                draws.chunk(index * CHUNK, out);
            }
        };
        result.par_chunks_mut(CHUNK).enumerate().with_min_len(PARALLEL / CHUNK).for_each(task);
    });
}

/// What a task needs to know to draw its words.
struct Draws<'a> {
    op: &'a Dropout,
    key: u64,
    numbers: Vec<i64>,
    positions: Positions,
    /// Elements that stand one after the other in a sample as they do here.
    run: usize,
}

impl<'a> Draws<'a> {
    fn new(op: &'a Dropout, call: &Call) -> Self {
        let numbers = call.integers(1);
        let samples = call.operand_span(1, 0).size;
        let sizes = &call.result_view(0).layout.sizes;
        let positions = op.positions(sizes, numbers.len(), samples, |dim| call.result_span(0, dim));
        let of_a_sample = positions.dims[positions.samples + 1..].iter().rev();
        let run = of_a_sample.fold((1, true), |(run, on), along| {
            let on = on && along.stride == run as u64;
            (if on { run * along.size } else { run }, on)
        });
        Self { op, key: op.key(), numbers, positions, run: run.0 }
    }

    /// Drops of these elements, the first of which has this index.
    fn chunk<T: Float>(&self, first: usize, elements: &mut [T]) {
        let Ok(threshold) = u32::try_from(self.op.threshold()) else {
            return elements.fill(T::from_i64(0));
        };
        let scale = <T::Real>::of(self.op.scale());
        // Room for elements that begin and end within a group.
        let mut words = [0; CHUNK + 2 * GROUP];
        let mut done = 0;
        while done < elements.len() {
            let index = first + done;
            let length = (self.run - index % self.run).min(elements.len() - done);
            let (sample, element) = self.positions.of(index);
            let skipped = element as usize % 4;
            let groups = &mut words[..(skipped + length).next_multiple_of(GROUP)];
            draw(self.op, self.key, self.numbers[sample], element / 4, groups);
            keep(threshold, scale, &words[skipped..][..length], &mut elements[done..done + length]);
            done += length;
        }
    }
}

vectorized! {
    /// The words of a sample from this block on.
    fn draw<'a, 'b;>(op: &'a Dropout, key: u64, sample: i64, block: u64, words: &'b mut [u32]) {
        for (group, words) in words.chunks_exact_mut(GROUP).enumerate() {
            let first = block + (group * LANES) as u64;
            let counters: [[u32; 4]; LANES] = array::from_fn(|lane| op.counter(sample, first + lane as u64));
            let drawn = philox_lanes(key, array::from_fn(|word| counters.map(|counter| counter[word])));
            for (i, word) in words.iter_mut().enumerate() {
                *word = drawn[i % 4][i / 4];
            }
        }
    }
}

vectorized! {
    /// Elements whose word is below the threshold become 0, the others are scaled.
    fn keep<'a, 'b; T: Float>(threshold: u32, scale: T::Real, words: &'a [u32], elements: &'b mut [T]) {
        for (x, &word) in elements.iter_mut().zip(words) {
            let kept = T::narrow(x.widen() * scale);
            *x = if word >= threshold { kept } else { T::from_i64(0) };
        }
    }
}
