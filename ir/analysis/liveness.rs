//! Lifetimes: the range of positions of a step in which a buffer holds data that is still to be read.
//!
//! A step is a line of positions, one for each node or instruction, with a loop in its middle: the positions of the
//! microbatch phases run once per microbatch. A lifetime is a range of positions, both ends included, so that an
//! operand that is read for the last time and the result that is made there overlap.

use crate::ops::Op;
use crate::{Definition, Module, Phase, ValueId};
use cranelift_entity::SecondaryMap;
use std::ops::Range;

/// The positions from a buffer's first access to its last, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lifetime {
    /// The first position.
    pub first: u32,
    /// The last position.
    pub last: u32,
}

impl Lifetime {
    /// Whether both lifetimes include a common position.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Returns the smallest lifetime that covers both.
    pub fn union(&self, other: &Self) -> Self {
        Self { first: self.first.min(other.first), last: self.last.max(other.last) }
    }
}

/// Collects the accesses to buffers, and gives their lifetimes with the loop over microbatches taken into account.
#[derive(Clone, Debug)]
pub struct Lifetimes {
    microbatch: Range<u32>,
    spans: Vec<Span>,
}

#[derive(Clone, Debug, Default)]
struct Span {
    lifetime: Option<Lifetime>,
    in_loop: bool,
    carried: bool,
}

impl Lifetimes {
    /// Starts without accesses to any of `count` buffers. `microbatch` is the range of positions that run once per microbatch.
    pub fn new(count: usize, microbatch: Range<u32>) -> Self {
        Self { microbatch, spans: vec![Span::default(); count] }
    }

    /// Records that a buffer is read or written at a position.
    pub fn access(&mut self, buffer: usize, position: u32) {
        let span = &mut self.spans[buffer];
        let here = Lifetime { first: position, last: position };
        span.lifetime = Some(span.lifetime.map_or(here, |lifetime| lifetime.union(&here)));
        span.in_loop |= self.microbatch.contains(&position);
    }

    /// Records that a buffer keeps its contents from one microbatch to the next, such as a sum over microbatches.
    pub fn carry(&mut self, buffer: usize) {
        self.spans[buffer].carried = true;
    }

    /// Returns the lifetime of each buffer; `None` for a buffer without accesses.
    ///
    /// A buffer lives through the whole loop over microbatches if it is carried, or if it is accessed before the loop and in it:
    /// the next microbatch reads it again.
    pub fn finish(self) -> Vec<Option<Lifetime>> {
        let Self { microbatch, spans } = self;
        let whole = Lifetime { first: microbatch.start, last: microbatch.end.saturating_sub(1) };
        let finish = |span: Span| {
            let lifetime = span.lifetime?;
            let before = lifetime.first < microbatch.start;
            let through = !microbatch.is_empty() && (span.carried || before && span.in_loop);
            Some(if through { lifetime.union(&whole) } else { lifetime })
        };
        spans.into_iter().map(finish).collect()
    }
}

/// Returns the positions of the microbatch phases in a module's order of nodes.
pub fn microbatch_positions(module: &Module) -> Range<u32> {
    let count = |last: Phase| module.nodes().filter(|(_, node)| node.phase <= last).count() as u32;
    count(Phase::Prepare)..count(Phase::Weight)
}

