//! The training loop.

use super::error::{Cause, TrainError};
use super::evaluate::evaluate;
use super::session::{Session, Updated};
use crate::checkpoint::{Checkpoints, Description, PendingFingerprint};
use crate::data::{Batch, Loader};
use crate::device::Later;
use crate::metrics::{MetricsWriter, StepMetrics, outputs};
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
    pub data: PendingFingerprint,
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
    // The step that the device may still be at, and since when it is.
    let (mut open, mut since) = (None::<Begun>, Instant::now());
    for step in schedule.start..schedule.steps {
        if stop.load(Ordering::Relaxed) {
            outcome.stopped = true;
            break;
        }
        if open.is_none() {
            since = Instant::now();
        }
        run.data.check()?;
        let begun = run.begin_step(step, microbatches, &outcome)?;
        if let Some(earlier) = open.take() {
            run.end_step(earlier, &mut since, &outcome)
                .and_then(|ended| run.report(ended, None, &mut outcome))?;
        }
        let done = step + 1;
        let last = done == schedule.steps;
        let (evaluates, saves) = (last || due(schedule.eval_every, done), due(schedule.save_every, done));
        if run.session.runs_ahead() && !evaluates && !saves {
            open = Some(begun);
            continue;
        }
        let ended = run.end_step(begun, &mut since, &outcome)?;
        let eval_loss = if evaluates { evaluate(&mut run.session, run.loader, stop)? } else { None };
        if let Some(value) = eval_loss.filter(|loss| !loss.is_finite()) {
            let (what, kept) = ("the eval loss after the update", outcome.checkpoint);
            return Err(TrainError::NotFinite { step, what, value, cause: None, kept });
        }
        run.report(ended, eval_loss, &mut outcome)?;
        if saves {
            outcome.checkpoint = Some(run.save(done)?);
            saved = Some(done);
        }
    }
    if let Some(last) = open {
        run.end_step(last, &mut since, &outcome).and_then(|ended| run.report(ended, None, &mut outcome))?;
    }
    if saved != Some(outcome.steps) {
        outcome.checkpoint = Some(run.save(outcome.steps)?);
    }
    Ok(outcome)
}

const LOSS: &str = "the loss";
const GRADIENT: &str = "the gradient's norm";

/// A step that the device was given, and what it reports.
struct Begun {
    step: u64,
    batch: Batch,
    /// The losses of the microbatches, if they were not looked at one by one.
    losses: Vec<Later>,
    update: Later,
}

