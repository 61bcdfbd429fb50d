//! Views (reshape, transpose, broadcast, slice): composes them, removes those without effect, and moves them towards the outputs past
//! operators that commute with them, so that a view and its inverse meet and cancel.

use super::Row;
use crate::canonicalize::graph::{Ask, ENode, Graph};
use crate::canonicalize::stored;
use crate::canonicalize::term::{Term, find, term, typed};
use egg::Id;
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::shape::{Broadcast, Reshape, Slice, Transpose};
use ir::{Dim, Op, Type};
use std::ops::Range;

pub(super) const RULES: &[Row] = &[
    ("identity view", &["reshape", "transpose", "broadcast", "slice"], identity),
    ("view of a view", &["reshape", "transpose"], composition),
    ("transpose past a merge", &["transpose"], transpose_past_merge),
    ("merge past a transpose", &["reshape"], merge_past_transpose),
    ("view past a function", ELEMENTWISE_UNARY, past_function),
    ("view past arithmetic", ELEMENTWISE_BINARY, past_arithmetic),
    ("merge past arithmetic", ELEMENTWISE_BINARY, merge_past_arithmetic),
    ("broadcast into arithmetic", ELEMENTWISE_BINARY, broadcast_into_arithmetic),
    ("ones past a broadcast", &["reshape"], ones_past_broadcast),
    ("slice of a sum", &["slice"], slice_of_sum),
    ("slice of a contraction", &["slice"], slice_of_contraction),
    ("slice of a transpose", &["slice"], slice_of_transpose),
    ("slice of a split dim", &["slice"], slice_of_split),
    ("one index of a gather", &["gather"], one_index),
];

const ELEMENTWISE_UNARY: &[&str] = &[
    "neg",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "tanh",
    "erf",
    "sigmoid",
    "relu",
    "gelu",
    "gelu_tanh",
    "silu",
];
const ELEMENTWISE_BINARY: &[&str] = &["add", "sub", "mul", "div", "pow", "max", "min", "at_least", "at_most"];

fn identity(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    let x = n.args[0];
    match n.op() {
        Some(Op::Reshape(_) | Op::Broadcast(_)) if declared(n) == g.ty(x) => out.push(x.into()),
        Some(Op::Slice(slice)) if declared(n) == g.ty(x) && slice.step == 1 => out.push(x.into()),
        Some(Op::Transpose(t)) if t.permutation.iter().copied().eq(0..t.permutation.len() as u32) => {
            out.push(x.into())
        }
        // A transpose that moves only dims of size one is a reshape.
        Some(Op::Transpose(t)) => {
            let dims = &g.ty(x).dims;
            let moved = t.permutation.iter().filter(|&&i| !dims[i as usize].is_one());
            if moved.is_sorted() {
                let permuted = t.permutation.iter().map(|&i| dims[i as usize].clone());
                out.push(reshape(x.into(), &Type::new(g.ty(x).dtype, permuted)));
            }
        }
        _ => {}
    }
}

fn composition(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Reshape(_)] ([Op::Reshape(_)] x)) => { out.push(reshape(x.into(), declared(n))) });
    find!(g, n, ([Op::Transpose(outer)] ([Op::Transpose(inner)] x)) => {
        let permutation = outer.permutation.iter().map(|&i| inner.permutation[i as usize]).collect();
        out.push(term(Transpose { permutation }, [x.into()]));
    });
}

/// Returns the type that an e-node declares for its result. Only for operators that read their result type.
fn declared(n: &ENode) -> &Type {
    match &n.head {
        crate::canonicalize::graph::Head::Op(_, Some(ty)) => ty,
        _ => unreachable!("views read their result type"),
    }
}

/// Makes a reshape. The rule `identity view` removes it if the term has the type already.
fn reshape(x: Term, ty: &Type) -> Term {
    typed(Reshape, [x], ty.clone())
}

/// Returns for each dim of `to` the run of dims of `from` that it merges; `None` if a dim of `from` is split.
pub(super) fn merges(from: &[Dim], to: &[Dim]) -> Option<Vec<Range<usize>>> {
    let mut runs = Vec::new();
    let mut next = 0;
    for dim in to {
        let start = next;
        let mut product = Dim::known(1);
        while product != *dim || next == start {
            product = product.product(from.get(next)?)?;
            next += 1;
        }
        runs.push(start..next);
    }
    // Only dims of size one can be left over. They join the last run.
    let rest = &from[next..];
    let last = runs.last_mut()?;
    rest.iter().all(Dim::is_one).then(|| last.end = from.len())?;
    Some(runs)
}

