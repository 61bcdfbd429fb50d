//! The checkpoints of a run: when they are written, which of them stay, and which has the lowest eval loss.

use super::beside::{BegunSave, OpenSave, Saves, Written};
use super::error::TrainError;
use super::finite::{self, FiniteStates, Refused};
use super::history::Evaluation;
use super::non_finite::NotFiniteState;
use super::run::{BestCheckpoint, Lead, TrainingRun};
use checkpoint::{Checkpoint, CheckpointError, Checkpoints, Description};
use data::DataPosition;
use ir::Module;
use program::device::DeviceError;
use std::path::PathBuf;
use std::thread;

impl<'a> TrainingRun<'a> {
    /// Makes the checkpoint after `done` steps, unless training made a state infinite or NaN. If the run continues and `saves` may write
    /// beside its steps, this returns as soon as the states are copied.
    pub(super) fn save<'scope>(
        &mut self,
        saves: &mut Saves<'scope, '_>,
        (done, is_last): (u64, bool),
    ) -> Result<(), TrainError>
    where
        'a: 'scope,
    {
        self.finish_save(saves)?;
        self.make_room(saves);
        let begun = self.begin_save(done)?;
        match saves.scope.filter(|_| !is_last) {
            None => {
                let states = FiniteStates::of(self.module, &self.session);
                let written = begun.write(&states);
                let refused = states.refused();
                self.refuse_not_finite(&begun, refused, saves)?;
                self.end_save(begun, written)?;
            }
            Some(scope) => {
                let mut copy = std::mem::take(&mut saves.copy);
                let refused = copy.take(self.module, FiniteStates::of(self.module, &self.session));
                self.refuse_not_finite(&begun, refused, saves)?;
                let writer = begun.clone();
                let write = move || (writer.write(&copy), copy);
                let thread = thread::Builder::new().name("checkpoint".to_owned()).spawn_scoped(scope, write);
                let thread = thread
                    .map_err(|error| DeviceError::Threads { threads: 1, message: error.to_string() })?;
                saves.open = Some(OpenSave { begun, thread });
            }
        }
        saves.last = Some(done);
        Ok(())
    }

    /// Completes the checkpoint that is being written beside the steps, if there is one: waits until every rank has written its part.
    pub(super) fn finish_save(&mut self, saves: &mut Saves) -> Result<(), TrainError> {
        let Some(OpenSave { begun, thread }) = saves.open.take() else { return Ok(()) };
        let (written, copy) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        saves.copy = copy;
        self.end_save(begun, written)
    }

    /// Returns the error with which a run ends. All ranks know of a number that is not finite, so they complete the checkpoint that is
    /// being written, and the error names it.
    pub(super) fn end_after(&mut self, mut error: TrainError, saves: &mut Saves) -> TrainError {
        if let Some(kept) = error.kept_mut()
            && self.finish_save(saves).is_ok()
        {
            kept.clone_from(&self.outcome.checkpoint);
        }
        error
    }

    /// Removes checkpoints that an earlier run in the folder kept and this run does not, before another is written, because they may fill
    /// the disk. The newest whole one stays.
    fn make_room(&mut self, saves: &Saves) {
        let Some(lead) = &mut self.lead else { return };
        if let (Some(count), Some(last), Some(_)) = (self.schedule.keep, saves.last, &self.outcome.checkpoint)
        {
            lead.keep(&self.checkpoints, count, last);
        }
    }

    /// Begins a checkpoint: rank 0 describes it, and creates the folder for the parts of several ranks.
    fn begin_save(&mut self, done: u64) -> Result<BegunSave<'a>, TrainError> {
        let agreement = self.session.agreement().clone();
        let (module, checkpoints) = (self.module, self.checkpoints.clone());
        let description = match &mut self.lead {
            Some(lead) => {
                let kept = self.outcome.checkpoint.as_ref();
                Some(lead.description(module, self.loader.position(done), kept)?)
            }
            None => None,
        };
        let mut temporary = None;
        if agreement.count() > 1 {
            let made = self.lead.as_ref().map(|lead| lead.written(checkpoints.begin(done))).transpose()?;
            let name = made.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
            let name = agreement.gather(name)?.swap_remove(0).unwrap_or_default();
            temporary = Some(checkpoints.folder().join(name));
        }
        Ok(BegunSave { module, checkpoints, done, rank: agreement.rank(), description, temporary })
    }

    /// Ends the run if a state of any rank had no value because training made it infinite or NaN.
    fn refuse_not_finite(
        &self,
        begun: &BegunSave,
        refused: Option<Refused>,
        saves: &Saves,
    ) -> Result<(), TrainError> {
        let own = match refused {
            None => Ok(None),
            Some(Refused::NotFinite(found)) => Ok(Some(found)),
            Some(Refused::Device(error)) => Err(error),
        };
        let all = own.and_then(|own| Ok(self.session.agreement().gather(own)?));
        let first = all.map(|all| all.into_iter().flatten().min()).inspect_err(|_| begun.abandon())?;
        let Some(found) = first else { return Ok(()) };
        begun.abandon();
        let state = found.named(self.module);
        Err(state.map_or(DeviceError::Ended.into(), |state| self.spoilt(state, saves, begun.done)))
    }

    /// Gives a checkpoint its name when all ranks have written it. Then removes the checkpoints that the schedule does not keep.
    fn end_save(
        &mut self,
        begun: BegunSave,
        written: Result<Written, CheckpointError>,
    ) -> Result<(), TrainError> {
        let path = match written {
            Ok(Written::Whole(path)) => path,
            Ok(Written::Part(part)) => {
                let parts = self.session.agreement().gather(part).inspect_err(|_| begun.abandon())?;
                let committed = self.lead.as_ref().map(|lead| lead.written(begun.commit(parts))).transpose();
                committed?;
                // No rank uses the checkpoint before rank 0 has completed it.
                self.agree(true)?;
                self.checkpoints.path(begun.done)
            }
            Err(error) => {
                begun.abandon();
                return match &self.lead {
                    Some(lead) => lead.written(Err(error)),
                    None => Err(error.into()),
                };
            }
        };
        self.outcome.checkpoint = Some(path);
        if let Some((count, lead)) = self.schedule.keep.zip(self.lead.as_mut()) {
            lead.keep(&self.checkpoints, count, begun.done);
        }
        Ok(())
    }

    /// Ends the run if training made a state infinite or NaN.
    pub(super) fn check_states(&self, saves: &Saves, done: u64) -> Result<(), TrainError> {
        let found = finite::find(self.module, &self.session)?;
        found.map_or(Ok(()), |state| Err(self.spoilt(state, saves, done)))
    }

    fn spoilt(&self, state: NotFiniteState, saves: &Saves, done: u64) -> TrainError {
        // All states were finite when the run began, and when they were last saved.
        let (since, step) = (saves.last.unwrap_or(self.schedule.start), done.saturating_sub(1));
        TrainError::StateNotFinite { step, since, state, kept: self.outcome.checkpoint.clone() }
    }

    /// Returns the evaluated checkpoint with the lowest eval loss, on rank 0. If the best is wanted (`Schedule::save_best`), unusable
    /// checkpoints are skipped with a note.
    pub(super) fn best(&mut self) -> Result<Option<BestCheckpoint>, TrainError> {
        let Some(lead) = &mut self.lead else { return Ok(None) };
        let mut steps = self.checkpoints.steps()?;
        while let Some(evaluation) = lead.lowest_of(&steps) {
            let path = self.checkpoints.path(evaluation.steps);
            let usable = if self.schedule.save_best {
                Checkpoint::open(&path).and_then(|checkpoint| checkpoint.verify(self.module))
            } else {
                Ok(())
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
    /// Describes a checkpoint at this position in the data. The metrics of its steps are written to the disk first, so a checkpoint never
    /// has steps without metrics.
    fn description(
        &mut self,
        module: &Module,
        position: DataPosition,
        kept: Option<&PathBuf>,
    ) -> Result<Description, TrainError> {
        self.check_surroundings(kept)?;
        self.metrics.sync()?;
        let data = self.data.for_checkpoint()?.clone();
        let evaluations = Some(self.history.for_checkpoint()?);
        Ok(Description { evaluations, ..Description::new(module, position, data) })
    }

    /// Returns the written path, or the reason of a failure: nothing can be written into a folder that is gone.
    fn written<T>(&self, written: Result<T, CheckpointError>) -> Result<T, TrainError> {
        if written.is_err() {
            self.surroundings.check_folder()?;
        }
        Ok(written?)
    }

    /// Removes old checkpoints. A failure only costs space, and ends no run.
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
