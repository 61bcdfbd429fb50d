//! Finds the samples that make a batch fail: a batch that cannot run is halved until the sample at fault is alone.
//!
//! The search runs each half through a [`Runner`]. If that is a fresh process, a sample that spoils the device or ends the process
//! costs no other sample its verdict.

use super::batch::Batch;
use super::samples::{Verdict, in_type};
use ir::samples::Sample;
use serde::Serialize;

/// The number of samples of a batch that fail alone before the search in that batch ends: the same fault in many samples needs no more.
const MOST_ERRORS: usize = 10;

/// The most halves that run for all batches together.
const MOST_HALVES: usize = 120;

/// The number of halves as which a hanging half counts, because it takes as long.
const HANG: usize = 6;

/// The reason why a batch has no verdicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The problem.
    pub problem: String,
    /// Whether the process reported nothing for too long.
    pub hung: bool,
}

/// Runs batches of samples.
pub trait Runner {
    /// Runs a batch, and returns for each sample whether it agrees with the interpreter.
    ///
    /// # Errors
    /// The reason why the batch did not run to its end.
    fn run(&mut self, batch: &Batch) -> Result<Vec<Verdict>, Fault>;
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Samples that agree with the interpreter, each counted in every type and way.
    pub passed: usize,
    /// Samples that were not run, because cuDNN is not installed or too much had failed.
    pub skipped: usize,
    /// Samples that do not agree, or could not be run.
    pub failures: Vec<Failure>,
}

/// A sample that does not agree, or could not be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The operator, with its attributes.
    pub operator: String,
    /// Types of the operands.
    pub operands: Vec<String>,
    /// The way in which the operands reach the operator.
    pub way: &'static str,
    /// The problem, for messages.
    pub problem: String,
    /// The argument of `doctor --part` that runs it again.
    pub part: String,
}

/// An event of a running check.
#[derive(Debug)]
pub enum Event<'a> {
    /// A batch cannot run; its halves run next.
    Searching(&'a Batch, &'a Fault),
    /// A sample fails.
    Failed(&'a Failure),
    /// A batch is done. The numbers are those of the batch.
    Done(&'a Batch, Counts),
}

/// The numbers of samples of a batch that passed, failed, and were not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// See [`Report::passed`].
    pub passed: usize,
    /// See [`Report::failures`].
    pub failed: usize,
    /// See [`Report::skipped`].
    pub skipped: usize,
}

/// Runs batches, whose indices are those of `samples`. `place` precedes the batch in [`Failure::part`].
pub fn check(
    runner: &mut impl Runner,
    samples: &[Sample],
    batches: &[Batch],
    place: &str,
    tell: &mut dyn FnMut(Event<'_>),
) -> Report {
    let report = Report::default();
    let mut search = SampleSearch { runner, samples, place, tell, report, halves: MOST_HALVES, errors: 0 };
    for batch in batches {
        let before = search.counts();
        search.errors = 0;
        search.run(batch);
        let after = search.counts();
        let counts = Counts {
            passed: after.passed - before.passed,
            failed: after.failed - before.failed,
            skipped: after.skipped - before.skipped,
        };
        (search.tell)(Event::Done(batch, counts));
    }
    search.report
}

struct SampleSearch<'a, R> {
    runner: &'a mut R,
    samples: &'a [Sample],
    place: &'a str,
    tell: &'a mut dyn FnMut(Event<'_>),
    report: Report,
    /// The number of halves that may still run.
    halves: usize,
    /// The number of samples of this batch that fail alone.
    errors: usize,
}

impl<R: Runner> SampleSearch<'_, R> {
    fn counts(&self) -> Counts {
        let Report { passed, skipped, failures } = &self.report;
        Counts { passed: *passed, failed: failures.len(), skipped: *skipped }
    }

    /// Runs samples together. If they cannot run, runs each half by itself.
    fn run(&mut self, batch: &Batch) {
        let fault = match self.runner.run(batch) {
            Ok(verdicts) => return self.sort(batch, verdicts),
            Err(fault) => fault,
        };
        if fault.hung {
            self.halves = self.halves.saturating_sub(HANG);
        }
        if let [sample] = batch.samples[..] {
            self.errors += 1;
            return self.fail(batch, sample, fault.problem);
        }
        (self.tell)(Event::Searching(batch, &fault));
        let before = self.counts();
        for half in batch.halves() {
            if self.halves == 0 || self.errors >= MOST_ERRORS {
                self.report.skipped += half.samples.len();
                continue;
            }
            self.halves -= 1;
            self.run(&half);
        }
        if self.counts().failed == before.failed {
            self.fail_together(batch, before, &fault);
        }
    }

    /// Counts a batch as one failure: it failed, and no sample of it fails alone.
    fn fail_together(&mut self, batch: &Batch, before: Counts, fault: &Fault) {
        let (others, why) = (batch.samples.len() - 1, &fault.problem);
        let problem = if self.report.skipped > before.skipped {
            self.report.skipped -= 1;
            format!(
                "this sample or one of {others} other samples of the same program failed, and not all of \
                 them were run alone: {why}"
            )
        } else {
            self.report.passed -= 1;
            format!("only in one program with {others} other samples: {why}")
        };
        self.fail(batch, batch.samples[0], problem);
    }

    fn sort(&mut self, batch: &Batch, verdicts: Vec<Verdict>) {
        for Verdict { sample, problem } in verdicts {
            match problem {
                None => self.report.passed += 1,
                Some(problem) => {
                    let alone = Batch { samples: vec![sample], ..*batch };
                    self.fail(&alone, sample, problem);
                }
            }
        }
    }

    fn fail(&mut self, batch: &Batch, sample: usize, problem: String) {
        let sample = &self.samples[sample];
        let typed = in_type(sample, batch.dtype).unwrap_or_else(|| sample.clone());
        let failure = Failure {
            operator: format!("{:?}", typed.op),
            operands: typed.operands.iter().map(|operand| operand.ty.to_string()).collect(),
            way: batch.way.name(),
            problem,
            part: format!("{}{batch}", self.place),
        };
        (self.tell)(Event::Failed(&failure));
        self.report.failures.push(failure);
    }
}

#[cfg(test)]
mod tests;
