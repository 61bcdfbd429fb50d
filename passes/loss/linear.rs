//! Finds the values that are sums or means over the samples of a microbatch, and the inputs and parameters that values depend on.

use crate::analysis::constants::Constants;
use crate::bind::{Carry, batch, find_samples};
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::{Diagnostic, Module, Node, NodeId, Op, OperandRole, Role, ValueId};
use std::collections::BTreeMap;

/// The way in which the values of microbatches are combined into the value of all their samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Linear {
    /// The values are added.
    Sum,
    /// The mean of the values is taken.
    Mean,
}

/// Facts about each value of a module.
pub(super) struct Facts<'m> {
    pub(super) module: &'m Module,
    /// The number of samples in a microbatch; 1 without a batched input.
    pub(super) batch: u64,
    /// The reason why the samples could not be followed through the module.
    pub(super) lost: Option<Diagnostic>,
    carries: BTreeMap<ValueId, Carry>,
    constants: Constants<'m>,
    reads_inputs: Vec<bool>,
    reads_parameters: Vec<bool>,
    /// Values that combine the samples of a microbatch.
    mixes: Vec<bool>,
    /// The way in which the values of microbatches are combined, for values where that is possible.
    linear: Vec<Option<Linear>>,
}

impl<'m> Facts<'m> {
    pub(super) fn new(module: &'m Module) -> Self {
        let (carries, lost) = match find_samples(module) {
            Ok(samples) => (samples.carries, None),
            Err(error) => (BTreeMap::new(), Some(error)),
        };
        let no = vec![false; module.value_count()];
        let mut facts = Self {
            module,
            batch: batch(module).ok().flatten().unwrap_or(1),
            lost,
            carries,
            constants: Constants::new(module),
            reads_inputs: no.clone(),
            reads_parameters: no.clone(),
            linear: vec![None; no.len()],
            mixes: no,
        };
        facts.look();
        facts.look_for_sums();
        facts
    }

    fn look(&mut self) {
        let module = self.module;
        let index = |value: ValueId| value.as_u32() as usize;
        module.inputs.iter().for_each(|input| self.reads_inputs[index(input.value)] = true);
        let parameters = module.states.values().filter(|state| state.role == Role::Parameter);
        parameters.for_each(|state| self.reads_parameters[index(state.input)] = true);
        for (_, node) in module.nodes() {
            let any = |of: &[bool]| node.operands.iter().any(|&value| of[index(value)]);
            let reduces = node.operands.iter().any(|value| self.carries.contains_key(value))
                && !matches!(node.op, Op::BatchStatistics(_) | Op::BatchNorm(_) | Op::InTraining(_));
            let (inputs, parameters) = (any(&self.reads_inputs), any(&self.reads_parameters));
            let mixes = any(&self.mixes);
            for &result in &node.results {
                self.reads_inputs[index(result)] = inputs;
                // The number of labels that count does not depend on the logits.
                let counts = matches!(node.op, Op::CrossEntropy(_)) && result == node.results[1];
                self.reads_parameters[index(result)] = parameters && !counts;
                self.mixes[index(result)] = mixes || reduces && !self.carries.contains_key(&result);
            }
        }
    }

    /// Whether a value depends on an input.
    pub(super) fn reads_inputs(&self, value: ValueId) -> bool {
        self.reads_inputs[value.as_u32() as usize]
    }

    /// Whether a value depends on a parameter.
    pub(super) fn reads_parameters(&self, value: ValueId) -> bool {
        self.reads_parameters[value.as_u32() as usize]
    }

    /// Returns the number in a constant of one element.
    pub(super) fn number(&mut self, value: ValueId) -> Option<f64> {
        if self.reads_inputs(value) || self.module.ty(value).numel() != Some(1) {
            return None;
        }
        self.constants.value(value)?.numbers().first().copied()
    }

    /// Returns the way to combine the values of microbatches, if a value is a sum or a mean over the samples.
    pub(super) fn linear(&self, value: ValueId) -> Option<Linear> {
        self.linear[value.as_u32() as usize]
    }

    /// Fills in [`Self::linear`], in program order.
    fn look_for_sums(&mut self) {
        for (id, node) in self.module.nodes() {
            for &result in &node.results {
                if self.reads_inputs(result) {
                    self.linear[result.as_u32() as usize] = self.linear_in(id, node, result);
                }
            }
        }
    }

