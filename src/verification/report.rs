//! What a verification found, as a table for people and as JSON for programs.

use super::bisect::Culprit;
use super::compare::Difference;
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
    /// The largest error that passes.
    pub tolerance: f64,
    /// Whether no error is above it.
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
    /// Errors above the tolerance.
    pub fn failed(&self) -> usize {
        self.differences.iter().filter(|difference| difference.error > self.tolerance).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, against, mode, parameters, microbatches, tolerance, .. } = self;
        let of = if *microbatches == 1 { "microbatch" } else { "microbatches" };
        let mesh = self.mesh.iter().map(|mesh| format!("mesh {mesh}, ")).collect::<String>();
        writeln!(
            f,
            "{model} (mode {mode}, {mesh}{parameters} parameters, {microbatches} {of}) against {against}"
        )?;
        if let Some(loss) = self.loss {
            writeln!(f, "loss {loss:.9}")?;
        }
        self.matches(f)?;
        let shown = self.failed().clamp(5, ROWS).min(self.differences.len());
        writeln!(f, "\nlargest errors\n{:>9}  {:<10} name", "error", "kind")?;
        for Difference { kind, name, error } in &self.differences[..shown] {
            writeln!(f, "{error:>9.2e}  {kind:<10} {}", name.escape_debug())?;
        }
        match self.differences.len() - shown {
            0 => writeln!(f)?,
            more => writeln!(f, "{:>9}  and {more} more\n", "")?,
        }
        match self.failed() {
            0 => writeln!(f, "equal: no error is above {tolerance:e}"),
            failed => {
                let of = self.differences.len();
                writeln!(f, "DIFFERENT: {failed} of {of} errors are above the tolerance {tolerance:e}")
            }
        }?;
        self.culprit.iter().try_for_each(|culprit| write!(f, "{culprit}"))
    }
}

impl Report {
    fn matches(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Match { there, here, how } in self.matched.iter().filter(|found| !found.how.is_empty()) {
            writeln!(f, "  `{}` is `{}`, {how}", there.escape_debug(), here.escape_debug())?;
        }
        let list = |names: &[String]| {
            let names: Vec<String> = names.iter().map(|name| format!("`{}`", name.escape_debug())).collect();
            names.join(", ")
        };
        if !self.unmatched_there.is_empty() {
            writeln!(f, "only there: {}", list(&self.unmatched_there))?;
        }
        if !self.unmatched_here.is_empty() {
            writeln!(f, "only here: {}", list(&self.unmatched_here))?;
        }
        Ok(())
    }
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { kind, name, error } = &self.largest;
        let off = format!("the {kind} `{}` is off by {error:.2e}", name.escape_debug());
        match &self.pass {
            Some(pass) => writeln!(f, "broken by pass {} `{pass}`: after it {off}", self.number),
            None => writeln!(
                f,
                "broken by no pass: in this mode the untransformed program differs already: {off}"
            ),
        }
    }
}
