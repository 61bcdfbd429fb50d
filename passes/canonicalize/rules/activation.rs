//! Activations that exporters write as several nodes: GELU in both forms, SiLU, log-softmax.

use super::Row;
use crate::canonicalize::graph::{Ask, ENode, Graph};
use crate::canonicalize::near::{holds, number, one_value};
use crate::canonicalize::term::{Term, find, term};
use egg::Id;
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

/// ½ · (x · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))), also with x · (1 + 0.044715 · x²) for the sum in tanh
fn gelu_tanh(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, (% [Op::Binary(Mul)] half (% [Op::Binary(Mul)] x (% [Op::Binary(Add)] one
        ([Op::Unary(Tanh)] (% [Op::Binary(Mul)] r sum))))) => {
        for Cubic { values, values_text, numbers } in cubics(g, sum) {
            let outer = [(half, 0.5), (one, 1.0), (r, SQRT_2_PI)];
            let same = one_value(g, &[x, values[0], values[1]], values_text);
            let numbers = outer.into_iter().chain(numbers).map(|(class, expected)| number(g, class, expected));
            if holds(g, n, "gelu_tanh", [same].into_iter().chain(numbers)) {
                out.push(term(GeluTanh, [x.into()]));
            }
        }
    });
}

/// The shape of `x + q · x³`.
struct Cubic {
    /// Both occurrences of x.
    values: [Id; 2],
    /// The values of the whole GELU that must be equal, in words for the user.
    values_text: &'static str,
    /// Classes with the numbers that they must equal.
    numbers: Vec<(Id, f64)>,
}

/// Finds the nodes of a class that have the shape of `x · (1 + 0.044715 · x²)` or `x + 0.044715 · x³`.
fn cubics(g: &Graph, class: Id) -> Vec<Cubic> {
    let mut cubics = Vec::new();
    for n in &g[class].nodes {
        find!(g, n, (% [Op::Binary(Mul)] y (% [Op::Binary(Add)] one
            (% [Op::Binary(Mul)] q ([Op::Binary(Pow)] z two)))) => {
            cubics.push(Cubic {
                values: [y, z],
                values_text: "the products and the square",
                numbers: vec![(one, 1.0), (q, 0.044715), (two, 2.0)],
            });
        });
        find!(g, n, (% [Op::Binary(Add)] y (% [Op::Binary(Mul)] q ([Op::Binary(Pow)] z three))) => {
            cubics.push(Cubic {
                values: [y, z],
                values_text: "the product, the sum in tanh and the cube",
                numbers: vec![(q, 0.044715), (three, 3.0)],
            });
        });
    }
    cubics
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
