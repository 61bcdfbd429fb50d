//! A run: its schedule, the objects of each rank, and its outcome.

use super::error::TrainError;
use super::history::{EvalHistory, Evaluation};
use super::session::Session;
use super::surroundings::Surroundings;
use crate::metrics::MetricsWriter;
use crate::progress::Progress;
use checkpoint::{Checkpoint, Checkpoints, PendingFingerprint};
use data::Loader;
use ir::Module;
use program::device::ProgramId;
use ranks::Rank;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The steps of a run, and the events between them. Counts start at step 0 of the run, whether it was resumed or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The number of steps completed before: 0, or the step that [`super::resume`] found.
    pub start: u64,
    /// Steps in total.
    pub steps: u64,
    /// The number of steps between evaluations, besides those before step 0 and at the end.
    pub eval_every: Option<u64>,
    /// The number of steps between checkpoints, besides that at the end.
    pub save_every: Option<u64>,
    /// Whether to save after every evaluation whose loss is below all earlier ones.
    pub save_best: bool,
    /// The number of newest checkpoints that stay, besides the one with the lowest eval loss. All stay by default.
    pub keep: Option<u64>,
    /// Whether checkpoints are written beside the steps, from a copy of the states. The last one is written from the states themselves.
    pub saves_beside: bool,
    /// The number of consecutive evaluations without a new lowest loss after which the run ends.
    pub patience: Option<u64>,
}

/// A training program of a run, with its evaluations. The programs of a run share the device.
#[derive(Clone, Debug)]
pub struct RunProgram<'a> {
    /// The number of steps completed before it begins.
    pub first_step: u64,
    /// The module from which the training program was lowered.
    pub module: &'a Module,
    /// The training program.
    pub train: ProgramId,
    /// The evaluation program.
    pub eval: Option<ProgramId>,
    /// The program of a short last batch of an evaluation, with its shares: see [`Session::evaluate_short`].
    pub short_eval: Option<(ProgramId, Vec<f64>)>,
    /// The message to the user when it begins after another program.
    pub begins: String,
}

/// The objects with which a rank runs the training loop. The states of the session have their values.
pub struct TrainingRun<'a> {
    /// The module from which the training program was lowered. Its state table is that of checkpoints.
    pub module: &'a Module,
    /// The programs on the rank's device.
    pub session: Session<'a>,
    /// The data.
    pub loader: &'a Loader,
    /// The folder of the checkpoints.
    pub checkpoints: Checkpoints,
    /// The part of the run that only rank 0 has.
    pub lead: Option<Lead>,
    /// The display of the steps in this process's log.
    pub log: Option<Progress>,
    /// The steps, and the events between them.
    pub schedule: Schedule,
    /// The outcome so far. The caller gives the default.
    pub outcome: Outcome,
}

/// The work of rank 0 for all ranks: it reports to the user and writes the files of the run, watches the files, and has the earlier
/// evaluations.
pub struct Lead {
    /// The fingerprint of the data, for the checkpoints.
    pub data: PendingFingerprint,
    /// The writer of metrics.
    pub metrics: MetricsWriter,
    /// The display for the user.
    pub progress: Progress,
    /// The evaluations so far, as the checkpoint has them.
    pub history: EvalHistory,
    /// The files that the run reads, and its folder.
    pub surroundings: Surroundings,
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The number of completed steps, from step 0 of the run.
    pub steps: u64,
    /// Whether the run was asked to stop before its last step, or in the evaluation after it.
    pub stopped: bool,
    /// Whether the run ended before its last step because the eval loss no longer fell.
    pub ended_early: bool,
    /// The loss of the last step; `None` if no step was run.
    pub loss: Option<f64>,
    /// The other scalars of the model in the last step, by name; `None` if one is not finite.
    pub scalars: BTreeMap<String, Option<f64>>,
    /// The number of choices of each expert in the last step, by the name of the router.
    pub loads: BTreeMap<String, Vec<f64>>,
    /// The eval loss before the first step of this call, if it began at step 0.
    pub initial_eval_loss: Option<f64>,
    /// The eval loss after the last completed step; `None` if it was not evaluated, or not to the end.
    pub eval_loss: Option<f64>,
    /// The evaluation with the lowest loss.
    pub lowest: Option<Evaluation>,
    /// The newest checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// The checkpoint with the lowest eval loss.
    pub best: Option<BestCheckpoint>,
}

/// The checkpoint with the lowest eval loss, of the existing checkpoints that were evaluated.
#[derive(Clone, Debug, PartialEq)]
pub struct BestCheckpoint {
    /// Its folder.
    pub path: PathBuf,
    /// Its evaluation.
    pub evaluation: Evaluation,
}

impl RunProgram<'_> {
    /// Makes a session of this program on the device of `rank`.
    ///
    /// # Errors
    /// Those of [`Session::new`].
    pub fn session<'d>(&self, rank: Rank<'d>) -> Result<Session<'d>, TrainError> {
        let mut session = Session::new(rank, self.train, self.eval)?;
        if let Some((program, shares)) = &self.short_eval {
            session.evaluate_short(*program, shares.clone())?;
        }
        Ok(session)
    }
}

impl<'a> TrainingRun<'a> {
    /// Goes on with another program, from the checkpoint of the steps before it. The states match by name and global type, so their
    /// shardings may differ.
    pub(super) fn go_on(self, program: &RunProgram<'a>) -> Result<Self, TrainError> {
        let checkpoint = Checkpoint::open(&self.checkpoints.path(program.first_step))?;
        let states = checkpoint.load_part(program.module, self.session.agreement().rank())?;
        let mut session = program.session(self.session.into_rank())?;
        session.write_states(states)?;
        let mut run = Self { module: program.module, session, ..self };
        if let Some(lead) = &mut run.lead {
            lead.progress.message(&program.begins);
        }
        Ok(run)
    }
}

impl TrainingRun<'_> {
    /// Returns the microbatches per step.
    pub(super) fn microbatches(&self) -> Result<u64, TrainError> {
        let (global_batch, microbatch) = (self.loader.global_batch_size(), self.session.microbatch());
        if !global_batch.is_multiple_of(microbatch) {
            return Err(TrainError::Microbatch { global_batch, microbatch });
        }
        Ok(global_batch / microbatch)
    }

    /// Returns whether `own` is true on any rank.
    pub(super) fn agree(&self, own: bool) -> Result<bool, TrainError> {
        Ok(self.session.agreement().any(own)?)
    }
}

impl Lead {
    /// Does the same as [`Self::check_surroundings`], if the last check was long enough ago.
    pub(super) fn check_surroundings_sometimes(&mut self, kept: Option<&PathBuf>) -> Result<(), TrainError> {
        if self.surroundings.are_due() { self.check_surroundings(kept) } else { Ok(()) }
    }

    /// Checks the files and the folder of the run, and reports harmless changes. `kept` is the newest checkpoint.
    ///
    /// # Errors
    /// The mapped bytes of a file are lost or may have changed; the folder was moved or removed; data cannot be read.
    pub(super) fn check_surroundings(&mut self, kept: Option<&PathBuf>) -> Result<(), TrainError> {
        let changes = self.surroundings.check([&mut self.data, self.history.data()], kept)?;
        if let Some(changed) = changes.first() {
            let more = match changes.len() {
                1 => String::new(),
                count => format!(" (and {} more files)", count - 1),
            };
            self.progress.message(&format!(
                "note: {changed}{more}; the run continues with the bytes that it started with"
            ));
        }
        Ok(())
    }
}
