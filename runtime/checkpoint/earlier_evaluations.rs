//! The evaluations of a checkpoint for a run that continues from it, and the conditions under which they are comparable.

use super::evaluations::EvalLoss;
use super::fingerprint::DataFiles;
use super::load::Checkpoint;
use super::pending::PendingFingerprint;
use data::DataError;
use std::collections::BTreeMap;

/// The conditions of a run's evaluations. Losses under other conditions cannot be compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvalConditions {
    /// The files of evaluation data; empty if the data is held out from the training data or generated.
    pub files: DataFiles,
    /// The loss function and everything else on which eval losses depend, as text.
    pub measure: String,
}

/// The evaluations of a checkpoint, for a run that continues from it.
#[derive(Debug)]
pub struct EarlierEvaluations {
    /// The fingerprint of the run's evaluation data.
    pub data: PendingFingerprint,
    /// The losses, by the number of steps before each. `None` if the checkpoint does not have them.
    pub losses: Option<BTreeMap<u64, f64>>,
    /// The changed condition, if earlier losses are therefore not comparable.
    pub changed: Option<&'static str>,
}

impl Checkpoint {
    /// Returns whether the run was evaluated before the checkpoint.
    pub fn has_eval_losses(&self) -> bool {
        self.description.evaluations.as_ref().is_some_and(|then| !then.losses.is_empty())
    }

    /// Returns the evaluations that are comparable for a run with these conditions; none if the conditions changed.
    ///
    /// # Errors
    /// A file of evaluation data cannot be read.
    pub fn evaluations(&self, conditions: &EvalConditions) -> Result<EarlierEvaluations, DataError> {
        let files = &conditions.files;
        let Some(then) = &self.description.evaluations else {
            let data = PendingFingerprint::start(files.clone());
            return Ok(EarlierEvaluations { data, losses: None, changed: None });
        };
        // Files of another size differ without being read.
        let now = if files.bytes(then.data.rule)? == then.data.bytes {
            Some(files.fingerprint_like(&then.data)?)
        } else {
            None
        };
        let changed = match &now {
            Some(now) if now.is_of_same_data(&then.data) => {
                (then.measure != conditions.measure).then_some("another loss or another part of the data")
            }
            _ => Some("other data"),
        };
        let data = match now {
            Some(now) => PendingFingerprint::whole(now, files),
            None => PendingFingerprint::start(files.clone()),
        };
        let done = self.description.step();
        let counts = |evaluation: &&EvalLoss| {
            changed.is_none() && evaluation.loss.is_finite() && evaluation.steps <= done
        };
        let losses = then.losses.iter().filter(counts);
        let losses = losses.map(|evaluation| (evaluation.steps, evaluation.loss)).collect();
        Ok(EarlierEvaluations { data, losses: Some(losses), changed })
    }
}

#[cfg(test)]
mod tests {
    use super::super::evaluations::Evaluations;
    use super::super::testing::saved;
    use super::*;
    use std::fs;

    /// Returns a checkpoint of a run that was evaluated on a file of these bytes, and the conditions.
    fn evaluated(sampled: bool) -> (tempfile::TempDir, Checkpoint, EvalConditions) {
        let (folder, checkpoints) = saved(&[1]);
        let path = folder.path().join("eval.bin");
        fs::write(&path, "evaluation data").unwrap();
        let files = DataFiles { train: Some(path), ..DataFiles::default() };
        let mut checkpoint = checkpoints.latest().unwrap().checkpoint.unwrap();
        let data = if sampled {
            super::super::sampled::fingerprint(&files).unwrap()
        } else {
            files.fingerprint(None).unwrap()
        };
        // Losses after the checkpoint's step, and losses that are not numbers, do not belong to the run.
        let losses = [(0, f64::NAN), (1, 0.1 + 0.2), (2, 0.1), (u64::MAX, 0.1)];
        let losses = losses.map(|(steps, loss)| EvalLoss { steps, loss }).into();
        let saved = Evaluations { data, measure: "mse".to_owned(), losses };
        let text = serde_json::to_string(&saved).unwrap();
        checkpoint.description.evaluations = Some(serde_json::from_str(&text).unwrap());
        (folder, checkpoint, EvalConditions { files, measure: "mse".to_owned() })
    }

    #[test]
    fn losses_of_the_same_conditions_come_back_bit_for_bit() {
        for sampled in [false, true] {
            let (_folder, checkpoint, conditions) = evaluated(sampled);
            let mut found = checkpoint.evaluations(&conditions).unwrap();
            assert_eq!((found.losses, found.changed), (Some([(1, 0.1 + 0.2)].into()), None));
            assert_eq!(found.data.wait().unwrap(), &conditions.files.fingerprint(None).unwrap());
        }
    }

    #[test]
    fn losses_of_other_data_or_another_loss_do_not_count() {
        for sampled in [false, true] {
            let (_folder, checkpoint, conditions) = evaluated(sampled);
            let other = EvalConditions { measure: "bce".to_owned(), ..conditions.clone() };
            let none = EvalConditions { files: DataFiles::default(), ..conditions.clone() };
            for (conditions, changed) in
                [(other, "another loss or another part of the data"), (none, "other data")]
            {
                let found = checkpoint.evaluations(&conditions).unwrap();
                assert_eq!((found.losses, found.changed), (Some([].into()), Some(changed)));
            }
            for bytes in ["Evaluation data", "evaluation data, more"] {
                fs::write(conditions.files.train.as_ref().unwrap(), bytes).unwrap();
                let found = checkpoint.evaluations(&conditions).unwrap();
                assert_eq!((found.losses, found.changed), (Some([].into()), Some("other data")));
            }
        }
    }
}
