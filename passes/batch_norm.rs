//! Batch norms in an evaluation: the running statistics in place of those of the batch.

use ir::{Builder, Changed, Module, NodeId, Op, OperandRole};

/// The pass's name, in the nodes it touches.
const NAME: &str = "evaluation";

/// Whoever read what is of the batch in training reads what an evaluation has instead. What only the batch's statistics
/// were made by is left without a reader.
pub fn use_running_statistics(module: &mut Module) -> Changed {
    let found: Vec<NodeId> =
        module.nodes().filter(|(_, node)| matches!(node.op, Op::InTraining(_))).map(|(id, _)| id).collect();
    let mut b = Builder::new(module, NAME);
    for id in found {
        let (running, result) = (b.module().node(id)[OperandRole::State], b.module().node(id).results[0]);
        b.replace(result, running);
        b.remove(id);
    }
    b.finish()
}
