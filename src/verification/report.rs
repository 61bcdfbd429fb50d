//! The result of a verification, as a table for people and as JSON for programs.

use super::against::Untrained;
use super::assumptions::{ADVICE, Assumption};
use super::bisect::Culprit;
use super::compare::{self, Difference};
use super::evaluation::Evaluated;
use ir::visible;
use serde::Serialize;
use std::fmt;

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The model's file.
    pub model: String,
    /// The other side of the comparison.
    pub against: String,
    /// The mode in which the compiled program was run.
    pub mode: &'static str,
    /// The mesh, if there are several devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mesh: Option<String>,
    /// Trained tensors of the file.
    pub parameters: usize,
    /// Microbatches in the step.
    pub microbatches: usize,
    /// The mean loss of the step, if there are labels.
    pub loss: Option<f64>,
    /// The loss scale of the step, if the gradients overflow at the scale with which training begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smaller_loss_scale: Option<f64>,
    /// Whether the gradients overflow even at the smallest loss scale.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub overflows: bool,
    /// The evaluation programs: that of whole batches, and that of a short last batch. Empty with `--against`.
    pub evaluation: Vec<Evaluated>,
    /// The choices of the compiler that both sides share, unless they were compared.
    pub assumptions: Vec<Assumption>,
    /// The largest accepted error.
    pub tolerance: f64,
    /// Whether every error above the tolerance is explained by rounding, and every tensor that is trained there is trained here.
    pub passed: bool,
    /// Every comparison, the largest error first.
    pub differences: Vec<Difference>,
    /// The first pass that broke something, if that was asked for and one did.
    pub culprit: Option<Culprit>,
    /// The tensors of both sides.
    #[serde(flatten)]
    pub tensors: ComparedTensors,
}

/// The tensors of the model and of the other side, as far as they were found on both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ComparedTensors {
    /// Tensors of the other side that were found in the model.
    pub matched: Vec<Match>,
    /// Tensors and outputs of the other side that the model does not have.
    pub unmatched_there: Vec<String>,
    /// Parameters and outputs of the model that the other side does not have.
    pub unmatched_here: Vec<String>,
    /// Tensors that have a gradient there and are not trained here.
    pub untrained: Vec<Untrained>,
    /// Tensors that are trained here and have a gradient of zeros there.
    pub trained_here_alone: Vec<String>,
}

/// A tensor of the other side that was found in the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Match {
    /// Its name on the other side.
    pub there: String,
    /// Its name in the model's file.
    pub here: String,
    /// The way in which it was found, and the relation of the layouts.
    pub how: String,
}

/// The most rows of a table.
const ROWS: usize = 12;

impl Report {
    /// The number of errors above the tolerance that rounding does not explain.
    pub fn failed(&self) -> usize {
        self.differences.iter().filter(|difference| difference.fails(self.tolerance)).count()
    }

    /// The number of errors above the tolerance that rounding explains.
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

    /// Whether the two sides differ.
    pub fn differs(&self) -> bool {
        self.failed() > 0 || self.tensors.untrained.iter().any(|one| one.fails)
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
        if let Some(scale) = self.smaller_loss_scale {
            let told = if self.overflows {
                format!("the gradients overflow f16 at the smallest loss scale, {scale}")
            } else {
                format!("loss scale {scale}: the gradients overflow f16 at a larger loss scale")
            };
            writeln!(f, "{told}")?;
        }
        if !self.evaluation.is_empty() {
            let evaluated: Vec<String> = self.evaluation.iter().map(Evaluated::to_string).collect();
            writeln!(f, "evaluation: {}", visible(&evaluated.join(", ")))?;
        }
        self.assumptions.iter().try_for_each(|assumption| writeln!(f, "{assumption}"))?;
        if self.assumptions.iter().all(|assumption| !assumption.checked) {
            writeln!(f, "{ADVICE}")?;
        }
        write!(f, "{}", self.tensors)?;
        self.largest_errors(f)?;
        self.verdict(f)?;
        self.culprit.as_ref().map_or(Ok(()), |culprit| write!(f, "{culprit}"))
    }
}

impl Report {
    /// Writes the errors that fail, and at least the five largest errors.
    fn largest_errors(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (failed, others): (Vec<_>, Vec<_>) =
            self.differences.iter().partition(|difference| difference.fails(self.tolerance));
        let shown = failed.len().clamp(5, ROWS).min(self.differences.len());
        writeln!(f, "\nlargest errors\n{:>9}  {:<10} name", "error", "kind")?;
        for Difference { kind, name, error, rounding, .. } in failed.into_iter().chain(others).take(shown) {
            let rounding = rounding.map(|rounding| {
                if rounding.is_all {
                    format!("  (zero except for rounding, which causes {:.2e})", rounding.error)
                } else {
                    format!("  (rounding alone causes {:.2e})", rounding.error)
                }
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
        let untrained = self.tensors.untrained.iter().filter(|one| one.fails).count();
        if untrained > 0 {
            writeln!(
                f,
                "DIFFERENT: {untrained} tensors have a gradient in the file and are not trained here"
            )?;
        }
        let is_nan = |it: &&Difference| it.is_not_compared() && it.fails(tolerance);
        let (nan, all) = (self.differences.iter().filter(is_nan).count(), self.differences.len());
        let verdict = match failed {
            0 if untrained > 0 => "no error of the other tensors is above".to_owned(),
            0 => "equal: no error is above".to_owned(),
            _ if failed == nan => {
                format!("NOT COMPARED: {nan} of {all} results are NaN on both sides; no other error is above")
            }
            _ => format!("DIFFERENT: {failed} of {all} errors are above the tolerance"),
        };
        writeln!(f, "{verdict} {tolerance:e}{explained}")
    }
}

impl fmt::Display for ComparedTensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Match { there, here, how } in self.matched.iter().filter(|found| !found.how.is_empty()) {
            writeln!(f, "  `{}` is `{}`, {}", visible(there), visible(here), visible(how))?;
        }
        let list = |f: &mut fmt::Formatter<'_>, what: &str, names: &[String], remedy: &str| {
            let quoted: Vec<String> = names.iter().map(|name| format!("`{}`", visible(name))).collect();
            if names.is_empty() { Ok(()) } else { writeln!(f, "{what}: {}{remedy}", quoted.join(", ")) }
        };
        list(f, "only in the file", &self.unmatched_there, "")?;
        list(f, "only in this program", &self.unmatched_here, "")?;
        if !self.untrained.is_empty() {
            writeln!(f, "tensors with a gradient in the file that are not trained here:")?;
        }
        for Untrained { there, why, .. } in &self.untrained {
            writeln!(f, "  `{}` {}", visible(there), visible(why))?;
        }
        let alone = &self.trained_here_alone;
        let remedy = "; --freeze excludes a tensor from training";
        list(f, "trained here, without a gradient in the file", alone, remedy)
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
