//! Normalisations that exporters write as several nodes: layer norm and RMS norm over the last dim.

use super::Row;
use crate::canonicalize::graph::{Ask, ENode, Graph};
use crate::canonicalize::near::{holds, number, one_value, unless};
use crate::canonicalize::term::{Term, find, result, term};
use egg::Id;
use ir::Op;
use ir::ops::Float;
use ir::ops::elementwise::Binary::{Add, Mul, Pow, Sub};
use ir::ops::elementwise::Unary::Rsqrt;
use ir::ops::norm::{LayerNorm, RmsNorm};
use ir::ops::reduce::{Reduce, ReduceKind};

pub(super) const RULES: &[Row] = &[("layer norm", &["add"], layer_norm), ("rms norm", &["mul"], rms_norm)];

/// Whether a reduction is a mean over the last dim that keeps the dim, for an operand with the dims of `x`.
fn mean_of_last(g: &Graph, reduce: &Reduce, x: Id) -> bool {
    let last = g.ty(x).ndim().checked_sub(1).map(|last| last as u32);
    reduce.kind == ReduceKind::Mean && reduce.keep && reduce.dims.iter().copied().eq(last)
}

/// Returns a reason unless the means are over the last dim.
fn over_last(holds: bool, mean: &Reduce) -> Option<String> {
    unless(holds, || {
        format!("its `{:?}` over dims {:?} is not the mean over the last dim", mean.kind, mean.dims)
    })
}

/// Returns a reason unless a class is a vector along the last dim of another class.
fn along_last(g: &Graph, vector: Id, x: Id, what: &str) -> Option<String> {
    let fits = g.ty(vector).ndim() == 1 && g.ty(vector).dims.last() == g.ty(x).dims.last();
    unless(fits, || format!("its {what} {} is not a vector along the last dim of {}", g.ty(vector), g.ty(x)))
}

/// Returns a reason unless the addend of the variance is a number.
fn small(g: &Graph, eps: Id) -> Option<String> {
    unless(g.number(eps).is_some(), || {
        format!("the addend of the variance is {}, and not a number", g.ty(eps))
    })
}

/// (x - mean) · rsqrt(mean((x - mean)²) + eps) · scale + bias
fn layer_norm(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, (% [Op::Binary(Add)] bias (% [Op::Binary(Mul)] scale (% [Op::Binary(Mul)]
        ([Op::Binary(Sub)] x ([Op::Reduce(m1)] x1))
        ([Op::Unary(Rsqrt)] (% [Op::Binary(Add)] e ([Op::Reduce(m2)] ([Op::Binary(Pow)]
            ([Op::Binary(Sub)] x2 ([Op::Reduce(m3)] x3)) two))))))) => {
        let means = [m1, m2, m3].into_iter().all(|mean| mean_of_last(g, mean, x));
        let unmet = [
            one_value(g, &[x, x1, x2, x3], "the normalised value and its statistics"),
            number(g, two, 2.0),
            over_last(means, m1),
            small(g, e),
            along_last(g, scale, x, "scale"),
            along_last(g, bias, x, "bias"),
        ];
        let holds = holds(g, n, "layer_norm", unmet);
        if let Some(eps) = g.number(e).map(Float::new).filter(|_| holds) {
            let norm = term(LayerNorm { eps }, [x.into(), scale.into(), bias.into()]);
            out.push(result(0, norm));
        }
    });
}

/// x · rsqrt(mean(x²) + eps) · scale
fn rms_norm(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, (% [Op::Binary(Mul)] scale (% [Op::Binary(Mul)] x
        ([Op::Unary(Rsqrt)] (% [Op::Binary(Add)] e ([Op::Reduce(mean)] ([Op::Binary(Pow)] y two)))))) => {
        // A number is a separate factor, and not the norm's scale.
        if g.number(scale).is_some() {
            return;
        }
        let unmet = [
            one_value(g, &[x, y], "the normalised value and its mean square"),
            number(g, two, 2.0),
            over_last(mean_of_last(g, mean, x), mean),
            small(g, e),
            along_last(g, scale, x, "scale"),
        ];
        let holds = holds(g, n, "rms_norm", unmet);
        if let Some(eps) = g.number(e).map(Float::new).filter(|_| holds) {
            let norm = term(RmsNorm { eps }, [x.into(), scale.into()]);
            out.push(result(0, norm));
        }
    });
}
