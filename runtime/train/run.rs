//! The training loop.

use super::error::{Cause, TrainError};
use super::evaluate::evaluate;
use super::session::{Session, Updated};
use crate::checkpoint::{Checkpoints, DataFingerprint, Description};
use crate::data::{Batch, Loader};
use crate::metrics::{MetricsWriter, StepMetrics};
use crate::progress::Progress;
use ir::Module;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Which steps to run, and what to do between them. Counts are of steps from step 0 of the run, resumed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Steps done before: 0, or what [`super::resume`] found.
    pub start: u64,
    /// Steps in total.
    pub steps: u64,
    /// Evaluate after every so many steps, besides before step 0 and at the end.
    pub eval_every: Option<u64>,
    /// Save after every so many steps, besides at the end.
    pub save_every: Option<u64>,
}

/// What the loop works with. The session's states have their values.
pub struct Run<'a> {
    /// The module that the training program was lowered from: its state table is the checkpoints'.
    pub module: &'a Module,
    /// The programs on their device.
    pub session: Session<'a>,
    /// The data.
    pub loader: &'a Loader,
    /// What the data is, for the checkpoints.
    pub data: DataFingerprint,
    /// Where checkpoints go.
    pub checkpoints: Checkpoints,
    /// Where metrics go.
    pub metrics: MetricsWriter,
    /// What the user sees.
    pub progress: Progress,
}

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Steps done, from step 0 of the run.
    pub steps: u64,
    /// Whether it was asked to stop before its last step.
    pub stopped: bool,
    /// The loss of the last step; `None` if no step was run.
    pub loss: Option<f64>,
    /// The eval loss before the first step of this call, when it began at step 0.
    pub initial_eval_loss: Option<f64>,
    /// The newest eval loss.
    pub eval_loss: Option<f64>,
    /// The newest checkpoint.
    pub checkpoint: Option<PathBuf>,
}

/// Runs the steps that are left. Setting `stop` asks it to finish the step it is in, save, and return.
///
/// The loss is evaluated before step 0, after every `eval_every` steps, and after the last; a checkpoint is made after
/// every `save_every` steps, after the last, and when it stops.
///
/// # Errors
/// A loss or gradient that is not finite (the states are then not saved, earlier checkpoints stay); a disk that is
/// full; programs and data that do not fit each other. With a scaled loss a gradient that is not finite skips its step,
/// and is an error only once the scale can get no smaller.
pub fn train(run: &mut Run, schedule: &Schedule, stop: &AtomicBool) -> Result<Outcome, TrainError> {
    let microbatches = run.microbatches()?;
    let mut outcome = run.begin(schedule, stop)?;
    let mut saved = outcome.checkpoint.is_some().then_some(schedule.start);
    for step in schedule.start..schedule.steps {
        if stop.load(Ordering::Relaxed) {
            outcome.stopped = true;
            break;
        }
        let began = Instant::now();
        let updated = run.step(step, microbatches, &outcome)?;
        let seconds = began.elapsed().as_secs_f64();

        let done = step + 1;
        let last = done == schedule.steps;
        let eval_loss = match last || due(schedule.eval_every, done) {
            true => evaluate(&mut run.session, run.loader, stop)?,
            false => None,
        };
        if let Some(value) = eval_loss.filter(|loss| !loss.is_finite()) {
            let (what, kept) = ("the eval loss after the update", outcome.checkpoint);
            return Err(TrainError::NotFinite { step, what, value, cause: None, kept });
        }
        (outcome.steps, outcome.loss) = (done, Some(updated.loss));
        outcome.eval_loss = eval_loss.or(outcome.eval_loss);
        run.report(step, updated, seconds, eval_loss)?;
        if due(schedule.save_every, done) {
            outcome.checkpoint = Some(run.save(done)?);
            saved = Some(done);
        }
    }
    if saved != Some(outcome.steps) {
        outcome.checkpoint = Some(run.save(outcome.steps)?);
    }
    Ok(outcome)
}

const GRADIENT: &str = "the gradient's norm";

/// Whether something that is done every so many steps is due after `done` steps.
fn due(every: Option<u64>, done: u64) -> bool {
    every.is_some_and(|every| done.is_multiple_of(every))
}

