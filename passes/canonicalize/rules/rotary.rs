//! Rotary position embedding as exporters write it: `x · cos + turned(x) · sin`. Elements are turned in pairs: the two halves of the
//! last dim, or neighbours (GPT-J). A table holds each number twice, once for each element of a pair.

use super::Row;
use crate::canonicalize::graph::{Ask, ENode, Graph};
use crate::canonicalize::near::{holds, unless};
use crate::canonicalize::stored;
use crate::canonicalize::term::{Term, find, term, typed};
use egg::Id;
use ir::ops::elementwise::Binary::{Add, Mul};
use ir::ops::elementwise::Unary::Neg;
use ir::ops::rotary::Rotary;
use ir::ops::shape::{Reshape, Slice};
use ir::{Dim, Op};
use std::collections::BTreeSet;

pub(super) const RULES: &[Row] = &[("rotary embedding", &["add"], rotary)];

fn rotary(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, (% [Op::Binary(Add)] (% [Op::Binary(Mul)] x cos) (% [Op::Binary(Mul)] turned sin)) => {
        let Some(width) = g.ty(x).dims.last().and_then(Dim::size) else { continue };
        for (interleaved, is_turned) in
            [(false, is_rotate_half(g, turned, x, width)), (true, is_rotate_neighbours(g, turned, x, width))]
        {
            let pairs = Pairs { interleaved, width };
            if is_turned && holds(g, n, "rotary", [cos, sin].map(|table| uneven(g, table, pairs))) {
                let parts = [x.into(), one_of_each(g, cos, pairs), one_of_each(g, sin, pairs)];
                out.push(term(Rotary { interleaved }, parts));
            }
        }
    });
}

/// The pairs of elements in a last dim of this width.
#[derive(Clone, Copy)]
struct Pairs {
    /// Whether neighbours are paired, instead of the two halves.
    interleaved: bool,
    width: u64,
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

/// Whether a class is `-x[.., 1::2]` and `x[.., ::2]` interleaved: joined along a new last dim, which is merged.
fn is_rotate_neighbours(g: &Graph, turned: Id, x: Id, width: u64) -> bool {
    let last = g.ty(x).ndim() as u32 - 1;
    let every_other = |slice: &Slice, part: Id, start: i64| {
        let length = g.ty(part).dims.last().and_then(Dim::size);
        (slice.dim, slice.start, slice.step) == (last, start, 2) && length == Some(width / 2)
    };
    let one_each = |single: Id, part: Id| {
        let dims = &g.ty(single).dims;
        dims.split_last().is_some_and(|(one, dims)| one.is_one() && *dims == g.ty(part).dims[..])
    };
    let mut found = false;
    find!(@arg g, turned, ([Op::Reshape(_)] ([Op::Concat(concat)] first second)) => {
        find!(@arg g, first, ([Op::Reshape(_)] negated) => {
            find!(@arg g, second, ([Op::Reshape(_)] even) => {
                let in_turns = concat.dim == last + 1 && one_each(first, negated) && one_each(second, even);
                find!(@arg g, negated, ([Op::Unary(Neg)] odd) => {
                    find!(@arg g, odd, ([Op::Slice(high)] x1) => {
                        find!(@arg g, even, ([Op::Slice(low)] x2) => {
                            found |= in_turns && g.same(x, x1) && g.same(x, x2)
                                && every_other(high, odd, 1) && every_other(low, even, 0);
                        });
                    });
                });
            });
        });
    });
    found
}

/// Returns a reason unless the two numbers of each pair of a table are equal.
fn uneven(g: &Graph, table: Id, pairs: Pairs) -> Option<String> {
    let what = if pairs.interleaved { "each number" } else { "the first half" };
    unless(is_even(g, table, pairs), || {
        format!("its table {} does not provably repeat {what} of its last dim", g.ty(table))
    })
}

/// Whether the two numbers of each pair of a table's last dim are equal.
fn is_even(g: &Graph, table: Id, pairs: Pairs) -> bool {
    if !pairs.width.is_multiple_of(2) || g.ty(table).dims.last().and_then(Dim::size) != Some(pairs.width) {
        return false;
    }
    stored::has_equal_pairs(g, table, pairs.interleaved)
        .unwrap_or_else(|| even_by_construction(g, table, pairs, &mut BTreeSet::new()))
}

/// Whether a table is computed elementwise from a table that repeats its numbers, which may be stored. `tried` has the classes
/// that were visited.
fn even_by_construction(g: &Graph, table: Id, pairs: Pairs, tried: &mut BTreeSet<Id>) -> bool {
    if !tried.insert(g.find(table)) {
        return false;
    }
    if stored::has_equal_pairs(g, table, pairs.interleaved) == Some(true) || is_repeated(g, table, pairs) {
        return true;
    }
    g[table].nodes.iter().any(|node| match node.op() {
        Some(Op::Unary(_)) => even_by_construction(g, node.args[0], pairs, tried),
        Some(Op::Reshape(_)) => {
            g.ty(node.args[0]).dims.last() == g.ty(table).dims.last()
                && even_by_construction(g, node.args[0], pairs, tried)
        }
        Some(Op::Binary(Mul)) => match (g.number(node.args[0]), g.number(node.args[1])) {
            (Some(_), _) => even_by_construction(g, node.args[1], pairs, tried),
            (_, Some(_)) => even_by_construction(g, node.args[0], pairs, tried),
            _ => false,
        },
        _ => false,
    })
}

/// Whether a table is `concat(f, f)`, or, for neighbours, an f whose last dim of size one is stretched to two and merged.
fn is_repeated(g: &Graph, table: Id, pairs: Pairs) -> bool {
    let last = g.ty(table).ndim() as u32 - 1;
    let mut found = pairs.interleaved && before_stretch(g, table).is_some();
    find!(@arg g, table, ([Op::Concat(concat)] first second) => {
        found |= !pairs.interleaved && concat.dim == last && g.same(first, second);
    });
    found
}

/// Returns the class whose last dim of size one is stretched to two and merged to make a table.
fn before_stretch(g: &Graph, table: Id) -> Option<Id> {
    let mut found = None;
    find!(@arg g, table, ([Op::Reshape(_)] stretched) => {
        find!(@arg g, stretched, ([Op::Broadcast(_)] single) => {
            if let (Some((one, same)), Some((two, kept))) =
                (g.ty(single).dims.split_last(), g.ty(stretched).dims.split_last())
                && (one.size(), two.size(), same) == (Some(1), Some(2), kept)
            {
                found = Some(single);
            }
        });
    });
    found
}

/// Returns one number of each pair of a table.
fn one_of_each(g: &Graph, table: Id, pairs: Pairs) -> Term {
    let mut ty = g.ty(table).clone();
    let last = ty.ndim() - 1;
    ty.dims[last] = Dim::known(pairs.width / 2);
    if let Some(single) = before_stretch(g, table).filter(|_| pairs.interleaved) {
        return typed(Reshape, [single.into()], ty);
    }
    let step = if pairs.interleaved { 2 } else { 1 };
    typed(Slice { dim: last as u32, start: 0, step }, [table.into()], ty)
}
