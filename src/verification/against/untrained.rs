//! Tensors that have a gradient in the file of `--against` and are not trained here.
//!
//! Such a tensor is the mistake that no other comparison finds: the program is right, and trains less than the module's
//! author meant. A tensor without a gradient there, or with one of zeros, is trained by neither side.

use super::matching::{self, Ours, Theirs};
use crate::verification::Subject;
use crate::verification::rounding::unit;
use ir::Tensor;
use ir::relative_error::largest;
use passes::reports::RowRole;
use serde::Serialize;

/// A tensor that has a gradient there and is not trained here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Untrained {
    /// Its name there.
    pub there: String,
    /// The reason why it is not trained here, and a remedy.
    pub why: String,
    /// Whether the verification fails, because the user did not exclude the tensor from training.
    pub fails: bool,
}

/// Whether a gradient is zero except for the rounding of the file's numbers.
pub fn is_zero(gradient: &Tensor, largest_of_all: f64) -> bool {
    largest([gradient]) <= 8.0 * unit(gradient.dtype) * largest_of_all
}

/// Explains why tensors with a gradient there are not trained here.
pub(super) fn explain(subject: &Subject, trained: &[Ours], theirs: &[Theirs]) -> Vec<Untrained> {
    let (reasons, others): (Vec<Reason>, Vec<Ours>) = not_trained(subject).into_iter().unzip();
    let found = matching::find(&others, theirs);
    let explain = |(index, theirs): (usize, &Theirs)| {
        let there = theirs.name.to_owned();
        match found.iter().find(|found| found.theirs == index).map(|found| &reasons[found.ours]) {
            Some(Reason { why, asked_for }) => Untrained { there, why: why.clone(), fails: !asked_for },
            None => Untrained { there, why: lost(trained, theirs), fails: true },
        }
    };
    theirs.iter().enumerate().map(explain).collect()
}

/// The reason why a tensor of the model's file is not trained.
struct Reason {
    why: String,
    /// Whether the user asked for it.
    asked_for: bool,
}

/// The float tensors of the model's file that are not trained, with their values.
fn not_trained(subject: &Subject) -> Vec<(Reason, Ours)> {
    let compilation = &subject.compilation;
    let rows = compilation.forward.data.values().filter(|row| row.ty.dtype.is_float());
    let not_trained = |row: &ir::Data| {
        let name = &row.name;
        let report = compilation.reports.parameters.iter().find(|report| report.data == *name);
        let why = match report {
            Some(report) if report.frozen => {
                format!("is `{name}`, which --freeze or --train-only excludes from training")
            }
            Some(report) if report.role == RowRole::Parameter => return None,
            Some(report) => format!("is `{name}`, which is treated as a constant: {}", report.reason),
            None => format!("is `{name}` {}, which is treated as a constant", row.ty),
        };
        let aliases = report.into_iter().flat_map(|report| report.aliases.iter().cloned());
        let ours = Ours {
            names: std::iter::once(name.clone()).chain(aliases).collect(),
            value: ir::interp::file_tensor(row)?,
        };
        Some((Reason { why, asked_for: report.is_some_and(|report| report.frozen) }, ours))
    };
    rows.filter_map(not_trained).collect()
}

/// The reason why the model's file has no such tensor.
fn lost(trained: &[Ours], theirs: &Theirs) -> String {
    let equal = |ours: &&Ours| {
        let value = theirs.value.filter(|value| value.sizes == ours.value.sizes);
        value.is_some_and(|value| {
            Tensor { dtype: ours.value.dtype, ..value.clone() }.rounded().numbers() == ours.value.numbers()
        })
    };
    match trained.iter().find(equal) {
        Some(ours) => format!(
            "has the values of `{}`: the exporter merged the two tensors; export with optimize=False",
            ours.names[0]
        ),
        None => {
            "is not in the model's file: the exporter folded it into a constant, or left it out; export with \
             optimize=False"
                .to_owned()
        }
    }
}
