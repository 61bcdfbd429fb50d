//! The loss of several batches, from what an evaluation program gives of each.

use super::error::TrainError;
use super::outputs::output;
use crate::program::{Program, Section};
use ir::{ScalarPart, StepOutput};

/// Where an evaluation program has the classes of its loss: indices of the outputs of their parts, of which the floor and the
/// epsilon may be left out.
#[derive(Clone, Debug)]
pub(super) struct LossClasses {
    classes: Vec<[Option<usize>; 4]>,
}

/// The classes of a loss, summed up over batches: of each the sum, the weight, the floor and the epsilon.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LossTotal {
    classes: Vec<[f64; 4]>,
    /// A short batch counts as a part of one.
    batches: f64,
}

impl LossClasses {
    /// Those of an evaluation program.
    ///
    /// # Errors
    /// The program has no `loss.sum`, or a sum without a weight.
    pub(super) fn of(program: &Program) -> Result<Self, TrainError> {
        let mut classes = Vec::new();
        loop {
            let named = |part| StepOutput::loss(classes.len(), part);
            let found = |part| program.output(&named(part).to_string());
            if !classes.is_empty() && found(ScalarPart::Sum).is_none() {
                return Ok(Self { classes });
            }
            let needed = |part| output(program, named(part), Section::Microbatch).map(Some);
            let class = [
                needed(ScalarPart::Sum)?,
                needed(ScalarPart::Weight)?,
                found(ScalarPart::Floor),
                found(ScalarPart::Epsilon),
            ];
            classes.push(class);
        }
    }

    /// Those of the program of a rank; `None` of a pipeline rank that does not compute the loss.
    ///
    /// # Errors
    /// As of [`Self::of`].
    pub(super) fn of_rank(program: &Program) -> Result<Option<Self>, TrainError> {
        let sum = program.output(&StepOutput::loss(0, ScalarPart::Sum).to_string());
        if program.pipeline.is_some() && sum.is_none() { Ok(None) } else { Self::of(program).map(Some) }
    }

    /// The outputs, in the order in which [`Self::total`] takes their numbers.
    pub(super) fn outputs(&self) -> Vec<usize> {
        self.classes.iter().flatten().flatten().copied().collect()
    }

    /// The loss of one batch.
    pub(super) fn total(&self, numbers: &[f64]) -> LossTotal {
        let mut numbers = numbers.iter().copied();
        let mut number = |output: &Option<usize>| output.and_then(|_| numbers.next()).unwrap_or(0.0);
        let classes = self.classes.iter().map(|class| class.each_ref().map(&mut number)).collect();
        LossTotal { classes, batches: 1.0 }
    }
}

impl LossTotal {
    /// The loss of a short batch, which is so large a part of a batch. `shares` has for each class what its sum and its
    /// weight count.
    pub(super) fn of_a_part(mut self, shares: &[f64], batches: f64) -> Self {
        for (class, share) in self.classes.iter_mut().zip(shares) {
            class[0] *= share;
            class[1] *= share;
        }
        self.batches = batches;
        self
    }

    /// Adds another batch.
    pub(super) fn add(&mut self, other: &Self) {
        self.batches += other.batches;
        if self.classes.is_empty() {
            self.classes.clone_from(&other.classes);
            return;
        }
        for (class, more) in self.classes.iter_mut().zip(&other.classes) {
            class[0] += more[0];
            class[1] += more[1];
        }
    }

    /// The loss over all batches; `None` where nothing counts. A class that is a sum over samples is that of a step of
    /// `step` batches, so that it compares with the loss of the training.
    pub(super) fn loss(&self, step: u64) -> Option<f64> {
        let divided = self.classes.iter().map(|&[sum, weight, floor, epsilon]| {
            let is_sum = weight == 0.0 && floor > 0.0;
            let share = if is_sum { step as f64 / self.batches } else { 1.0 };
            let divisor = if floor == 0.0 { weight } else { weight.max(floor) } + epsilon;
            (divisor != 0.0).then(|| sum * share / divisor)
        });
        divided.flatten().reduce(|total, class| total + class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(classes: &[[f64; 4]]) -> LossTotal {
        LossTotal { classes: classes.to_vec(), batches: 1.0 }
    }

    #[test]
    fn each_class_is_divided_by_its_own_weight() {
        let mut all = LossTotal::default();
        assert_eq!(all.loss(1), None);
        all.add(&total(&[[6.0, 2.0, 0.0, 0.0], [1.0, 4.0, 0.0, 0.0]]));
        all.add(&total(&[[0.0, 0.0, 0.0, 0.0], [3.0, 4.0, 0.0, 0.0]]));
        assert_eq!(all.loss(1), Some(3.0 + 0.5));
    }

    #[test]
    fn a_negative_weight_divides_too() {
        assert_eq!(total(&[[6.0, -2.0, 0.0, 0.0]]).loss(1), Some(-3.0));
        assert_eq!(total(&[[6.0, 0.0, 0.0, 0.0]]).loss(1), None);
    }

    #[test]
    fn a_weight_is_kept_from_zero_once() {
        let mut all = total(&[[1.0, 0.25, 1.0, 0.5]]);
        all.add(&total(&[[1.0, 0.25, 1.0, 0.5]]));
        assert_eq!(all.loss(1), Some(2.0 / 1.5));
    }

    #[test]
    fn a_sum_over_samples_is_that_of_a_step() {
        let mut all = total(&[[8.0, 0.0, 1.0, 0.0]]);
        (0..3).for_each(|_| all.add(&total(&[[8.0, 0.0, 1.0, 0.0]])));
        assert_eq!(all.loss(2), Some(16.0));
    }

    #[test]
    fn a_short_batch_counts_as_a_part_of_one() {
        let mut all = total(&[[6.0, 1.0, 0.0, 0.0], [8.0, 0.0, 1.0, 0.0]]);
        let short = total(&[[2.0, 1.0, 0.0, 0.0], [4.0, 0.0, 1.0, 0.0]]);
        all.add(&short.of_a_part(&[0.5, 1.0], 0.5));
        assert_eq!(all.loss(1), Some(7.0 / 1.5 + 12.0 / 1.5));
    }

    #[test]
    fn batches_in_which_no_label_counts_have_no_loss() {
        assert_eq!(total(&[[0.0; 4]]).loss(1), None);
    }
}
