//! The nodes of Adafactor (Shazeer and Stern, arXiv 1804.04235, algorithms 4 and 5), built of operators that sharding and kernels
//! know.
//!
//! A state with two dims or more keeps, of the second moments of its gradient, the means over its last dim (`adafactor.r(NAME)`)
//! and over the dim before (`adafactor.c(NAME)`), each for every index of the dims before these two. Any other state keeps all second
//! moments (`adafactor.v(NAME)`). Step `t`, counted from 1, of a state `X` with the gradient `G`, where `ρ` is `1 - t^-decay_rate`:
//!
//! - `R ← ρR + (1-ρ)·mean over columns of (G² + eps1)`, `C ← ρC + (1-ρ)·mean over rows of (G² + eps1)`,
//!   `U = G / √(R·C / mean(R))`; or `V ← ρV + (1-ρ)(G² + eps1)`, `U = G / √V`;
//! - `α = max(eps2, RMS(X))·min(lr, 1/√t)` if the step is relative, else `lr`;
//! - `D = α·U / max(1, RMS(U)/clip_threshold)`; with a first moment, `M ← beta1·M + (1-beta1)·D` replaces `D`;
//! - `X ← X·(1 - lr·weight_decay) - D`.
//!
//! With the learning rate 0.01 the relative step is the paper's. Half types are computed in f32, since f16 has no number as small as
//! `eps1`.

use super::update::{Scalars, add_state_with};
use ir::ops::Labels;
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::{Builder, DType, Dim, StateId, Type, TypeError, ValueId};
use smallvec::SmallVec;

/// Adafactor's hyperparameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adafactor {
    /// Whether the step is relative to the root mean square of the parameter.
    pub relative: bool,
    /// The decay of the first moment; 0 for none, which needs no state.
    pub beta1: f64,
    /// The exponent of the second moments' decay, `1 - t^-decay_rate`.
    pub decay_rate: f64,
    /// The largest root mean square of an update. Larger updates are scaled down to it.
    pub clip_threshold: f64,
    /// The addend of the squares of the gradient.
    pub eps1: f64,
    /// The least root mean square of a parameter in a relative step.
    pub eps2: f64,
}

impl Adafactor {
    /// The paper's hyperparameters (section 9).
    pub const DEFAULT: Self =
        Self { relative: true, beta1: 0.0, decay_rate: 0.8, clip_threshold: 1.0, eps1: 1e-30, eps2: 1e-3 };
}

/// Adds the nodes of one state's update, and returns its new value.
pub(super) fn build(
    b: &mut Builder,
    rule: &Adafactor,
    state: StateId,
    gradient: ValueId,
    scalars: &Scalars,
) -> Result<ValueId, TypeError> {
    let stored = b.module().states[state].input;
    let own = b.ty(stored).dtype;
    let dtype = if own == DType::F64 { own } else { DType::F32 };
    let parameter = b.cast(stored, dtype)?;
    let mut gradient = b.cast(gradient, dtype)?;
    if let Some(scale) = scalars.scale {
        let scale = b.cast(scale, dtype)?;
        gradient = b.build(gradient * scale)?;
    }
    let direction = build_direction(b, rule, state, gradient, scalars.step)?;
    let length = build_length(b, rule, parameter, direction, scalars)?;
    let length = b.cast(length, dtype)?;
    let mut step = b.build(direction * length)?;
    if rule.beta1 > 0.0 {
        let dims = b.ty(stored).dims.clone();
        let (id, old) = add_state_with(b, "adafactor.m", state, Type::new(dtype, dims));
        let [kept, added] = [(old, rule.beta1), (step, 1.0 - rule.beta1)].map(|(x, by)| b.build(x * by));
        step = b.build(kept? + added?)?;
        b.tables().states[id].output = Some(step);
    }
    let kept = if scalars.decays {
        b.build(parameter * (1.0 - scalars.lr * scalars.weight_decay).cast(dtype))?
    } else {
        parameter
    };
    b.build((kept - step).cast(own))
}

