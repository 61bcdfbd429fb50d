//! Experts: the matrix of each row is gathered by its index.

use super::attribute;
use super::draft::Draft;
use super::indexing::indices;
use super::operators::{Results, one};
use ir::Node;
use ir::ops::experts::Experts;

/// Writes `out[t, n] = Σ_k x[t, k] · weights[index[t], k, n]` as a batch of products with one row each.
pub(super) fn experts(draft: &mut Draft, node: &Node, op: &Experts) -> Results {
    let (x, weights) = (draft.operand(node, 0)?, draft.operand(node, 1)?);
    let indices = indices(draft, node, false)?;
    let weights = if op.transposed { draft.transpose(weights, &[0, 2, 1]) } else { weights };
    let matrices = draft.push("Gather", &[weights, indices], [attribute::int("axis", 0)]);
    let rows = draft.unsqueeze(x, 1);
    let products = draft.push("MatMul", &[rows, matrices], []);
    one(draft.squeeze(products, 1))
}
