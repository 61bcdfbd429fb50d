//! The choices that both sides of a comparison share, so that a user knows which mistakes it cannot find.
//!
//! Both sides of a verification train the same tensors, minimise the same loss and read the same batch. Only numbers of
//! the original module (`--against`) can show that one of these choices is not that of the module's author.

use crate::compilation::Compilation;
use ir::{Claim, visible};
use passes::reports::{LossReport, ParameterReport, Reports, RowRole};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// A choice of the compiler, and whether the comparison would notice that it is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Assumption {
    /// The name of the choice: `trained tensors`, `loss`, `batch`.
    pub about: &'static str,
    /// The choice, and how it was made.
    pub says: String,
    /// Whether the other side makes this choice itself, so that it was compared.
    pub checked: bool,
}

impl fmt::Display for Assumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checked = if self.checked { "compared" } else { "not compared" };
        write!(f, "{:<17}{checked}: {}", self.about, visible(&self.says))
    }
}

/// Describes the number of trained tensors of the file, and the sources of their roles. `theirs` is the statement of `--against`'s file on the
/// set of trained tensors.
pub fn trained_tensors(reports: &[ParameterReport], theirs: Option<&TrainedThere>) -> Assumption {
    let (trained, others): (Vec<_>, Vec<_>) = reports.iter().partition(|report| is_trained(report));
    let total = reports.len();
    let mut says = format!("{} of the {total} float tensors that the model reads", trained.len());
    for (count, source) in counts(&trained) {
        says += &format!("; {count} by {source}");
    }
    if !others.is_empty() {
        let others: Vec<String> =
            counts(&others).into_iter().map(|(count, source)| format!("{count} by {source}")).collect();
        says += &format!("; not trained: {}", others.join(", "));
    }
    let is_found =
        |report: &&ParameterReport| matches!(report.claim, None | Some(Claim::Named | Claim::Literal));
    if trained.iter().copied().any(|report| is_found(&report)) {
        says +=
            "; the file does not list its parameters: a buffer that is used as a parameter is trained too";
    }
    let checked = theirs.is_some_and(|theirs| theirs.gradients > 0 && theirs.missing == 0);
    if let Some(theirs) = theirs.filter(|theirs| theirs.gradients > 0 && theirs.missing > 0) {
        says += &format!("; the file has no gradient for {} of the trained tensors", theirs.missing);
    }
    Assumption { about: "trained tensors", says, checked }
}

/// The statement of `--against`'s file on the set of trained tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainedThere {
    /// Gradients in the file.
    pub gradients: usize,
    /// Tensors that are trained here and have no gradient there.
    pub missing: usize,
}

fn is_trained(report: &ParameterReport) -> bool {
    report.role == RowRole::Parameter && !report.frozen
}

/// The number of tensors that have their role from each source.
fn counts(reports: &[&ParameterReport]) -> Vec<(usize, &'static str)> {
    let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
    for report in reports {
        *counts.entry(source(report)).or_default() += 1;
    }
    counts.into_iter().map(|(source, count)| (count, source)).collect()
}

/// The source of the role of a tensor, in words that follow "by".
pub fn source(report: &ParameterReport) -> &'static str {
    match report.claim {
        _ if report.frozen => "--freeze or --train-only",
        Some(Claim::Asked) => "--train-also",
        Some(Claim::Parameter | Claim::Buffer | Claim::Unlisted | Claim::Computed) => {
            "the exporter's list of parameters"
        }
        _ if report.tied.is_some() => "equal bytes with another parameter",
        _ if report.role == RowRole::Buffer => "use as a running statistic",
        Some(Claim::Named | Claim::Literal) => "their names and how the graph reads them",
        None => "how the graph reads them",
    }
}

/// The choices of a compilation. `theirs` is the statement of `--against`'s file on the set of trained tensors, whether its numbers follow
/// from the loss, and its name.
pub fn all(
    compilation: &Compilation,
    seed: u64,
    theirs: Option<(&TrainedThere, bool, &str)>,
) -> Vec<Assumption> {
    let Reports { parameters, loss: found, .. } = &compilation.reports;
    let trained = trained_tensors(parameters, theirs.map(|(trained, ..)| trained));
    let loss = loss(found.as_ref(), theirs.is_some_and(|(_, follows, _)| follows));
    vec![trained, loss, batch(seed, theirs.map(|(.., file)| file))]
}

/// Describes the loss, and the way in which it was recognised.
fn loss(found: Option<&LossReport>, checked: bool) -> Assumption {
    let says = found.map_or_else(|| "as printed by `compile`".to_owned(), |found| found.text.clone());
    Assumption { about: "loss", says, checked }
}

/// Describes the batch that both sides read.
fn batch(seed: u64, file: Option<&str>) -> Assumption {
    let says = match file {
        Some(file) => format!("that of {file}"),
        None => {
            format!("random numbers (--seed {seed}); your data may reach other parts of the model")
        }
    };
    Assumption { about: "batch", says, checked: file.is_some() }
}

/// The advice for a user who has compared a program only with the untransformed graph.
pub const ADVICE: &str = "\
the strongest check is --against, with numbers that scripts/reference.py computes for your PyTorch module (docs/verify.md)";
