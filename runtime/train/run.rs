//! The training loop.

use super::beside::Saves;
use super::error::TrainError;
use super::evaluate::evaluate;
use super::history::{EvalHistory, Evaluation};
use super::session::Session;
use super::step::{Begun, Stream, not_finite};
use super::surroundings::Surroundings;
use crate::metrics::MetricsWriter;
use crate::progress::Progress;
use checkpoint::{Checkpoints, PendingFingerprint};
use data::Loader;
use ir::Module;
use runtime::device::DeviceError;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

/// Which steps to run, and what to do between them. Counts are of steps from step 0 of the run, resumed or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Steps done before: 0, or what [`super::resume`] found.
    pub start: u64,
    /// Steps in total.
    pub steps: u64,
    /// Evaluate after every so many steps, besides before step 0 and at the end.
    pub eval_every: Option<u64>,
    /// Save after every so many steps, besides at the end.
    pub save_every: Option<u64>,
    /// Save after every evaluation with a loss below all before.
    pub save_best: bool,
    /// Checkpoints that stay: the newest, and besides them the one with the lowest eval loss. All stay by default.
    pub keep: Option<u64>,
    /// Write checkpoints beside the steps, from a copy of the states. The last one is written from the states themselves.
    pub saves_beside: bool,
    /// End the run when so many evaluations in a row had no loss below the lowest.
    pub patience: Option<u64>,
}

/// The objects that the training loop of a rank works with. The session's states have their values.
pub struct TrainingRun<'a> {
    /// The module that the training program was lowered from: its state table is the checkpoints'.
    pub module: &'a Module,
    /// The programs on the rank's device.
    pub session: Session<'a>,
    /// The data.
    pub loader: &'a Loader,
    /// Where checkpoints go.
    pub checkpoints: Checkpoints,
    /// The part of the run that rank 0 alone has.
    pub lead: Option<Lead>,
    /// The steps as this process tells them in its log.
    pub log: Option<Progress>,
}

/// What rank 0 does for all ranks: it tells the user and the files of the run, watches the files, and knows the evaluations
/// before.
pub struct Lead {
    /// What the data is, for the checkpoints.
    pub data: PendingFingerprint,
    /// Where metrics go.
    pub metrics: MetricsWriter,
    /// What the user sees.
    pub progress: Progress,
    /// The evaluations so far, as the checkpoint has them.
    pub history: EvalHistory,
    /// The files that it reads, and its folder.
    pub surroundings: Surroundings,
}

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Steps done, from step 0 of the run.
    pub steps: u64,
    /// Whether it was asked to stop before its last step, or in the evaluation after it.
    pub stopped: bool,
    /// Whether it ended before its last step, since the eval loss did not fall any more.
    pub ended_early: bool,
    /// The loss of the last step; `None` if no step was run.
    pub loss: Option<f64>,
    /// The other scalars of the model in the last step, by name; `None` if one is not finite.
    pub scalars: BTreeMap<String, Option<f64>>,
    /// The choices that fell on each expert in the last step, by the name of the router.
    pub loads: BTreeMap<String, Vec<f64>>,
    /// The eval loss before the first step of this call, when it began at step 0.
    pub initial_eval_loss: Option<f64>,
    /// The eval loss after the last step that was done; `None` if it was not evaluated, or not to the end.
    pub eval_loss: Option<f64>,
    /// The evaluation with the lowest loss.
    pub lowest: Option<Evaluation>,
    /// The newest checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// The checkpoint with the lowest eval loss.
    pub best: Option<BestCheckpoint>,
}

/// The checkpoint with the lowest eval loss, of those that are there and were evaluated.
#[derive(Clone, Debug, PartialEq)]
pub struct BestCheckpoint {
    /// Its folder.
    pub path: PathBuf,
    /// Its evaluation.
    pub evaluation: Evaluation,
}

/// Runs the steps that are left. Every rank runs this loop, with its own part of everything. Setting `stop` on any rank asks
/// all to finish the step they are in, save, and return.
///
/// The loss is evaluated before step 0, after every `eval_every` steps, and after the last; a checkpoint is made after
/// every `save_every` steps, after the last, and when it stops. Early stopping and the best checkpoint look at the
/// evaluations after steps, not at the one before step 0.
///
/// # Errors
/// A loss, gradient or state that is not finite (the states are then not saved, earlier checkpoints stay); a disk that is
/// full; programs and data that do not fit each other; a rank that failed. With a scaled loss a gradient that is not finite
/// skips its step, and is an error only once the scale can get no smaller.
pub fn train(run: &mut TrainingRun, schedule: &Schedule, stop: &AtomicBool) -> Result<Outcome, TrainError> {
    thread::scope(|scope| {
        let mut saves = Saves::new(schedule.saves_beside.then_some(scope));
        let ended = steps(run, &mut saves, schedule, stop);
        ended.map_err(|error| run.end_after(error, &mut saves, schedule))
    })
}

