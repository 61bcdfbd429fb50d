//! What a verification found, as a table for people and as JSON for programs.

use super::against::Untrained;
use super::assumptions::{ADVICE, Assumption};
use super::bisect::Culprit;
use super::compare::{self, Difference};
use super::evaluation::Evaluated;
use ir::visible;
use serde::Serialize;
use std::fmt;

/// What a verification found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The model's file.
    pub model: String,
    /// What it was compared with.
    pub against: String,
    /// How the compiled program was run.
    pub mode: &'static str,
    /// The devices, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mesh: Option<String>,
    /// Trained tensors of the file.
    pub parameters: usize,
    /// Microbatches in the step.
    pub microbatches: usize,
    /// The mean loss of the step, where there are labels.
    pub loss: Option<f64>,
    /// The loss scale of the step, where the gradients overflow at the one that training begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smaller_loss_scale: Option<f64>,
    /// Whether the gradients overflow even at the smallest loss scale.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub overflows: bool,
    /// The evaluation programs: that of whole batches, and that of a last batch that is short. None with --against.
    pub evaluation: Vec<Evaluated>,
    /// The choices that both sides take from the compiler, and whether each was compared.
    pub assumptions: Vec<Assumption>,
    /// The largest error that passes.
    pub tolerance: f64,
    /// Whether no error is above it but those that rounding explains, and no tensor is trained there and not here.
    pub passed: bool,
    /// Every comparison, the largest error first.
    pub differences: Vec<Difference>,
    /// The first pass that broke something, if that was asked for and one did.
    pub culprit: Option<Culprit>,
    /// Tensors of the other side, each with the tensor of the model that it is.
    pub matched: Vec<Match>,
    /// What the other side has and the model does not.
    pub unmatched_there: Vec<String>,
    /// What the model has and the other side does not.
    pub unmatched_here: Vec<String>,
    /// Tensors that have a gradient there and are not trained here.
    pub untrained: Vec<Untrained>,
    /// Tensors that are trained here and have a gradient of zeros there.
    pub trained_here_alone: Vec<String>,
}

/// A tensor of the other side that was found in the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Match {
    /// Its name there.
    pub there: String,
    /// Its name in the model's file.
    pub here: String,
    /// How it was found, and how it lies.
    pub how: String,
}

/// The most rows of a table.
const ROWS: usize = 12;

impl Report {
    /// Errors above the tolerance that rounding does not explain.
    pub fn failed(&self) -> usize {
        self.differences.iter().filter(|difference| difference.fails(self.tolerance)).count()
    }

    /// Errors above the tolerance that rounding explains.
    pub fn explained(&self) -> usize {
        let above = self.differences.iter().filter(|difference| difference.is_above(self.tolerance));
        above.count() - self.failed()
    }

    /// Adds the differences of the evaluation program for a batch of this size.
    pub fn add_evaluation(&mut self, samples: u64, found: Vec<Difference>) {
        let failed = found.iter().filter(|difference| difference.fails(self.tolerance));
        let differs_in = failed.map(|difference| difference.name.clone()).collect();
        self.evaluation.push(Evaluated { samples, differs_in, left_out: None });
        self.differences.extend(found.into_iter().map(|difference| {
            let name = format!("{} of {samples} samples", difference.name);
            Difference { name, ..difference }
        }));
        compare::sort(&mut self.differences);
    }

    /// Whether the two sides do not do the same.
    pub fn differs(&self) -> bool {
        self.failed() > 0 || self.untrained.iter().any(|one| one.fails)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, against, mode, parameters, microbatches, .. } = self;
        let of = if *microbatches == 1 { "microbatch" } else { "microbatches" };
        let mesh = self.mesh.iter().map(|mesh| format!("mesh {mesh}, ")).collect::<String>();
        writeln!(
            f,
            "{} (mode {mode}, {mesh}{parameters} parameters, {microbatches} {of}) against {}",
            visible(model),
            visible(against)
        )?;
        if let Some(loss) = self.loss {
            writeln!(f, "loss {loss:.9}")?;
        }
        match self.smaller_loss_scale {
            Some(scale) if self.overflows => {
                writeln!(f, "the gradients overflow f16 at the smallest loss scale, {scale}")?
            }
            Some(scale) => {
                writeln!(f, "loss scale {scale}: the gradients overflow f16 at a larger loss scale")?
            }
            None => {}
        }
        if !self.evaluation.is_empty() {
            let evaluated: Vec<String> = self.evaluation.iter().map(Evaluated::to_string).collect();
            writeln!(f, "evaluation: {}", visible(&evaluated.join(", ")))?;
        }
        self.assumptions.iter().try_for_each(|assumption| writeln!(f, "{assumption}"))?;
        if self.assumptions.iter().all(|assumption| !assumption.checked) {
            writeln!(f, "{ADVICE}")?;
        }
        self.matches(f)?;
        self.largest_errors(f)?;
        self.verdict(f)?;
        self.culprit.iter().try_for_each(|culprit| write!(f, "{culprit}"))
    }
}

