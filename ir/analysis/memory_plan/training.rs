//! Tests with plans of buffers like those of training steps, of random sizes.

use super::placement::{ALIGNMENT, Buffer, aligned, check, live_bytes, lower_bound, place};
use super::search::{Fullest, KEYS, sorted};
use super::skyline;
use crate::analysis::Lifetime;
use crate::random::philox;

/// A training step of layers in a chain, each with a residual connection.
#[derive(Clone, Copy, Debug)]
struct Training {
    seed: u64,
    layers: usize,
    /// The number of layers in a segment whose activations backward computes again.
    recomputed: Option<usize>,
    /// Whether gradients are summed over microbatches.
    microbatches: bool,
}

impl Training {
    /// Returns steps of every kind with about so many buffers. Gradients are small, as large as activations, or larger.
    fn all(buffers: usize) -> impl Iterator<Item = Self> {
        let kinds = [None, Some(1), Some(4)].into_iter().flat_map(|recomputed| {
            [false, true].map(|microbatches| Self { seed: 0, layers: 8, recomputed, microbatches })
        });
        kinds.flat_map(move |kind| {
            (0..4).map(move |seed| {
                let kind = Self { seed, ..kind };
                Self { layers: 8 * buffers / kind.buffers().len(), ..kind }
            })
        })
    }

    fn buffers(&self) -> Vec<Buffer> {
        Tape::of(self).buffers
    }

    fn drawn(&self, counter: [u32; 4], below: u32) -> u32 {
        (philox(self.seed, counter)[0] >> 8) % below
    }

    /// Returns the operators of a layer. All layers have the same kinds of operators, with sizes drawn for each layer.
    fn layer(&self, layer: usize) -> Vec<Operator> {
        let operator = |index: u32| {
            let kind = |what: u32, below: u32| self.drawn([index, what, 0, 0], below);
            let size = |what: u32| u64::from(500 + self.drawn([index, what, 1, layer as u32], 1000));
            let factor = [1, 2, 3, 8, 64][kind(0, 5) as usize];
            let share = [1, 4, 16, 64][self.seed as usize % 4];
            Operator {
                result: size(1) * factor,
                weight: (kind(2, 2) == 0).then(|| size(3) * share),
                scratch: (kind(4, 4) == 0).then(|| size(5) * factor),
                saved: kind(6, 3) > 0,
            }
        };
        (0..6 + self.drawn([0, 7, 0, 0], 8)).map(operator).collect()
    }
}

/// The sizes of an operator's buffers, in bytes.
struct Operator {
    result: u64,
    weight: Option<u64>,
    scratch: Option<u64>,
    /// Whether backward reads the operand.
    saved: bool,
}

/// The buffers of a step so far.
struct Tape {
    now: u32,
    buffers: Vec<Buffer>,
}

impl Tape {
    fn of(training: &Training) -> Self {
        let layers: Vec<Vec<Operator>> = (0..training.layers).map(|layer| training.layer(layer)).collect();
        let mut tape = Self { now: 0, buffers: Vec::new() };
        let weights = || layers.iter().flatten().rev().filter_map(|operator| operator.weight);
        let sums: Vec<usize> = if training.microbatches {
            weights().map(|bytes| tape.make(bytes)).collect()
        } else {
            Vec::new()
        };
        let input = tape.make(5000);
        let mut values = vec![vec![input]];
        for layer in &layers {
            let last = values[values.len() - 1].last().copied().unwrap_or(input);
            values.push(tape.forward(layer, last));
        }
        values.remove(0);
        let logits = tape.make(100_000);
        tape.now += 1;
        tape.read(logits);
        let mut gradient = tape.make(100_000);
        let (mut gradients, segment) = (Vec::new(), training.recomputed.unwrap_or(1));
        for start in (0..layers.len()).step_by(segment).rev() {
            let segment = start..layers.len().min(start + segment);
            if training.recomputed.is_some() {
                let mut last = values[start][0];
                for layer in segment.clone() {
                    values[layer] = tape.forward(&layers[layer], last);
                    last = values[layer][layers[layer].len()];
                }
            }
            for layer in segment.rev() {
                let sums = &sums[gradients.len().min(sums.len())..];
                gradient = tape.backward(&layers[layer], &values[layer], gradient, sums, &mut gradients);
            }
        }
        tape.read(input);
        tape.update(if sums.is_empty() { &gradients } else { &sums });
        tape
    }

