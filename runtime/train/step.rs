//! A step of the loop: given to the device, looked at when it is done, reported.

use super::error::{Cause, TrainError};
use super::finite;
use super::run::{Outcome, TrainingRun};
use super::session::Updated;
use crate::data::Batch;
use crate::device::{DeviceError, Later};
use crate::metrics::{StepMetrics, outputs};
use crate::program::{Turn, UpdateTime};
use std::time::Instant;

const LOSS: &str = "the loss";
const GRADIENT: &str = "the gradient's norm";

/// A step that the device was given, and what it reports.
pub(super) struct Begun {
    step: u64,
    /// The losses of the microbatches, if they were not looked at one by one.
    losses: Vec<Later>,
    update: Later,
}

/// A step that is done.
pub(super) struct Ended {
    step: u64,
    updated: Updated,
    seconds: f64,
}

impl TrainingRun<'_> {
    /// Gives the device a step. A loss or gradient that is not finite keeps the weights from changing, so that they are still
    /// good when the node is looked for that made it: here, or on a device that runs ahead by itself. Early updates change weights
    /// before the norm of the gradients is there; a loss keeps them from changing all the same.
    pub(super) fn begin_step(
        &mut self,
        step: u64,
        microbatches: u64,
        outcome: &Outcome,
    ) -> Result<Begun, TrainError> {
        self.session.prepare()?;
        let mut losses = Vec::new();
        if let Some(turns) = self.session.turns() {
            self.run_turns(step, microbatches, &turns, outcome)?;
        }
        let microbatches = if self.session.turns().is_some() { 0 } else { microbatches };
        for index in 0..microbatches {
            let microbatch = self.microbatch(step, index);
            let loss = self.session.begin_microbatch(&microbatch)?;
            match self.session.runs_ahead() {
                true => losses.push(loss),
                false => self.check_loss(step, loss, index, outcome)?,
            }
            if index + 1 < microbatches {
                self.session.end_microbatch()?;
            }
        }
        if !self.session.runs_ahead() {
            let norm = self.session.gradient_norm()?;
            self.check_norm(step, norm, outcome)?;
        }
        let update = self.session.begin_update()?;
        Ok(Begun { step, losses, update })
    }

    /// Runs the turns of this rank in a pipeline. Then all ranks know whether the loss of a microbatch is not finite.
    fn run_turns(
        &mut self,
        step: u64,
        microbatches: u64,
        turns: &[Turn],
        outcome: &Outcome,
    ) -> Result<(), TrainError> {
        let batches: Vec<Batch> = (0..microbatches).map(|index| self.microbatch(step, index)).collect();
        let mut wrong = None;
        for (index, turn) in turns.iter().enumerate() {
            let batch = batches.get(turn.task.microbatch as usize);
            let given = batches.len();
            let batch = batch.ok_or(DeviceError::Microbatches { given, taken: given + 1 })?;
            let loss = self.session.run_turn(index, batch)?;
            wrong = wrong.or(loss.filter(|loss| !loss.is_finite()).map(f64::to_bits));
        }
        let all = self.session.agreement().gather(wrong).map_err(DeviceError::from)?;
        let Some(loss) = all.into_iter().flatten().next().map(f64::from_bits) else { return Ok(()) };
        let cause = self.first_non_finite(step)?;
        Err(not_finite(step, LOSS, loss, cause, outcome))
    }

    /// The rows of a microbatch that this rank needs.
    fn microbatch(&self, step: u64, index: u64) -> Batch {
        let (own, first) = (self.session.rows(), index * self.session.microbatch());
        self.loader.rows(step, first + own.start..first + own.end)
    }

    /// Collects the results of a step that the device has done.
    pub(super) fn end_step(
        &mut self,
        begun: Begun,
        since: &mut Instant,
        outcome: &Outcome,
    ) -> Result<Ended, TrainError> {
        let Begun { step, losses, update } = begun;
        for (index, loss) in (0..).zip(losses) {
            self.check_loss(step, loss, index, outcome)?;
        }
        let updated = self.session.updated(update)?;
        if self.session.runs_ahead() && self.session.norm_comes_first() {
            self.check_norm(step, Some(updated.grad_norm), outcome)?;
        }
        if let Some(scale) = updated.exhausted {
            let (cause, kept) = (self.first_non_finite(step)?, outcome.checkpoint.clone());
            return Err(TrainError::ScaleExhausted { step, scale, cause, kept });
        }
        let Updated { loss, grad_norm, skipped, .. } = updated.clone();
        if !loss.is_finite() {
            return Err(not_finite(step, LOSS, loss, None, outcome));
        }
        if !skipped && !grad_norm.is_finite() {
            let updated = self.session.program().update == UpdateTime::Early;
            let kept = outcome.checkpoint.clone();
            return Err(TrainError::NotFinite {
                step,
                what: GRADIENT,
                value: grad_norm,
                cause: None,
                updated,
                kept,
            });
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
        index: u64,
        outcome: &Outcome,
    ) -> Result<(), TrainError> {
        let loss = self.session.microbatch_loss(loss)?;
        if loss.is_finite() {
            return Ok(());
        }
        let cause = match finite::find(self.module, &self.session)? {
            Some(found) => Some(Cause::State(found.name)),
            None => self.session.first_non_finite(&self.microbatch(step, index))?,
        };
        Err(not_finite(step, LOSS, loss, cause, outcome))
    }

    /// Ends the run where a gradient is not finite, unless the program knows what to do then.
    fn check_norm(&mut self, step: u64, norm: Option<f64>, outcome: &Outcome) -> Result<(), TrainError> {
        let Some(norm) = norm.filter(|norm| !norm.is_finite() && !self.session.skips()) else {
            return Ok(());
        };
        let cause = self.first_non_finite(step)?;
        Err(not_finite(step, GRADIENT, norm, cause, outcome))
    }

    /// The cause of the first number that is not finite in any microbatch of a step.
    fn first_non_finite(&mut self, step: u64) -> Result<Option<Cause>, TrainError> {
        if let Some(found) = finite::find(self.module, &self.session)? {
            return Ok(Some(Cause::State(found.name)));
        }
        if self.session.turns().is_some() {
            let batches: Vec<Batch> =
                (0..self.microbatches()?).map(|index| self.microbatch(step, index)).collect();
            return self.session.first_non_finite_of_turns(|index| batches[index as usize].clone());
        }
        for index in 0..self.microbatches()? {
            let cause = self.session.first_non_finite(&self.microbatch(step, index))?;
            if cause.is_some() {
                return Ok(cause);
            }
        }
        Ok(None)
    }

    /// Notes a step, also in the log of this process; rank 0 tells the file and the user of it.
    pub(super) fn report(
        &mut self,
        ended: Ended,
        eval_loss: Option<f64>,
        outcome: &mut Outcome,
    ) -> Result<(), TrainError> {
        let Ended { step, updated, seconds } = ended;
        let Updated { loss, lr, grad_norm, skipped, metrics, .. } = updated;
        (outcome.steps, outcome.loss) = (step + 1, Some(loss));
        outcome.eval_loss = eval_loss;
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
        self.log.iter_mut().for_each(|log| log.step(&metrics));
        let Some(lead) = &mut self.lead else { return Ok(()) };
        lead.metrics.write(&metrics)?;
        lead.progress.step(&metrics);
        Ok(())
    }
}

pub(super) fn not_finite(
    step: u64,
    what: &'static str,
    value: f64,
    cause: Option<Cause>,
    outcome: &Outcome,
) -> TrainError {
    TrainError::NotFinite { step, what, value, cause, updated: false, kept: outcome.checkpoint.clone() }
}
