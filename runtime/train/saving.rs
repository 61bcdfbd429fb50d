//! Checkpoints of a run: when one is written, which stay, and which has the lowest eval loss.

use super::error::TrainError;
use super::finite::{self, FiniteStates, NotFiniteState, Refused};
use super::history::Evaluation;
use super::run::{BestCheckpoint, Lead, Outcome, Schedule, TrainingRun};
use crate::checkpoint::{Checkpoint, Checkpoints, Description};
use crate::data::DataPosition;
use ir::Module;

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
        let states = FiniteStates::of(self.module, &self.session);
        let written = match &mut self.lead {
            None => {
                if let Err(refused) = states.serve() {
                    return Err(not_saved(refused, schedule, saved, done, outcome));
                }
                Ok(self.checkpoints.path(done))
            }
            Some(lead) => {
                let description = lead.description(self.module, self.loader.position(done), outcome)?;
                self.checkpoints.save(self.module, &description, &states)
            }
        };
        if let Err(refused) = self.lead.as_ref().filter(|_| written.is_ok()).map_or(Ok(()), |_| states.done())
        {
            return Err(not_saved(refused, schedule, saved, done, outcome));
        }
        if let Some(refused) = states.refused() {
            return Err(not_saved(refused, schedule, saved, done, outcome));
        }
        if let (Err(_), Some(lead)) = (&written, &self.lead) {
            // Nothing can be written into a folder that is gone.
            lead.surroundings.check_folder()?;
        }
        outcome.checkpoint = Some(written?);
        if let Some((count, lead)) = schedule.keep.zip(self.lead.as_mut()) {
            lead.keep(&self.checkpoints, count, done);
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
        let found = finite::find(self.module, &self.session)?;
        found.map_or(Ok(()), |state| Err(spoilt(state, schedule, saved, done, outcome)))
    }

    /// The evaluated checkpoint with the lowest eval loss, on rank 0. If the best is wanted (`schedule.save_best`), checkpoints that cannot
    /// be used are passed over with a note.
    pub(super) fn best(&mut self, schedule: &Schedule) -> Result<Option<BestCheckpoint>, TrainError> {
        let Some(lead) = &mut self.lead else { return Ok(None) };
        let mut steps = self.checkpoints.steps()?;
        while let Some(evaluation) = lead.lowest_of(&steps) {
            let path = self.checkpoints.path(evaluation.steps);
            let usable = match schedule.save_best {
                true => Checkpoint::open(&path).and_then(|checkpoint| checkpoint.verify(self.module)),
                false => Ok(()),
            };
            match usable {
                Ok(()) => return Ok(Some(BestCheckpoint { path, evaluation })),
                Err(error) => lead
                    .progress
                    .message(&format!("note: the checkpoint with the lowest eval loss is not used: {error}")),
            }
            steps.retain(|&step| step != evaluation.steps);
        }
        Ok(None)
    }
}

impl Lead {
    /// The description of a checkpoint at this place in the data. A checkpoint never has steps behind it of which there are no
    /// metrics.
    fn description(
        &mut self,
        module: &Module,
        position: DataPosition,
        outcome: &Outcome,
    ) -> Result<Description, TrainError> {
        self.check_surroundings(outcome.checkpoint.as_ref())?;
        self.metrics.sync()?;
        let data = self.data.for_checkpoint()?.clone();
        let evaluations = Some(self.history.for_checkpoint()?);
        Ok(Description { evaluations, ..Description::new(module, position, data) })
    }

    /// Removes old checkpoints. One that cannot be removed takes room, and ends no run.
    fn keep(&mut self, checkpoints: &Checkpoints, count: u64, done: u64) {
        let removed = checkpoints.steps().and_then(|steps| {
            let best = self.lowest_of(&steps).map(|evaluation| evaluation.steps);
            checkpoints.keep(count, done, best)
        });
        if let Err(error) = removed {
            self.progress.message(&format!("note: an old checkpoint was not removed: {error}"));
        }
    }

    fn lowest_of(&self, steps: &[u64]) -> Option<Evaluation> {
        self.history.lowest_of(|evaluated| steps.contains(&evaluated))
    }
}

fn not_saved(
    refused: Refused,
    schedule: &Schedule,
    saved: Option<u64>,
    done: u64,
    outcome: &Outcome,
) -> TrainError {
    match refused {
        Refused::NotFinite(state) => spoilt(state, schedule, saved, done, outcome),
        Refused::Device(error) => error.into(),
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
