//! A step of the loop: it is given to the device, read when it is done, and reported.

use super::error::{Cause, ChangedBy, TrainError};
use super::finite;
use super::outputs::Updated;
use super::run::TrainingRun;
use crate::metrics::{StepMetrics, outputs};
use data::Batch;
use ir::timetable::Task;
use program::UpdateTime;
use program::device::Later;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::time::Instant;

const LOSS: &str = "the loss";
const GRADIENT: &str = "the gradient's norm";

/// A step that was given to the device, and its pending reports.
pub(super) struct Begun {
    step: u64,
    /// The losses of the microbatches, if they were not read one by one.
    losses: Vec<Later>,
    /// The first loss of a microbatch that is not finite, in a stream, whose ranks agree on it at the end.
    wrong: Option<f64>,
    update: Later,
}

/// Steps that follow each other without a flush: one step, unless the schedule is asynchronous.
#[derive(Debug)]
pub(super) struct Stream {
    /// The steps.
    pub(super) steps: Range<u64>,
    /// The first number that is not finite in the rank's steps.
    wrong: Option<Wrong>,
}

/// A number that is not finite, as a message to other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Wrong {
    step: u64,
    is_norm: bool,
    bits: u64,
}

impl Stream {
    /// Makes a stream of these steps.
    pub(super) fn of(steps: Range<u64>) -> Self {
        Self { steps, wrong: None }
    }

    /// Returns whether a step is the last of the stream.
    pub(super) fn ends_with(&self, step: u64) -> bool {
        self.steps.end == step + 1
    }

    fn note(&mut self, step: u64, is_norm: bool, value: Option<f64>) {
        let value = value.filter(|value| !value.is_finite());
        self.wrong = self.wrong.or(value.map(|value| Wrong { step, is_norm, bits: value.to_bits() }));
    }
}

/// A completed step.
pub(super) struct Ended {
    step: u64,
    updated: Updated,
    seconds: f64,
}