/// Returns the lifetime of every value of a module. The position of a node is its index in the order. `None` for values of removed
/// nodes.
///
/// States are always alive. An input lives from the beginning of a microbatch. An output of a microbatch lives until the
/// microbatch ends, an output of a step until the step ends. A value that is accumulated is added to its sum where it is made; the
/// sum lives from the first microbatch to its last use in `update`. Every value is a separate buffer here.
pub fn values(module: &Module) -> SecondaryMap<ValueId, Option<Lifetime>> {
    let microbatch = microbatch_positions(module);
    let end = (module.order().len() as u32).saturating_sub(1);
    let mut made_at: SecondaryMap<ValueId, u32> = SecondaryMap::new();
    let mut lifetimes = Lifetimes::new(module.value_count(), microbatch.clone());
    let last_of_microbatch = microbatch.end.saturating_sub(1).max(microbatch.start).min(end);
    for input in &module.inputs {
        made_at[input.value] = microbatch.start.min(end);
        lifetimes.access(input.value.as_u32() as usize, microbatch.start.min(end));
    }
    for state in module.states.values() {
        lifetimes.access(state.input.as_u32() as usize, 0);
        lifetimes.access(state.input.as_u32() as usize, end);
        if let Some(output) = state.output {
            lifetimes.access(output.as_u32() as usize, end);
        }
    }
    for (position, (_, node)) in module.nodes().enumerate() {
        let position = position as u32;
        let accumulates = matches!(node.op, Op::Accumulate(_));
        for &operand in &node.operands {
            let at = if accumulates { made_at[operand].max(microbatch.start) } else { position };
            lifetimes.access(operand.as_u32() as usize, at);
        }
        for &result in &node.results {
            made_at[result] = position;
            lifetimes.access(result.as_u32() as usize, position);
            if accumulates {
                lifetimes.carry(result.as_u32() as usize);
            }
        }
    }
    for output in &module.outputs {
        let until = match module.value(output.value).definition {
            Definition::Node(node, _) if module.node(node).phase == Phase::Update => end,
            Definition::Node(node, _) if module.node(node).phase == Phase::Prepare => end,
            _ => last_of_microbatch,
        };
        lifetimes.access(output.value.as_u32() as usize, until);
    }
    let mut values = SecondaryMap::new();
    for (index, lifetime) in lifetimes.finish().into_iter().enumerate() {
        values[ValueId::from_u32(index as u32)] = lifetime;
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::elementwise::Unary;
    use crate::ops::step::Accumulate;
    use crate::{At, Builder, DType, Type};

    /// Nodes: prepare: p; forward: f (reads p), g; backward: h (reads f); update: the sum of h, and its negation.
    fn stepwise() -> (Module, [ValueId; 6]) {
        let mut module = Module::new("lifetimes");
        let ty = Type::of(DType::F32, &[16]);
        let x = module.add_input("x", ty.clone(), true);
        let w = module.add_state("w", ty, crate::Role::Parameter, crate::Initializer::Zeros);
        let w = module.states[w].input;
        let mut b = Builder::new(&mut module, "test");
        b.at(At::End(Phase::Prepare));
        let p = b.one(Unary::Neg, &[w]).unwrap();
        b.at(At::End(Phase::Forward));
        let f = b.build(p + x).unwrap();
        let g = b.one(Unary::Neg, &[f]).unwrap();
        b.at(At::End(Phase::Backward));
        let h = b.build(f * g).unwrap();
        b.at(At::End(Phase::Update));
        let sum = b.one(Accumulate, &[h]).unwrap();
        let last = b.one(Unary::Neg, &[sum]).unwrap();
        b.tables().add_output("last", last);
        b.finish();
        (module, [p, f, g, h, sum, last])
    }

    #[test]
    fn what_prepare_makes_lives_through_all_microbatches() {
        let (module, [p, ..]) = stepwise();
        assert_eq!(values(&module)[p], Some(Lifetime { first: 0, last: 3 }));
    }

    #[test]
    fn a_forward_value_lives_until_backward_has_read_it() {
        let (module, [_, f, g, ..]) = stepwise();
        assert_eq!(values(&module)[f], Some(Lifetime { first: 1, last: 3 }));
        assert_eq!(values(&module)[g], Some(Lifetime { first: 2, last: 3 }));
    }

    #[test]
    fn a_sum_over_microbatches_lives_from_the_first_to_its_last_use() {
        let (module, [.., h, sum, last]) = stepwise();
        let lifetimes = values(&module);
        assert_eq!(lifetimes[h], Some(Lifetime { first: 3, last: 3 }));
        assert_eq!(lifetimes[sum], Some(Lifetime { first: 1, last: 5 }));
        assert_eq!(lifetimes[last], Some(Lifetime { first: 5, last: 5 }));
    }

    #[test]
    fn a_state_lives_always() {
        let (module, _) = stepwise();
        let w = module.states.values().next().unwrap().input;
        assert_eq!(values(&module)[w], Some(Lifetime { first: 0, last: 5 }));
    }
}