impl Run<'_> {
    /// Microbatches a step.
    fn microbatches(&self) -> Result<u64, TrainError> {
        let (global_batch, microbatch) = (self.loader.global_batch_size(), self.session.microbatch());
        if !global_batch.is_multiple_of(microbatch) {
            return Err(TrainError::Microbatch { global_batch, microbatch });
        }
        Ok(global_batch / microbatch)
    }

    /// The outcome before the first step. The eval loss is known before step 0, and for a run without steps left.
    fn begin(&mut self, schedule: &Schedule, stop: &AtomicBool) -> Result<Outcome, TrainError> {
        let mut outcome = Outcome { steps: schedule.start, ..Outcome::default() };
        // A run may have been gone on with from another folder's checkpoint.
        outcome.checkpoint = Some(self.checkpoints.path(schedule.start)).filter(|path| path.exists());
        if schedule.start == 0 || schedule.start >= schedule.steps {
            outcome.eval_loss = evaluate(&mut self.session, self.loader, stop)?;
        }
        if schedule.start == 0 {
            outcome.initial_eval_loss = outcome.eval_loss;
        }
        if let Some(loss) = outcome.initial_eval_loss {
            self.progress.message(&format!("before step 0: eval loss {loss:.6}"));
        }
        Ok(outcome)
    }

    /// One step. A loss or gradient that is not finite is noticed before the weights change, so that they are still
    /// good when the node is looked for that made it.
    fn step(&mut self, step: u64, microbatches: u64, outcome: &Outcome) -> Result<Updated, TrainError> {
        let batch = self.loader.global_batch(step);
        let fault = |what, value, cause| {
            let kept = outcome.checkpoint.clone();
            Err(TrainError::NotFinite { step, what, value, cause, kept })
        };
        self.session.prepare()?;
        for index in 0..microbatches {
            let microbatch = batch.microbatch(index, microbatches);
            let loss = self.session.microbatch_step(&microbatch)?;
            if !loss.is_finite() {
                return fault("the loss", loss, self.session.first_non_finite(&microbatch)?);
            }
        }
        let norm = self.session.gradient_norm()?.filter(|norm| !norm.is_finite());
        if let Some(norm) = norm.filter(|_| !self.session.skips()) {
            return fault(GRADIENT, norm, self.first_non_finite(&batch, microbatches)?);
        }
        let updated = self.session.update()?;
        if let Some(scale) = updated.exhausted {
            let (cause, kept) = (self.first_non_finite(&batch, microbatches)?, outcome.checkpoint.clone());
            return Err(TrainError::ScaleExhausted { step, scale, cause, kept });
        }
        match updated {
            Updated { loss, .. } if !loss.is_finite() => fault("the loss", loss, None),
            Updated { grad_norm, skipped: false, .. } if !grad_norm.is_finite() => {
                fault(GRADIENT, grad_norm, None)
            }
            updated => Ok(updated),
        }
    }

    /// What made the first number that is not finite in any microbatch.
    fn first_non_finite(&mut self, batch: &Batch, microbatches: u64) -> Result<Option<Cause>, TrainError> {
        for index in 0..microbatches {
            let cause = self.session.first_non_finite(&batch.microbatch(index, microbatches))?;
            if cause.is_some() {
                return Ok(cause);
            }
        }
        Ok(None)
    }

    /// Tells the file and the user of a step.
    fn report(
        &mut self,
        step: u64,
        Updated { loss, lr, grad_norm, skipped, .. }: Updated,
        seconds: f64,
        eval_loss: Option<f64>,
    ) -> Result<(), TrainError> {
        let tokens_per_s = self.loader.tokens_per_step() as f64 / seconds;
        let step_ms = seconds * 1e3;
        let metrics = StepMetrics { step, loss, lr, grad_norm, tokens_per_s, step_ms, skipped, eval_loss };
        self.metrics.write(&metrics)?;
        self.progress.step(&metrics);
        Ok(())
    }

    /// Makes the checkpoint after `done` steps.
    fn save(&self, done: u64) -> Result<PathBuf, TrainError> {
        let description = Description::new(self.module, self.loader.position(done), self.data.clone());
        Ok(self.checkpoints.save(self.module, &description, &self.session)?)
    }
}