/// Builds `U`, the gradient divided by the root of its second moments, and updates the moments.
fn build_direction(
    b: &mut Builder,
    rule: &Adafactor,
    state: StateId,
    gradient: ValueId,
    step: ValueId,
) -> Result<ValueId, TypeError> {
    let Type { dtype, dims, .. } = b.ty(gradient).clone();
    let squares = b.build(gradient * gradient + rule.eps1)?;
    let moments = Moments::new(b, rule, state, step, dtype)?;
    let [outer @ .., rows, columns] = &dims[..] else {
        let moment = moments.build(b, "adafactor.v", squares)?;
        return b.build(gradient * Unary::Rsqrt.of(moment));
    };
    let last = dims.len() as u32 - 1;
    let row_moment = build_mean(b, squares, last)?;
    let row_moment = moments.build(b, "adafactor.r", row_moment)?;
    let column_moment = build_mean(b, squares, last - 1)?;
    let column_moment = moments.build(b, "adafactor.c", column_moment)?;
    let mean = build_mean(b, row_moment, last - 1)?;
    let with = |dims: &[Dim]| outer.iter().chain(dims).cloned().collect::<Vec<_>>();
    let mean = b.reshape(mean, with(&[Dim::known(1)]))?;
    let by_row = b.reshape(Unary::Rsqrt.of(row_moment / mean), with(&[rows.clone(), Dim::known(1)]))?;
    let by_column = b.reshape(Unary::Rsqrt.of(column_moment), with(&[Dim::known(1), columns.clone()]))?;
    b.build(gradient * by_row * by_column)
}

/// The second moments of one state.
struct Moments {
    state: StateId,
    /// `ρ`, of the moments' type.
    kept: ValueId,
    /// `1 - ρ`, of the moments' type.
    added: ValueId,
}

impl Moments {
    fn new(
        b: &mut Builder,
        rule: &Adafactor,
        state: StateId,
        step: ValueId,
        dtype: DType,
    ) -> Result<Self, TypeError> {
        let [exponent, one] = [-rule.decay_rate, 1.0].map(|number| b.scalar(DType::F64, number));
        let added = b.build(Binary::Pow.of(step, exponent?))?;
        let kept = b.build(one? - added)?;
        Ok(Self { state, kept: b.cast(kept, dtype)?, added: b.cast(added, dtype)? })
    }

    /// Builds `ρ·old + (1-ρ)·new`, which becomes the state's new value.
    fn build(&self, b: &mut Builder, kind: &str, new: ValueId) -> Result<ValueId, TypeError> {
        let ty = Type::new(b.ty(new).dtype, b.ty(new).dims.clone());
        let (id, old) = add_state_with(b, kind, self.state, ty);
        let moment = b.build(old * self.kept + new * self.added)?;
        b.tables().states[id].output = Some(moment);
        Ok(moment)
    }
}

/// Builds the factor of `U`, an f64 scalar: `α / max(1, RMS(U)/clip_threshold)`.
fn build_length(
    b: &mut Builder,
    rule: &Adafactor,
    parameter: ValueId,
    direction: ValueId,
    scalars: &Scalars,
) -> Result<ValueId, TypeError> {
    let rms = build_rms(b, direction)?;
    let divisor = b.build(Binary::Max.of(1.0, rms * (1.0 / rule.clip_threshold)))?;
    if !rule.relative {
        return b.build(scalars.lr / divisor);
    }
    let rate = b.build(Binary::Min.of(scalars.lr, Unary::Rsqrt.of(scalars.step)))?;
    let size = build_rms(b, parameter)?;
    b.build(Binary::Max.of(rule.eps2, size) * rate / divisor)
}

/// Builds the root mean square of all elements, an f64 scalar.
fn build_rms(b: &mut Builder, x: ValueId) -> Result<ValueId, TypeError> {
    let labels = Labels((0..b.ty(x).ndim()).map(|i| b'a' + i as u8).collect());
    let square = Contract { lhs: labels.clone(), rhs: labels, out: Labels::default() };
    let squares = b.one(square, &[x, x])?;
    let squares = b.cast(squares, DType::F64)?;
    let count = count(&b.ty(x).dims)?;
    b.build(Unary::Sqrt.of(squares * (1.0 / count)))
}

/// Builds the mean over a dim, and removes the dim.
fn build_mean(b: &mut Builder, x: ValueId, dim: u32) -> Result<ValueId, TypeError> {
    let count = count(&b.ty(x).dims[dim as usize..=dim as usize])?;
    let sum = Reduce { kind: ReduceKind::Sum, dims: SmallVec::from_slice(&[dim]), keep: false };
    let sum = b.one(sum, &[x])?;
    b.build(sum * (1.0 / count))
}

/// Returns the number of elements of these dims.
fn count(dims: &[Dim]) -> Result<f64, TypeError> {
    let sizes = dims.iter().map(|dim| dim.size().map(|size| size as f64));
    let product = sizes.product::<Option<f64>>();
    product.ok_or_else(|| TypeError::new("adafactor takes means, and needs the sizes of all dims"))
}
