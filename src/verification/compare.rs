//! Compares two executions of a step, number by number.
//!
//! The error of a tensor is `max|a - b| / max(max|b|, floor)`. Without the floor, a tensor that is zero except for rounding would have a large
//! error. The floor of a gradient is 1e-4 of the largest gradient of all parameters. The floors of new parameters and of the optimizer's states
//! are the same share of the largest number of their kind. The floor of outputs and scalars is 1e-4. An error fails if it is above the
//! tolerance and rounding alone does not explain it.

use super::execute::{Execution, Tensors};
use super::layout::{FileTensor, Layout, StatePart};
use ir::interp::StepOutputs;
use ir::relative_error::{largest, relative_error};
use ir::{Scalar, ScalarPart, StepOutput, Tensor};
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;

/// The kind of a compared value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An output of the model.
    Output,
    /// The loss of a microbatch or of the step.
    Loss,
    /// The gradient of a tensor.
    Gradient,
    /// The global norm of the gradients, or the learning rate.
    Scalar,
    /// The value of a tensor after the step, or before it with `--against`.
    Parameter,
    /// A state of the optimizer, or another state of the program.
    Optimizer,
    /// A part of the loss that an evaluation computes.
    Evaluation,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Output => "output",
            Self::Loss => "loss",
            Self::Gradient => "gradient",
            Self::Scalar => "scalar",
            Self::Parameter => "parameter",
            Self::Optimizer => "optimizer",
            Self::Evaluation => "evaluation",
        })
    }
}

/// The difference of one value between two executions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The kind of the value.
    pub kind: Kind,
    /// Its name. A tensor has its name in the file.
    pub name: String,
    /// Its error. It is infinite if shapes differ, if one side lacks the value, or if a number is not finite on one side only. It is NaN if
    /// the numbers are equal, but some are NaN on both sides, and so were not compared. JSON has `null` for infinity and NaN.
    #[serde(serialize_with = "finite")]
    pub error: f64,
    /// The largest expected number, relative to the denominator of the error.
    #[serde(skip)]
    pub size: f64,
    /// The error that rounding alone makes in the untransformed graph, where it was measured (see `rounding.rs`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounding: Option<RoundingError>,
}

/// The error that rounding alone makes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RoundingError {
    /// The largest error of all samples.
    pub error: f64,
    /// Whether the error is larger than the exact numbers, so that these are zero except for rounding.
    pub is_all: bool,
}

impl RoundingError {
    /// The largest error that rounding explains: 4 times the measured error. Numbers that are zero except for rounding depend on the order of
    /// sums, and the interpreter's sums are exact. For these numbers it is 64 times.
    pub fn explains(self) -> f64 {
        let factor = if self.is_all { 64.0 } else { 4.0 };
        if self.error.is_finite() { factor * self.error } else { 0.0 }
    }
}

impl Difference {
    /// Makes a difference for which rounding was not measured.
    pub fn new(kind: Kind, name: impl Into<String>, error: f64) -> Self {
        Self { kind, name: name.into(), error, size: 1.0, rounding: None }
    }

    /// Whether some numbers are NaN on both sides, and the other numbers are equal.
    pub fn is_not_compared(&self) -> bool {
        self.error.is_nan()
    }

    /// Whether the error is not within the tolerance, explained by rounding or not.
    pub fn is_above(&self, tolerance: f64) -> bool {
        self.error > tolerance || self.is_not_compared() && self.kind != Kind::Output
    }

    /// Whether the error is above the tolerance, and above the error that rounding explains. An output may have NaN on both sides: the
    /// model's own mean over labels has it in a microbatch in which no label counts. The loss and the gradients may not.
    pub fn fails(&self, tolerance: f64) -> bool {
        if self.is_not_compared() && self.kind == Kind::Output {
            return false;
        }
        let explained = self.rounding.map_or(0.0, RoundingError::explains);
        self.error.is_nan() || self.error > tolerance.max(explained)
    }
}

fn finite<S: Serializer>(error: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    error.is_finite().then_some(error).serialize(serializer)
}

