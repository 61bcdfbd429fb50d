//! The training loop.

use super::beside::Saves;
use super::error::TrainError;
use super::evaluate::evaluate;
use super::history::Evaluation;
use super::run::{Lead, Outcome, RunProgram, Schedule, TrainingRun};
use super::step::{Begun, Stream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

/// Runs the remaining steps. Every rank runs this loop, with its own parts. Setting `stop` on any rank asks all ranks to finish the present
/// step, save, and return. The run has the programs of its session until the first of the programs in `next` begins. A program ends with a
/// checkpoint, from which the next one takes its states. Returns the rank's lead too.
///
/// The loss is evaluated before step 0, after every `eval_every` steps, and after the last step. A checkpoint is made after every
/// `save_every` steps, after the last step, and when the run stops. Early stopping and the best checkpoint consider the evaluations after
/// steps, not the one before step 0.
///
/// # Errors
/// A loss, gradient or state that is not finite (the states are then not saved, and earlier checkpoints stay); a full disk; programs and
/// data that do not match; a rank that failed. With a scaled loss, a gradient that is not finite skips its step, and is an error only if
/// the scale is already the smallest.
pub fn train<'a>(
    mut run: TrainingRun<'a>,
    next: &[RunProgram<'a>],
    stop: &AtomicBool,
) -> Result<(Outcome, Option<Lead>), TrainError> {
    run.begin(stop)?;
    for program in next.iter().map(Some).chain([None]) {
        let until = program.map_or(run.schedule.steps, |program| program.first_step);
        thread::scope(|scope| {
            let last = run.outcome.checkpoint.is_some().then_some(run.outcome.steps);
            let mut saves = Saves::new(run.schedule.saves_beside.then_some(scope), last);
            steps(&mut run, &mut saves, until, stop).map_err(|error| run.end_after(error, &mut saves))
        })?;
        match program {
            Some(program) if !run.outcome.stopped && !run.outcome.ended_early => run = run.go_on(program)?,
            _ => break,
        }
    }
    (run.outcome.lowest, run.outcome.best) = (run.lowest(), run.best()?);
    Ok((run.outcome, run.lead))
}

/// Runs the steps of a program, which end after `until` steps, and saves.
///
/// Each step is given to the device (`begin_step`) and read when it is done (`end_step`, `report`). If the device runs ahead, a step stays
/// `open`: it is read only after the next one was given to the device, unless it is followed by an evaluation or a checkpoint. Between
/// streams (single steps, unless the schedule is asynchronous) all ranks agree whether to stop.
fn steps<'scope, 'a: 'scope>(
    run: &mut TrainingRun<'a>,
    saves: &mut Saves<'scope, '_>,
    until: u64,
    stop: &AtomicBool,
) -> Result<(), TrainError> {
    let (microbatches, schedule, start) = (run.microbatches()?, run.schedule, run.outcome.steps);
    // The step that the device may still be running, and the time since which it does.
    let (mut open, mut since) = (None::<Begun>, Instant::now());
    let mut stream = Stream::of(start..start);
    for step in start..schedule.steps {
        // Within a stream no rank waits for all others.
        if step == stream.steps.end {
            let now = run.at_step(saves, stop)?;
            (run.outcome.stopped, run.outcome.ended_early) = (now.stops, now.ends_early);
            if now.is_written {
                run.finish_save(saves)?;
            }
            if now.stops || now.ends_early || step == until {
                break;
            }
            let end = schedule.end_of_stream(step, run.session.longest_stream());
            stream = Stream::of(step..end.min(until));
        }
        if open.is_none() {
            since = Instant::now();
        }
        run.check_files()?;
        let begun = run.begin_step(step, microbatches, &stream)?;
        if let Some(earlier) = open.take() {
            let ended = run.end_step(earlier, &mut stream, &mut since)?;
            run.report(ended, None)?;
        }
        let done = step + 1;
        let last = done == schedule.steps;
        let (evaluates, is_saved) = (last || due(schedule.eval_every, done), due(schedule.save_every, done));
        if run.session.runs_ahead() && !evaluates && !is_saved && !run.session.is_asynchronous() {
            open = Some(begun);
            continue;
        }
        let ended = run.end_step(begun, &mut stream, &mut since)?;
        if stream.ends_with(step) {
            run.end_stream(&stream)?;
        }
        let eval_loss = if evaluates { run.evaluate(stop)? } else { None };
        if let Some(value) = eval_loss.filter(|loss| !loss.is_finite()) {
            run.check_states(saves, done)?;
            return Err(run.not_finite(step, "the eval loss after the update", value, None));
        }
        run.report(ended, eval_loss)?;
        run.outcome.stopped = last && eval_loss.is_none() && run.session.evaluates();
        let improves = eval_loss.is_some_and(|loss| run.is_lowest(done, loss));
        if is_saved || (evaluates && schedule.save_best && run.agree(improves)?) {
            run.save(saves, (done, last))?;
        }
    }
    if let Some(last) = open {
        let ended = run.end_step(last, &mut stream, &mut since)?;
        run.report(ended, None)?;
    }
    run.finish_save(saves)?;
    if saves.last != Some(run.outcome.steps) {
        run.save(saves, (run.outcome.steps, true))?;
    }
    Ok(())
}

