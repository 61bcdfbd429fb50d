//! Checkpoints of a run: when one is written, which stay, and which has the lowest eval loss.

use super::error::TrainError;
use super::finite::{self, FiniteStates, NotFinite, NotFiniteState, Refused};
use super::history::Evaluation;
use super::run::{BestCheckpoint, Lead, Outcome, Schedule, TrainingRun};
use crate::checkpoint::{Checkpoint, CheckpointError, Checkpoints, Description, Shard};
use crate::data::DataPosition;
use crate::device::DeviceError;
use ir::Module;
use std::path::{Path, PathBuf};

/// The path of a checkpoint, or the state for which none was made.
type Saved = Result<PathBuf, NotFinite>;

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
        let written = match self.session.agreement().count() {
            1 => self.save_alone(done, outcome)?,
            _ => self.save_together(done, outcome)?,
        };
        match written {
            Ok(path) => outcome.checkpoint = Some(path),
            Err(found) => {
                let state = found.named(self.module);
                return Err(state.map_or(DeviceError::Ended.into(), |state| {
                    spoilt(state, schedule, saved, done, outcome)
                }));
            }
        }
        if let Some((count, lead)) = schedule.keep.zip(self.lead.as_mut()) {
            lead.keep(&self.checkpoints, count, done);
        }
        Ok(())
    }

    /// Makes the checkpoint of the only rank. Returns its path, or the state that is not finite.
    fn save_alone(&mut self, done: u64, outcome: &Outcome) -> Result<Saved, TrainError> {
        let Some(lead) = &mut self.lead else { return Ok(Ok(self.checkpoints.path(done))) };
        let description = lead.description(self.module, self.loader.position(done), outcome)?;
        let states = FiniteStates::of(self.module, &self.session);
        let written = self.checkpoints.save(self.module, &description, &states);
        match states.refused() {
            Some(Refused::NotFinite(found)) => Ok(Err(found)),
            Some(Refused::Device(error)) => Err(error.into()),
            None => lead.written(written).map(Ok),
        }
    }

    /// Makes a checkpoint, of which every rank writes its part. Returns its path, or the state that is not finite on any rank.
    fn save_together(&mut self, done: u64, outcome: &Outcome) -> Result<Saved, TrainError> {
        let begun = match &mut self.lead {
            None => None,
            Some(lead) => {
                let description = lead.description(self.module, self.loader.position(done), outcome)?;
                let temporary = self.checkpoints.begin(done);
                Some((description, lead.written(temporary)?))
            }
        };
        let agreement = self.session.agreement();
        let name = begun.as_ref().and_then(|(_, path)| Some(path.file_name()?.to_str()?.to_owned()));
        let name = agreement.gather(name).map_err(DeviceError::from)?.swap_remove(0).unwrap_or_default();
        let temporary = self.checkpoints.folder().join(name);
        let ended = self.write_part(done, &temporary).and_then(|part| {
            let parts = agreement.gather(part).map_err(DeviceError::from)?;
            Ok(parts.into_iter().collect::<Result<Vec<Shard>, NotFinite>>())
        });
        let (Some(lead), Some((description, _))) = (&self.lead, begun) else {
            let saved = ended?.map(|_| self.checkpoints.path(done));
            // Rank 0 ends the checkpoint.
            self.agree(true)?;
            return Ok(saved);
        };
        let saved = match ended {
            Ok(Ok(shards)) => Ok(lead.written(self.checkpoints.commit(&temporary, &description, shards))?),
            Ok(Err(found)) => {
                self.checkpoints.abandon(&temporary);
                Err(found)
            }
            Err(error) => {
                self.checkpoints.abandon(&temporary);
                return Err(error);
            }
        };
        self.agree(true)?;
        Ok(saved)
    }

    /// Writes the part of this rank.
    fn write_part(&self, done: u64, temporary: &Path) -> Result<Result<Shard, NotFinite>, TrainError> {
        let rank = self.session.agreement().rank();
        let states = FiniteStates::of(self.module, &self.session);
        let written = self.checkpoints.write_shard(temporary, done, self.module, rank, &states);
        match states.refused() {
            Some(Refused::NotFinite(found)) => Ok(Err(found)),
            Some(Refused::Device(error)) => Err(error.into()),
            None => Ok(Ok(written?)),
        }
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

    /// The path that was written. Nothing can be written into a folder that is gone.
    fn written<T>(&self, written: Result<T, CheckpointError>) -> Result<T, TrainError> {
        if written.is_err() {
            self.surroundings.check_folder()?;
        }
        Ok(written?)
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