/// Runs the steps, and saves.
fn steps<'scope, 'a: 'scope>(
    run: &mut TrainingRun<'a>,
    saves: &mut Saves<'scope, '_>,
    schedule: &Schedule,
    stop: &AtomicBool,
) -> Result<Outcome, TrainError> {
    let microbatches = run.microbatches()?;
    let mut outcome = run.begin(schedule, stop)?;
    let mut saved = outcome.checkpoint.is_some().then_some(schedule.start);
    // The step that the device may still be at, and since when it is.
    let (mut open, mut since) = (None::<Begun>, Instant::now());
    let mut stream = Stream::of(schedule.start..schedule.start);
    for step in schedule.start..schedule.steps {
        // Within a stream no rank waits for all others.
        if step == stream.steps.end {
            let now = run.at_step(saves, schedule, stop)?;
            (outcome.stopped, outcome.ended_early) = (now.stops, now.ends_early);
            if now.is_written {
                run.finish_save(saves, schedule, &mut outcome)?;
            }
            if outcome.stopped || outcome.ended_early {
                break;
            }
            stream = Stream::of(step..schedule.end_of_stream(step, run.session.longest_stream()));
        }
        if open.is_none() {
            since = Instant::now();
        }
        run.check_files(&outcome)?;
        let begun = run.begin_step(step, microbatches, &stream, &outcome)?;
        if let Some(earlier) = open.take() {
            run.end_step(earlier, &mut stream, &mut since, &outcome)
                .and_then(|ended| run.report(ended, None, &mut outcome))?;
        }
        let done = step + 1;
        let last = done == schedule.steps;
        let (evaluates, is_saved) = (last || due(schedule.eval_every, done), due(schedule.save_every, done));
        if run.session.runs_ahead() && !evaluates && !is_saved && !run.session.is_asynchronous() {
            open = Some(begun);
            continue;
        }
        let ended = run.end_step(begun, &mut stream, &mut since, &outcome)?;
        if stream.ends_with(step) {
            run.end_stream(&stream, &outcome)?;
        }
        let eval_loss = if evaluates { run.evaluate(stop)? } else { None };
        if let Some(value) = eval_loss.filter(|loss| !loss.is_finite()) {
            run.check_states(schedule, saved, done, &outcome)?;
            let what = "the eval loss after the update";
            return Err(not_finite(step, what, value, None, &outcome));
        }
        run.report(ended, eval_loss, &mut outcome)?;
        outcome.stopped = last && eval_loss.is_none() && run.session.evaluates();
        let improves = eval_loss.is_some_and(|loss| run.is_lowest(done, loss));
        if is_saved || (evaluates && schedule.save_best && run.agree(improves)?) {
            run.save(saves, schedule, saved, (done, last), &mut outcome)?;
            saved = Some(done);
        }
    }
    if let Some(last) = open {
        run.end_step(last, &mut stream, &mut since, &outcome)
            .and_then(|ended| run.report(ended, None, &mut outcome))?;
    }
    run.finish_save(saves, schedule, &mut outcome)?;
    if saved != Some(outcome.steps) {
        run.save(saves, schedule, saved, (outcome.steps, true), &mut outcome)?;
    }
    (outcome.lowest, outcome.best) = (run.lowest(), run.best(schedule)?);
    Ok(outcome)
}

impl Schedule {
    /// The end of the steps that follow each other without a flush, from `step` on: at most so many, up to the next evaluation and the
    /// next checkpoint.
    fn end_of_stream(&self, step: u64, longest: u64) -> u64 {
        let next = |every: Option<u64>| every.map(|every| (step / every.max(1) + 1) * every.max(1));
        let ends = [Some(self.steps), next(self.eval_every), next(self.save_every)];
        ends.into_iter().flatten().fold(step + longest, u64::min)
    }
}

/// Whether something that is done every so many steps is due after `done` steps.
fn due(every: Option<u64>, done: u64) -> bool {
    every.is_some_and(|every| done.is_multiple_of(every))
}

/// What all ranks know before a step.
struct AtStep {
    /// The run stops, as any rank was asked to.
    stops: bool,
    /// The run ends early: so many evaluations in a row had no loss below the lowest.
    ends_early: bool,
    /// The checkpoint that was written beside the steps can get its name.
    is_written: bool,
}

