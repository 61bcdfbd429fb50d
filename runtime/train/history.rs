//! The eval losses of a run: the lowest one, and whether the loss still falls.
//!
//! They are the metrics' own, so that a run that goes on knows them without a state of its own.

use crate::metrics::{MetricsError, read_metrics};
use std::collections::BTreeMap;
use std::path::Path;

/// The eval losses of a run, by the steps done before each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvalHistory {
    losses: BTreeMap<u64, f64>,
}

/// An evaluation of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Steps done before it.
    pub steps: u64,
    /// The mean loss over the held-out data.
    pub loss: f64,
}

impl EvalHistory {
    /// The evaluations in a file of metrics (`metrics.jsonl`).
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(metrics: &Path) -> Result<Self, MetricsError> {
        let loss = |loss: Option<f64>| loss.filter(|loss| loss.is_finite());
        let steps = read_metrics(metrics)?.into_iter();
        Ok(Self { losses: steps.filter_map(|step| Some((step.step + 1, loss(step.eval_loss)?))).collect() })
    }

    /// Adds an evaluation after `steps` steps. Returns whether its loss is below all others.
    pub(super) fn add(&mut self, steps: u64, loss: f64) -> bool {
        self.losses.remove(&steps);
        let improves = self.lowest().is_none_or(|lowest| loss < lowest.loss);
        self.losses.insert(steps, loss);
        improves
    }

    /// The loss after `steps` steps.
    pub(super) fn after(&self, steps: u64) -> Option<f64> {
        self.losses.get(&steps).copied()
    }

    /// The evaluation with the lowest loss; of equal ones the first.
    pub fn lowest(&self) -> Option<Evaluation> {
        self.lowest_of(|_| true)
    }

    /// As [`Self::lowest`], of the evaluations after certain numbers of steps.
    pub(super) fn lowest_of(&self, counts: impl Fn(u64) -> bool) -> Option<Evaluation> {
        let evaluations = self.losses.iter().map(|(&steps, &loss)| Evaluation { steps, loss });
        let counted = evaluations.filter(|evaluation| counts(evaluation.steps));
        counted.reduce(|lowest, next| if next.loss < lowest.loss { next } else { lowest })
    }

    /// The number of evaluations after the one with the lowest loss.
    pub fn since_lowest(&self) -> u64 {
        let lowest = self.lowest().map_or(0, |lowest| lowest.steps);
        self.losses.range(lowest + 1..).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_loss_is_the_first_of_equal_ones() {
        let mut history = EvalHistory::default();
        assert_eq!((history.lowest(), history.since_lowest()), (None, 0));
        let improved =
            [(5, 2.0), (10, 1.5), (15, 1.75), (20, 1.5), (25, 1.6)].map(|(n, loss)| history.add(n, loss));
        assert_eq!(improved, [true, true, false, false, false]);
        assert_eq!(history.lowest(), Some(Evaluation { steps: 10, loss: 1.5 }));
        assert_eq!(history.since_lowest(), 3);
        assert_eq!(history.lowest_of(|steps| steps > 10), Some(Evaluation { steps: 20, loss: 1.5 }));
        assert_eq!(history.after(15), Some(1.75));
        // The same evaluation done again counts once.
        assert!(history.add(25, 1.25));
        assert_eq!((history.since_lowest(), history.losses.len()), (0, 5));
    }
}