impl Report {
    /// The errors that fail, or the largest few.
    fn largest_errors(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (failed, others): (Vec<_>, Vec<_>) =
            self.differences.iter().partition(|difference| difference.fails(self.tolerance));
        let shown = failed.len().clamp(5, ROWS).min(self.differences.len());
        writeln!(f, "\nlargest errors\n{:>9}  {:<10} name", "error", "kind")?;
        for Difference { kind, name, error, rounding, .. } in failed.into_iter().chain(others).take(shown) {
            let rounding = rounding.map(|rounding| match rounding.is_all {
                true => format!("  (zero except for rounding, which causes {:.2e})", rounding.error),
                false => format!("  (rounding alone causes {:.2e})", rounding.error),
            });
            let nothing = error.is_nan().then(|| "  (NaN on both sides: nothing to compare)".to_owned());
            let (name, rounding) = (visible(name), rounding.or(nothing).unwrap_or_default());
            writeln!(f, "{error:>9.2e}  {kind:<10} {name}{rounding}")?;
        }
        match self.differences.len() - shown {
            0 => writeln!(f),
            more => writeln!(f, "{:>9}  and {more} more\n", ""),
        }
    }

    fn verdict(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (failed, tolerance) = (self.failed(), self.tolerance);
        let explained = match self.explained() {
            0 => String::new(),
            count => format!(", except {count} errors that rounding alone explains"),
        };
        let untrained = self.untrained.iter().filter(|one| one.fails).count();
        if untrained > 0 {
            writeln!(
                f,
                "DIFFERENT: {untrained} tensors have a gradient in the file and are not trained here"
            )?;
        }
        let nan =
            self.differences.iter().filter(|it| it.is_not_compared() && it.fails(self.tolerance)).count();
        match failed {
            failed if failed > 0 && failed == nan => writeln!(
                f,
                "NOT COMPARED: {nan} of {} results are NaN on both sides; no other error is above {tolerance:e}{explained}",
                self.differences.len()
            ),
            0 if untrained > 0 => {
                writeln!(f, "no error of the other tensors is above {tolerance:e}{explained}")
            }
            0 => writeln!(f, "equal: no error is above {tolerance:e}{explained}"),
            failed => {
                let of = self.differences.len();
                writeln!(
                    f,
                    "DIFFERENT: {failed} of {of} errors are above the tolerance {tolerance:e}{explained}"
                )
            }
        }
    }

    fn matches(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Match { there, here, how } in self.matched.iter().filter(|found| !found.how.is_empty()) {
            writeln!(f, "  `{}` is `{}`, {}", visible(there), visible(here), visible(how))?;
        }
        let list = |names: &[String]| {
            let names: Vec<String> = names.iter().map(|name| format!("`{}`", visible(name))).collect();
            names.join(", ")
        };
        if !self.unmatched_there.is_empty() {
            writeln!(f, "only in the file: {}", list(&self.unmatched_there))?;
        }
        if !self.unmatched_here.is_empty() {
            writeln!(f, "only in this program: {}", list(&self.unmatched_here))?;
        }
        if !self.untrained.is_empty() {
            writeln!(f, "tensors with a gradient in the file that are not trained here:")?;
        }
        for Untrained { there, why, .. } in &self.untrained {
            writeln!(f, "  `{}` {}", visible(there), visible(why))?;
        }
        if !self.trained_here_alone.is_empty() {
            writeln!(
                f,
                "trained here, without a gradient in the file: {}; --freeze excludes a tensor from training",
                list(&self.trained_here_alone)
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { kind, name, error, .. } = &self.largest;
        let off = format!("the {kind} `{}` is off by {error:.2e}", visible(name));
        match &self.pass {
            Some(pass) => writeln!(f, "broken by pass {} `{pass}`: after it {off}", self.number),
            None => writeln!(
                f,
                "broken by no pass: in this mode the untransformed program already differs: {off}"
            ),
        }
    }
}