impl TrainingRun<'_> {
    /// Gives the device a step. A loss or gradient that is not finite prevents the update, here or on a device that runs ahead by itself.
    /// So the weights are still valid for the search of the node that made the number. With early updates, weights change before the norm
    /// of the gradients is known; a loss still prevents the update.
    pub(super) fn begin_step(
        &mut self,
        step: u64,
        microbatches: u64,
        stream: &Stream,
    ) -> Result<Begun, TrainError> {
        self.session.prepare()?;
        let (mut losses, mut wrong) = (Vec::new(), None);
        let length = stream.steps.end - stream.steps.start;
        if let Some(turns) = self.session.turns_of(step - stream.steps.start, length) {
            wrong = self.run_turns(step, microbatches, &turns)?;
        }
        let microbatches = if self.session.turns().is_some() { 0 } else { microbatches };
        for index in 0..microbatches {
            let microbatch = self.microbatch(step, index)?;
            let loss = self.session.begin_microbatch(&microbatch)?;
            if self.session.runs_ahead() {
                losses.push(loss);
            } else {
                self.check_loss(step, loss, index)?;
            }
            if index + 1 < microbatches {
                self.session.end_microbatch()?;
            }
        }
        if !self.session.runs_ahead() && !self.session.is_asynchronous() {
            let norm = self.session.gradient_norm()?;
            self.check_norm(step, norm)?;
        }
        let update = self.session.begin_update()?;
        Ok(Begun { step, losses, wrong, update })
    }

    /// Runs the turns of this rank in a pipeline. Afterwards all ranks know whether the loss of a microbatch is not finite. In an
    /// asynchronous schedule they do not wait for each other: the rank that computes the loss returns it.
    fn run_turns(
        &mut self,
        step: u64,
        microbatches: u64,
        turns: &[(usize, Task)],
    ) -> Result<Option<f64>, TrainError> {
        let mut batches: BTreeMap<u64, Batch> = BTreeMap::new();
        let mut wrong = None;
        for &(index, task) in turns {
            let microbatch = u64::from(task.microbatch);
            let batch = match batches.entry(microbatch) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    // In an asynchronous schedule, forward runs ahead of its step.
                    let (ahead, index) = (microbatch / microbatches, microbatch % microbatches);
                    entry.insert(self.microbatch(step + ahead, index)?)
                }
            };
            let loss = self.session.run_turn(index, batch)?;
            wrong = wrong.or(loss.filter(|loss| !loss.is_finite()).map(f64::to_bits));
        }
        if self.session.is_asynchronous() {
            return Ok(wrong.map(f64::from_bits));
        }
        let all = self.session.agreement().gather(wrong)?;
        let Some(loss) = all.into_iter().flatten().next().map(f64::from_bits) else { return Ok(None) };
        let cause = self.first_non_finite(step)?;
        Err(self.not_finite(step, LOSS, loss, cause))
    }

    /// Returns the rows of a microbatch that this rank needs.
    ///
    /// # Errors
    /// An index that is computed from the rows is outside of the dim that it indexes.
    fn microbatch(&self, step: u64, index: u64) -> Result<Batch, TrainError> {
        let (own, first) = (self.session.rows(), index * self.session.microbatch());
        let rows = first + own.start..first + own.end;
        let batch = self.loader.rows(step, rows.clone());
        self.loader.check_indices(step, rows, &batch)?;
        Ok(batch)
    }

    /// Collects the results of a step that the device has completed.
    pub(super) fn end_step(
        &mut self,
        begun: Begun,
        stream: &mut Stream,
        since: &mut Instant,
    ) -> Result<Ended, TrainError> {
        let Begun { step, losses, wrong, update } = begun;
        for (index, loss) in (0..).zip(losses) {
            self.check_loss(step, loss, index)?;
        }
        let updated = self.session.updated(update)?;
        if self.session.is_asynchronous() {
            stream.note(step, false, wrong);
            stream.note(step, false, updated.loss);
            stream.note(step, true, updated.grad_norm);
            return Ok(self.ended(step, updated, since));
        }
        if self.session.runs_ahead() && self.session.norm_comes_first() {
            self.check_norm(step, updated.grad_norm)?;
        }
        if let Some(scale) = updated.exhausted {
            let (cause, kept) = (self.first_non_finite(step)?, self.outcome.checkpoint.clone());
            return Err(TrainError::ScaleExhausted { step, scale, cause, kept });
        }
        let Updated { loss, grad_norm, skipped, .. } = updated.clone();
        if let Some(loss) = loss.filter(|loss| !loss.is_finite()) {
            return Err(self.not_finite(step, LOSS, loss, None));
        }
        if let Some(grad_norm) = grad_norm.filter(|norm| !skipped && !norm.is_finite()) {
            let is_early = self.session.program().update == UpdateTime::Early;
            let updated = is_early.then_some(ChangedBy::EarlyUpdates);
            return Err(self.not_finite_after(updated, step, GRADIENT, grad_norm, None));
        }
        Ok(self.ended(step, updated, since))
    }

    fn ended(&self, step: u64, updated: Updated, since: &mut Instant) -> Ended {
        let seconds = since.elapsed().as_secs_f64();
        *since = Instant::now();
        Ended { step, updated, seconds }
    }

    /// Ends the run if a number of a stream was not finite on any rank. The weights have changed since then.
    pub(super) fn end_stream(&self, stream: &Stream) -> Result<(), TrainError> {
        if !self.session.is_asynchronous() {
            return Ok(());
        }
        let all = self.session.agreement().gather(stream.wrong)?;
        let Some(Wrong { step, is_norm, bits }) = all.into_iter().flatten().min() else { return Ok(()) };
        let what = if is_norm { GRADIENT } else { LOSS };
        Err(self.not_finite_after(Some(ChangedBy::Stream), step, what, f64::from_bits(bits), None))
    }

    /// Ends the run if a microbatch's loss is not finite.
    fn check_loss(&mut self, step: u64, loss: Later, index: u64) -> Result<(), TrainError> {
        let loss = self.session.microbatch_loss(loss)?;
        if loss.is_finite() {
            return Ok(());
        }
        let cause = match finite::find(self.module, &self.session)? {
            Some(found) => Some(Cause::State(found.name)),
            None => self.session.first_non_finite(&self.microbatch(step, index)?)?,
        };
        Err(self.not_finite(step, LOSS, loss, cause))
    }

    /// Ends the run if a gradient is not finite, unless the program skips such steps.
    fn check_norm(&mut self, step: u64, norm: Option<f64>) -> Result<(), TrainError> {
        let Some(norm) = norm.filter(|norm| !norm.is_finite() && !self.session.skips()) else {
            return Ok(());
        };
        let cause = self.first_non_finite(step)?;
        Err(self.not_finite(step, GRADIENT, norm, cause))
    }

    /// Returns the cause of the first number that is not finite in any microbatch of a step.
    fn first_non_finite(&mut self, step: u64) -> Result<Option<Cause>, TrainError> {
        if let Some(found) = finite::find(self.module, &self.session)? {
            return Ok(Some(Cause::State(found.name)));
        }
        if self.session.turns().is_some() {
            let batches: Vec<Batch> = (0..self.microbatches()?)
                .map(|index| self.microbatch(step, index))
                .collect::<Result<_, _>>()?;
            return self.session.first_non_finite_of_turns(|index| batches[index as usize].clone());
        }
        for index in 0..self.microbatches()? {
            let cause = self.session.first_non_finite(&self.microbatch(step, index)?)?;
            if cause.is_some() {
                return Ok(cause);
            }
        }
        Ok(None)
    }

    /// Records a step in the outcome and in the log of this process. Rank 0 also writes it to the metrics and shows it to the user.
    pub(super) fn report(&mut self, ended: Ended, eval_loss: Option<f64>) -> Result<(), TrainError> {
        let Ended { step, updated, seconds } = ended;
        let Updated { loss, lr, grad_norm, skipped, metrics, loads, .. } = updated;
        (self.outcome.steps, self.outcome.loss) = (step + 1, loss);
        self.outcome.eval_loss = eval_loss;
        // A rank that gets no reports has nothing to show.
        let (Some(loss), Some(grad_norm)) = (loss, grad_norm) else { return Ok(()) };
        let tokens_per_s = self.loader.tokens_per_step().map(|tokens| tokens as f64 / seconds);
        let samples_per_s = match tokens_per_s {
            Some(_) => None,
            None => Some(self.loader.global_batch_size() as f64 / seconds),
        };
        let step_ms = seconds * 1e3;
        let outputs = outputs(metrics);
        self.outcome.scalars.clone_from(&outputs);
        self.outcome.loads.clone_from(&loads);
        let metrics = StepMetrics {
            step: step + 1,
            loss,
            lr,
            grad_norm,
            tokens_per_s,
            samples_per_s,
            step_ms,
            skipped,
            eval_loss,
            loads,
            outputs,
        };
        if let Some(log) = &mut self.log {
            log.step(&metrics);
        }
        let Some(lead) = &mut self.lead else { return Ok(()) };
        lead.metrics.write(&metrics)?;
        lead.progress.step(&metrics);
        Ok(())
    }

    pub(super) fn not_finite(
        &self,
        step: u64,
        what: &'static str,
        value: f64,
        cause: Option<Cause>,
    ) -> TrainError {
        self.not_finite_after(None, step, what, value, cause)
    }

    /// Returns the error of a number that is not finite. `updated` is the reason why the weights had changed before it was found, if they
    /// had.
    fn not_finite_after(
        &self,
        updated: Option<ChangedBy>,
        step: u64,
        what: &'static str,
        value: f64,
        cause: Option<Cause>,
    ) -> TrainError {
        TrainError::NotFinite { step, what, value, cause, updated, kept: self.outcome.checkpoint.clone() }
    }
}