    /// Computes [`Self::linear`] of a result of a node, given that of the operands.
    fn linear_in(&mut self, id: NodeId, node: &Node, value: ValueId) -> Option<Linear> {
        match &node.op {
            Op::CrossEntropy(_) if value != node.results[2] => {
                self.meets_all(node[OperandRole::Data]).then_some(Linear::Sum)
            }
            op if op.movement().is_layout() => self.linear(node.operands[0]),
            Op::Unary(Unary::Neg) => self.linear(node.operands[0]),
            // A float that is cast to an integer is no sum any more.
            Op::Cast(_) if self.module.ty(value).dtype.is_float() => self.linear(node.operands[0]),
            Op::Cast(_) if self.module.ty(node.operands[0]).dtype.is_integer() => {
                self.linear(node.operands[0])
            }
            Op::Reduce(reduce) => self.reduced(node, reduce),
            Op::Contract(_) => self.contracted(id).then_some(Linear::Sum),
            Op::Binary(Binary::Add | Binary::Sub) => {
                let [left, right] = [node.operands[0], node.operands[1]].map(|value| self.linear(value));
                // The sum of a mean and a number is the mean of the sums with that number.
                let mut is_number = |operand: usize| self.number(node.operands[operand]).is_some();
                match (left, right) {
                    (Some(Linear::Mean), None) if is_number(1) => left,
                    (None, Some(Linear::Mean)) if is_number(0) => right,
                    _ => left.filter(|_| left == right),
                }
            }
            Op::Binary(Binary::Mul | Binary::Div) if self.number(node.operands[1]).is_some() => {
                self.linear(node.operands[0])
            }
            Op::Binary(Binary::Mul) if self.number(node.operands[0]).is_some() => {
                self.linear(node.operands[1])
            }
            _ => None,
        }
    }

    fn reduced(&self, node: &Node, reduce: &Reduce) -> Option<Linear> {
        let operand = node.operands[0];
        let over_samples = match reduce.kind {
            ReduceKind::Sum => Linear::Sum,
            ReduceKind::Mean => Linear::Mean,
            ReduceKind::Max | ReduceKind::Min => return None,
        };
        match self.carries.get(&operand) {
            Some(carry) if reduce.dims.contains(&(carry.dim as u32)) => {
                (!self.mixes[operand.as_u32() as usize]).then_some(over_samples)
            }
            Some(_) => None,
            None => self.linear(operand).or_else(|| {
                // Where samples cannot be followed, a reduction to one number is taken for a reduction over them.
                let is_last = self.module.ty(node.results[0]).numel() == Some(1);
                (self.lost.is_some() && is_last).then_some(over_samples)
            }),
        }
    }

    /// Whether a contraction sums over the samples.
    fn contracted(&self, id: NodeId) -> bool {
        let node = self.module.node(id);
        let carries = |value: &ValueId| self.carries.contains_key(value);
        let mixes = |value: &ValueId| self.mixes[value.as_u32() as usize];
        node.operands.iter().any(carries) && !carries(&node.results[0]) && !node.operands.iter().any(mixes)
    }

    /// Whether each row of the logits belongs to one sample.
    fn meets_all(&self, logits: ValueId) -> bool {
        self.lost.is_some() || self.carries.contains_key(&logits) && !self.mixes[logits.as_u32() as usize]
    }

    /// Returns the number of elements of one sample that a sum over samples adds up; 1 if it is not known.
    pub(super) fn summed_elements(&self, mut value: ValueId) -> u64 {
        let mut elements = 1;
        while let Some(node) = self.module.producer(value) {
            let Some(&operand) = node.operands.iter().find(|&&operand| self.reads_inputs(operand)) else {
                break;
            };
            let of_sample = |value: ValueId| self.module.ty(value).numel().unwrap_or(1) / self.batch.max(1);
            match &node.op {
                Op::Reduce(_) => elements = of_sample(operand),
                // The cross-entropy sums over the labels.
                Op::CrossEntropy(_) => return of_sample(node[OperandRole::Labels]).max(1),
                Op::Contract(_) => break,
                // Before the reductions there are only the elements.
                _ if elements > 1 && self.module.ty(value).numel() != Some(1) => break,
                _ => {}
            }
            value = operand;
        }
        elements.max(1)
    }

    /// Returns the value of one element behind views and casts, but never behind a reduction over the samples.
    pub(super) fn through_views(&self, mut value: ValueId) -> ValueId {
        while let Some(before) = before_view(self.module, value) {
            let carry = self.carries.get(&before).map(|carry| carry.dim as u32);
            let node = self.module.producer(value);
            // At a batch of one, a mean over the samples is still a mean.
            let over_samples = match node.map(|node| &node.op) {
                Some(Op::Reduce(reduce)) => carry.is_some_and(|dim| reduce.dims.contains(&dim)),
                _ => false,
            };
            if over_samples {
                break;
            }
            value = before;
        }
        value
    }
}

/// Returns the value behind views and casts, as long as these keep the number of elements.
pub(super) fn through_views(module: &Module, mut value: ValueId) -> ValueId {
    while let Some(before) = before_view(module, value) {
        value = before;
    }
    value
}

/// Returns the operand of a view, of a cast, or of a reduction over one element.
fn before_view(module: &Module, value: ValueId) -> Option<ValueId> {
    let node = module.producer(value)?;
    let single = || module.ty(node.operands[0]).numel() == Some(1);
    let is_view = match &node.op {
        op if op.movement().keeps_order() => true,
        Op::Broadcast(_) => module.ty(value).numel() == Some(1) && single(),
        Op::Reduce(_) => single(),
        _ => false,
    };
    is_view.then(|| node.operands[0])
}
