//! The walk from a value to the value of which it is a view, through nodes that compute no new elements.
//!
//! [`crate::view`] is a different module: it has the steps that cut a state out of a tensor of the file.

use crate::{Definition, Module, Movement, NodeId, Op, ValueId};

impl Module {
    /// Returns the source of the node that makes `value`, if the movement of that node is in the class `passed`.
    ///
    /// A result is a view of the operand with the same index: a collective moves each operand into its own result, and
    /// `in_training` gives its first operand in a step. Concatenations are not views.
    pub fn view_source(&self, value: ValueId, passed: impl Fn(Movement) -> bool) -> Option<ValueId> {
        self.views(value, passed).next().map(|(_, source)| source)
    }

    /// Walks from `value` back to the first value that no movement of the class `passed` makes. Yields each view's node and the
    /// operand that it shows, the last view first.
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

    /// Returns the value behind all views of the class `passed`; `value` itself if it is no view.
    pub fn viewed(&self, value: ValueId, passed: impl Fn(Movement) -> bool) -> ValueId {
        self.views(value, passed).last().map_or(value, |(_, source)| source)
    }

    /// Returns the number that all elements of a value have because a `splat` makes it. Looks through layouts and through casts to
    /// floats, and ignores the rounding of these casts.
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

#[cfg(test)]
mod tests {
    use crate::{Movement, text};

    #[test]
    fn a_walk_ends_at_the_first_movement_of_another_class() {
        let module = text::parse(
            "trainyard-ir 1
            module @m imported {
              func @forward(%0 \"x\" : i64[2, 3]) {
                %1 = cast %0 {to = f32} : f32[2, 3] !{fwd}
                %2 = transpose %1 {permutation = [1, 0]} : f32[3, 2] !{fwd}
                %3 = slice %2 {dim = 0, start = 0, step = 1} : f32[1, 2] !{fwd}
                %4 = broadcast %3 : f32[4, 2] !{fwd}
                %5 = concat %4, %4 {dim = 0} : f32[8, 2] !{fwd}
                %6 = reshape %5 : f32[16] !{fwd}
                %7 = splat {value = 0.5} : f32[2] !{fwd}
                %8 = broadcast %7 : f32[3, 2] !{fwd}
                %9 = cast %8 {to = f16} : f16[3, 2] !{fwd}
                %10 = reshape %9 : f16[6] !{fwd}
                %11 = cast %10 {to = i64} : i64[6] !{fwd}
              }
              output \"y\" = %6
              output \"z\" = %11
            }",
        );
        let module = module.expect("the program is well-formed");
        let results: Vec<_> = module.nodes().map(|(_, node)| node.results[0]).collect();
        let [cast, transpose, _, broadcast, concat, reshape, _, _, _, half, integer] = results[..] else {
            panic!("a node has one result");
        };
        assert_eq!(module.viewed(broadcast, Movement::is_view), module.inputs[0].value);
        assert_eq!(module.viewed(broadcast, Movement::is_layout), cast);
        assert_eq!(module.viewed(broadcast, Movement::is_part), broadcast);
        assert_eq!(module.view_source(transpose, Movement::is_rearrangement), Some(cast));
        assert_eq!(module.viewed(reshape, Movement::is_unchanged), concat, "a concatenation is no view");
        assert_eq!(module.splat_number(half), Some(0.5));
        assert_eq!(module.splat_number(integer), None);
    }
}
