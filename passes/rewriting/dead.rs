//! Removing nodes whose results nobody reads: the last thing of most passes.

use ir::{Builder, Changed, Module, NodeId};

/// The nodes that no output and no state depends on, in program order.
pub(crate) fn dead_nodes(module: &Module) -> Vec<NodeId> {
    let mut live = vec![false; module.value_count()];
    module.roots().for_each(|value| live[value.as_u32() as usize] = true);
    let mut dead = Vec::new();
    for (id, node) in module.nodes().rev() {
        if node.results.iter().any(|value| live[value.as_u32() as usize]) {
            node.operands.iter().for_each(|value| live[value.as_u32() as usize] = true);
        } else {
            dead.push(id);
        }
    }
    dead.reverse();
    dead
}

/// Removes the nodes that no output and no state depends on. `by` is the pass that does it.
pub fn remove_dead(module: &mut Module, by: &str) -> Changed {
    let dead = dead_nodes(module);
    let mut b = Builder::new(module, by);
    dead.into_iter().for_each(|node| b.remove(node));
    b.finish()
}
