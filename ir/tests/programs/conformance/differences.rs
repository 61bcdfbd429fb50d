//! Compares gradients with central finite differences, in f64.

use super::{Check, interp};
use ir::interp::{Mode, StateValues, step};
use ir::ops::{GradientError, Gradients, NodeRef};
use ir::samples::Sample;
use ir::{Builder, Module, Op, Tensor, Type, ValueId};
use std::collections::BTreeMap;

/// A function that builds a gradient: [`ir::Operator::gradient`], or a wrong one.
pub(crate) type Rule<'a> = &'a dyn Fn(&Op, &mut Builder, NodeRef, &[Option<ValueId>]) -> Gradients;

/// Half the distance between the two points of a difference.
const STEP: f64 = 1e-5;
/// The most elements of an operand that are checked.
const ELEMENTS: usize = 200;

/// Checks the gradient of `Σ weight · result`, over the results that have a gradient, in every float operand.
pub(crate) fn check(sample: &Sample, rule: Rule) -> Check {
    let operands = sample.fill(1);
    let results = sample.result_types().map_err(|error| error.to_string())?;
    let weights: Vec<Option<Tensor>> =
        results.iter().enumerate().map(|(i, ty)| weight(sample, i, ty)).collect();
    let built = match build(sample, &operands, &weights, rule) {
        Err(GradientError::Undefined(_)) if !sample.differentiable => return Ok(()),
        Ok(_) if !sample.differentiable => return Err("it has a gradient, the table says it has none".into()),
        result => result.map_err(|error| error.to_string())?,
    };
    for &statistic in &sample.statistics {
        let mut all = weights.clone();
        all[statistic] = Some(random(&results[statistic], 7));
        if build(sample, &operands, &all, rule).is_ok() {
            return Err(format!("a gradient through result {statistic} is built, and ignored"));
        }
    }
    if !sample.smooth {
        return Ok(());
    }
    for (i, gradient) in built.iter().enumerate() {
        match gradient {
            Some(gradient) if !gradient.ty().same_shape(&sample.operands[i].ty) => {
                return Err(format!(
                    "that of operand {i} is {}, not {}",
                    gradient.ty(),
                    sample.operands[i].ty
                ));
            }
            _ if !operands[i].dtype.is_float() => {
                if gradient.is_some() {
                    return Err(format!("operand {i} is not a float and has one"));
                }
            }
            _ => compare(i, gradient.as_ref(), &differences(sample, &operands, &weights, &results, i))?,
        }
    }
    Ok(())
}

/// Whether a float operand has a nonzero gradient according to finite differences.
pub(crate) fn has_gradient(sample: &Sample) -> bool {
    let operands = sample.fill(1);
    let results = sample.result_types().expect("samples are well-typed");
    let weights: Vec<Option<Tensor>> =
        results.iter().enumerate().map(|(i, ty)| weight(sample, i, ty)).collect();
    let trained = |i: &usize| operands[*i].dtype.is_float();
    (0..operands.len()).filter(trained).any(|i| {
        let differences = differences(sample, &operands, &weights, &results, i);
        differences.iter().any(|(_, difference)| difference.abs() > 1e-6)
    })
}

/// Returns the weight of a result in the differentiated sum; `None` for results without a gradient.
fn weight(sample: &Sample, result: usize, ty: &Type) -> Option<Tensor> {
    let trained = ty.dtype.is_float() && !sample.statistics.contains(&result);
    trained.then(|| random(ty, 100 + result as u64))
}

fn random(ty: &Type, stream: u64) -> Tensor {
    let sizes: Vec<usize> = ty.sizes().expect("bound").into_iter().map(|size| size as usize).collect();
    let len = sizes.iter().product::<usize>();
    Tensor::float(ty.dtype, sizes, (0..len).map(|i| ir::random::normal(3, stream, i as u64)).collect())
}

/// Evaluates the gradients that the rule builds.
fn build(
    sample: &Sample,
    operands: &[Tensor],
    weights: &[Option<Tensor>],
    rule: Rule,
) -> Result<Vec<Option<Tensor>>, GradientError> {
    let mut module = Module::new("sample");
    module.data = sample.data.clone();
    let mut feed = BTreeMap::new();
    let mut input = |module: &mut Module, name: String, tensor: &Tensor| {
        feed.insert(name.clone(), tensor.clone());
        module.add_input(name, tensor.ty(), false)
    };
    let inputs: Vec<ValueId> =
        operands.iter().enumerate().map(|(i, x)| input(&mut module, format!("operand.{i}"), x)).collect();
    let d: Vec<Option<ValueId>> = (0..weights.len())
        .map(|i| weights[i].as_ref().map(|weight| input(&mut module, format!("weight.{i}"), weight)))
        .collect();
    let mut b = Builder::new(&mut module, "test");
    let results = b.push_typed(sample.op.clone(), &inputs, &sample.declared)?;
    let gradients = rule(&sample.op, &mut b, NodeRef { operands: &inputs, results: &results }, &d)?;
    assert_eq!(gradients.len(), inputs.len(), "a gradient, or none, for each operand");
    b.finish();
    for (i, gradient) in gradients.iter().enumerate() {
        if let Some(value) = gradient {
            module.add_output(format!("gradient.{i}"), *value);
        }
    }
    let outputs = step(&module, Mode::Exact, &mut StateValues::new(), &[feed]).expect("the module runs");
    Ok((0..inputs.len())
        .map(|i| outputs.get(&format!("gradient.{i}")).map(|tensors| tensors[0].clone()))
        .collect())
}

/// Returns the derivatives of the weighted sum in elements of an operand: (element, derivative).
fn differences(
    sample: &Sample,
    operands: &[Tensor],
    weights: &[Option<Tensor>],
    results: &[Type],
    operand: usize,
) -> Vec<(usize, f64)> {
    let sum = |operands: &[Tensor]| -> f64 {
        let dot = |(result, weight): (Tensor, &Option<Tensor>)| match weight {
            Some(weight) => result.floats().iter().zip(weight.floats()).map(|(x, w)| x * w).sum(),
            None => 0.0,
        };
        interp(sample, operands, results).into_iter().zip(weights).map(dot).sum()
    };
    let elements = operands[operand].floats();
    let moved = |i: usize, by: f64| {
        let mut moved = operands.to_vec();
        let mut elements = elements.to_vec();
        elements[i] += by;
        moved[operand] = Tensor::float(moved[operand].dtype, moved[operand].sizes.clone(), elements);
        sum(&moved)
    };
    let every = elements.len().div_ceil(ELEMENTS).max(1);
    let derivative = |i| (moved(i, STEP) - moved(i, -STEP)) / (2.0 * STEP);
    (0..elements.len()).step_by(every).map(|i| (i, derivative(i))).collect()
}

fn compare(operand: usize, gradient: Option<&Tensor>, differences: &[(usize, f64)]) -> Check {
    let largest = differences.iter().fold(0.0, |m: f64, (_, x)| m.max(x.abs()));
    for &(i, difference) in differences {
        let built = gradient.map_or(0.0, |gradient| gradient.floats()[i]);
        let error = (built - difference).abs();
        if error.is_nan() || error > 1e-6 * (1.0 + largest) {
            return Err(format!("operand {operand}, element {i}: {built}, but by differences {difference}"));
        }
    }
    Ok(())
}