/// A step that is done.
struct Ended {
    step: u64,
    updated: Updated,
    seconds: f64,
}

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

    /// Gives the device a step. A loss or gradient that is not finite keeps the weights from changing, so that they are still
    /// good when the node is looked for that made it: here, or on a device that runs ahead by itself.
    fn begin_step(&mut self, step: u64, microbatches: u64, outcome: &Outcome) -> Result<Begun, TrainError> {
        let batch = self.loader.global_batch(step);
        self.session.prepare()?;
        let mut losses = Vec::new();
        for index in 0..microbatches {
            let microbatch = batch.microbatch(index, microbatches);
            let loss = self.session.begin_microbatch(&microbatch)?;
            match self.session.runs_ahead() {
                true => losses.push(loss),
                false => self.check_loss(step, loss, &microbatch, outcome)?,
            }
        }
        if !self.session.runs_ahead() {
            let norm = self.session.gradient_norm()?;
            self.check_norm(step, norm, &batch, outcome)?;
        }
        let update = self.session.begin_update()?;
        Ok(Begun { step, batch, losses, update })
    }

    /// Looks at what a step came to, when the device has done it.
    fn end_step(
        &mut self,
        begun: Begun,
        since: &mut Instant,
        outcome: &Outcome,
    ) -> Result<Ended, TrainError> {
        let Begun { step, batch, losses, update } = begun;
        let microbatches = losses.len() as u64;
        for (index, loss) in losses.into_iter().enumerate() {
            self.check_loss(step, loss, &batch.microbatch(index as u64, microbatches), outcome)?;
        }
        let updated = self.session.updated(update)?;
        if self.session.runs_ahead() && self.session.norm_comes_first() {
            self.check_norm(step, Some(updated.grad_norm), &batch, outcome)?;
        }
        if let Some(scale) = updated.exhausted {
            let (cause, kept) = (self.first_non_finite(&batch)?, outcome.checkpoint.clone());
            return Err(TrainError::ScaleExhausted { step, scale, cause, kept });
        }
        let Updated { loss, grad_norm, skipped, .. } = updated.clone();
        if !loss.is_finite() {
            return Err(not_finite(step, LOSS, loss, None, outcome));
        }
        if !skipped && !grad_norm.is_finite() {
            return Err(not_finite(step, GRADIENT, grad_norm, None, outcome));
        }
        let seconds = since.elapsed().as_secs_f64();
        *since = Instant::now();
        Ok(Ended { step, updated, seconds })
    }

    /// Ends the run where a microbatch's loss is not finite.
    fn check_loss(
        &mut self,
        step: u64,
        loss: Later,
        microbatch: &Batch,
        outcome: &Outcome,
    ) -> Result<(), TrainError> {
        let loss = self.session.microbatch_loss(loss)?;
        if loss.is_finite() {
            return Ok(());
        }
        let cause = self.session.first_non_finite(microbatch)?;
        Err(not_finite(step, LOSS, loss, cause, outcome))
    }

    /// Ends the run where a gradient is not finite, unless the program knows what to do then.
    fn check_norm(
        &mut self,
        step: u64,
        norm: Option<f64>,
        batch: &Batch,
        outcome: &Outcome,
    ) -> Result<(), TrainError> {
        let Some(norm) = norm.filter(|norm| !norm.is_finite() && !self.session.skips()) else {
            return Ok(());
        };
        let cause = self.first_non_finite(batch)?;
        Err(not_finite(step, GRADIENT, norm, cause, outcome))
    }

    /// What made the first number that is not finite in any microbatch.
    fn first_non_finite(&mut self, batch: &Batch) -> Result<Option<Cause>, TrainError> {
        let microbatches = self.microbatches()?;
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
        ended: Ended,
        eval_loss: Option<f64>,
        outcome: &mut Outcome,
    ) -> Result<(), TrainError> {
        let Ended { step, updated, seconds } = ended;
        let Updated { loss, lr, grad_norm, skipped, metrics, .. } = updated;
        (outcome.steps, outcome.loss) = (step + 1, Some(loss));
        outcome.eval_loss = eval_loss.or(outcome.eval_loss);
        let tokens_per_s = self.loader.tokens_per_step().map(|tokens| tokens as f64 / seconds);
        let samples_per_s = match tokens_per_s {
            Some(_) => None,
            None => Some(self.loader.global_batch_size() as f64 / seconds),
        };
        let step_ms = seconds * 1e3;
        let outputs = outputs(metrics);
        let metrics = StepMetrics {
            step,
            loss,
            lr,
            grad_norm,
            tokens_per_s,
            samples_per_s,
            step_ms,
            skipped,
            eval_loss,
            outputs,
        };
        self.metrics.write(&metrics)?;
        self.progress.step(&metrics);
        Ok(())
    }

    /// Makes the checkpoint after `done` steps.
    fn save(&mut self, done: u64) -> Result<PathBuf, TrainError> {
        let data = self.data.wait()?.clone();
        let description = Description::new(self.module, self.loader.position(done), data);
        Ok(self.checkpoints.save(self.module, &description, &self.session)?)
    }
}

fn not_finite(
    step: u64,
    what: &'static str,
    value: f64,
    cause: Option<Cause>,
    outcome: &Outcome,
) -> TrainError {
    TrainError::NotFinite { step, what, value, cause, kept: outcome.checkpoint.clone() }
}