/// transpose(merge(x)) = merge(transpose(x))
fn transpose_past_merge(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Transpose(transpose)] merged) => {
        find!(@arg g, merged, ([Op::Reshape(_)] x) => {
            if let Some(runs) = merges(&g.ty(x).dims, &g.ty(merged).dims) {
                let moved = transpose.permutation.iter().flat_map(|&i| runs[i as usize].clone());
                let permutation = moved.map(|i| i as u32).collect();
                let dims = transpose.permutation.iter().map(|&i| g.ty(merged).dims[i as usize].clone());
                let ty = Type::new(g.ty(x).dtype, dims);
                out.push(reshape(term(Transpose { permutation }, [x.into()]), &ty));
            }
        });
    });
}

/// merge(transpose(x)) = transpose(merge(x)), where the merged dims are adjacent in x as well
fn merge_past_transpose(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Reshape(_)] moved) => {
        find!(@arg g, moved, ([Op::Transpose(transpose)] x) => {
            let Some(runs) = merges(&g.ty(moved).dims, &declared(n).dims) else { continue };
            if runs.iter().all(|run| run.len() == 1) {
                continue;
            }
            // The dims of x that each dim of the result merges.
            let sources: Vec<&[u32]> = runs.iter().map(|run| &transpose.permutation[run.clone()]).collect();
            if sources.iter().any(|dims| dims.windows(2).any(|pair| pair[1] != pair[0] + 1)) {
                continue;
            }
            let mut order: Vec<usize> = (0..sources.len()).collect();
            order.sort_by_key(|&i| sources[i][0]);
            let dims = order.iter().map(|&i| declared(n).dims[i].clone());
            let merged = reshape(x.into(), &Type::new(g.ty(x).dtype, dims));
            let place = |i: usize| order.iter().position(|&o| o == i).expect("a permutation") as u32;
            let permutation = (0..sources.len()).map(place).collect();
            out.push(term(Transpose { permutation }, [merged]));
        });
    });
}

/// f(view(x)) = view(f(x))
fn past_function(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    let Some(Op::Unary(function)) = n.op() else { return };
    let function: Unary = *function;
    find!(g, n, ([_] ([Op::Reshape(_)] x)) => { out.push(reshape(term(function, [x.into()]), g.ty(n.args[0]))) });
    find!(g, n, ([_] ([Op::Transpose(view)] x)) => { out.push(term(view.clone(), [term(function, [x.into()])])) });
}

/// view(x) ∘ y = view(x ∘ y'), where y is a number, the same view of y', or untouched by the view
fn past_arithmetic(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    let Some(Op::Binary(op)) = n.op() else { return };
    for (first, x, y) in [(true, n.args[0], n.args[1]), (false, n.args[1], n.args[0])] {
        let apply = |x: Id, y: Id| {
            if first { term(*op, [x.into(), y.into()]) } else { term(*op, [y.into(), x.into()]) }
        };
        find!(@arg g, x, ([Op::Reshape(_)] inner) => {
            if below_reshape(g, inner, x, y) {
                out.push(reshape(apply(inner, y), g.ty(x)));
            }
            find!(@arg g, y, ([Op::Reshape(_)] other) => {
                if first && g.ty(inner).dims == g.ty(other).dims && g.ty(x).dims == g.ty(y).dims {
                    out.push(reshape(apply(inner, other), g.ty(x)));
                }
            });
        });
        find!(@arg g, x, ([Op::Transpose(view)] inner) => {
            if g.ty(y).ndim() == 0 {
                out.push(term(view.clone(), [apply(inner, y)]));
            }
            find!(@arg g, y, ([Op::Transpose(same)] other) => {
                if first && view == same && g.ty(inner).dims == g.ty(other).dims {
                    out.push(term(view.clone(), [apply(inner, other)]));
                }
            });
        });
    }
}

