//! Contractions absorb views into their labels, with any number of leading dims in any order.

use super::Row;
use super::view::merges;
use crate::canonicalize::graph::{Ask, ENode, Graph};
use crate::canonicalize::term::{Term, find, term, typed};
use egg::Id;
use ir::ops::contract::Contract;
use ir::ops::shape::Reshape;
use ir::ops::{Inference, Labels, Operator};
use ir::{Dim, Op, Type};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

pub(super) const RULES: &[Row] = &[
    ("transpose into a contraction", &["contract"], transposed_operand),
    ("transpose of a contraction", &["transpose"], transposed_result),
    ("contraction of flattened dims", &["contract"], flattened_operand),
];

/// transpose(x) × y = x × y with x's labels moved
fn transposed_operand(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    let moved = |labels: &Labels, permutation: &[u32]| {
        let mut source = labels.clone();
        permutation.iter().zip(&labels.0).for_each(|(&p, &label)| source.0[p as usize] = label);
        source
    };
    find!(g, n, ([Op::Contract(contract)] ([Op::Transpose(view)] x) y) => {
        let lhs = moved(&contract.lhs, &view.permutation);
        out.push(term(canonical(&Contract { lhs, ..contract.clone() }), [x.into(), y.into()]));
    });
    find!(g, n, ([Op::Contract(contract)] x ([Op::Transpose(view)] y)) => {
        let rhs = moved(&contract.rhs, &view.permutation);
        out.push(term(canonical(&Contract { rhs, ..contract.clone() }), [x.into(), y.into()]));
    });
}

/// transpose(x × y) = x × y with the result's labels moved
fn transposed_result(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Transpose(view)] ([Op::Contract(contract)] x y)) => {
        let labels = Labels(view.permutation.iter().map(|&i| contract.out.0[i as usize]).collect());
        out.push(term(canonical(&Contract { out: labels, ..contract.clone() }), [x.into(), y.into()]));
    });
}

/// Returns the same contraction with labels named `a, b, c…` in the order in which they occur, so that equal contractions become one node.
pub(super) fn canonical(contract: &Contract) -> Contract {
    let mut met: Vec<u8> = Vec::new();
    for &label in contract.lhs.0.iter().chain(&contract.rhs.0) {
        if !met.contains(&label) {
            met.push(label);
        }
    }
    let renamed = |labels: &Labels| {
        let name =
            |label: &u8| b'a' + met.iter().position(|l| l == label).expect("every label was met") as u8;
        Labels(labels.0.iter().map(name).collect())
    };
    Contract { lhs: renamed(&contract.lhs), rhs: renamed(&contract.rhs), out: renamed(&contract.out) }
}

/// merge(x) × y = merge(x × y): the merged dim becomes several labels, on the other side too if the dim is there
fn flattened_operand(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    let Some(Op::Contract(contract)) = n.op() else { return };
    let [x, y] = n.args[..] else { return };
    for inner in sources(g, x).into_iter().chain([x]) {
        for other in sources(g, y).into_iter().chain([y]) {
            if (inner, other) != (x, y) {
                out.extend(flattened(g, contract, (x, inner), (y, other)));
            }
        }
    }
}

/// Finds the operands of the reshapes in a class that merge dims.
fn sources(g: &Graph, x: Id) -> Vec<Id> {
    let mut sources = Vec::new();
    find!(@arg g, x, ([Op::Reshape(_)] inner) => {
        let (from, to) = (&g.ty(inner).dims, &g.ty(x).dims);
        if from.len() > to.len() && merges(from, to).is_some() {
            sources.push(inner);
        }
    });
    sources
}

