//! `doctor --check`: every operator's kernels on each GPU against the interpreter, and the speed of the GPU.

use crate::cli::report::tell;
use cuda::check::process::Processes;
use cuda::check::rates::{Rate, Sizes};
use cuda::check::samples::{SampleVariant, all, batches};
use cuda::check::search::{Counts, Event, Failure, Report, check};
use serde::Serialize;
use std::fmt::Write as _;
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

    /// For people: a line for each sample that fails, and a summary.
    pub(super) fn text(&self) -> String {
        let mut text = format!("\nGPU {}\n", self.gpu);
        for failure in &self.samples.failures {
            let _ = writeln!(text, "  {}", wrong(failure));
        }
        if let Some(failure) = self.samples.failures.first() {
            let _ = writeln!(
                text,
                "  to run the first failed sample again: trainyard doctor --part {}",
                failure.part
            );
        }
        let (passed, failed) = (self.samples.passed, self.samples.failures.len());
        let _ = write!(text, "  {passed} samples of operators agree with the interpreter, {failed} do not");
        if self.samples.skipped > 0 {
            let _ = write!(text, ", {} were not run", self.samples.skipped);
        }
        text.push('\n');
        for rate in &self.rates {
            let _ = writeln!(text, "  {}", rate_text(rate));
        }
        let verdict = if self.passed { "passed" } else { "FAILED" };
        let _ = writeln!(text, "  {verdict} in {:.0} s", self.seconds);
        text
    }
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
            let left_out = if *skipped > 0 { format!(", {skipped} were not run") } else { String::new() };
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