/// Whether y broadcasts onto the operand of a reshape as it does onto the result: all of y's dims are among the last dims, which
/// the reshape does not change.
fn below_reshape(g: &Graph, inner: Id, reshaped: Id, y: Id) -> bool {
    let (from, to, y) = (&g.ty(inner).dims, &g.ty(reshaped).dims, &g.ty(y).dims);
    let kept = from.iter().rev().zip(to.iter().rev()).take_while(|(a, b)| a == b).count();
    y.len() <= kept && y.iter().rev().zip(to.iter().rev()).all(|(a, b)| a == b || a.is_one())
}

/// merge(x) ∘ y = merge(x ∘ split(y)), where y broadcasts along some dim, and its other dims are split as those of x
fn merge_past_arithmetic(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    let Some(Op::Binary(op)) = n.op() else { return };
    for (first, x, y) in [(true, n.args[0], n.args[1]), (false, n.args[1], n.args[0])] {
        find!(@arg g, x, ([Op::Reshape(_)] inner) => {
            if let Some(dims) = split_alike(&g.ty(inner).dims, &g.ty(x).dims, &g.ty(y).dims) {
                let split = reshape(y.into(), &Type::new(g.ty(y).dtype, dims));
                let operands = if first { [inner.into(), split] } else { [split, inner.into()] };
                out.push(reshape(term(*op, operands), g.ty(x)));
            }
        });
    }
}

/// Returns the dims of an operand after a split like that of `merged` into `inner`. The operand must have as many dims as
/// `merged`, and must broadcast along one of them.
fn split_alike(inner: &[Dim], merged: &[Dim], operand: &[Dim]) -> Option<Vec<Dim>> {
    let stretches = |(dim, whole): (&Dim, &Dim)| dim.is_one() && !whole.is_one();
    if operand.len() != merged.len() || !operand.iter().zip(merged).any(stretches) {
        return None;
    }
    let mut dims = Vec::new();
    for ((run, whole), dim) in merges(inner, merged)?.into_iter().zip(merged).zip(operand) {
        match dim {
            dim if dim == whole => dims.extend_from_slice(&inner[run]),
            dim if dim.is_one() => dims.extend(run.map(|_| Dim::known(1))),
            _ => return None,
        }
    }
    Some(dims)
}

/// Whether a reshape only adds and removes dims of size one.
pub(super) fn moves_ones_alone(from: &[Dim], to: &[Dim]) -> bool {
    from.iter().filter(|dim| !dim.is_one()).eq(to.iter().filter(|dim| !dim.is_one()))
}

/// reshape(broadcast(x)) = broadcast(reshape(x)), where the reshape only adds and removes dims of size one
fn ones_past_broadcast(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Reshape(_)] wide) => {
        find!(@arg g, wide, ([Op::Broadcast(_)] x) => {
            let (narrow, wide, to) = (&g.ty(x).dims, &g.ty(wide).dims, &declared(n).dims);
            if narrow.len() != wide.len() || !moves_ones_alone(wide, to) {
                continue;
            }
            // The sizes of x along the large dims of the result. They may be one, where x broadcasts.
            let mut kept = wide.iter().zip(narrow).filter(|(dim, _)| !dim.is_one()).map(|(_, own)| own.clone());
            let own = |dim: &Dim| if dim.is_one() { Some(dim.clone()) } else { kept.next() };
            if let Some(dims) = to.iter().map(own).collect::<Option<Vec<Dim>>>() {
                let narrow = reshape(x.into(), &Type::new(g.ty(x).dtype, dims));
                out.push(typed(Broadcast, [narrow], declared(n).clone()));
            }
        });
    });
}

/// x ∘ broadcast(y) = x ∘ y, where the result has the same dims without the broadcast
fn broadcast_into_arithmetic(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    let Some(Op::Binary(op)) = n.op() else { return };
    let op: Binary = *op;
    find!(g, n, ([_] x ([Op::Broadcast(Broadcast)] y)) => { out.push(term(op, [x.into(), y.into()])) });
    find!(g, n, ([_] ([Op::Broadcast(Broadcast)] x) y) => { out.push(term(op, [x.into(), y.into()])) });
}

