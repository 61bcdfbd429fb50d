//! Builds the outputs that train and report a scalar: the parts of its classes ([`ir::Scalar`]).
//!
//! A floor or an epsilon that is not 0 is a constant output. A sum without a divisor has the weight 0 and the floor 1.

use super::prediction::{Prediction, labels};
use super::terms::{Addend, Class, Divisor, Objective};
use super::{Criterion, IGNORE_INDEX, Loss};
use ir::ops::Float;
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::loss::CrossEntropy;
use ir::{Builder, DType, Diagnostic, Scalar, ScalarPart, StepOutput, TypeError, ValueId};

/// The scalars of a class.
pub(super) struct Scalars {
    pub(super) sum: ValueId,
    pub(super) weight: ValueId,
    /// The smallest divisor, and the addend of the divisor; 0 for neither.
    pub(super) bounds: [f64; 2],
    /// The number of samples, if the sum and the weight are multiples of means over them.
    pub(super) count: Option<u64>,
}

impl Scalars {
    /// Returns the scalars of a sum that is divided by a weight.
    fn quotient(sum: ValueId, weight: ValueId) -> Self {
        Self { sum, weight, bounds: [0.0; 2], count: None }
    }
}

/// Builds the scalars of each class of an objective.
pub(super) fn objective(
    b: &mut Builder,
    objective: &Objective,
    batch: u64,
) -> Result<Vec<Scalars>, TypeError> {
    objective.classes.iter().map(|class| scalars(b, class, batch)).collect()
}

/// Adds the outputs of a scalar.
pub(super) fn add_outputs(b: &mut Builder, scalar: Scalar, classes: &[Scalars]) -> Result<(), TypeError> {
    for (class, Scalars { sum, weight, bounds, count }) in classes.iter().enumerate() {
        let output = |part| StepOutput::Part { scalar, class, part };
        b.tables().add_output(output(ScalarPart::Sum), *sum);
        b.tables().add_output(output(ScalarPart::Weight), *weight);
        let count = count.filter(|_| *bounds != [0.0; 2]).unwrap_or(0) as f64;
        let parts = [ScalarPart::Floor, ScalarPart::Epsilon, ScalarPart::Count];
        for (part, number) in parts.into_iter().zip([bounds[0], bounds[1], count]) {
            if number != 0.0 {
                let number = b.scalar(DType::F64, number)?;
                b.tables().add_output(output(part), number);
            }
        }
    }
    Ok(())
}

/// Adds the objective if there is a penalty: the first class's sum plus the penalty times its weight. Backward starts there instead of at
/// the sum. So the penalty of a microbatch counts as often as its labels.
pub(super) fn add_objective(b: &mut Builder, classes: &[Scalars]) -> Result<(), TypeError> {
    let penalty = b.module().step_output(StepOutput::Penalty).map(|output| output.value);
    let (Some(penalty), Some(Scalars { sum, weight, .. })) = (penalty, classes.first()) else {
        return Ok(());
    };
    let dtype = b.ty(*sum).dtype;
    let [penalty, weight] = [b.cast(penalty, dtype)?, b.cast(*weight, dtype)?];
    let objective = b.build(*sum + penalty * weight)?;
    let name = StepOutput::Penalty.to_string();
    b.tables().outputs.retain(|output| output.name != name);
    b.tables().add_output(StepOutput::Objective, objective);
    Ok(())
}

