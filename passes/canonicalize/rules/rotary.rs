//! Rotary position embedding as exporters spell it: `x · cos + rotate_half(x) · sin`.

use super::Row;
use crate::canonicalize::graph::{Ask, ENode, Graph};
use crate::canonicalize::near::{holds, unless};
use crate::canonicalize::stored;
use crate::canonicalize::term::{Term, find, term, typed};
use egg::Id;
use ir::ops::elementwise::Binary::{Add, Mul};
use ir::ops::elementwise::Unary::Neg;
use ir::ops::rotary::Rotary;
use ir::ops::shape::Slice;
use ir::{Dim, Op};
use std::collections::BTreeSet;

pub(super) const RULES: &[Row] = &[("rotary embedding", &["add"], rotary)];

fn rotary(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, (% [Op::Binary(Add)] (% [Op::Binary(Mul)] x cos) (% [Op::Binary(Mul)] turned sin)) => {
        if let Some(width) = g.ty(x).dims.last().and_then(Dim::size)
            && is_rotate_half(g, turned, x, width)
            && holds(g, n, "rotary", [cos, sin].map(|table| uneven(g, table, width)))
        {
            let parts = [x.into(), half(g, cos, width), half(g, sin, width)];
            out.push(term(Rotary { interleaved: false }, parts));
        }
    });
}

/// Whether a class is `concat(-x[.., d/2..], x[.., ..d/2])`.
fn is_rotate_half(g: &Graph, turned: Id, x: Id, width: u64) -> bool {
    let last = g.ty(x).ndim() as u32 - 1;
    let cut = |slice: &Slice, part: Id, start: u64| {
        let length = g.ty(part).dims.last().and_then(Dim::size);
        slice.dim == last && slice.step == 1 && slice.start == start as i64 && length == Some(width / 2)
    };
    let mut found = false;
    find!(@arg g, turned, ([Op::Concat(concat)] ([Op::Unary(Neg)] upper) lower) => {
        find!(@arg g, upper, ([Op::Slice(high)] x1) => {
            find!(@arg g, lower, ([Op::Slice(low)] x2) => {
                found |= concat.dim == last && g.same(x, x1) && g.same(x, x2)
                    && cut(high, upper, width / 2) && cut(low, lower, 0);
            });
        });
    });
    found
}

/// Unmet, unless the halves of a table are equal.
fn uneven(g: &Graph, table: Id, width: u64) -> Option<String> {
    unless(repeats_its_half(g, table, width), || {
        format!(
            "its table {} does not repeat the first half of its last dim, as far as can be seen",
            g.ty(table)
        )
    })
}

/// Whether the second half of a table's last dim equals the first.
fn repeats_its_half(g: &Graph, table: Id, width: u64) -> bool {
    if !width.is_multiple_of(2) || g.ty(table).dims.last().and_then(Dim::size) != Some(width) {
        return false;
    }
    stored::repeats_its_half(g, table)
        .unwrap_or_else(|| repeats_by_construction(g, table, &mut BTreeSet::new()))
}

/// Whether a table is made by functions of `concat(f, f)`, which may be stored. `tried` has the classes that were looked at.
fn repeats_by_construction(g: &Graph, table: Id, tried: &mut BTreeSet<Id>) -> bool {
    if !tried.insert(g.find(table)) {
        return false;
    }
    if stored::repeats_its_half(g, table) == Some(true) {
        return true;
    }
    let last = g.ty(table).ndim() as u32 - 1;
    g[table].nodes.iter().any(|node| match node.op() {
        Some(Op::Concat(concat)) => {
            concat.dim == last && node.args.len() == 2 && g.same(node.args[0], node.args[1])
        }
        Some(Op::Unary(_)) => repeats_by_construction(g, node.args[0], tried),
        Some(Op::Reshape(_)) => {
            g.ty(node.args[0]).dims.last() == g.ty(table).dims.last()
                && repeats_by_construction(g, node.args[0], tried)
        }
        Some(Op::Binary(Mul)) => match (g.number(node.args[0]), g.number(node.args[1])) {
            (Some(_), _) => repeats_by_construction(g, node.args[1], tried),
            (_, Some(_)) => repeats_by_construction(g, node.args[0], tried),
            _ => false,
        },
        _ => false,
    })
}

/// The first half of a table.
fn half(g: &Graph, table: Id, width: u64) -> Term {
    let mut ty = g.ty(table).clone();
    let last = ty.ndim() - 1;
    ty.dims[last] = Dim::known(width / 2);
    typed(Slice { dim: last as u32, start: 0, step: 1 }, [table.into()], ty)
}
