//! Values that do not depend on inputs: conditions, trip counts and sizes that a file computes, also through floats or reductions,
//! are folded into known integers here.

use super::context::{Context, Entry};
use super::integers::Ints;
use ir::ops::Interp;
use ir::{Op, Operator, Tensor, Type, ValueId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The most nodes of a computation that is evaluated. A larger one counts as computed from data.
const MOST_NODES: usize = 512;

/// The result of each evaluated value; `None` if it depends on an input or is too large.
pub(super) type Memo = BTreeMap<ValueId, Option<Rc<Tensor>>>;

impl Context<'_> {
    /// Evaluates a value that does not depend on inputs, if it and all values behind it are small.
    pub(super) fn evaluate(&mut self, value: ValueId) -> Option<Rc<Tensor>> {
        let (mut stack, mut left) = (vec![value], MOST_NODES);
        while let Some(&next) = stack.last() {
            if self.evaluated.contains_key(&next) {
                stack.pop();
                continue;
            }
            let missing = self.missing(next);
            if missing.is_empty() {
                let tensor = self.computed_now(next);
                self.evaluated.insert(next, tensor);
                stack.pop();
            } else if missing.len() > left {
                self.evaluated.insert(value, None);
                return None;
            } else {
                left -= missing.len();
                stack.extend(missing);
            }
        }
        self.evaluated.get(&value).cloned().flatten()
    }

    /// Returns the operands that must be evaluated before a value.
    fn missing(&self, value: ValueId) -> Vec<ValueId> {
        let Some(node) = self.b.module().producer(value).filter(|_| self.is_small(value)) else {
            return vec![];
        };
        node.operands.iter().copied().filter(|operand| !self.evaluated.contains_key(operand)).collect()
    }

    fn is_small(&self, value: ValueId) -> bool {
        self.ty(value).numel().is_some_and(|count| count <= Ints::LIMIT as u64)
    }

    /// Evaluates a value whose operands have been evaluated.
    fn computed_now(&self, value: ValueId) -> Option<Rc<Tensor>> {
        let module = self.b.module();
        let node = module.producer(value).filter(|_| self.is_small(value))?;
        match &node.op {
            // Random numbers are not drawn during the import.
            Op::Dropout(_) | Op::RandomUniform(_) => return None,
            Op::Constant(constant) => {
                return ir::interp::file_tensor(&module.data[constant.data]).map(Rc::new);
            }
            _ => {}
        }
        let operands: Vec<Rc<Tensor>> = node
            .operands
            .iter()
            .map(|operand| self.evaluated.get(operand)?.clone())
            .collect::<Option<_>>()?;
        let operands: Vec<&Tensor> = operands.iter().map(Rc::as_ref).collect();
        let types: Vec<Type> = node.results.iter().map(|&result| module.ty(result).clone()).collect();
        let call = Interp { operands: &operands, results: &types, data: &module.data, parts: None };
        let place = node.results.iter().position(|&result| result == value)?;
        // Rounded as in the program itself.
        Some(Rc::new(node.op.interp(&call).into_iter().nth(place)?.rounded()))
    }

    /// Turns an integer or bool scalar or vector that does not depend on inputs into known integers. Returns any other entry
    /// unchanged.
    pub(super) fn folded(&mut self, entry: Entry) -> Entry {
        let Entry::Value(value) = entry else { return entry };
        let ty = self.ty(value);
        if ty.dtype.is_float() || ty.ndim() > 1 || !self.is_small(value) {
            return entry;
        }
        let dtype = ty.dtype;
        match self.evaluate(value).and_then(|tensor| Ints::of(&tensor)) {
            Some(ints) => Entry::Ints(ints, dtype),
            None => entry,
        }
    }
}