/// The floor of errors, as a share of the largest number of a kind.
pub const FLOOR: f64 = 1e-4;

/// Returns the largest of some errors. NaN is above all numbers except infinity.
fn largest_error(errors: impl Iterator<Item = f64>) -> f64 {
    let (mut largest, mut nothing) = (0.0f64, false);
    for error in errors {
        nothing |= error.is_nan();
        largest = largest.max(error);
    }
    if nothing && largest.is_finite() { f64::NAN } else { largest }
}

/// Compares all outputs and states of a step. The largest error comes first. `layout` has the places of the states of `tested` in the tensors
/// of the file. The states of `reference` are these tensors.
pub fn compare(tested: &Execution, layout: &Layout, reference: &Execution) -> Vec<Difference> {
    let mut differences = outputs(tested, reference);
    let (ours, theirs) = (tested.gradients(), reference.gradients());
    parts(&mut differences, Kind::Gradient, layout, (StepOutput::GRADIENT, ""), (&ours, &theirs));
    let (ours, theirs) = (&tested.states, &reference.states);
    parts(&mut differences, Kind::Parameter, layout, ("", ""), (ours, theirs));
    for (prefix, suffix) in slots(theirs) {
        parts(&mut differences, Kind::Optimizer, layout, (&prefix, suffix), (ours, theirs));
    }
    let is_tensor =
        |name: &str| name.ends_with(')') || layout.tensors.iter().any(|tensor| tensor.name == name);
    for (name, value) in theirs.iter().filter(|(name, _)| !is_tensor(name)) {
        let error = ours.get(name).map_or(f64::INFINITY, |ours| relative_error(ours, value, FLOOR));
        differences.push(Difference::new(Kind::Optimizer, name, error));
    }
    sort(&mut differences);
    differences
}

/// Sorts differences, the largest error first.
pub fn sort(differences: &mut [Difference]) {
    differences
        .sort_by(|a, b| b.error.total_cmp(&a.error).then_with(|| (a.kind, &a.name).cmp(&(b.kind, &b.name))));
}

/// Compares all outputs except the gradients, which may be those of parts of tensors.
fn outputs(tested: &Execution, reference: &Execution) -> Vec<Difference> {
    let mut differences = Vec::new();
    let names = |outputs: &StepOutputs| -> Vec<String> {
        outputs.keys().filter(|name| is_class(name)).cloned().collect()
    };
    let (ours, theirs) = (names(&tested.outputs), names(&reference.outputs));
    // Two programs may divide a scalar into different parts. Then only the whole scalar is compared.
    let skipped = |name: &str| StepOutput::gradient_of(name).is_some() || ours != theirs && is_class(name);
    for (name, expected) in reference.outputs.iter().filter(|(name, _)| !skipped(name)) {
        let kind = match StepOutput::of(name) {
            Some(StepOutput::Loss) => Kind::Loss,
            Some(StepOutput::Part { scalar: Scalar::Loss, class: 0, part }) => match part {
                ScalarPart::Sum | ScalarPart::Weight => Kind::Loss,
                ScalarPart::Floor | ScalarPart::Epsilon | ScalarPart::Count => Kind::Output,
            },
            Some(StepOutput::LearningRate | StepOutput::GradientNorm) => Kind::Scalar,
            Some(
                StepOutput::Gradient(_)
                | StepOutput::Part { .. }
                | StepOutput::UnsmoothedSum
                | StepOutput::Penalty
                | StepOutput::Objective
                | StepOutput::Metric(_)
                | StepOutput::Load(_)
                | StepOutput::Skipped
                | StepOutput::LossScale
                | StepOutput::ScaleExhausted,
            )
            | None => Kind::Output,
        };
        let given = tested.outputs.get(name).filter(|given| given.len() == expected.len());
        let error = given.map_or(f64::INFINITY, |given| {
            let errors =
                given.iter().zip(expected).map(|(given, expected)| relative_error(given, expected, FLOOR));
            largest_error(errors)
        });
        differences.push(Difference::new(kind, name, error));
    }
    differences
}

