//! Contractions: MatMul if the labels are those of matrices with leading dims, otherwise Einsum.
//!
//! Transposes bring the dims into MatMul's order, as in the files of exporters. The pass `canonicalize` folds them back into the
//! labels.

use super::attribute;
use super::draft::{Draft, TensorId};
use super::operators::{Results, one};
use super::{Form, own};
use ir::ops::Labels;
use ir::ops::contract::{Contract, Roles};
use ir::{DType, Node};

/// Writes the product of two tensors.
pub(super) fn contract(draft: &mut Draft, node: &Node, op: &Contract) -> Results {
    let (lhs, rhs) = (draft.operand(node, 0)?, draft.operand(node, 1)?);
    one(match order(op) {
        Some(order) => product(draft, op, [lhs, rhs], &order),
        None => {
            let dtype = draft.ty(node.operands[0]).dtype;
            // Einsum does not support bf16.
            if dtype == DType::BF16 && draft.form == Form::Program {
                return own::write(draft, node);
            }
            let wide = if dtype == DType::BF16 { DType::F32 } else { dtype };
            let operands = [lhs, rhs].map(|operand| draft.cast(operand, dtype, wide));
            let text = |labels: &Labels| labels.0.iter().map(|&label| label as char).collect::<String>();
            let equation = format!("{},{}->{}", text(&op.lhs), text(&op.rhs), text(&op.out));
            let product = draft.push("Einsum", &operands, [attribute::text("equation", &equation)]);
            draft.cast(product, wide, dtype)
        }
    })
}

/// The labels of the operands and the result of a MatMul.
struct Order {
    lhs: Vec<u8>,
    rhs: Vec<u8>,
    out: Vec<u8>,
}

/// Returns the order of dims in which MatMul computes a contraction; `None` if it cannot.
fn order(op: &Contract) -> Option<Order> {
    let Roles { batch, rows, columns, summed } = op.roles();
    if summed.len() != 1 || columns.len() > 1 {
        return None;
    }
    let joined = |parts: &[&[u8]]| parts.concat();
    if batch.is_empty() {
        // All rows are leading dims of one matrix, and keep their order.
        let rows: Vec<u8> = op.lhs.0.iter().copied().filter(|label| rows.contains(label)).collect();
        return Some(Order {
            lhs: joined(&[&rows, &summed]),
            rhs: joined(&[&summed, &columns]),
            out: joined(&[&rows, &columns]),
        });
    }
    (rows.len() == 1 && columns.len() == 1).then(|| Order {
        lhs: joined(&[&batch, &rows, &summed]),
        rhs: joined(&[&batch, &summed, &columns]),
        out: joined(&[&batch, &rows, &columns]),
    })
}

fn product(draft: &mut Draft, op: &Contract, [lhs, rhs]: [TensorId; 2], order: &Order) -> TensorId {
    let lhs = draft.transpose(lhs, &permutation(&op.lhs.0, &order.lhs));
    let rhs = draft.transpose(rhs, &permutation(&op.rhs.0, &order.rhs));
    let product = draft.push("MatMul", &[lhs, rhs], []);
    draft.transpose(product, &permutation(&order.out, &op.out.0))
}

/// Returns the place in `from` of each label of `to`.
fn permutation(from: &[u8], to: &[u8]) -> Vec<usize> {
    let place = |label: &u8| from.iter().position(|other| other == label);
    to.iter().filter_map(place).collect()
}
