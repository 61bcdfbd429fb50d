//! Dynamic loss scaling (Micikevicius et al., arXiv 1710.03740, section 3.2), for gradients that are too small for f16.
//!
//! Backward starts from the loss times the scale. The update divides the gradients by the scale again, and checks by their norm whether
//! all of them are finite. If not, the step is skipped: the optimizer keeps the old value of every state, and the scale shrinks. The
//! division needs no pass over the gradients: the norm is divided, and the optimizer's operators multiply by the inverse as they read a
//! gradient. The counters are those of Megatron-LM's `DynamicGradScaler`.

use super::{Precision, Scaling};
use crate::optimizer::{Casts, Factored, build_norm};
use crate::pass::Transform;
use ir::ops::elementwise::{Binary, Compare, Logical, Select, Unary};
use ir::{
    At, Builder, DType, Diagnostic, Initializer, Module, Op, Phase, Role, StateId, StepOutput, Type,
    TypeError, ValueId,
};

/// The state with the scale.
pub const SCALE: &str = "loss_scale";

/// The states of the scaler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scaler {
    scale: StateId,
    /// The steps since the last one that was skipped or at which the scale grew.
    good_steps: StateId,
    /// The overflows that are left before the scale shrinks.
    hysteresis: StateId,
}

/// Makes backward start from the scaled loss. Autodiff opens the backward phase with the constant that it starts from.
pub(super) fn scale_backward(module: &mut Module, options: &Scaling) -> Result<Scaler, Diagnostic> {
    let first = module.nodes().find(|(_, node)| node.phase == Phase::Backward);
    let Some((seed, Op::Splat(splat))) = first.map(|(id, node)| (id, node.op.clone())) else {
        let error =
            Diagnostic::new("the backward phase does not start from a number, so the loss cannot be scaled");
        return Err(error.note("run `precision` right after `autodiff`"));
    };
    let mut b = Builder::new(module, Precision::NAME);
    let scaler = add_states(&mut b, options);
    let old = b.module().node(seed).results[0];
    let (ty, scale) = (b.ty(old).clone(), b.module().states[scaler.scale].input);
    b.origin(Precision::NAME).at(At::End(Phase::Prepare));
    let scale = b.cast(scale, ty.dtype)?;
    let number = b.splat(ty, splat.value.get())?;
    let scaled = b.build(number * scale)?;
    b.replace(old, scaled);
    b.remove(seed);
    b.finish();
    Ok(scaler)
}

fn add_states(b: &mut Builder, options: &Scaling) -> Scaler {
    let mut add = |name: String, dtype, initial: f64| {
        let initializer = Initializer::Splat(initial.to_bits());
        b.tables().add_state(name, Type::scalar(dtype), Role::Scaler, initializer)
    };
    Scaler {
        scale: add(SCALE.into(), DType::F32, options.initial),
        good_steps: add(format!("{SCALE}.good_steps"), DType::I64, 0.0),
        hysteresis: add(format!("{SCALE}.hysteresis"), DType::I64, options.hysteresis as f64),
    }
}

/// Builds the scaler's part of the update: unscaled gradients, the check, and the next scale. The optimizer skips the step.
pub(super) fn build_update(module: &mut Module, options: &Scaling, scaler: Scaler) -> Result<(), TypeError> {
    let mut b = Builder::new(module, Precision::NAME);
    b.origin(Precision::NAME).at(At::End(Phase::Update));
    let [scale, good_steps, hysteresis] =
        [scaler.scale, scaler.good_steps, scaler.hysteresis].map(|state| b.module().states[state].input);
    // This cast is a node of the update, since the state itself holds the next scale by the time it is read.
    let this_scale = b.cast(scale, DType::F64)?;
    let gradients = unscale(&mut b, this_scale)?;
    let norm = build_norm(&mut b, &gradients)?;
    // NaN is not less than infinity, so it counts as not finite.
    let skipped = b.build(Unary::Not.of(Compare::Less.of(norm, f64::INFINITY)))?;
    let exhausted = b.build(Logical::And.of(skipped, Compare::LessEqual.of(scale, options.min)))?;
    for (output, value) in [
        (StepOutput::GradientNorm, norm),
        (StepOutput::Skipped, skipped),
        (StepOutput::LossScale, this_scale),
        (StepOutput::ScaleExhausted, exhausted),
    ] {
        b.tables().add_output(output, value);
    }
    let next = build_next(&mut b, options, skipped, [scale, good_steps, hysteresis])?;
    for (state, value) in [scaler.scale, scaler.good_steps, scaler.hysteresis].into_iter().zip(next) {
        b.tables().states[state].output = Some(value);
    }
    b.finish();
    Ok(())
}

/// Divides the gradients by the scale, an f64 scalar.
fn unscale(b: &mut Builder, scale: ValueId) -> Result<Vec<Factored>, TypeError> {
    let inverse = b.build(Unary::Reciprocal.of(scale))?;
    let (mut inverses, mut gradients) = (Casts::of(inverse), Vec::new());
    for index in 0..b.module().outputs.len() {
        let output = &b.module().outputs[index];
        if StepOutput::gradient_of(&output.name).is_none() {
            continue;
        }
        let gradient = output.value;
        let inverse = inverses.cast(b, b.ty(gradient).dtype)?;
        let stage = b.module().stage_of(gradient);
        let gradient = b.stage(stage).build(gradient * inverse)?;
        b.tables().outputs[index].value = gradient;
        gradients.push(Factored::of(b.module(), gradient));
    }
    Ok(gradients)
}

/// Builds the scale, the count of good steps and the hysteresis for the next step.
fn build_next(
    b: &mut Builder,
    options: &Scaling,
    skipped: ValueId,
    [scale, good_steps, hysteresis]: [ValueId; 3],
) -> Result<[ValueId; 3], TypeError> {
    let number = |b: &mut Builder, value: u64| b.scalar(DType::I64, value as f64);
    let (zero, one) = (number(b, 0)?, number(b, 1)?);
    let (interval, patience) = (number(b, options.interval)?, number(b, options.hysteresis)?);

    let good_steps = b.build(Select.of(skipped, zero, good_steps + one))?;
    let grows = b.build(Compare::GreaterEqual.of(good_steps, interval))?;
    let left = b.build(Select.of(skipped, Binary::Max.of(hysteresis - one, zero), hysteresis))?;
    let shrinks = b.build(Logical::And.of(skipped, Compare::LessEqual.of(left, zero)))?;

    let [growth, largest, backoff, smallest] =
        [options.growth, options.max, options.backoff, options.min].map(|x| b.scalar(DType::F32, x));
    let grown = b.build(Binary::Min.of(scale * growth?, largest?))?;
    // A scale that starts above the largest one neither grows nor falls to it.
    let grown = b.build(Binary::Max.of(grown, scale))?;
    let shrunk = b.build(Binary::Max.of(scale * backoff?, smallest?))?;
    let unless_shrunk = b.build(Select.of(grows, grown, scale))?;
    Ok([
        b.build(Select.of(shrinks, shrunk, unless_shrunk))?,
        b.build(Select.of(grows, zero, good_steps))?,
        b.build(Select.of(grows, patience, left))?,
    ])
}
