//! `doctor --check`: every operator's kernels on each GPU against the interpreter, and how fast the GPU is.

use runtime::cuda::check::Subject;
use runtime::cuda::check::rates::{Rate, Sizes, measure};
use runtime::cuda::check::samples::{Report, Way, all, check};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Instant;

/// What a check of a GPU found.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    /// The GPU.
    pub gpu: usize,
    /// Whether all samples agree and all rates were measured.
    pub passed: bool,
    /// Operators against the interpreter.
    pub samples: Report,
    /// How fast it copies and computes.
    pub rates: Vec<Rate>,
    /// How long it took.
    pub seconds: f64,
}

impl Check {
    /// Checks a GPU; `cudnn` says whether that is there.
    pub(super) fn of(gpu: usize, subject: &impl Subject, cudnn: bool) -> Self {
        let start = Instant::now();
        let samples = check(subject, &all(), &Way::ALL, cudnn);
        let rates = measure(subject, &Sizes::default());
        let passed = samples.failures.is_empty() && rates.iter().all(|rate| rate.error.is_none());
        Self { gpu, passed, samples, rates, seconds: start.elapsed().as_secs_f64() }
    }

    /// For people: a line for each sample that fails, and a summary.
    pub(super) fn text(&self) -> String {
        let mut text = format!("\nGPU {}\n", self.gpu);
        for failure in &self.samples.failures {
            let (operands, way) = (failure.operands.join(", "), failure.way);
            // A compiler says much; one line of it says what is wrong.
            let problem = failure.problem.lines().collect::<Vec<_>>().join(" | ");
            let _ = writeln!(text, "  wrong: {} on {operands}, {way}: {problem}", failure.operator);
        }
        let (passed, failed) = (self.samples.passed, self.samples.failures.len());
        let _ = write!(text, "  {passed} samples of operators agree with the interpreter, {failed} do not");
        if self.samples.skipped > 0 {
            let _ = write!(text, ", {} were not run", self.samples.skipped);
        }
        text.push('\n');
        for rate in &self.rates {
            let found = match (rate.value, &rate.error) {
                (Some(value), _) => format!("{value:.1} {}", rate.unit),
                (None, error) => error.clone().unwrap_or_default(),
            };
            let _ = writeln!(text, "  {:28} {found:>14}  {}", rate.name, rate.sizes);
        }
        let verdict = if self.passed { "passed" } else { "FAILED" };
        let _ = writeln!(text, "  {verdict} in {:.0} s", self.seconds);
        text
    }
}
