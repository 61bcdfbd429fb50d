//! Arithmetic with constants: one form for formulas that exporters write in several ways.

use super::Row;
use super::view::moves_ones_alone;
use crate::canonicalize::graph::{Ask, ENode, Graph};
use crate::canonicalize::term::{Term, find, scalar, term, typed};
use egg::Id;
use ir::ops::elementwise::Binary::{Add, Div, Mul, Pow};
use ir::ops::elementwise::Unary::{Reciprocal, Rsqrt, Sqrt};
use ir::ops::shape::Reshape;
use ir::{Op, Type};

pub(super) const RULES: &[Row] = &[
    ("division by a constant", &["div"], division_by_constant),
    ("division by a root", &["div"], division_by_root),
    ("reciprocal of a root", &["reciprocal", "div"], reciprocal),
    ("power", &["pow"], power),
    ("square", &["mul"], square),
    ("cube", &["mul"], cube),
    ("neutral element", &["mul", "add"], neutral),
    ("constant out of a product", &["mul"], constant_out_of_product),
    ("constant out of a contraction", &["contract"], constant_out_of_contraction),
];

/// x / c = x · (1/c)
fn division_by_constant(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Binary(Div)] x c) => {
        if let Some(value) = g.number(c).filter(|&value| is_factor(1.0 / value) && g.ty(x).dtype.is_float()) {
            out.push(term(Mul, [x.into(), scalar(g.ty(x), 1.0 / value)]));
        }
    });
}

/// x / √y = x · (1/√y)
fn division_by_root(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Binary(Div)] x ([Op::Unary(Sqrt)] y)) => {
        out.push(term(Mul, [x.into(), term(Rsqrt, [y.into()])]));
    });
}

/// 1/√x = rsqrt(x), and 1/x = reciprocal(x)
fn reciprocal(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Unary(Reciprocal)] ([Op::Unary(Sqrt)] x)) => { out.push(term(Rsqrt, [x.into()])) });
    find!(g, n, ([Op::Binary(Div)] one x) => {
        if g.number(one) == Some(1.0) && g.ty(x).dtype.is_float() {
            out.push(term(Reciprocal, [x.into()]));
        }
    });
}

/// x¹ = x; x² and x³ are also products, which are cheaper; x^½ and x^-½ are roots; x⁻¹ is a reciprocal
fn power(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Binary(Pow)] x e) => {
        let product = |a: Term| term(Mul, [x.into(), a]);
        match g.number(e) {
            Some(1.0) => out.push(x.into()),
            Some(2.0) => out.push(product(x.into())),
            Some(3.0) => out.push(product(product(x.into()))),
            Some(0.5) => out.push(term(Sqrt, [x.into()])),
            Some(-0.5) => out.push(term(Rsqrt, [x.into()])),
            Some(-1.0) => out.push(term(Reciprocal, [x.into()])),
            _ => {}
        }
    });
}

/// x · x = x²
fn square(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Binary(Mul)] x y) => {
        if g.same(x, y) && g.ty(x).dtype.is_float() {
            out.push(term(Pow, [x.into(), scalar(g.ty(x), 2.0)]));
        }
    });
}

/// x · x² = x³
fn cube(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, (% [Op::Binary(Mul)] x ([Op::Binary(Pow)] y e)) => {
        if g.same(x, y) && g.number(e) == Some(2.0) {
            out.push(term(Pow, [x.into(), scalar(g.ty(x), 3.0)]));
        }
    });
}

/// 1 · x = x, 0 + x = x
fn neutral(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, (% [Op::Binary(Mul)] c x) => { if g.number(c) == Some(1.0) { out.push(x.into()) } });
    find!(g, n, (% [Op::Binary(Add)] c x) => { if g.number(c) == Some(0.0) { out.push(x.into()) } });
}

/// (c · x) · y = c · (x · y), and (c · x) · d = (c·d) · x
fn constant_out_of_product(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, (% [Op::Binary(Mul)] (% [Op::Binary(Mul)] c x) y) => {
        if let (Some(a), None) = (g.number(c).filter(|&a| is_factor(a)), g.number(x)) {
            match g.number(y) {
                Some(b) if is_factor(a * b) => out.push(term(Mul, [scalar(g.ty(x), a * b), x.into()])),
                Some(_) => {}
                None => out.push(term(Mul, [factor(g, c), term(Mul, [x.into(), y.into()])])),
            }
        }
    });
}

/// Whether a number can be moved out of a product. 0, an infinity and NaN absorb every other factor: the product would be
/// equal to its own multiples, without end.
fn is_factor(number: f64) -> bool {
    number.is_finite() && number != 0.0
}

/// Returns a factor without dims. A class without dims stays as it is, a number is written again, and a stored tensor is reshaped.
pub(super) fn factor(g: &Graph, class: Id) -> Term {
    let ty = g.ty(class);
    match g.number(class) {
        // `scalar` would search for the exact number again, which takes long.
        _ if ty.ndim() == 0 => class.into(),
        Some(number) => scalar(ty, number),
        None => typed(Reshape, [class.into()], Type::scalar(ty.dtype)),
    }
}

/// (c · x) × y = c · (x × y), on either side; c may be a stored number, even a trained one
fn constant_out_of_contraction(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Contract(contract)] x y) => {
        for (c, x) in multiples(g, x) {
            out.push(term(Mul, [c, term(contract.clone(), [x, y.into()])]));
        }
        for (c, y) in multiples(g, y) {
            out.push(term(Mul, [c, term(contract.clone(), [x.into(), y])]));
        }
    });
}

/// Returns the pairs (c, x) for which a class is c · x. The product may have been reshaped by adding or removing dims of size one.
fn multiples(g: &Graph, class: Id) -> Vec<(Term, Term)> {
    let mut found = Vec::new();
    find!(@arg g, class, (% [Op::Binary(Mul)] c x) => {
        if g.choice(c).is_some() && g.number(c).is_none_or(is_factor) {
            found.push((factor(g, c), x.into()));
        }
    });
    find!(@arg g, class, ([Op::Reshape(_)] product) => {
        if moves_ones_alone(&g.ty(product).dims, &g.ty(class).dims) {
            find!(@arg g, product, (% [Op::Binary(Mul)] c x) => {
                if g.choice(c).is_some() && g.number(c).is_none_or(is_factor) {
                    found.push((factor(g, c), typed(Reshape, [x.into()], g.ty(class).clone())));
                }
            });
        }
    });
    found
}