    fn make(&mut self, bytes: u64) -> usize {
        self.buffers.push(Buffer { bytes, lifetime: Lifetime { first: self.now, last: self.now } });
        self.buffers.len() - 1
    }

    fn read(&mut self, buffer: usize) {
        self.buffers[buffer].lifetime.last = self.now;
    }

    /// Adds the forward pass of a layer. Returns the operand of the layer and the results of its operators.
    fn forward(&mut self, layer: &[Operator], operand: usize) -> Vec<usize> {
        let mut values = vec![operand];
        for operator in layer {
            self.now += 1;
            self.read(values[values.len() - 1]);
            if let Some(bytes) = operator.scratch {
                self.make(bytes);
            }
            values.push(self.make(operator.result));
        }
        self.read(operand);
        values
    }

    /// Adds the backward pass of a layer, and returns the gradient of its operand. The gradients of weights are appended to
    /// `gradients`, or added to the first of `sums`.
    fn backward(
        &mut self,
        layer: &[Operator],
        values: &[usize],
        residual: usize,
        sums: &[usize],
        gradients: &mut Vec<usize>,
    ) -> usize {
        let (mut gradient, mut sums) = (residual, sums.iter());
        for (operator, &operand) in layer.iter().zip(values).rev() {
            self.now += 1;
            self.read(gradient);
            if operator.saved {
                self.read(operand);
            }
            if let Some(bytes) = operator.weight {
                let of_weight = self.make(bytes);
                if let Some(&sum) = sums.next() {
                    self.now += 1;
                    self.read(of_weight);
                    self.read(sum);
                }
                gradients.push(of_weight);
            }
            self.read(gradient);
            gradient = self.make(self.buffers[operand].bytes);
        }
        self.read(residual);
        gradient
    }

    /// Adds the norm of all gradients, then an update of each weight with a temporary.
    fn update(&mut self, gradients: &[usize]) {
        self.now += 1;
        gradients.iter().for_each(|&gradient| self.read(gradient));
        for &gradient in gradients {
            self.now += 1;
            self.read(gradient);
            self.make(self.buffers[gradient].bytes);
        }
    }
}

/// Asserts that no two buffers overlap, and that the plan is at most 3 % larger than the bound.
fn assert_good(training: &Training, buffers: &[Buffer], offsets: &[u64], peak: u64) {
    check(buffers, offsets).expect("no two overlap");
    let bound = lower_bound(buffers);
    assert!(peak >= bound && peak - bound <= bound * 3 / 100, "{peak} above {bound}: {training:?}");
    assert!(offsets.iter().all(|offset| offset % ALIGNMENT == 0));
}

#[test]
fn plans_of_training_steps_are_near_the_bound() {
    for count in [300, 2000, 5000] {
        for training in Training::all(count) {
            let buffers = training.buffers();
            let plan = place(&buffers);
            assert_good(&training, &buffers, &plan.offsets, plan.peak);
        }
    }
}

#[test]
fn plans_of_very_many_buffers_are_near_the_bound_and_the_same_each_time() {
    for training in Training::all(30_000).step_by(5) {
        let buffers = training.buffers();
        assert!(buffers.len() > 25_000, "{} buffers: {training:?}", buffers.len());
        let plan = place(&buffers);
        assert_good(&training, &buffers, &plan.offsets, plan.peak);
        assert_eq!(plan, place(&buffers));
    }
}

/// The skyline planner is tested by itself, without best fit.
#[test]
fn skylines_of_training_steps_are_near_the_bound() {
    for count in [2000, 20_000] {
        for training in Training::all(count) {
            let mut buffers = training.buffers();
            buffers.iter_mut().for_each(|buffer| buffer.bytes = aligned(buffer.bytes));
            let order = sorted(&buffers, &Fullest::of(&live_bytes(&buffers)), KEYS[0]);
            let plan = skyline::plan(&buffers, order, u64::MAX).expect("no plan is too large");
            assert_good(&training, &buffers, &plan.offsets, plan.peak);
        }
    }
}
