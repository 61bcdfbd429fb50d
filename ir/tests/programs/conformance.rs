//! Checks every operator against its own declarations: types, gradient, sharding rule, attributes.
//!
//! The checks take the declaration as an argument, so the tests below can also pass a wrong declaration and check that it is
//! caught.

mod composed;
mod differences;
mod hostile;
mod operands;
mod padding;
mod partition;
mod position;
mod splitting;

use ir::factors::{FactorKind, Factors};
use ir::ops::{GradientError, Interp};
use ir::samples::{Sample, samples};
use ir::tensor::Elements;
use ir::{Builder, Dim, Op, Operator, PartialKind, Signature, Tensor, Type, ValueId};
use std::collections::BTreeSet;

/// The result of a check: the fault, if there is one.
type Check = Result<(), String>;

#[test]
fn every_operator_does_what_it_declares() {
    let samples = samples();
    let sampled: BTreeSet<&str> = samples.iter().map(|sample| sample.op.name()).collect();
    let missing: Vec<&str> = Op::names().into_iter().filter(|name| !sampled.contains(name)).collect();
    assert!(missing.is_empty(), "operators without a sample in ir/samples: {missing:?}");
    let mut failures = operands::check_numbers(&samples);
    for sample in &samples {
        let checks = [
            ("operands", operands::check(&sample.op.operands(), sample)),
            ("types", types(sample, &sample.result_types().expect("samples are well-typed"))),
            ("attributes", attributes(sample)),
            ("gradient", differences::check(sample, &Operator::gradient)),
            ("factors", splitting::check(sample, &sample.op.factors(&signature(sample)))),
            ("zeros", padding::check(sample, &sample.op.factors(&signature(sample)))),
            ("position", position::check(sample, sample.op.depends_on_position())),
        ];
        let failed = checks.into_iter().filter_map(|(name, result)| Some((name, result.err()?)));
        failures.extend(failed.map(|(name, message)| format!("{name} of {}: {message}", describe(sample))));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Returns the operator with its attributes and types as text.
fn describe(sample: &Sample) -> String {
    let types: Vec<String> = sample.operand_types().iter().map(Type::to_string).collect();
    format!("{:?} on {}", sample.op, types.join(", "))
}

fn signature(sample: &Sample) -> Signature {
    let results = sample.result_types().expect("samples are well-typed");
    Signature { operands: sample.operand_types(), results }
}

fn interp(sample: &Sample, operands: &[Tensor], results: &[Type]) -> Vec<Tensor> {
    let operands: Vec<&Tensor> = operands.iter().collect();
    sample.op.interp(&Interp { operands: &operands, results, data: &sample.data, parts: None })
}

/// Checks that the results of `interp` have the types that `infer` declares, and the sizes that the operands' factors give.
fn types(sample: &Sample, declared: &[Type]) -> Check {
    let signature = Signature { operands: sample.operand_types(), results: declared.to_vec() };
    splitting::covers(&sample.op.factors(&signature), &signature)?;
    let results = interp(sample, &sample.fill(1), declared);
    if results.len() != declared.len() {
        return Err(format!("{} results, declared are {}", results.len(), declared.len()));
    }
    for (result, declared) in results.iter().zip(declared) {
        let (kind, len) = match &result.elements {
            Elements::Float(elements) => (declared.dtype.is_float(), elements.len()),
            Elements::Int(elements) => (declared.dtype.is_integer(), elements.len()),
            Elements::Bool(elements) => (declared.dtype == ir::DType::Bool, elements.len()),
        };
        if !kind || !result.ty().same_shape(declared) || declared.numel() != Some(len as u64) {
            return Err(format!("interp gives {}, infer {declared}", result.ty()));
        }
    }
    Ok(())
}

/// Checks that the attributes can be printed and parsed back.
fn attributes(sample: &Sample) -> Check {
    let text: Vec<(String, String)> =
        sample.op.attributes().into_iter().map(|(name, text)| (name.to_string(), text)).collect();
    match Op::parse(sample.op.name(), &text) {
        Ok(parsed) if parsed == sample.op => Ok(()),
        Ok(parsed) => Err(format!("{text:?} parses as {parsed:?}")),
        Err(error) => Err(error),
    }
}

/// Whether two tensors are equal up to rounding; NaN equals NaN.
fn close(left: &Tensor, right: &Tensor) -> bool {
    let (Elements::Float(a), Elements::Float(b)) = (&left.elements, &right.elements) else {
        return left == right;
    };
    let largest = b.iter().filter(|x| x.is_finite()).fold(1.0, |m: f64, x| m.max(x.abs()));
    let equal =
        |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-12 * largest;
    left.sizes == right.sizes && a.iter().zip(b).all(equal)
}

/// Returns the first sample of an operator.
fn sample_of(name: &str) -> Sample {
    samples().into_iter().find(|sample| sample.op.name() == name).expect("every operator has a sample")
}

#[test]
fn every_result_type_with_a_wrong_dim_is_caught() {
    check_all_caught("result dims doubled", &[], |sample| {
        let inferred = sample.result_types().expect("samples are well-typed");
        let dims = inferred.iter().enumerate().flat_map(|(i, ty)| (0..ty.ndim()).map(move |dim| (i, dim)));
        let doubled = |(i, dim): (usize, usize)| {
            let mut wrong = inferred.clone();
            wrong[i].dims[dim] = wrong[i].dims[dim].product(&Dim::known(2)).expect("samples are small");
            // `interp` may also panic, if no factor gives the size of the dim (concat).
            std::panic::catch_unwind(|| types(sample, &wrong)).unwrap_or(Err("interp stopped".into()))
        };
        let results: Vec<Check> = dims.filter(|_| sample.declared.is_empty()).map(doubled).collect();
        all(results)
    });
}

#[test]
fn every_gradient_that_is_wrong_by_a_factor_is_caught() {
    let scaled = |op: &Op, b: &mut Builder, node: ir::NodeRef, d: &[Option<ValueId>]| {
        let gradients = op.gradient(b, node, d)?;
        let scale = |x: Option<ValueId>| x.map(|x| b.build(x * 1.001)).transpose();
        gradients.into_iter().map(scale).collect::<Result<Vec<_>, _>>().map_err(GradientError::from)
    };
    // A gradient that does not exist, or is all zeros, cannot be scaled.
    check_all_caught("gradients scaled by 1.001", &["constant", "splat", "iota"], |sample| {
        let checked = sample.differentiable && sample.smooth && differences::has_gradient(sample);
        checked.then(|| differences::check(sample, &scaled))
    });
}

#[test]
fn every_gradient_that_is_forgotten_is_caught() {
    let forgotten = |_: &Op, _: &mut Builder, node: ir::NodeRef, _: &[Option<ValueId>]| {
        Ok(vec![None; node.operands.len()])
    };
    check_all_caught("forgotten gradients", &[], |sample| {
        let checked = sample.differentiable && sample.smooth && differences::has_gradient(sample);
        checked.then(|| differences::check(sample, &forgotten))
    });
}

#[test]
fn a_gradient_that_must_not_be_built_is_caught_when_it_is() {
    let zeros = |_: &Op, b: &mut Builder, node: ir::NodeRef, _: &[Option<ValueId>]| {
        let zero = |&x: &ValueId| Ok(Some(b.splat(b.ty(x).clone(), 0.0)?));
        node.operands.iter().map(zero).collect()
    };
    for name in ["softmax_grad", "adam", "attention_grad", "layer_norm_grad"] {
        assert!(differences::check(&sample_of(name), &zeros).is_err(), "{name}");
    }
}

#[test]
fn every_factor_that_is_wrongly_split_is_caught() {
    check_all_caught("whole factors split", &[], |sample| {
        let declared = sample.op.factors(&signature(sample));
        let kept = |kind| matches!(kind, FactorKind::Whole | FactorKind::Custom);
        let whole = |i: &usize| kept(declared.factors[*i].kind) && even(&declared, *i);
        let split = |i: usize| {
            let mut wrong = declared.clone();
            wrong.factors[i].kind = FactorKind::Free;
            splitting::check(sample, &wrong)
        };
        let results: Vec<Check> = (0..declared.factors.len()).filter(whole).map(split).collect();
        (!results.is_empty())
            .then(|| results.into_iter().find(Result::is_ok).unwrap_or(Err("all caught".into())))
    });
}

/// Returns the samples with a factor that a partition rule splits.
fn partitioned() -> Vec<(Sample, Factors, u32)> {
    let custom = |sample: Sample| {
        let factors = sample.op.factors(&signature(&sample));
        let factor = factors.factors.iter().position(|factor| factor.kind == FactorKind::Custom)?;
        Some((sample, factors, factor as u32))
    };
    samples().into_iter().filter_map(custom).collect()
}

#[test]
fn a_partition_rule_that_is_wrong_is_caught() {
    let scaled = |op: &Op, b: &mut Builder, node: ir::NodeRef| {
        let mut results = op.partition(b, node)?;
        results[0] = b.build(results[0] * 1.001)?;
        Ok(results)
    };
    let the_same =
        |op: &Op, b: &mut Builder, node: ir::NodeRef| Ok(b.push(op.clone(), node.operands)?.to_vec());
    let partitioned = partitioned();
    assert!(partitioned.len() >= 10, "{}", partitioned.len());
    for (sample, factors, factor) in partitioned {
        for (message, rule) in [("differs", &scaled as partition::Rule), ("has the factor as one", &the_same)]
        {
            let error = partition::check(&sample, &factors, factor, rule).expect_err(&describe(&sample));
            assert!(error.contains(message), "{}: {error}", describe(&sample));
        }
    }
}

#[test]
fn a_part_that_does_not_know_its_place_is_caught() {
    let mut caught = 0;
    for name in [
        "iota",
        "constant",
        "dropout",
        "random_uniform",
        "gather_grad",
        "attention",
        "attention_grad",
        "cross_entropy_grad",
        "scatter_elements",
    ] {
        for sample in samples().into_iter().filter(|sample| sample.op.name() == name) {
            let factors = sample.op.factors(&signature(&sample));
            caught += usize::from(splitting::check_blindly(&sample, &factors).is_err());
        }
    }
    assert!(caught >= 8, "only {caught} samples depend on where their parts lie");
}

#[test]
fn every_dependence_on_a_position_that_is_forgotten_is_caught() {
    let dependent: Vec<Sample> =
        samples().into_iter().filter(|sample| sample.op.depends_on_position()).collect();
    let names: BTreeSet<&str> = dependent.iter().map(|sample| sample.op.name()).collect();
    // Dropout without sample numbers keeps every element at every place; another sample of dropout shows the dependence.
    let caught = dependent.iter().filter(|sample| position::check(sample, false).is_err());
    assert_eq!(caught.map(|sample| sample.op.name()).collect::<BTreeSet<_>>(), names);
    assert!(names.len() >= 10, "{names:?}");
}

#[test]
fn every_reduction_of_the_wrong_kind_is_caught() {
    check_all_caught("reductions of the wrong kind", &[], |sample| {
        let mut wrong = sample.op.factors(&signature(sample));
        let mut changed = false;
        for i in 0..wrong.factors.len() {
            if let FactorKind::Reduced(kind) = wrong.factors[i].kind {
                let other = if kind == PartialKind::Sum { PartialKind::Max } else { PartialKind::Sum };
                wrong.factors[i].kind = FactorKind::Reduced(other);
                changed |= even(&wrong, i);
            }
        }
        changed.then(|| splitting::check(sample, &wrong))
    });
}

#[test]
fn merged_dims_in_the_wrong_order_are_caught() {
    let mut planted = 0;
    for sample in samples() {
        let declared = sample.op.factors(&signature(&sample));
        let size = |f: u32| declared.factors[f as usize].size.size().unwrap_or(1);
        for operand in 0..declared.operands.len() {
            for dim in 0..declared.operands[operand].len() {
                let merged = &declared.operands[operand][dim];
                // `attention_grad` normalises the probabilities again, so from its logsumexp it needs only which rows are empty.
                let redundant = sample.op.name() == "attention_grad" && declared.operands[operand].len() == 3;
                // An update that is skipped reads no gradient.
                let is_unread =
                    operand == 1 && sample.op.name() == "adam_8bit" && declared.operands.len() == 11;
                if redundant
                    || is_unread
                    || merged.len() < 2
                    || merged.iter().any(|&f| size(f) < 2 || size(f) % 2 != 0)
                {
                    continue;
                }
                let mut wrong = declared.clone();
                wrong.operands[operand][dim].reverse();
                planted += 1;
                assert!(
                    splitting::check(&sample, &wrong).is_err(),
                    "{} of operand {operand}",
                    describe(&sample)
                );
            }
        }
    }
    assert!(planted >= 4, "only {planted} merged dims were swapped");
}

#[test]
fn a_wrong_claim_of_linearity_is_caught() {
    for (name, operands) in [
        ("exp", &[0][..]),
        ("relu", &[0]),
        ("softmax", &[0]),
        ("max", &[0, 1]),
        ("mul", &[0, 1]),
        ("div", &[1]),
        ("layer_norm", &[1, 2]),
        ("gelu_grad", &[0, 1]),
        ("attention", &[2]),
        ("attention_grad", &[0]),
        ("contract", &[0, 1]),
    ] {
        let sample = sample_of(name);
        let wrong = sample.op.factors(&signature(&sample)).linear_in(operands);
        let message = splitting::check(&sample, &wrong).expect_err(name);
        assert!(message.contains("not linear"), "{name}: {message}");
    }
}

#[test]
fn a_wrong_claim_on_zeros_is_caught() {
    for name in ["exp", "div", "pow", "equal", "dropout"] {
        let sample = sample_of(name);
        let wrong = sample.op.factors(&signature(&sample)).keeping_zeros();
        let message = padding::check(&sample, &wrong).expect_err(name);
        assert!(message.contains("do not stay zeros"), "{name}: {message}");
    }
}

/// Combines the outcomes of several planted faults: returns one that was not caught, if there is one.
fn all(results: Vec<Check>) -> Option<Check> {
    results.into_iter().reduce(|first, second| if first.is_ok() { first } else { second })
}

/// Runs a check with a planted fault on every sample to which it applies. It must fail on each of them, and apply to at least one.
fn check_all_caught(fault: &str, except: &[&str], check: impl Fn(&Sample) -> Option<Check>) {
    let applied = samples().into_iter().filter(|sample| !except.contains(&sample.op.name()));
    let results: Vec<(Sample, Check)> =
        applied.filter_map(|sample| check(&sample).map(|result| (sample, result))).collect();
    let missed: Vec<String> = results.iter().filter(|(_, r)| r.is_ok()).map(|(s, _)| describe(s)).collect();
    assert!(missed.is_empty(), "{fault} were not caught in:\n{}", missed.join("\n"));
    assert!(results.len() >= 5, "{fault}: planted in {} samples only", results.len());
}

fn even(factors: &Factors, factor: usize) -> bool {
    factors.factors[factor].size.size().is_some_and(|size| size > 1 && size % 2 == 0)
}
