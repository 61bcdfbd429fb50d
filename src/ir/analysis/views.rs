//! The walk from a value to the value that it is a view of, through nodes that compute no new elements.
//!
//! [`crate::view`] is another thing: the steps that cut a state out of a tensor of the file.

use crate::{Definition, Module, Movement, NodeId, Op, ValueId};

impl Module {
    /// The value that `value` is a view of, one node back, if the movement of that node is of the class `passed`.
    ///
    /// A result is a view of the operand of its own number: of a collective of several tensors the same tensor, and of
    /// `in_training` the operand that a step reads. Concatenations are no views.
    pub fn view_source(&self, value: ValueId, passed: impl Fn(Movement) -> bool) -> Option<ValueId> {
        self.views(value, passed).next().map(|(_, source)| source)
    }

    /// The views from `value` back to the first value that no movement of the class `passed` makes: each view's node and
    /// the value that it shows, the last view first.
    pub fn views(
        &self,
        value: ValueId,
        passed: impl Fn(Movement) -> bool,
    ) -> impl Iterator<Item = (NodeId, ValueId)> {
        let step = move |value: ValueId| {
            let Definition::Node(id, result) = self.value(value).definition else { return None };
            let node = self.node(id);
            let movement = node.op.movement();
            let source = if movement.shows_one_operand() { node.operands.get(result as usize) } else { None };
            source.filter(|_| passed(movement)).map(|&source| (id, source))
        };
        std::iter::successors(step(value), move |&(_, source)| step(source))
    }

    /// The value behind all views of the class `passed`: `value` itself if it is no view.
    pub fn viewed(&self, value: ValueId, passed: impl Fn(Movement) -> bool) -> ValueId {
        self.views(value, passed).last().map_or(value, |(_, source)| source)
    }

    /// The number that all elements of a value equal because a `splat` makes it, seen through layouts and through casts to
    /// floats, whose rounding is left out.
    pub fn splat_number(&self, value: ValueId) -> Option<f64> {
        let mut source = value;
        loop {
            source = self.viewed(source, Movement::is_layout);
            match &self.producer(source)?.op {
                Op::Splat(splat) => return Some(splat.value.get()),
                Op::Cast(cast) if cast.to.is_float() => {
                    source = self.view_source(source, Movement::is_view)?
                }
                _ => return None,
            }
        }
    }
}
