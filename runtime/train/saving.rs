//! Checkpoints of a run: when one is written, which stay, and which has the lowest eval loss.

use super::error::TrainError;
use super::finite::{FiniteStates, NotFiniteState, Refused};
use super::history::Evaluation;
use super::run::{BestCheckpoint, Outcome, Schedule, TrainingRun};
use crate::checkpoint::{Checkpoint, Description};

impl TrainingRun<'_> {
    /// Makes the checkpoint after `done` steps, unless training made a state infinite or NaN; then removes those that
    /// `schedule` does not keep. The last save was after `saved` steps.
    pub(super) fn save(
        &mut self,
        schedule: &Schedule,
        saved: Option<u64>,
        done: u64,
        outcome: &mut Outcome,
    ) -> Result<(), TrainError> {
        self.check_surroundings(outcome.checkpoint.as_ref())?;
        // A checkpoint never has steps behind it of which there are no metrics.
        self.metrics.sync()?;
        let data = self.data.for_checkpoint()?.clone();
        let evaluations = Some(self.history.for_checkpoint()?);
        let position = self.loader.position(done);
        let description = Description { evaluations, ..Description::new(self.module, position, data) };
        let states = FiniteStates::of(self.module, &self.session);
        let written = self.checkpoints.save(self.module, &description, &states);
        match states.refused() {
            Some(Refused::NotFinite(state)) => return Err(spoilt(state, schedule, saved, done, outcome)),
            Some(Refused::Device(error)) => return Err(error.into()),
            None => {
                if written.is_err() {
                    // Nothing can be written into a folder that is gone.
                    self.surroundings.check_folder()?;
                }
                outcome.checkpoint = Some(written?);
            }
        }
        if let Some(count) = schedule.keep {
            self.keep(count, done);
        }
        Ok(())
    }

    /// Ends the run where training made a state infinite or NaN.
    pub(super) fn check_states(
        &self,
        schedule: &Schedule,
        saved: Option<u64>,
        done: u64,
        outcome: &Outcome,
    ) -> Result<(), TrainError> {
        let found = FiniteStates::find(self.module, &self.session)?;
        found.map_or(Ok(()), |state| Err(spoilt(state, schedule, saved, done, outcome)))
    }

    /// Removes old checkpoints. One that cannot be removed takes room, and ends no run.
    fn keep(&mut self, count: u64, done: u64) {
        let removed = self.checkpoints.steps().and_then(|steps| {
            let best = self.lowest_of(&steps).map(|evaluation| evaluation.steps);
            self.checkpoints.keep(count, done, best)
        });
        if let Err(error) = removed {
            self.progress.message(&format!("note: an old checkpoint was not removed: {error}"));
        }
    }

    /// The evaluated checkpoint with the lowest eval loss. If the best is wanted (`schedule.save_best`), checkpoints that cannot
    /// be used are passed over with a note.
    pub(super) fn best(&mut self, schedule: &Schedule) -> Result<Option<BestCheckpoint>, TrainError> {
        let mut steps = self.checkpoints.steps()?;
        while let Some(evaluation) = self.lowest_of(&steps) {
            let path = self.checkpoints.path(evaluation.steps);
            let usable = match schedule.save_best {
                true => Checkpoint::open(&path).and_then(|checkpoint| checkpoint.verify(self.module)),
                false => Ok(()),
            };
            match usable {
                Ok(()) => return Ok(Some(BestCheckpoint { path, evaluation })),
                Err(error) => self
                    .progress
                    .message(&format!("note: the checkpoint with the lowest eval loss is not used: {error}")),
            }
            steps.retain(|&step| step != evaluation.steps);
        }
        Ok(None)
    }

    fn lowest_of(&self, steps: &[u64]) -> Option<Evaluation> {
        self.history.lowest_of(|evaluated| steps.contains(&evaluated))
    }
}

fn spoilt(
    state: NotFiniteState,
    schedule: &Schedule,
    saved: Option<u64>,
    done: u64,
    outcome: &Outcome,
) -> TrainError {
    // All states were finite when the run began, and when they were saved.
    let (since, step) = (saved.unwrap_or(schedule.start), done.saturating_sub(1));
    TrainError::StateNotFinite { step, since, state, kept: outcome.checkpoint.clone() }
}