/// Slices a class along a dim, to the length that `like` has there.
fn sliced(g: &Graph, x: Id, slice: &Slice, dim: usize, like: &Type, like_dim: usize) -> Term {
    let mut ty = g.ty(x).clone();
    ty.dims[dim] = like.dims[like_dim].clone();
    typed(Slice { dim: dim as u32, ..slice.clone() }, [x.into()], ty)
}

/// slice(x + y) = slice(x) + slice(y)
fn slice_of_sum(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Slice(slice)] ([Op::Binary(Binary::Add)] x y)) => {
        let like = declared(n);
        let part = |operand: Id| {
            let missing = like.ndim() - g.ty(operand).ndim();
            match (slice.dim as usize).checked_sub(missing) {
                Some(dim) if !g.ty(operand).dims[dim].is_one() => {
                    sliced(g, operand, slice, dim, like, slice.dim as usize)
                }
                _ => operand.into(),
            }
        };
        out.push(term(Binary::Add, [part(x), part(y)]));
    });
}

/// slice(x × y) = slice(x) × slice(y), where an operand without the dim stays whole
fn slice_of_contraction(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Slice(slice)] ([Op::Contract(contract)] x y)) => {
        let label = contract.out.0[slice.dim as usize];
        let part = |operand: Id, labels: &ir::ops::Labels| match labels.0.iter().position(|&l| l == label) {
            Some(dim) => sliced(g, operand, slice, dim, declared(n), slice.dim as usize),
            None => operand.into(),
        };
        let contract: Contract = contract.clone();
        let (x, y) = (part(x, &contract.lhs), part(y, &contract.rhs));
        out.push(term(contract, [x, y]));
    });
}

/// slice(transpose(x)) = transpose(slice(x))
fn slice_of_transpose(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Slice(slice)] ([Op::Transpose(view)] x)) => {
        let dim = view.permutation[slice.dim as usize] as usize;
        out.push(term(view.clone(), [sliced(g, x, slice, dim, declared(n), slice.dim as usize)]));
    });
}

/// slice(split(x)) = split(slice(x)), along the outermost part of a split dim
fn slice_of_split(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Slice(slice)] split) => {
        let cut = slice.dim as usize;
        find!(@arg g, split, ([Op::Reshape(_)] x) => {
            let (whole, parts, to) = (&g.ty(x).dims, &g.ty(split).dims, &declared(n).dims);
            let Some(runs) = merges(parts, whole).filter(|_| slice.step == 1 && slice.start >= 0) else { continue };
            let Some(dim) = runs.iter().position(|run| run.contains(&cut)) else { continue };
            let run = runs[dim].clone();
            let inner = parts[cut + 1..run.end].iter().try_fold(Dim::known(1), |size, dim| size.product(dim));
            let Some(inner) = inner.filter(|_| run.len() > 1 && parts[run.start..cut].iter().all(Dim::is_one))
            else {
                continue;
            };
            if let (Some(size), Some(length)) = (inner.size(), to[cut].product(&inner)) {
                let mut ty = g.ty(x).clone();
                ty.dims[dim] = length;
                let start = slice.start * size as i64;
                out.push(reshape(typed(Slice { dim: dim as u32, start, step: 1 }, [x.into()], ty), declared(n)));
            }
        });
    });
}

/// gather(x, number) = slice(x), where x is computed. A gather of a stored tensor stays: it shows that the tensor is looked up.
fn one_index(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    find!(g, n, ([Op::Gather(gather)] x index) => {
        let (from, dim) = (g.ty(x), gather.dim as usize);
        let Some(size) = from.dims[dim].size() else { return };
        let number = g.number(index).filter(|_| g.ty(index).numel() == Some(1));
        let start = number.map(|number| if number < 0.0 { number as i64 + size as i64 } else { number as i64 });
        let Some(start) = start.filter(|start| (0..size as i64).contains(start)) else { return };
        if stored::is_stored(g, x) {
            return;
        }
        let mut ty = from.clone();
        ty.dims[dim] = Dim::known(1);
        let row = typed(Slice { dim: dim as u32, start, step: 1 }, [x.into()], ty);
        let dims = from.dims[..dim].iter().chain(&g.ty(index).dims).chain(&from.dims[dim + 1..]);
        out.push(reshape(row, &Type::new(from.dtype, dims.cloned())));
    });
}