impl Schedule {
    /// Returns the end of the stream of steps without a flush that begins at `step`: at most `longest` steps, up to the next evaluation or
    /// the next checkpoint.
    fn end_of_stream(&self, step: u64, longest: u64) -> u64 {
        let next = |every: Option<u64>| every.map(|every| (step / every.max(1) + 1) * every.max(1));
        let ends = [Some(self.steps), next(self.eval_every), next(self.save_every)];
        ends.into_iter().flatten().fold(step + longest, u64::min)
    }
}

/// Returns whether an event that happens after every `every` steps is due after `done` steps.
fn due(every: Option<u64>, done: u64) -> bool {
    every.is_some_and(|every| done.is_multiple_of(every))
}

/// The facts on which all ranks agree before a step.
struct AtStep {
    /// Whether the run stops because a rank was asked to.
    stops: bool,
    /// Whether the run ends early because too many consecutive evaluations had no new lowest loss.
    ends_early: bool,
    /// Whether all ranks have written the checkpoint beside the steps, so that it can get its name.
    is_written: bool,
}

impl TrainingRun<'_> {
    /// Agrees with all ranks on the facts before a step.
    fn at_step(&self, saves: &Saves, stop: &AtomicBool) -> Result<AtStep, TrainError> {
        const STOPS: u8 = 1;
        const ENDS_EARLY: u8 = 2;
        const WRITES: u8 = 4;
        let since_lowest = self.lead.as_ref().map(|lead| lead.history.since_lowest());
        let is_patient =
            self.schedule.patience.zip(since_lowest).is_none_or(|(patience, since)| since < patience);
        let facts =
            [(stop.load(Ordering::Relaxed), STOPS), (!is_patient, ENDS_EARLY), (saves.are_pending(), WRITES)];
        let own = facts.into_iter().filter(|(holds, _)| *holds).fold(0, |own, (_, bit)| own | bit);
        let all = self.session.agreement().union(own)?;
        let ends_early = all & ENDS_EARLY != 0;
        Ok(AtStep {
            stops: all & STOPS != 0 && !ends_early,
            ends_early,
            is_written: saves.open.is_some() && all & WRITES == 0,
        })
    }

    /// Evaluates the loss over the held-out data.
    fn evaluate(&mut self, stop: &AtomicBool) -> Result<Option<f64>, TrainError> {
        let progress = self.lead.as_mut().map(|lead| &mut lead.progress);
        evaluate(&mut self.session, self.loader, stop, progress)
    }

    /// Adds an evaluation after `steps` steps. Returns, on rank 0, whether its loss is below all others.
    fn is_lowest(&mut self, steps: u64, loss: f64) -> bool {
        self.lead.as_mut().is_some_and(|lead| lead.history.add(steps, loss))
    }

    /// Returns the evaluation with the lowest loss, on rank 0.
    fn lowest(&self) -> Option<Evaluation> {
        self.lead.as_ref()?.history.lowest()
    }

    /// Ends the run if the data changed or, when the last check was long ago, if any file changed.
    fn check_files(&mut self) -> Result<(), TrainError> {
        let Some(lead) = &mut self.lead else { return Ok(()) };
        lead.check_surroundings_sometimes(self.outcome.checkpoint.as_ref())?;
        lead.data.check()?;
        lead.history.data().check()?;
        Ok(())
    }

    /// Fills in the outcome before the first step. It has the eval loss before step 0, and also if no steps are left.
    fn begin(&mut self, stop: &AtomicBool) -> Result<(), TrainError> {
        let Schedule { start, steps, .. } = self.schedule;
        self.outcome.steps = start;
        // The run may have been resumed from a checkpoint in another folder.
        let path = self.checkpoints.path(start);
        let is_there = self.agree(self.lead.is_some() && path.exists())?;
        self.outcome.checkpoint = Some(path).filter(|_| is_there);
        let nothing_left = start >= steps;
        self.outcome.eval_loss = if start == 0 || nothing_left {
            self.evaluate(stop)?
        } else {
            self.lead.as_ref().and_then(|lead| lead.history.after(start))
        };
        self.outcome.stopped = nothing_left && self.outcome.eval_loss.is_none() && self.session.evaluates();
        if start == 0 {
            self.outcome.initial_eval_loss = self.outcome.eval_loss;
        } else if let Some(loss) = self.outcome.eval_loss.filter(|loss| loss.is_finite()) {
            self.is_lowest(start, loss);
        }
        if let Some(lead) = &mut self.lead {
            lead.metrics.begin(start, self.outcome.initial_eval_loss)?;
        }
        if let Some((loss, lead)) = self.outcome.initial_eval_loss.zip(self.lead.as_mut()) {
            lead.progress.message(&format!("before step 0: eval loss {loss:.6}"));
        }
        Ok(())
    }
}