/// Whether an output is a part of a scalar.
fn is_class(name: &str) -> bool {
    matches!(StepOutput::of(name), Some(StepOutput::Part { .. }))
}

/// The prefixes and suffixes of the names of an optimizer's states: `adam.m(` and `)` around the name of a parameter.
fn slots(states: &Tensors) -> BTreeSet<(String, &'static str)> {
    let slot = |name: &String| Some((format!("{}(", name.strip_suffix(')')?.split_once('(')?.0), ")"));
    states.keys().filter_map(slot).collect()
}

/// Compares a value of each trained tensor, part by part, as the states of the tested program hold it.
fn parts(
    differences: &mut Vec<Difference>,
    kind: Kind,
    layout: &Layout,
    (prefix, suffix): (&str, &str),
    (ours, theirs): (&Tensors, &Tensors),
) {
    let key = |name: &str| format!("{prefix}{name}{suffix}");
    let expected = |name: &str| theirs.get(&key(name));
    let floor = FLOOR * largest(layout.tensors.iter().filter_map(|tensor| expected(&tensor.name)));
    for tensor in &layout.tensors {
        let given: Vec<Option<&Tensor>> =
            tensor.parts.iter().map(|part| ours.get(&key(&part.state))).collect();
        let name = if kind == Kind::Gradient { tensor.name.clone() } else { key(&tensor.name) };
        let (error, size) = match expected(&tensor.name) {
            Some(whole) => {
                // The largest number, relative to the denominator of the error.
                let size = largest([whole]);
                let size = if size > 0.0 { size / size.max(floor) } else { 0.0 };
                (tensor_error(kind, tensor, &given, whole, floor), size)
            }
            None if given.iter().all(Option::is_none) => continue,
            None => (f64::INFINITY, 1.0),
        };
        differences.push(Difference { size, ..Difference::new(kind, name, error) });
    }
}

/// The error of a tensor, given its parts.
fn tensor_error(
    kind: Kind,
    tensor: &FileTensor,
    given: &[Option<&Tensor>],
    whole: &Tensor,
    floor: f64,
) -> f64 {
    let cut = |(part, given): (&StatePart, &Option<&Tensor>)| match given {
        _ if kind == Kind::Gradient => part.gradient(whole),
        Some(given) => part.cut_to(&given.sizes, whole),
        None => part.cut(whole),
    };
    let Some(cuts) = tensor.parts.iter().zip(given).map(cut).collect::<Option<Vec<Tensor>>>() else {
        return f64::INFINITY;
    };
    let floor = floor.max(largest(&cuts));
    let errors = given.iter().zip(&cuts).map(|(given, expected)| match given {
        Some(given) => relative_error(given, expected, floor),
        // A part on which the loss does not depend has no gradient.
        None if kind == Kind::Gradient => {
            relative_error(&Tensor::splat(expected.dtype, expected.sizes.clone(), 0.0), expected, floor)
        }
        None => f64::INFINITY,
    });
    largest_error(errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_explains_errors_of_its_size_and_no_infinite_one() {
        let fails = |error, rounding: Option<(f64, bool)>| {
            let rounding = rounding.map(|(error, is_all)| RoundingError { error, is_all });
            Difference { rounding, ..Difference::new(Kind::Gradient, "w", error) }.fails(1e-5)
        };
        assert!(!fails(1e-6, None) && fails(1e-4, None));
        assert!(!fails(3.9e-4, Some((1e-4, false))) && fails(4.1e-4, Some((1e-4, false))));
        assert!(!fails(6.3e-3, Some((1e-4, true))) && fails(6.5e-3, Some((1e-4, true))));
        assert!(fails(f64::INFINITY, Some((1.0, true))) && fails(f64::INFINITY, Some((f64::INFINITY, true))));
        assert!(fails(f64::NAN, Some((1.0, true))) && fails(1.0, Some((f64::INFINITY, true))));
    }
}
