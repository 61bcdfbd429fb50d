//! Normalisations spelled out: layer norm and RMS norm over the last dim.

use super::Row;
use crate::canonicalize::graph::{Ask, ENode, Graph};
use crate::canonicalize::term::{Term, find, term};
use egg::Id;
use ir::Op;
use ir::ops::Float;
use ir::ops::elementwise::Binary::{Add, Mul, Pow, Sub};
use ir::ops::elementwise::Unary::Rsqrt;
use ir::ops::norm::{LayerNorm, RmsNorm};
use ir::ops::reduce::{Reduce, ReduceKind};

pub(super) const RULES: &[Row] = &[("layer norm", &["add"], layer_norm), ("rms norm", &["mul"], rms_norm)];

/// Whether a reduction is the mean over the last dim, kept, of an operand like that class.
fn mean_of_last(g: &Graph, reduce: &Reduce, x: Id) -> bool {
    let last = g.ty(x).ndim().checked_sub(1).map(|last| last as u32);
    reduce.kind == ReduceKind::Mean && reduce.keep && reduce.dims.iter().copied().eq(last)
}

/// Whether a class is a vector along the last dim of another.
fn along_last(g: &Graph, vector: Id, x: Id) -> bool {
    g.ty(vector).ndim() == 1 && g.ty(vector).dims.last() == g.ty(x).dims.last()
}

fn eps(g: &Graph, class: Id) -> Option<Float> {
    g.number(class).map(Float::new)
}

/// (x - mean) · rsqrt(mean((x - mean)²) + eps) · scale + bias
fn layer_norm(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, (% [Op::Binary(Add)] bias (% [Op::Binary(Mul)] scale (% [Op::Binary(Mul)]
        ([Op::Binary(Sub)] x ([Op::Reduce(m1)] x1))
        ([Op::Unary(Rsqrt)] (% [Op::Binary(Add)] e ([Op::Reduce(m2)] ([Op::Binary(Pow)]
            ([Op::Binary(Sub)] x2 ([Op::Reduce(m3)] x3)) two))))))) => {
        let one_x = g.same(x, x1) && g.same(x, x2) && g.same(x, x3) && g.is(two, 2.0);
        let means = [m1, m2, m3].into_iter().all(|mean| mean_of_last(g, mean, x));
        if let Some(eps) = eps(g, e).filter(|_| one_x && means && along_last(g, scale, x) && along_last(g, bias, x)) {
            let norm = term(LayerNorm { eps }, [x.into(), scale.into(), bias.into()]);
            out.push(Term::Result(0, Box::new(norm)));
        }
    });
}

/// x · rsqrt(mean(x²) + eps) · scale
fn rms_norm(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, (% [Op::Binary(Mul)] scale (% [Op::Binary(Mul)] x
        ([Op::Unary(Rsqrt)] (% [Op::Binary(Add)] e ([Op::Reduce(mean)] ([Op::Binary(Pow)] y two)))))) => {
        let fits = g.same(x, y) && g.is(two, 2.0) && mean_of_last(g, mean, x) && along_last(g, scale, x);
        if let Some(eps) = eps(g, e).filter(|_| fits) {
            let norm = term(RmsNorm { eps }, [x.into(), scale.into()]);
            out.push(Term::Result(0, Box::new(norm)));
        }
    });
}
