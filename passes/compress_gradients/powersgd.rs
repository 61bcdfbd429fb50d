//! PowerSGD: one step of the power method on each matrix, from the factor of the step before (Vogels et al., NeurIPS 2019, arXiv
//! 1905.13727, algorithms 1 and 2; Ramesh et al., arXiv 2102.12092, appendix E.2).
//!
//! For the sum `M = Σᵢ Mᵢ` over the ranks, with `Mᵢ = Gᵢ + Eᵢ` of `m` rows and `n` columns, and `Q` of `n` rows and `r` columns, where
//! `m ≤ n` (a matrix with more rows than columns is seen transposed):
//!
//! | each rank | reduced over the ranks | elements |
//! | --- | --- | --- |
//! | `Pᵢ = Mᵢ Q` | `P = orthogonalize(Σ Pᵢ)` | r m |
//! | `Qᵢ = Mᵢᵀ P` | `Q' = Σ Qᵢ` | r n |
//!
//! The optimizer gets `Ĝ = P Q'ᵀ = P Pᵀ M`, and the next step starts from `Q'` (warm start). The paper's gradients are means over `N`
//! ranks and its errors `Eᵢ' = Mᵢ − Ĝ`. A gradient is a sum here, so a rank's share of `Ĝ` is `P Qᵢᵀ`, and
//!
//! ```text
//! Eᵢ' = Mᵢ − P Qᵢᵀ = (I − P Pᵀ) Mᵢ,    Σᵢ Eᵢ' = M − Ĝ
//! ```
//!
//! With `r = m`, `P` is a square orthogonal matrix and `Ĝ = M`, whatever the rank of `M` is. This is why the smaller factor is the
//! orthogonal one.
//!
//! The errors take one more product than `Mᵢ − Ĝ/N`. Both have the same sum, and only the sum reaches an update. But the paper's `Eᵢ'`
//! also has the difference between a rank's gradient and the mean, which adds up over the steps and costs digits.

use super::States;
use ir::ops::compression::Orthogonalize;
use ir::ops::contract::Contract;
use ir::{Initializer, Type, TypeError, ValueId};

/// Builds the nodes for a matrix of `rows` rows and `columns` columns at rank `r`. Returns `Ĝ`, a matrix of the same form.
pub(super) fn build(
    states: &mut States,
    gradient: ValueId,
    ranks: u64,
    [rows, columns, r]: [u64; 3],
) -> Result<ValueId, TypeError> {
    let (sum, errors) = states.with_errors(gradient, ranks, &[rows, columns])?;
    let form = if rows <= columns { "mn" } else { "nm" };
    let ty = Type::of(super::FULL, &[rows.max(columns), r]);
    // Any start without structure is good enough: the first step is a step of the power method from it.
    let start = Initializer::Normal { std: 1f64.to_bits(), data: None };
    let (factor, q) = states.add("powersgd.q", ty, start);
    let own_p = product(states, &format!("d{form},nr->dmr"), [sum, q])?;
    let p = states.b.sum(own_p, &[0])?;
    let p = states.b.one(Orthogonalize, &[p])?;
    let own_q = product(states, &format!("d{form},mr->dnr"), [sum, p])?;
    let new_q = states.b.sum(own_q, &[0])?;
    let whole = product(states, &format!("mr,nr->{form}"), [p, new_q])?;
    let seen = product(states, &format!("mr,dnr->d{form}"), [p, own_q])?;
    let unseen = states.b.build(sum - seen)?;
    states.set(errors, unseen);
    states.set(factor, new_q);
    Ok(whole)
}

fn product(states: &mut States, dims: &str, operands: [ValueId; 2]) -> Result<ValueId, TypeError> {
    states.b.one(Contract::new(dims), &operands)
}
