//! The experts of a mixture as exporters write them: each token's matrices are gathered, and multiplied one by one.

use super::Row;
use crate::canonicalize::graph::{Ask, ENode, Graph};
use crate::canonicalize::near::{holds, unless};
use crate::canonicalize::term::{Term, find, term, typed};
use egg::Id;
use ir::ops::contract::Contract;
use ir::ops::experts::Experts;
use ir::ops::shape::Reshape;
use ir::ops::{Inference, Labels, Operator};
use ir::{Dim, Op, Type};

pub(super) const RULES: &[Row] = &[("experts", &["contract"], experts)];

/// gather(weights, index) × x = experts(x, weights, index), which needs no copy of a matrix for every row
fn experts(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Contract(contract)] x y) => {
        let operands = [g.ty(x).clone(), g.ty(y).clone()];
        let Some(whole) = contract.infer(&Inference { operands: &operands, declared: &[] }).ok().and_then(|mut types| types.pop())
        else {
            return;
        };
        for (matrices, matrix_labels, rows, row_labels) in
            [(x, &contract.lhs, y, &contract.rhs), (y, &contract.rhs, x, &contract.lhs)]
        {
            find!(@arg g, matrices, ([Op::Gather(gather)] weights index) => {
                if gather.dim == 0 && g.ty(weights).ndim() == 3 {
                    let experts = chosen(g, contract, (matrix_labels, weights, index), (row_labels, rows));
                    let unmet = unless(experts.is_some(), || "a row is multiplied by more than one matrix".into());
                    holds(g, n, "experts", [unmet]);
                    out.extend(experts.map(|experts| typed(Reshape, [experts], whole.clone())));
                }
            });
        }
    });
}

/// Returns the experts for a contraction of matrices `weights[index[t..]]` with rows, if each row is multiplied by its own matrix only.
fn chosen(
    g: &Graph,
    contract: &Contract,
    (labels, weights, index): (&Labels, Id, Id),
    (row_labels, rows): (&Labels, Id),
) -> Option<Term> {
    let (tokens, [a, b]) = labels.0.split_at_checked(g.ty(index).ndim())? else { return None };
    let (summed, kept, transposed) = match (contract.out.0.contains(a), contract.out.0.contains(b)) {
        (false, true) => (a, b, false),
        (true, false) => (b, a, true),
        _ => return None,
    };
    // Dims of size one may stand anywhere.
    let row_dims = &g.ty(rows).dims;
    let is_one = |label: &u8| {
        let own = row_labels.0.iter().position(|l| l == label).map(|i| &row_dims[i]);
        own.is_some_and(Dim::is_one) && !labels.0.contains(label)
    };
    let in_order =
        |all: &Labels, last: &u8| all.0.iter().filter(|label| !is_one(label)).eq(tokens.iter().chain([last]));
    if !in_order(row_labels, summed) || !in_order(&contract.out, kept) {
        return None;
    }
    let count = g.ty(index).dims.iter().try_fold(Dim::known(1), |count, dim| count.product(dim))?;
    let width = g.ty(weights).dims[if transposed { 2 } else { 1 }].clone();
    let flat = Type::new(g.ty(rows).dtype, [count.clone(), width]);
    let index_type = Type::new(g.ty(index).dtype, [count]);
    let operands =
        [typed(Reshape, [rows.into()], flat), weights.into(), typed(Reshape, [index.into()], index_type)];
    Some(term(Experts { transposed }, operands))
}