/// Returns the contraction of the operands before their dims were merged. A label of one side alone is split into its dims. A label of
/// both sides is split only where both sides have a border: `[1, 4]` and `[1, 2, 2]` become `[1, 4]`.
fn flattened(g: &Graph, contract: &Contract, x: (Id, Id), y: (Id, Id)) -> Option<Term> {
    let runs = |(merged, inner): (Id, Id)| -> Option<Vec<Vec<Dim>>> {
        let runs = merges(&g.ty(inner).dims, &g.ty(merged).dims)?;
        Some(runs.into_iter().map(|run| g.ty(inner).dims[run].to_vec()).collect())
    };
    let sides = [(&contract.lhs, x, runs(x)?), (&contract.rhs, y, runs(y)?)];
    let parts_of = |label: u8| {
        let mut found = sides.iter().filter_map(|(labels, operand, parts)| {
            let at = labels.0.iter().position(|&l| l == label)?;
            Some((&parts[at], &g.ty(operand.0).dims[at]))
        });
        let (first, whole) = found.next()?;
        let Some((other, _)) = found.next() else { return Some(first.clone()) };
        Some(common_parts(first, other).unwrap_or_else(|| vec![whole.clone()]))
    };
    let mut next = b'A';
    let mut expansion: BTreeMap<u8, (Vec<u8>, Vec<Dim>)> = BTreeMap::new();
    for &label in contract.lhs.0.iter().chain(&contract.rhs.0) {
        let Entry::Vacant(entry) = expansion.entry(label) else { continue };
        let parts = parts_of(label)?;
        let fresh = (0..parts.len()).map(|i| next + i as u8).collect();
        next += parts.len() as u8;
        entry.insert((fresh, parts));
    }
    if expansion.values().all(|(_, parts)| parts.len() == 1) {
        return None;
    }
    let labels =
        |labels: &Labels| Labels(labels.0.iter().flat_map(|label| expansion[label].0.clone()).collect());
    let wide =
        Contract { lhs: labels(&contract.lhs), rhs: labels(&contract.rhs), out: labels(&contract.out) };
    let operand = |labels: &Labels, (_, inner): (Id, Id)| -> Term {
        let dims = labels.0.iter().flat_map(|label| expansion[label].1.clone());
        let ty = Type::new(g.ty(inner).dtype, dims);
        if ty == *g.ty(inner) { inner.into() } else { typed(Reshape, [inner.into()], ty) }
    };
    let operands = [operand(&contract.lhs, x), operand(&contract.rhs, y)];
    let types = [g.ty(x.0).clone(), g.ty(y.0).clone()];
    let ty = contract.infer(&Inference { operands: &types, declared: &[] }).ok()?.pop()?;
    Some(typed(Reshape, [term(canonical(&wide), operands)], ty))
}

/// Returns the common parts of two ways to split the same dim: each part is a product of dims on both sides, and no part can be
/// divided further. `None` if the sides differ in dims of unknown size.
fn common_parts(one: &[Dim], other: &[Dim]) -> Option<Vec<Dim>> {
    let (mut parts, mut one, mut other) = (Vec::new(), one.iter(), other.iter());
    while let (Some(left), Some(right)) = (one.next(), other.next()) {
        let (mut left, mut right) = (left.clone(), right.clone());
        while left != right {
            if left.size()? < right.size()? {
                left = left.product(one.next()?)?;
            } else {
                right = right.product(other.next()?)?;
            }
        }
        parts.push(left);
    }
    // Dims of size one that are left over join the last part.
    one.chain(other).all(Dim::is_one).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_parts_of_two_factorings_are_as_small_as_both_allow() {
        for (one, other, parts) in [
            (&[1, 4][..], &[1, 2, 2][..], Some(&[1, 4][..])),
            (&[2, 4], &[2, 2, 2], Some(&[2, 4])),
            (&[2, 2, 2], &[8], Some(&[8])),
            (&[2, 3], &[3, 2], Some(&[6])),
            (&[4, 1], &[4], Some(&[4])),
            (&[1, 4], &[4], Some(&[4])),
            (&[2, 6, 2], &[4, 3, 2], Some(&[12, 2])),
            (&[1, 1, 4], &[1, 4], Some(&[1, 4])),
            (&[2, 3], &[2, 2], None),
        ] {
            let dims = |sizes: &[u64]| sizes.iter().map(|&size| Dim::known(size)).collect::<Vec<_>>();
            assert_eq!(common_parts(&dims(one), &dims(other)), parts.map(dims), "{one:?} {other:?}");
        }
    }
}
