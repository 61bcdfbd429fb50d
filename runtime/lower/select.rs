//! Which nodes run: those that a kept output or a state's new value needs.

use super::LowerOptions;
use cranelift_entity::EntitySet;
use ir::{Definition, Module, NodeId, ValueId};

/// Whether an output is kept.
pub(super) fn keeps(options: &LowerOptions, name: &str) -> bool {
    options.outputs.is_none_or(|kept| kept.contains(&name))
}

/// What is wanted: kept outputs, and the states' new values.
fn wanted(module: &Module, options: &LowerOptions) -> impl Iterator<Item = ValueId> {
    let outputs = module.outputs.iter().filter(|output| keeps(options, &output.name));
    let states = module.states.values().filter_map(|state| state.output);
    outputs.map(|output| output.value).chain(states)
}

/// What is wanted, as a set.
pub(super) fn held(module: &Module, options: &LowerOptions) -> EntitySet<ValueId> {
    let mut held = EntitySet::new();
    held.extend(wanted(module, options));
    held
}

/// The nodes that what is wanted depends on.
pub(super) fn live_nodes(module: &Module, options: &LowerOptions) -> EntitySet<NodeId> {
    let mut live = EntitySet::new();
    let mark = |live: &mut EntitySet<NodeId>, value: ValueId| {
        if let Definition::Node(node, _) = module.value(value).definition {
            live.insert(node);
        }
    };
    wanted(module, options).for_each(|value| mark(&mut live, value));
    for (id, node) in module.nodes().rev() {
        if live.contains(id) {
            node.operands.iter().for_each(|&operand| mark(&mut live, operand));
        }
    }
    live
}
