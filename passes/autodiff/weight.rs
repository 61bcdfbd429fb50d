//! Moves gradients of parameters into a phase of their own. A pipeline whose schedule runs them apart from the gradients of activations
//! fills its idle time with them (Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2).
//!
//! A node is put off if it leads only to sums over microbatches, and if it is the last node of a parameter's gradient that computes
//! anything, or moves, scales or adds up the results of such nodes. Earlier nodes stay in backward: gradients of activations are made
//! of the same values.

use ir::ops::elementwise::Binary;
use ir::{Builder, Definition, Module, NodeId, Op, Phase, ValueId};
use std::collections::BTreeSet;

/// Moves the gradients of parameters into their own phase, if the timetable has tasks for them.
pub(super) fn put_off(module: &mut Module, by: &str) {
    if module.pipeline.as_ref().is_some_and(|pipeline| pipeline.timetable.splits_backward()) {
        put_off_all(module, by);
    }
}

/// Moves the gradients of parameters into their own phase.
pub fn put_off_all(module: &mut Module, by: &str) {
    let of_weights = decide(module);
    let mut b = Builder::new(module, by);
    let order: Vec<NodeId> = b.module().order().to_vec();
    order.into_iter().filter(|id| of_weights.contains(id)).for_each(|id| b.put_off(id, Phase::Weight));
    b.finish();
}

/// Returns the nodes that make nothing but gradients of parameters.
fn decide(module: &Module) -> BTreeSet<NodeId> {
    let uses = module.uses();
    let roots: BTreeSet<ValueId> = module.roots().collect();
    let mut chosen = BTreeSet::new();
    // Readers come before the nodes that they read.
    for (id, node) in module.nodes().rev().filter(|(_, node)| node.phase == Phase::Backward) {
        let is_sum = |reader: &NodeId| matches!(module.node(*reader).op, Op::Accumulate(_));
        let is_passed_on = |reader: &NodeId| chosen.contains(reader) && passes_on(&module.node(*reader).op);
        let leads_to_sums = |value: &ValueId| {
            !roots.contains(value)
                && !uses[*value].is_empty()
                && uses[*value].iter().all(|reader| is_sum(reader) || is_passed_on(reader))
        };
        let is_made = node.operands.iter().any(|&operand| is_of_microbatch(module, operand));
        if is_made && !matches!(node.op, Op::Transfer(_)) && node.results.iter().all(leads_to_sums) {
            chosen.insert(id);
        }
    }
    chosen
}

/// Whether the producers of a node's operands may be put off with the node: it moves, casts, adds or multiplies elements.
fn passes_on(op: &Op) -> bool {
    op.movement().is_layout() || matches!(op, Op::Cast(_) | Op::Binary(Binary::Add | Binary::Mul))
}

fn is_of_microbatch(module: &Module, value: ValueId) -> bool {
    !matches!(module.value(value).definition, Definition::State(_)) && module.phase_of(value).is_microbatch()
}
