//! Shards states between steps, and places the reductions of gradients: ZeRO (Rajbhandari et al., arXiv 1910.02054).
//!
//! | stage | sharded over the axes of the batch | gradients |
//! | --- | --- | --- |
//! | 0 | nothing | all_reduce, once a step |
//! | 1 | the optimizer's states | reduce_scatter, once a step |
//! | 2 | also the sums of gradients | reduce_scatter, every microbatch |
//! | 3 | also the parameters, gathered where they are used | the same |
//!
//! States of experts are already split over the expert axes, and ZeRO shards them over the other axes of the batch.
//! A parameter that the model reads only through casts (a master weight) counts as a state of the optimizer, from stage 1 on.

use super::mesh;
use super::propagation::{Cause, Layout, Layouts, Rules, Scope, propagate};
use ir::{AxisId, Definition, Op, Phase, Role, State, StateId, ValueId};
use std::collections::BTreeMap;

/// Layouts that partitioning must make, whatever the nodes would choose.
#[derive(Clone, Debug, Default)]
pub(super) struct Demands {
    /// The layouts of states between steps.
    pub(super) states: BTreeMap<StateId, Layout>,
    /// The layouts of values as soon as they are made.
    pub(super) values: BTreeMap<ValueId, Layout>,
    /// Whether weights that `prepare` makes stay sharded until a node of the model reads them.
    pub(super) gathers_at_use: bool,
}

/// Shards states and sums of gradients over the axes of the batch, according to the stage.
pub(super) fn plan(rules: &Rules, layouts: &mut Layouts, stage: u8) -> Demands {
    let module = rules.module;
    let axes = mesh::zero_axes(rules.mesh);
    let mut demands = Demands { gathers_at_use: stage >= 3, ..Demands::default() };
    let sums = module.nodes().filter(|(_, node)| matches!(node.op, Op::Accumulate(_)));
    let is_divided = |value: ValueId| {
        let readers = rules.readers(value);
        !readers.is_empty() && readers.iter().all(|&reader| matches!(module.node(reader).op, Op::Addends(_)))
    };
    for (_, node) in sums.filter(|(_, node)| !is_divided(node.results[0])) {
        demands.values.insert(node.results[0], layouts.of(node.results[0]).clone());
    }
    if stage > 0 && !axes.is_empty() {
        shard(rules, layouts, stage, &axes, &mut demands);
    }
    for (id, state) in module.states.iter() {
        demands.states.insert(id, layouts.of(state.input).clone());
    }
    demands
}

fn shard(rules: &Rules, layouts: &mut Layouts, stage: u8, axes: &[AxisId], demands: &mut Demands) {
    let module = rules.module;
    let parameters = module.states.values().filter(|state| state.role == Role::Parameter);
    let mut seeds = Vec::new();
    for state in parameters {
        let sharded = stage >= 3 || is_master(rules, state);
        let sums = gradients(rules, state);
        let axes: Vec<AxisId> =
            axes.iter().copied().filter(|&axis| !layouts.uses(state.input, axis)).collect();
        let open = !axes.is_empty() && !layouts.is_closed(state.input);
        let place = open.then(|| dim(rules, layouts, state, &sums, &axes)).flatten();
        let Some(dim) = place else {
            layouts.close(state.input);
            continue;
        };
        let split = |layouts: &mut Layouts, value: ValueId, what: &str| {
            for &axis in &axes {
                let cause = Cause::Seed(format!("ZeRO stage {stage}: {what}"));
                layouts.split(value, state.ty.ndim(), dim, axis, cause);
            }
        };
        for sum in sums {
            split(layouts, sum, "gradients are summed where they are used");
            demands.values.insert(sum, layouts.of(sum).clone());
            let addend = rules.module.producer(sum).expect("a sum is made by a node").operands[0];
            if stage >= 2 {
                demands.values.insert(addend, layouts.of(sum).clone());
            }
            seeds.push(sum);
        }
        if sharded {
            split(layouts, state.input, "each device keeps its share of the parameter");
        }
        layouts.close(state.input);
    }
    // Microbatches make the addends of the sums, and their batch uses these axes already.
    let sums = module.nodes().filter(|(_, node)| matches!(node.op, Op::Accumulate(_)));
    sums.for_each(|(_, node)| layouts.close(node.operands[0]));
    propagate(
        rules,
        layouts,
        &Scope { axes, phases: &[Phase::Update], states: true, nodes: None },
        Some(&seeds),
    );
}

/// Whether the model reads a state only through casts in `prepare`, which run once a step.
fn is_master(rules: &Rules, state: &State) -> bool {
    let node = |id: &ir::NodeId| rules.module.node(*id);
    let mut readers =
        rules.readers(state.input).iter().map(node).filter(|node| node.phase != Phase::Update).peekable();
    readers.peek().is_some()
        && readers.all(|node| node.phase == Phase::Prepare && matches!(node.op, Op::Cast(_)))
}

/// Returns the first dim that these axes divide further, in the parameter and in its gradients, which may be split over more axes.
fn dim(
    rules: &Rules,
    layouts: &Layouts,
    state: &State,
    gradients: &[ValueId],
    axes: &[AxisId],
) -> Option<usize> {
    let parts = rules.mesh.size(axes);
    (0..state.ty.ndim()).find(|&dim| {
        let divides = |&value: &ValueId| {
            let split = rules.mesh.size(layouts.axes(value, dim));
            state.ty.dims[dim].size().is_some_and(|size| size > 0 && size.is_multiple_of(split * parts))
        };
        divides(&state.input) && gradients.iter().all(divides)
    })
}

/// Returns the sums over microbatches that a parameter's new value depends on element by element.
fn gradients(rules: &Rules, state: &State) -> Vec<ValueId> {
    let module = rules.module;
    let mut pending: Vec<ValueId> = state.output.into_iter().collect();
    let (mut found, mut seen) = (Vec::new(), Vec::new());
    while let Some(value) = pending.pop() {
        if seen.contains(&value) || module.ty(value).dims != state.ty.dims {
            continue;
        }
        seen.push(value);
        let Definition::Node(id, _) = module.value(value).definition else { continue };
        let node = module.node(id);
        match node.op {
            Op::Accumulate(_) => found.push(value),
            _ if node.phase == Phase::Update => pending.extend(node.operands.iter().copied()),
            _ => {}
        }
    }
    found
}
