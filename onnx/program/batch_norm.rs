//! Batch normalisation. A norm by the statistics of its batch is one node in training form if its running statistics are tensors
//! of the file that no other norm updates; otherwise it is a formula.

use super::attribute;
use super::draft::{Draft, TensorId};
use super::operators::{Results, formula, one};
use super::{Form, tensors};
use crate::proto::AttributeProto;
use ir::ops::Float;
use ir::ops::batch_norm::BatchNorm;
use ir::ops::elementwise::Binary;
use ir::ops::reduce::ReduceKind;
use ir::{Definition, Diagnostic, Dim, Dims, Module, Node, Op, OperandRole, StateId, ValueId};

/// Writes BatchNormalization.
pub(super) fn batch_norm(draft: &mut Draft, node: &Node, op: &BatchNorm) -> Results {
    let Some(eps) = attribute::exact(op.eps.get()) else {
        return formula(draft, node, |draft, node| written_out(draft, node, op.eps));
    };
    let epsilon = attribute::float("epsilon", eps);
    if draft.form == Form::Training
        && let Some(running) = Running::of(draft.module, node)
    {
        return training(draft, node, running, epsilon);
    }
    let [x, mean, variance, scale, bias] = [0, 1, 2, 3, 4].map(|i| draft.operand(node, i));
    one(draft.push("BatchNormalization", &[x?, scale?, bias?, mean?, variance?], [epsilon]))
}

/// Writes the node in training form. The import then makes states of the running statistics again.
fn training(draft: &mut Draft, node: &Node, running: Running, epsilon: AttributeProto) -> Results {
    let statistics = [running.mean, running.variance].map(|state| {
        let row = draft.module.states[state].initializer.data();
        let row = row.ok_or_else(|| {
            Diagnostic::new("a running statistic of the batch norm has no tensor in the model's file")
        })?;
        tensors::row(draft, row)
    });
    let [mean, variance] = statistics;
    let [x, scale, bias] = [0, 3, 4].map(|i| draft.operand(node, i));
    let inputs = [x?, scale?, bias?, mean?, variance?].map(Some);
    let attributes =
        [epsilon, attribute::float("momentum", running.momentum), attribute::flag("training_mode", true)];
    one(draft.push_many("BatchNormalization", &inputs, 3, attributes)[0])
}

/// The running statistics of a norm.
struct Running {
    mean: StateId,
    variance: StateId,
    momentum: f32,
}

impl Running {
    /// Returns the running statistics of a norm that uses the statistics of its own operand. Both must be whole tensors of the
    /// file with the same momentum.
    fn of(module: &Module, norm: &Node) -> Option<Self> {
        let x = norm[OperandRole::Data];
        let mean = state(module, norm[OperandRole::Mean], x, 0)?;
        let variance = state(module, norm[OperandRole::Variance], x, 1)?;
        let momentum = share(module, mean).filter(|&momentum| share(module, variance) == Some(momentum))?;
        Some(Self { mean, variance, momentum: attribute::exact(momentum)? })
    }
}

/// Returns the state that an evaluation reads instead of a statistic of `x`.
fn state(module: &Module, statistic: ValueId, x: ValueId, result: usize) -> Option<StateId> {
    let node = module.producer(statistic).filter(|node| matches!(node.op, Op::InTraining(_)))?;
    let batch = module.producer(node.operands[0]).filter(|node| matches!(node.op, Op::BatchStatistics(_)))?;
    let is_own = batch.results[result] == node.operands[0] && batch.operands[0] == x;
    let Definition::State(state) = module.value(node.operands[1]).definition else { return None };
    let row = &module.states[state];
    (is_own && row.view.is_empty() && row.initializer.data().is_some()).then_some(state)
}

/// Returns the momentum of a running statistic: the factor `m` of `m·running + (1 - m)·batch`.
fn share(module: &Module, state: StateId) -> Option<f64> {
    let state = &module.states[state];
    let sum = module.producer(state.output?)?;
    let is = |node: &Node, op: Binary| node.op == Op::Binary(op);
    let kept = module.producer(*sum.operands.first()?)?;
    if !is(sum, Binary::Add) || !is(kept, Binary::Mul) || kept.operands[0] != state.input {
        return None;
    }
    match &module.producer(kept.operands[1])?.op {
        Op::Splat(splat) => Some(splat.value.get()),
        _ => None,
    }
}

/// Writes the mean and the two variances of each channel.
pub(super) fn statistics(draft: &mut Draft, node: &Node) -> Results {
    let x = draft.operand(node, 0)?;
    let ty = draft.ty(node.operands[0]);
    let dims: Vec<u32> = (0..ty.ndim() as u32).filter(|&dim| dim != 1).collect();
    let mean = draft.reduced(x, ReduceKind::Mean, &dims, true);
    let centred = draft.push("Sub", &[x, mean], []);
    let square = draft.push("Mul", &[centred, centred], []);
    let variance = draft.reduced(square, ReduceKind::Mean, &dims, false);
    let mean = draft.reduced(x, ReduceKind::Mean, &dims, false);
    let mut counted = ty.dims.iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, dim)| dim.size());
    let count = counted.try_fold(1u64, |count, size| count.checked_mul(size?));
    let unbiased = count.map(|count| {
        // For one element the divisor is 1, as for two elements.
        let factor = if count < 2 { 1.0 } else { count as f64 / (count - 1) as f64 };
        let factor = draft.number(ty.dtype, factor);
        draft.push("Mul", &[variance, factor], [])
    });
    Ok(vec![Some(mean), Some(variance), unbiased])
}

/// Writes the statistic of the batch or, in inference form, the running statistic.
pub(super) fn in_training(draft: &mut Draft, node: &Node) -> Results {
    let index = usize::from(draft.form == Form::Inference);
    let tensor = draft.operand(node, index)?;
    one(draft.push("Identity", &[tensor], []))
}

/// Writes `(x - mean) / √(variance + eps) · scale + bias`.
fn written_out(draft: &mut Draft, node: &Node, eps: Float) -> Results {
    let ty = draft.ty(node.operands[0]);
    let x = draft.operand(node, 0)?;
    let channels = &ty.dims[1..2];
    let along: Dims =
        channels.iter().cloned().chain(std::iter::repeat_n(Dim::known(1), ty.ndim() - 2)).collect();
    let mut for_each = |i: usize| -> Result<TensorId, Diagnostic> {
        let tensor = draft.operand(node, i)?;
        draft.reshape(tensor, channels, &along)
    };
    let [mean, variance, scale, bias] = [for_each(1)?, for_each(2)?, for_each(3)?, for_each(4)?];
    let eps = draft.number(ty.dtype, eps.get());
    let shifted = draft.push("Add", &[variance, eps], []);
    let deviation = draft.push("Sqrt", &[shifted], []);
    let centred = draft.push("Sub", &[x, mean], []);
    let normal = draft.push("Div", &[centred, deviation], []);
    let scaled = draft.push("Mul", &[normal, scale], []);
    one(draft.push("Add", &[scaled, bias], []))
}