fn scalars(b: &mut Builder, class: &Class, batch: u64) -> Result<Scalars, TypeError> {
    let mut sum = None;
    for addend in &class.addends {
        let addend = self::addend(b, addend)?;
        sum = Some(match sum {
            None => addend,
            Some(sum) => b.build(sum + addend)?,
        });
    }
    let sum = sum.ok_or_else(|| TypeError::new("a loss has at least one term"))?;
    match &class.divisor {
        Divisor::Samples => {
            let sum = if batch == 1 { sum } else { b.build(sum * batch as f64)? };
            Ok(Scalars::quotient(sum, b.splat_like(sum, batch as f64)?))
        }
        Divisor::One => Ok(Scalars { sum, weight: b.splat_like(sum, 0.0)?, bounds: [1.0, 0.0], count: None }),
        Divisor::Weight(weight) => {
            let bounds = [weight.floor.unwrap_or(0.0), weight.epsilon];
            let value = scalar(b, weight.value)?;
            if !weight.is_mean {
                return Ok(Scalars { sum, weight: value, bounds, count: None });
            }
            let [sum, weight] = [b.build(sum * batch as f64)?, b.build(value * batch as f64)?];
            Ok(Scalars { sum, weight, bounds, count: Some(batch) })
        }
    }
}

/// Builds a term as a scalar of at least 32 bits.
fn addend(b: &mut Builder, addend: &Addend) -> Result<ValueId, TypeError> {
    let mut value = scalar(b, addend.value)?;
    for factor in &addend.factors {
        let by = scalar(b, factor.value)?;
        let by = b.cast(by, b.ty(value).dtype)?;
        value = b.one(if factor.divides { Binary::Div } else { Binary::Mul }, &[value, by])?;
    }
    if addend.coefficient == 1.0 { Ok(value) } else { b.build(value * addend.coefficient) }
}

fn scalar(b: &mut Builder, value: ValueId) -> Result<ValueId, TypeError> {
    let value = b.reshape(value, [])?;
    let dtype = b.ty(value).dtype;
    if matches!(dtype, DType::F32 | DType::F64) { Ok(value) } else { b.cast(value, DType::F32) }
}

/// Builds the loss of a prediction with labels, which has one class.
pub(super) fn criterion(
    b: &mut Builder,
    options: &Loss,
    criterion: Criterion,
    prediction: &Prediction,
) -> Result<Scalars, Diagnostic> {
    match criterion {
        Criterion::CrossEntropy => cross_entropy(b, options, prediction.value),
        Criterion::Mse | Criterion::Bce => {
            let x = prediction.value;
            let dims = b.ty(x).dims.clone();
            let y = labels(b, x, b.ty(x).dtype, dims)?;
            let each = match criterion {
                Criterion::Mse => squares(b, x, y)?,
                _ => binary_cross_entropies(b, x, y)?,
            };
            let all: Vec<u32> = (0..b.ty(each).ndim() as u32).collect();
            let count = b.ty(each).numel().unwrap_or(1);
            let sum = b.sum(each, &all)?;
            let sum = scalar(b, sum)?;
            Ok(Scalars::quotient(sum, b.splat_like(sum, count as f64)?))
        }
    }
}

fn cross_entropy(b: &mut Builder, options: &Loss, logits: ValueId) -> Result<Scalars, Diagnostic> {
    let mut dims = b.ty(logits).dims.clone();
    dims.pop();
    let labels = labels(b, logits, DType::I64, dims)?;
    let ignore_index = options.ignore_index.unwrap_or(IGNORE_INDEX);
    let smoothed =
        |label_smoothing| CrossEntropy { ignore_index, label_smoothing: Float::new(label_smoothing) };
    let results = b.push(smoothed(options.label_smoothing), &[logits, labels])?;
    let scalars = Scalars::quotient(results[0], results[1]);
    if options.label_smoothing != 0.0 {
        let plain = b.push(smoothed(0.0), &[logits, labels])?[0];
        b.tables().add_output(StepOutput::UnsmoothedSum, plain);
    }
    Ok(scalars)
}

fn squares(b: &mut Builder, x: ValueId, y: ValueId) -> Result<ValueId, TypeError> {
    let difference = b.build(x - y)?;
    b.build(difference * difference)
}

/// Builds `max(x, 0) - x·y + ln(1 + e^-|x|)`, which does not overflow.
fn binary_cross_entropies(b: &mut Builder, x: ValueId, y: ValueId) -> Result<ValueId, TypeError> {
    b.build(Unary::Relu.of(x) - x * y + Unary::Log.of(Unary::Exp.of(-Unary::Abs.of(x)) + 1.0))
}
