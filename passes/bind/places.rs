//! Finds nodes that depend on the place of a sample in the batch: the sample reads another sample through indices, positions or a matrix
//! that are the same in every batch.
//!
//! The rows of a graph network are the nodes of its graph: in another order, or among other rows, they are other data. Statistics over
//! the samples and losses that compare all samples do not depend on places.

use super::trace::{self, Carry};
use cranelift_entity::SecondaryMap;
use ir::{Module, Node, NodeId, Op, OperandRole, ValueId};

/// Returns the first node that depends on the place of a sample in the microbatch. With one sample there is no place.
pub fn where_places_count(module: &Module) -> Option<NodeId> {
    let (samples, differing) = trace::followed(module);
    if samples.batch < 2 {
        return None;
    }
    let mut depends: SecondaryMap<ValueId, bool> = SecondaryMap::new();
    for input in module.inputs.iter().filter(|input| input.batched) {
        depends[input.value] = true;
    }
    let carry = |value: ValueId| samples.carries.get(&value).copied();
    for (id, node) in module.nodes() {
        if node.operands.iter().any(|&operand| depends[operand]) {
            let differs = differing.contains(&id) && !joins_indices(module, node);
            if differs || counts_places(module, node, &carry, &depends) {
                return Some(id);
            }
            node.results.iter().for_each(|&result| depends[result] = true);
        }
    }
    None
}

/// Whether a node joins integer indices. Exporters join each sample's own number to its indices for `ScatterND`.
fn joins_indices(module: &Module, node: &Node) -> bool {
    matches!(node.op, Op::Concat(_)) && module.ty(node.results[0]).dtype.is_integer()
}

/// Whether a node that reads samples combines them by their places.
fn counts_places(
    module: &Module,
    node: &Node,
    carry: &dyn Fn(ValueId) -> Option<Carry>,
    depends: &SecondaryMap<ValueId, bool>,
) -> bool {
    let is_fixed = |value: ValueId| !depends[value];
    let has_samples_in =
        |value: ValueId, dim: u32| carry(value).is_some_and(|carry| carry.dim == dim as usize);
    match &node.op {
        Op::Gather(gather) => {
            has_samples_in(node[OperandRole::Data], gather.dim) && is_fixed(node[OperandRole::Indices])
        }
        Op::GatherElements(gather) => {
            has_samples_in(node[OperandRole::Data], gather.dim) && is_fixed(node[OperandRole::Indices])
        }
        Op::ScatterElements(scatter) => {
            has_samples_in(node.operands[0], scatter.dim) && is_fixed(node[OperandRole::Indices])
        }
        Op::GatherNd(gather) => {
            let indexed = module.ty(node[OperandRole::Indices]).dims.last().and_then(|dim| dim.size());
            let dims = gather.batch_dims as usize..gather.batch_dims as usize + indexed.unwrap_or(0) as usize;
            let has_samples = carry(node[OperandRole::Data]).is_some_and(|carry| dims.contains(&carry.dim));
            has_samples && is_fixed(node[OperandRole::Indices])
        }
        Op::Slice(slice) => has_samples_in(node.operands[0], slice.dim),
        Op::Attention(attention) => attention.causal && has_samples_in(node.operands[0], 2),
        // A matrix that is the same in every batch has a row or a column for each place.
        Op::Contract(contract) => {
            let summed = contract.roles().summed;
            let sides = [(&contract.lhs, 0, 1), (&contract.rhs, 1, 0)];
            sides.into_iter().any(|(labels, own, other)| {
                let carry = carry(node.operands[own]);
                let is_over_samples = carry.is_some_and(|carry| summed.contains(&labels.0[carry.dim]));
                is_over_samples && is_fixed(node.operands[other])
            })
        }
        _ => false,
    }
}
