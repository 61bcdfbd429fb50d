//! The update of one parameter: the nodes of its rule, and the states that the rule keeps.

use super::adafactor;
use super::algorithm::{Algorithm, Moments};
use ir::ops::Float;
use ir::ops::optimizer::{Adagrad, Adam, Adam8bit, Lion, Sgd};
use ir::{Builder, Initializer, Role, StateId, Type, TypeError, ValueId};

/// The scalars that an update reads: f64, except `scale` and `skip`.
pub(super) struct Scalars {
    pub(super) lr: ValueId,
    pub(super) weight_decay: ValueId,
    /// Whether the weight decay is not zero.
    pub(super) decays: bool,
    /// The number of this step, from 1.
    pub(super) step: ValueId,
    /// The factor of the gradient, in the gradient's element type.
    pub(super) scale: Option<ValueId>,
    /// Whether the states keep their values. If a program has `skip`, it also has `scale`.
    pub(super) skip: Option<ValueId>,
}

/// Builds the new value of a parameter, and of the states that the rule keeps for it.
pub(super) fn build_update(
    b: &mut Builder,
    algorithm: Algorithm,
    state: StateId,
    gradient: ValueId,
    scalars: &Scalars,
) -> Result<(), TypeError> {
    let parameter = b.module().states[state].input;
    let &Scalars { lr, weight_decay, step, scale, skip, .. } = scalars;
    let with_optional = |operands: &[ValueId]| -> Vec<ValueId> {
        operands.iter().copied().chain(scale).chain(skip).collect()
    };
    let new = match algorithm {
        // Without momentum there is no velocity.
        Algorithm::Sgd { momentum: 0.0, .. } => build_descent(b, parameter, gradient, scalars)?,
        Algorithm::Sgd { momentum, nesterov } => {
            let velocity = add_state(b, "sgd.velocity", state);
            let op = Sgd { momentum: Float::new(momentum), nesterov };
            let operands = with_optional(&[parameter, gradient, velocity.1, lr, weight_decay]);
            let results = b.push(op, &operands)?;
            b.tables().states[velocity.0].output = Some(results[1]);
            results[0]
        }
        Algorithm::Adagrad { eps } => {
            let sum = add_state(b, "adagrad.sum", state);
            let operands = with_optional(&[parameter, gradient, sum.1, lr, weight_decay]);
            let results = b.push(Adagrad { eps: Float::new(eps) }, &operands)?;
            b.tables().states[sum.0].output = Some(results[1]);
            results[0]
        }
        Algorithm::Adafactor(rule) => adafactor::build(b, &rule, state, gradient, scalars)?,
        Algorithm::Lion { beta1, beta2 } => {
            let momentum = add_state(b, "lion.m", state);
            let [beta1, beta2] = [beta1, beta2].map(Float::new);
            let operands = with_optional(&[parameter, gradient, momentum.1, lr, weight_decay]);
            let results = b.push(Lion { beta1, beta2 }, &operands)?;
            b.tables().states[momentum.0].output = Some(results[1]);
            results[0]
        }
        Algorithm::Adam { beta1, beta2, eps, decoupled, moments } => {
            let [beta1, beta2, eps] = [beta1, beta2, eps].map(Float::new);
            let own = b.module().states[state].ty.clone();
            if moments == Moments::EightBit && own.numel().is_some_and(|numel| numel >= Moments::LEAST) {
                let rule = Adam8bit { beta1, beta2, eps, decoupled, block: Moments::BLOCK };
                let states = add_8bit_states(b, &rule, state)?;
                let values = states.map(|(_, value)| value);
                let operands = [&[parameter, gradient][..], &values, &[lr, weight_decay, step]].concat();
                let results = b.push(rule, &with_optional(&operands))?;
                for ((id, _), new) in states.into_iter().zip(&results[1..]) {
                    b.tables().states[id].output = Some(*new);
                }
                b.tables().states[state].output = Some(results[0]);
                return Ok(());
            }
            let ty = own.with_dtype(moments.dtype(own.dtype));
            let [m, v] = ["adam.m", "adam.v"].map(|kind| add_state_with(b, kind, state, ty.clone()));
            let operands = with_optional(&[parameter, gradient, m.1, v.1, lr, weight_decay, step]);
            let results = b.push(Adam { beta1, beta2, eps, decoupled }, &operands)?;
            b.tables().states[m.0].output = Some(results[1]);
            b.tables().states[v.0].output = Some(results[2]);
            results[0]
        }
    };
    b.tables().states[state].output = Some(new);
    Ok(())
}

/// Builds `p - lr·(scale·g + weight_decay·p)`. Without decay the last product is left out: zero times an infinite parameter would be NaN.
fn build_descent(
    b: &mut Builder,
    parameter: ValueId,
    gradient: ValueId,
    scalars: &Scalars,
) -> Result<ValueId, TypeError> {
    let dtype = b.ty(parameter).dtype;
    let lr = b.cast(scalars.lr, dtype)?;
    let gradient = match scalars.scale {
        Some(scale) => b.build(gradient * scale)?,
        None => gradient,
    };
    let direction = if scalars.decays {
        let weight_decay = b.cast(scalars.weight_decay, dtype)?;
        b.build(gradient + parameter * weight_decay)?
    } else {
        gradient
    };
    b.build(parameter - direction * lr)
}

/// Adds a state of zeros with the type of a parameter. Returns its id and value.
fn add_state(b: &mut Builder, kind: &str, parameter: StateId) -> (StateId, ValueId) {
    let ty = b.module().states[parameter].ty.clone();
    add_state_with(b, kind, parameter, ty)
}

/// Adds a state of zeros of this type that belongs to a parameter. Returns its id and value.
pub(super) fn add_state_with(
    b: &mut Builder,
    kind: &str,
    parameter: StateId,
    ty: Type,
) -> (StateId, ValueId) {
    let row = &b.module().states[parameter];
    let (name, stage) = (format!("{kind}({})", row.name), row.stage);
    let id = b.tables().add_state(name, ty, Role::Optimizer, Initializer::Zeros);
    b.tables().states[id].stage = stage;
    (id, b.module().states[id].input)
}

/// Adds the states of moments in 8 bits, in the order of the operator's operands.
fn add_8bit_states(
    b: &mut Builder,
    rule: &Adam8bit,
    parameter: StateId,
) -> Result<[(StateId, ValueId); 4], TypeError> {
    let [m, m_largest, v, v_largest] = rule.states(&b.module().states[parameter].ty)?;
    let kinds = [
        ("adam_8bit.m", m),
        ("adam_8bit.m.largest", m_largest),
        ("adam_8bit.v", v),
        ("adam_8bit.v.largest", v_largest),
    ];
    Ok(kinds.map(|(kind, ty)| add_state_with(b, kind, parameter, ty)))
}