impl TrainingRun<'_> {
    /// Microbatches a step.
    pub(super) fn microbatches(&self) -> Result<u64, TrainError> {
        let (global_batch, microbatch) = (self.loader.global_batch_size(), self.session.microbatch());
        if !global_batch.is_multiple_of(microbatch) {
            return Err(TrainError::Microbatch { global_batch, microbatch });
        }
        Ok(global_batch / microbatch)
    }

    /// What all ranks know before a step.
    fn at_step(&self, saves: &Saves, schedule: &Schedule, stop: &AtomicBool) -> Result<AtStep, TrainError> {
        const STOPS: u8 = 1;
        const ENDS_EARLY: u8 = 2;
        const WRITES: u8 = 4;
        let since_lowest = self.lead.as_ref().map(|lead| lead.history.since_lowest());
        let is_patient = schedule.patience.zip(since_lowest).is_none_or(|(patience, since)| since < patience);
        let facts =
            [(stop.load(Ordering::Relaxed), STOPS), (!is_patient, ENDS_EARLY), (saves.are_pending(), WRITES)];
        let own = facts.into_iter().filter(|(holds, _)| *holds).fold(0, |own, (_, bit)| own | bit);
        let all = self.session.agreement().union(own).map_err(DeviceError::from)?;
        let ends_early = all & ENDS_EARLY != 0;
        Ok(AtStep {
            stops: all & STOPS != 0 && !ends_early,
            ends_early,
            is_written: saves.open.is_some() && all & WRITES == 0,
        })
    }

    /// The loss over the held-out data.
    fn evaluate(&mut self, stop: &AtomicBool) -> Result<Option<f64>, TrainError> {
        let progress = self.lead.as_mut().map(|lead| &mut lead.progress);
        evaluate(&mut self.session, self.loader, stop, progress)
    }

    /// Whether any rank says so.
    pub(super) fn agree(&self, own: bool) -> Result<bool, TrainError> {
        Ok(self.session.agreement().any(own).map_err(DeviceError::from)?)
    }

    /// Adds an evaluation after `steps` steps. Returns, on rank 0, whether its loss is below all others.
    fn is_lowest(&mut self, steps: u64, loss: f64) -> bool {
        self.lead.as_mut().is_some_and(|lead| lead.history.add(steps, loss))
    }

    /// The evaluation with the lowest loss, on rank 0.
    fn lowest(&self) -> Option<Evaluation> {
        self.lead.as_ref()?.history.lowest()
    }

    /// Ends the run where the data changed, or, if it was not looked at for a while, any file.
    fn check_files(&mut self, outcome: &Outcome) -> Result<(), TrainError> {
        let Some(lead) = &mut self.lead else { return Ok(()) };
        lead.check_surroundings_sometimes(outcome.checkpoint.as_ref())?;
        lead.data.check()?;
        lead.history.data().check()?;
        Ok(())
    }

    /// The outcome before the first step. The eval loss is known before step 0, and for a run without steps left.
    fn begin(&mut self, schedule: &Schedule, stop: &AtomicBool) -> Result<Outcome, TrainError> {
        let mut outcome = Outcome { steps: schedule.start, ..Outcome::default() };
        // A run may have been gone on with from another folder's checkpoint.
        let path = self.checkpoints.path(schedule.start);
        let is_there = self.agree(self.lead.is_some() && path.exists())?;
        outcome.checkpoint = Some(path).filter(|_| is_there);
        let nothing_left = schedule.start >= schedule.steps;
        outcome.eval_loss = match schedule.start == 0 || nothing_left {
            true => self.evaluate(stop)?,
            false => self.lead.as_ref().and_then(|lead| lead.history.after(schedule.start)),
        };
        outcome.stopped = nothing_left && outcome.eval_loss.is_none() && self.session.evaluates();
        if schedule.start == 0 {
            outcome.initial_eval_loss = outcome.eval_loss;
        } else if let Some(loss) = outcome.eval_loss.filter(|loss| loss.is_finite()) {
            self.is_lowest(schedule.start, loss);
        }
        if let Some(lead) = &mut self.lead {
            lead.metrics.begin(schedule.start, outcome.initial_eval_loss)?;
        }
        if let Some((loss, lead)) = outcome.initial_eval_loss.zip(self.lead.as_mut()) {
            lead.progress.message(&format!("before step 0: eval loss {loss:.6}"));
        }
        Ok(outcome)
    }
}
