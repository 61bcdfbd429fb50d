//! Activations spelled out: GELU in both forms, SiLU, log-softmax.

use super::Row;
use crate::canonicalize::graph::{Ask, ENode, Graph};
use crate::canonicalize::near::{holds, number, one_value};
use crate::canonicalize::term::{Term, find, term};
use ir::Op;
use ir::ops::elementwise::Binary::{Add, Mul, Pow};
use ir::ops::elementwise::Unary::{Erf, Gelu, GeluTanh, Log, Sigmoid, Silu, Tanh};
use ir::ops::softmax::LogSoftmax;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

pub(super) const RULES: &[Row] = &[
    ("gelu", &["mul"], gelu),
    ("gelu by tanh", &["mul"], gelu_tanh),
    ("silu", &["mul"], silu),
    ("log softmax", &["log"], log_softmax),
];

/// √(2/π) = (2/√π) · (1/√2)
const SQRT_2_PI: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;

/// ½ · (x · (1 + erf(x/√2)))
fn gelu(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, (% [Op::Binary(Mul)] half (% [Op::Binary(Mul)] x (% [Op::Binary(Add)] one
        ([Op::Unary(Erf)] (% [Op::Binary(Mul)] r y))))) => {
        let unmet = [
            one_value(g, &[x, y], "the product and erf"),
            number(g, half, 0.5),
            number(g, one, 1.0),
            number(g, r, FRAC_1_SQRT_2),
        ];
        if holds(g, n, "gelu", unmet) {
            out.push(term(Gelu, [x.into()]));
        }
    });
}

/// ½ · (x · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))), and with x · (1 + 0.044715 · x²) for the sum in tanh
fn gelu_tanh(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, (% [Op::Binary(Mul)] half (% [Op::Binary(Mul)] x (% [Op::Binary(Add)] one
        ([Op::Unary(Tanh)] (% [Op::Binary(Mul)] r (% [Op::Binary(Mul)] y (% [Op::Binary(Add)] inner
        (% [Op::Binary(Mul)] q ([Op::Binary(Pow)] z two))))))))) => {
        let unmet = [
            one_value(g, &[x, y, z], "the products and the square"),
            number(g, half, 0.5),
            number(g, one, 1.0),
            number(g, inner, 1.0),
            number(g, q, 0.044715),
            number(g, two, 2.0),
            number(g, r, SQRT_2_PI),
        ];
        if holds(g, n, "gelu_tanh", unmet) {
            out.push(term(GeluTanh, [x.into()]));
        }
    });
    find!(g, n, (% [Op::Binary(Mul)] half (% [Op::Binary(Mul)] x (% [Op::Binary(Add)] one
        ([Op::Unary(Tanh)] (% [Op::Binary(Mul)] r (% [Op::Binary(Add)] y (% [Op::Binary(Mul)] q
        ([Op::Binary(Pow)] z three)))))))) => {
        let unmet = [
            one_value(g, &[x, y, z], "the product, the sum in tanh and the cube"),
            number(g, half, 0.5),
            number(g, one, 1.0),
            number(g, q, 0.044715),
            number(g, three, 3.0),
            number(g, r, SQRT_2_PI),
        ];
        if holds(g, n, "gelu_tanh", unmet) {
            out.push(term(GeluTanh, [x.into()]));
        }
    });
}

/// x · sigmoid(x)
fn silu(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, (% [Op::Binary(Mul)] x ([Op::Unary(Sigmoid)] y)) => {
        if g.same(x, y) {
            out.push(term(Silu, [x.into()]));
        }
    });
}

/// log(softmax(x))
fn log_softmax(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Unary(Log)] ([Op::Softmax(softmax)] x)) => {
        out.push(term(LogSoftmax { dim: softmax.dim }, [x.into()]));
    });
}
