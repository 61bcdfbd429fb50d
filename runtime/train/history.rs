//! The eval losses of a run: the lowest loss, and whether the loss still falls.
//!
//! A checkpoint has the losses up to it, so a resumed run compares with losses that have a checksum. Losses of other data, or of another
//! loss function, are not comparable, and are forgotten.

use crate::metrics::{MetricsError, read_metrics};
use checkpoint::{EarlierEvaluations, EvalConditions, EvalLoss, Evaluations, PendingFingerprint};
use data::DataError;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;

/// The eval losses of a run, by the steps completed before each, and the conditions of the evaluations.
#[derive(Debug)]
pub struct EvalHistory {
    losses: BTreeMap<u64, f64>,
    /// Whether only the metrics have the earlier losses.
    is_in_metrics: bool,
    /// The fingerprint of the evaluation data.
    data: PendingFingerprint,
    measure: String,
}

/// An evaluation of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The number of steps completed before it.
    pub steps: u64,
    /// The mean loss over the held-out data.
    pub loss: f64,
}

impl EvalHistory {
    /// Makes the history of a new run.
    pub fn new(conditions: EvalConditions) -> Self {
        let data = PendingFingerprint::start(conditions.files);
        Self { losses: BTreeMap::new(), is_in_metrics: false, data, measure: conditions.measure }
    }

    /// Makes the history of a run that continues from a checkpoint.
    pub(super) fn of_checkpoint(earlier: EarlierEvaluations, measure: String) -> Self {
        let EarlierEvaluations { data, losses, .. } = earlier;
        Self { is_in_metrics: losses.is_none(), losses: losses.unwrap_or_default(), data, measure }
    }

    /// Adds the evaluations in a file of metrics (`metrics.jsonl`), if the checkpoint was too old to have them.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn complete(&mut self, metrics: &Path) -> Result<(), MetricsError> {
        if std::mem::take(&mut self.is_in_metrics) {
            let loss = |loss: Option<f64>| loss.filter(|loss| loss.is_finite());
            let steps = read_metrics(metrics)?.into_iter();
            self.losses = steps.filter_map(|step| Some((step.step, loss(step.eval_loss)?))).collect();
        }
        Ok(())
    }

    /// Forgets all losses, because the checkpoints that they belong to are in another folder.
    pub fn forget(&mut self) {
        self.losses.clear();
        self.is_in_metrics = false;
    }

    /// Returns the fingerprint of the evaluation data.
    pub(super) fn data(&mut self) -> &mut PendingFingerprint {
        &mut self.data
    }

    /// Returns the evaluations in the form in which a checkpoint stores them.
    ///
    /// # Errors
    /// A file of evaluation data cannot be read.
    pub(super) fn for_checkpoint(&mut self) -> Result<Evaluations, DataError> {
        let losses = self.losses.iter().map(|(&steps, &loss)| EvalLoss { steps, loss }).collect();
        let data = self.data.for_checkpoint()?.clone();
        Ok(Evaluations { data, measure: self.measure.clone(), losses })
    }

    /// Adds an evaluation after `steps` steps. Returns whether its loss is below all others.
    pub(super) fn add(&mut self, steps: u64, loss: f64) -> bool {
        self.losses.remove(&steps);
        let improves = self.lowest().is_none_or(|lowest| loss < lowest.loss);
        self.losses.insert(steps, loss);
        improves
    }

    /// Returns the loss after `steps` steps.
    pub(super) fn after(&self, steps: u64) -> Option<f64> {
        self.losses.get(&steps).copied()
    }

    /// Returns the evaluation with the lowest loss, or the first of several.
    pub fn lowest(&self) -> Option<Evaluation> {
        self.lowest_of(|_| true)
    }

    /// Does the same as [`Self::lowest`] for the evaluations after certain numbers of steps.
    pub(super) fn lowest_of(&self, counts: impl Fn(u64) -> bool) -> Option<Evaluation> {
        let evaluations = self.losses.iter().map(|(&steps, &loss)| Evaluation { steps, loss });
        let counted = evaluations.filter(|evaluation| counts(evaluation.steps));
        counted.reduce(|lowest, next| if next.loss < lowest.loss { next } else { lowest })
    }

    /// Returns the number of evaluations after the one with the lowest loss.
    pub fn since_lowest(&self) -> u64 {
        let lowest = self.lowest().map_or(0, |lowest| lowest.steps);
        self.losses.range((Bound::Excluded(lowest), Bound::Unbounded)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_loss_is_the_first_of_equal_ones() {
        let mut history = EvalHistory::new(EvalConditions::default());
        assert_eq!((history.lowest(), history.since_lowest()), (None, 0));
        let improved =
            [(5, 2.0), (10, 1.5), (15, 1.75), (20, 1.5), (25, 1.6)].map(|(n, loss)| history.add(n, loss));
        assert_eq!(improved, [true, true, false, false, false]);
        assert_eq!(history.lowest(), Some(Evaluation { steps: 10, loss: 1.5 }));
        assert_eq!(history.since_lowest(), 3);
        assert_eq!(history.lowest_of(|steps| steps > 10), Some(Evaluation { steps: 20, loss: 1.5 }));
        assert_eq!(history.after(15), Some(1.75));
        // A repeated evaluation after the same step counts once.
        assert!(history.add(25, 1.25));
        assert_eq!((history.since_lowest(), history.losses.len()), (0, 5));
    }
}
