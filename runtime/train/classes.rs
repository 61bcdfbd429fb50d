//! The loss over several batches, computed from the outputs of an evaluation program for each batch.

use super::error::TrainError;
use super::outputs::output;
use ir::{Scalar, ScalarPart, StepOutput};
use program::{Program, Section};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The parts of the loss in an evaluation program: for each part, the index of its output. A pipeline rank has the parts that its own
/// stages compute.
#[derive(Clone, Debug)]
pub(super) struct LossParts {
    outputs: Vec<(LossPart, usize)>,
}

/// A part of the loss: the index of a class, and one of the class's numbers.
type LossPart = (usize, ScalarPart);

/// The parts of a loss, summed over batches.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LossTotal {
    parts: BTreeMap<LossPart, f64>,
    /// The number of batches. A short batch counts as a fraction.
    batches: f64,
}

/// The parts that a rank sends to other ranks: the class, the index in [`ScalarPart::ALL`], and the bits of the number.
pub(super) type ToldParts = Vec<(usize, usize, u64)>;

/// Returns the loss of one batch, given the numbers that its evaluation reports by name. `None` if no sample counts.
pub fn loss_of_batch<'a>(numbers: impl IntoIterator<Item = (&'a str, f64)>) -> Option<f64> {
    let parts = numbers.into_iter().filter_map(|(name, number)| Some((part_of(name)?, number)));
    LossTotal { parts: parts.collect(), batches: 1.0 }.loss(1)
}

/// Returns the part of the loss that an output of this name is.
fn part_of(name: &str) -> Option<LossPart> {
    match StepOutput::of(name) {
        Some(StepOutput::Part { scalar: Scalar::Loss, class, part }) => Some((class, part)),
        _ => None,
    }
}

impl LossParts {
    /// Finds the parts in an evaluation program.
    ///
    /// # Errors
    /// A program without stages lacks `loss.sum`, or has a sum without a weight.
    pub(super) fn of(program: &Program) -> Result<Self, TrainError> {
        let outputs = program.outputs.iter().enumerate();
        let outputs = outputs.filter(|(_, output)| output.section == Section::Microbatch);
        let parts = outputs.filter_map(|(index, output)| Some((part_of(&output.name)?, index)));
        let parts = Self { outputs: parts.collect() };
        if program.pipeline.is_none() {
            let sums = parts.outputs.iter().filter(|((_, part), _)| *part == ScalarPart::Sum);
            for class in sums.map(|((class, _), _)| *class).chain([0]) {
                for part in [ScalarPart::Sum, ScalarPart::Weight] {
                    output(program, StepOutput::loss(class, part), Section::Microbatch)?;
                }
            }
        }
        Ok(parts)
    }

    /// Returns the outputs, in the order in which [`Self::total`] takes their numbers.
    pub(super) fn outputs(&self) -> Vec<usize> {
        self.outputs.iter().map(|(_, output)| *output).collect()
    }

    /// Returns the loss of one batch.
    pub(super) fn total(&self, numbers: &[f64]) -> LossTotal {
        let parts = self.outputs.iter().zip(numbers).map(|((part, _), number)| (*part, *number));
        LossTotal { parts: parts.collect(), batches: 1.0 }
    }
}

impl LossTotal {
    /// Turns this into the loss of a short batch, which is the fraction `batches` of a batch. `shares` has a factor for the sum and the
    /// weight of each class.
    pub(super) fn of_a_part(mut self, shares: &[f64], batches: f64) -> Self {
        for ((class, part), number) in &mut self.parts {
            if part.adds_up() {
                *number *= shares.get(*class).copied().unwrap_or(1.0);
            }
        }
        self.batches = batches;
        self
    }

    /// Adds the loss of another batch.
    pub(super) fn add(&mut self, other: &Self) {
        self.batches += other.batches;
        for (&part, &more) in &other.parts {
            match self.parts.entry(part) {
                Entry::Vacant(place) => {
                    place.insert(more);
                }
                Entry::Occupied(mut total) if part.1.adds_up() => *total.get_mut() += more,
                Entry::Occupied(_) => {}
            }
        }
    }

    /// Returns the parts in the form in which they are sent to other ranks.
    pub(super) fn told(&self) -> ToldParts {
        let index = |part| ScalarPart::ALL.into_iter().position(|other| other == part).unwrap_or_default();
        self.parts.iter().map(|(&(class, part), number)| (class, index(part), number.to_bits())).collect()
    }

    /// Adds the parts that other ranks computed for the same batches.
    pub(super) fn complete(&mut self, told: impl IntoIterator<Item = ToldParts>) {
        for (class, part, bits) in told.into_iter().flatten() {
            if let Some(&part) = ScalarPart::ALL.get(part) {
                self.parts.entry((class, part)).or_insert(f64::from_bits(bits));
            }
        }
    }

    /// Returns the loss over all batches; `None` if no sample counts. A class that is a sum over samples is scaled to a step of `step`
    /// batches, so that it can be compared with the training loss.
    pub(super) fn loss(&self, step: u64) -> Option<f64> {
        let number = |class, part| self.parts.get(&(class, part)).copied();
        let sums = (0..).map_while(|class| Some((class, number(class, ScalarPart::Sum)?)));
        let divided = sums.map(|(class, sum)| {
            let [weight, floor, epsilon] = [ScalarPart::Weight, ScalarPart::Floor, ScalarPart::Epsilon]
                .map(|part| number(class, part).unwrap_or(0.0));
            let count = number(class, ScalarPart::Count).unwrap_or(1.0);
            let (floor, epsilon) = (floor * count, epsilon * count);
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

    fn total<const N: usize>(classes: &[[f64; N]]) -> LossTotal {
        let parts = classes.iter().enumerate().flat_map(|(class, numbers)| {
            ScalarPart::ALL
                .into_iter()
                .zip(numbers.iter().copied())
                .map(move |(part, number)| ((class, part), number))
        });
        LossTotal { parts: parts.collect(), batches: 1.0 }
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
    fn bounds_of_a_mean_count_for_each_sample() {
        let mut all = total(&[[1.0, 2.0, 0.5, 0.125, 8.0]]);
        all.add(&total(&[[2.0, 1.0, 0.5, 0.125, 4.0]]));
        assert_eq!(all.loss(1), Some(3.0 / (0.5 * 12.0 + 0.125 * 12.0)));
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

    #[test]
    fn ranks_of_a_pipeline_complete_each_other() {
        let whole = total(&[[6.0, 2.0, 0.0, 0.0], [-0.0, 0.0, 1.0, 0.0], [3.0, 4.0, 8.0, 2.0]]);
        let own = |is_own: fn(&LossPart) -> bool| {
            let parts = whole.parts.iter().filter(|(part, _)| is_own(part));
            LossTotal { parts: parts.map(|(part, number)| (*part, *number)).collect(), batches: 1.0 }
        };
        let ranks =
            [own(|_| false), own(|(class, _)| *class == 2), own(|(_, part)| *part != ScalarPart::Sum)];
        let sums = own(|(class, part)| *class < 2 && *part == ScalarPart::Sum);
        let told: Vec<ToldParts> = ranks.iter().chain([&sums]).map(LossTotal::told).collect();
        for mut rank in ranks.into_iter().chain([sums]) {
            assert_ne!(rank, whole);
            rank.complete(told.clone());
            assert_eq!(rank, whole);
        }
    }
}
