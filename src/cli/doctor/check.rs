//! `doctor --check`: every operator's kernels on each GPU against the interpreter, and the speed of the GPU.

use crate::cli::report::tell;
use cuda::check::process::Processes;
use cuda::check::rates::{Rate, Sizes};
use cuda::check::samples::{SampleVariant, all, batches};
use cuda::check::search::{Counts, Event, Failure, Report, check};
use serde::Serialize;
use std::time::Instant;

/// The result of the check of a GPU.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    /// The GPU.
    pub gpu: usize,
    /// Whether all samples agree and all rates were measured.
    pub passed: bool,
    /// Operators against the interpreter.
    pub samples: Report,
    /// Measured rates of copies and of computation.
    pub rates: Vec<Rate>,
    /// Seconds that the check took.
    pub seconds: f64,
}

impl Check {
    /// Checks a GPU, with a process for each part; `cudnn` says whether cuDNN is installed. Each result is printed when it is there, so a
    /// check that is killed has printed the earlier results.
    pub(super) fn of(gpu: usize, mut processes: Processes, cudnn: bool) -> Self {
        let (start, samples) = (Instant::now(), all());
        let (batches, skipped) = batches(&samples, &SampleVariant::ALL, cudnn);
        let place = format!("{}/", processes.place);
        let mut report = check(&mut processes, &samples, &batches, &place, &mut |event| {
            tell!("GPU {gpu}, {:.0} s: {}", start.elapsed().as_secs_f64(), told(&event));
        });
        report.skipped += skipped;
        let rates = processes.rates(&Sizes::default(), &mut |rate| {
            tell!("GPU {gpu}, {:.0} s: {}", start.elapsed().as_secs_f64(), rate_text(rate));
        });
        let passed = report.failures.is_empty() && rates.iter().all(|rate| rate.error.is_none());
        Self { gpu, passed, samples: report, rates, seconds: start.elapsed().as_secs_f64() }
    }

    /// The result as text: a line for each sample that fails, and a summary.
    pub(super) fn text(&self) -> String {
        let Report { passed, skipped, failures } = &self.samples;
        let wrong: String = failures.iter().map(|failure| format!("  {}\n", wrong(failure))).collect();
        let again = failures.first().map(|failure| {
            let part = &failure.part;
            format!("  to run the first failed sample again: trainyard doctor --part {part}\n")
        });
        let (failed, left_out) = (failures.len(), left_out(*skipped));
        let rates: String = self.rates.iter().map(|rate| format!("  {}\n", rate_text(rate))).collect();
        let verdict = if self.passed { "passed" } else { "FAILED" };
        format!(
            "\nGPU {}\n{wrong}{}  {passed} samples of operators agree with the interpreter, {failed} do \
             not{left_out}\n{rates}  {verdict} in {:.0} s\n",
            self.gpu,
            again.unwrap_or_default(),
            self.seconds
        )
    }
}

/// The number of samples that were not run, if there are some.
fn left_out(skipped: usize) -> String {
    if skipped > 0 { format!(", {skipped} were not run") } else { String::new() }
}

/// An event of the check, on one line.
fn told(event: &Event<'_>) -> String {
    match event {
        Event::Failed(failure) => wrong(failure),
        Event::Searching(batch, fault) => {
            let count = batch.samples.len();
            format!(
                "{count} samples failed as one program; each half is run as its own program: {}",
                one_line(&fault.problem)
            )
        }
        Event::Done(batch, Counts { passed, failed, skipped }) => {
            let left_out = left_out(*skipped);
            let kind = format!("{}, {}", batch.dtype.name(), batch.way.name());
            format!("{kind}: {passed} samples agree, {failed} do not{left_out}")
        }
    }
}

/// A sample and its problem.
fn wrong(failure: &Failure) -> String {
    let Failure { operator, operands, way, problem, .. } = failure;
    format!("wrong: {operator} on {}, {way}: {}", operands.join(", "), one_line(problem))
}

/// A rate, or the reason why it could not be measured.
fn rate_text(rate: &Rate) -> String {
    let found = match (rate.value, &rate.error) {
        (Some(value), _) => format!("{value:.1} {}", rate.unit),
        (None, error) => error.clone().unwrap_or_default(),
    };
    format!("{:28} {found:>14}  {}", rate.name, rate.sizes)
}

/// The lines of a compiler's message as one.
fn one_line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join(" | ")
}
