//! Removes nodes whose results have no reader, at the end of most passes.

use ir::analysis::live_nodes;
use ir::{Builder, Changed, Module, NodeId};

/// Returns the nodes that no output and no state depends on, in program order.
pub(crate) fn dead_nodes(module: &Module) -> Vec<NodeId> {
    let live = live_nodes(module);
    module.order().iter().copied().filter(|&id| !live.contains(id)).collect()
}

/// Removes the nodes that no output and no state depends on. `by` is the name of the pass.
pub fn remove_dead(module: &mut Module, by: &str) -> Changed {
    let dead = dead_nodes(module);
    let mut b = Builder::new(module, by);
    dead.into_iter().for_each(|node| b.remove(node));
    b.finish()
}
