//! The rules, which are equalities of programs. They know factors, shardings and collectives, but no operator by name and no model.
//!
//! | rule | |
//! | --- | --- |
//! | cut a reduction | all_reduce x = all_gather (reduce_scatter x) |
//! | gather after | f (all_gather x, y) = all_gather (f (x, all_slice y)), where f splits the gathered factor |
//! | reduce after | the same where f sums over the factor: all_reduce (f (x, all_slice y)) |
//! | slice before | all_slice (f (x)) = f (all_slice x) |
//! | two changes in one | all_slice (all_gather x) = x, all_slice (all_reduce x) = reduce_scatter x, … |
//! | sum before | f (all_reduce x, all_reduce y) = all_reduce (f (x, y)), where f is linear in both together |
//!
//! No rule equates a gather of one phase with a gather of another phase. So a parameter that is gathered again in backward (ZeRO
//! stage 3) still is: a gather of a slice is not simplified, and [`Head::Saved`] keeps values that go from forward to backward
//! apart.

use super::graph::{Ask, Call, ENode, Graph, Head, Program, Split, StepPlace, Term, TypeId};
use super::split::{Tensor, add_axes, differs, split};
use crate::rewriting::egraph;
use egg::Id;
use ir::ops::collective::{Change, Collective};
use ir::{AxisId, EVERY_STAGE, Op, PartialKind, Phase, Type};
use smallvec::SmallVec;

/// Returns every rule, in the order in which they are tried.
pub(super) fn all<'m>() -> Vec<egraph::Rule<Head, Program<'m>>> {
    RULES.iter().map(|&(name, roots, find)| egraph::Rule { name, roots, find }).collect()
}

/// A row of the rule table: the rule's name, the names of operators at the root of its pattern (none: all), its function.
type Row = (&'static str, &'static [&'static str], fn(&Graph, &ENode, &mut Vec<Term>));

const RULES: &[Row] = &[
    ("cut a reduction", &["all_reduce"], cut_a_reduction),
    ("gather after", &[], gather_after),
    ("slice before", &["all_slice"], slice_before),
    ("two changes in one", COLLECTIVES, two_changes_in_one),
    ("sum before", &[], sum_before),
];

const COLLECTIVES: &[&str] = &["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_slice"];

fn cut_a_reduction(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    let (Some((Collective::AllReduce, to, place)), Some(class)) = (n.collective(), g.lookup(n.clone()))
    else {
        return;
    };
    let Some(change) = change(g, n.args[0], to) else { return };
    let mesh = &g.analysis.module.mesh;
    let ty = g.ty(class);
    for dim in (0..ty.ndim()).filter(|&dim| g[class].data.rows[0].has(dim)) {
        let mut part = Type::clone(&ty);
        add_axes(&mut part, dim, &change.axes);
        if part.local(mesh).is_none() || mesh.size(&change.axes) == 1 {
            continue;
        }
        let part = g.analysis.number(&part);
        let scattered = Term::collective(Collective::ReduceScatter, n.args[0].into(), part, place);
        out.push(Term::collective(Collective::AllGather, scattered, to, place));
    }
}

fn gather_after(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    for_each_call(g, n, |node, result| {
        if !node.args.iter().any(|&arg| is(g, arg, Collective::AllGather)) {
            return;
        }
        let Some((call, place)) = g.call(node) else { return };
        let mut done: SmallVec<[*const Split; 4]> = SmallVec::new();
        for (i, &arg) in node.args.iter().enumerate() {
            for (_, change) in gathers(g, arg) {
                let dim = change.gathered.expect("a gather gathers a dim");
                let Some(split) = split(&g.analysis, &call, Tensor::Operand(i), dim, &change.axes) else {
                    continue;
                };
                // Two operands may have been gathered for the same factor.
                if !done.contains(&std::rc::Rc::as_ptr(&split)) {
                    done.push(std::rc::Rc::as_ptr(&split));
                    out.extend(gathered(g, node, &call, place, &split, result));
                }
            }
        }
    });
}

/// Returns a result of a call on parts: gathered, or reduced if it became partial.
fn gathered(
    g: &Graph,
    node: &ENode,
    call: &Call,
    place: StepPlace,
    split: &Split,
    result: usize,
) -> Option<Term> {
    let (part, whole) = (split.results[result], call.2[result]);
    let (from, to) = (g.analysis.ty(part), g.analysis.ty(whole));
    let change = Change::between(&from.sharding, &to.sharding, from.ndim()).ok()?;
    let collective = Collective::of(&change)?;
    Some(Term::collective(collective, on_parts(g, node, place, split, result), whole, place))
}

fn slice_before(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    let Some((Collective::AllSlice, to, _)) = n.collective() else { return };
    let Some(change) = change(g, n.args[0], to) else { return };
    let Some(dim) = change.split else { return };
    for source in &g[n.args[0]].nodes {
        for_each_call(g, source, |node, result| {
            let Some((call, place)) = g.call(node) else { return };
            let split = split(&g.analysis, &call, Tensor::Result(result), dim, &change.axes);
            if let Some(split) = split.filter(|split| split.results[result] == to) {
                out.push(on_parts(g, node, place, &split, result));
            }
        });
    }
}

/// Returns one result of a call on parts of its operands.
fn on_parts(g: &Graph, node: &ENode, place: StepPlace, split: &Split, result: usize) -> Term {
    let args = node.args.iter().zip(&split.operands);
    let args = args.map(|(&arg, part)| part.map_or(Term::Class(arg), |part| slice(g, arg, part, place)));
    let head = match &node.head {
        Head::Op(op, _, place) => Head::Op(op.clone(), split.results.clone(), *place),
        other => other.clone(),
    };
    take(Term::Node(head, args.collect()), split.results.len(), result)
}

/// Returns one of several results, or the only result of the call.
fn take(call: Term, results: usize, result: usize) -> Term {
    if results == 1 { call } else { Term::Node(Head::Result(result as u32), vec![call]) }
}

/// Returns the part of a class that has this type: the operand of a gather, or a slice, which is made where the class is first known.
/// A state is sliced where its part is used: buffers change from phase to phase.
fn slice(g: &Graph, class: Id, part: TypeId, place: StepPlace) -> Term {
    match gathers(g, class).find(|(operand, _)| g.type_id(*operand) == part) {
        Some((operand, _)) => operand.into(),
        None => {
            let place = g[class].data.place.unwrap_or_else(|| of_leaf(g, class, place));
            Term::collective(Collective::AllSlice, class.into(), part, place)
        }
    }
}

/// Returns the place of nodes that read an input or a state for a reader. A transfer reads a state of another stage.
fn of_leaf(g: &Graph, class: Id, reader: StepPlace) -> StepPlace {
    let leaf = g[class].nodes.iter().find_map(|node| match node.head {
        Head::Leaf(value) => Some(g.analysis.module.stage_of(value)),
        _ => None,
    });
    let stage = leaf.filter(|&stage| stage != EVERY_STAGE).unwrap_or(reader.stage);
    StepPlace { stage, ..reader }
}

fn two_changes_in_one(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    let Some((outer, to, place)) = n.collective() else { return };
    for node in &g[n.args[0]].nodes {
        let Some((inner, ..)) = node.collective() else { continue };
        let (operand, from) = (node.args[0], g.ty(node.args[0]));
        // A slice of a gathered parameter is the parameter's part. If a gather of this slice were equal to the first gather, two gathers of
        // one parameter would be merged.
        if inner == Collective::AllSlice && outer != Collective::AllSlice {
            continue;
        }
        if g.type_id(operand) == to {
            out.push(operand.into());
        } else if let Some(change) = change(g, operand, to)
            && let Some(one) = Collective::of(&change)
        {
            out.push(Term::collective(one, operand.into(), to, place));
        } else if let Some(terms) = reduce_apart(g, outer, operand, &from, node, to, place) {
            out.push(terms);
        }
    }
}

/// Swaps an all_reduce and a following reduce_scatter or slice, so that the axes that only the all_reduce sums over come last, on
/// less data: `reduce_scatter b (all_reduce a x) = all_reduce a (reduce_scatter b x)`.
fn reduce_apart(
    g: &Graph,
    outer: Collective,
    operand: Id,
    from: &Type,
    inner: &ENode,
    to: TypeId,
    place: StepPlace,
) -> Option<Term> {
    let (Collective::AllReduce, between, _) = inner.collective()? else { return None };
    let reduced = Change::between(&from.sharding, &g.analysis.ty(between).sharding, from.ndim()).ok()?;
    let whole = g.analysis.ty(to);
    let after: SmallVec<[AxisId; 2]> = outer_axes(g, between, to)?;
    let late: SmallVec<[AxisId; 2]> =
        reduced.axes.iter().copied().filter(|axis| !after.contains(axis)).collect();
    if !matches!(outer, Collective::ReduceScatter | Collective::AllSlice) || late.is_empty() {
        return None;
    }
    let mut part = Type::clone(&whole);
    let (kind, partial) = part
        .sharding
        .partial
        .get_or_insert_with(|| (reduced.reduced.unwrap_or(PartialKind::Sum), SmallVec::new()));
    (Some(*kind) == reduced.reduced).then(|| partial.extend_from_slice(&late))?;
    let part = g.analysis.number(&part);
    let first = Collective::of(&change(g, operand, part)?)?;
    Some(Term::collective(
        Collective::AllReduce,
        Term::collective(first, operand.into(), part, place),
        to,
        place,
    ))
}

fn outer_axes(g: &Graph, from: TypeId, to: TypeId) -> Option<SmallVec<[AxisId; 2]>> {
    let (from, to) = (g.analysis.ty(from), g.analysis.ty(to));
    Change::between(&from.sharding, &to.sharding, from.ndim()).ok().map(|change| change.axes)
}

fn sum_before(g: &Graph, n: &ENode, out: &mut Vec<Term>) {
    if n.collective().is_some() {
        return;
    }
    for_each_call(g, n, |node, result| {
        if !node.args.iter().any(|&arg| is(g, arg, Collective::AllReduce)) {
            return;
        }
        let Some((call, place)) = g.call(node) else { return };
        let reduced: SmallVec<[Vec<Sum>; 4]> = node.args.iter().map(|&arg| sums(g, arg)).collect();
        for set in &g.analysis.factors(&call).linear {
            let Some((&first, others)) = set.split_first() else { continue };
            for sum in reduced.get(first as usize).into_iter().flatten() {
                let mut operands: SmallVec<[(usize, Id); 2]> =
                    SmallVec::from_slice(&[(first as usize, sum.operand)]);
                for &other in others {
                    let same = reduced.get(other as usize).into_iter().flatten().find(|s| s.axes == sum.axes);
                    operands.extend(same.map(|same| (other as usize, same.operand)));
                }
                if operands.len() == set.len()
                    && (set.len() > 1 || pays(g, &call, first as usize, sum, place))
                {
                    out.extend(summed(g, node, &call, place, &operands, &sum.axes, result));
                }
            }
        }
    });
}

/// An all_reduce of a sum: its operand, its axes and its place.
struct Sum {
    operand: Id,
    axes: SmallVec<[AxisId; 2]>,
    place: StepPlace,
}

fn sums(g: &Graph, class: Id) -> Vec<Sum> {
    let sum = |node: &ENode| {
        let (Collective::AllReduce, to, place) = node.collective()? else { return None };
        let change = change(g, node.args[0], to)?;
        let sum = change.reduced == Some(PartialKind::Sum);
        sum.then_some(Sum { operand: node.args[0], axes: change.axes, place })
    };
    g[class].nodes.iter().filter_map(sum).collect()
}

/// Whether a reduction may be cheaper after the operator than before. The results must have no more bytes than the operand, and the
/// reduction must run less often there. An operator of one operand is always passed, on the way to such a place.
fn pays(g: &Graph, call: &Call, operand: usize, sum: &Sum, place: StepPlace) -> bool {
    let bytes = |id: TypeId| g.analysis.ty(id).bytes().unwrap_or(u64::MAX);
    let results: u64 = call.2.iter().map(|&id| bytes(id)).fold(0, u64::saturating_add);
    let later = sum.place.phase < place.phase && place.phase == Phase::Update;
    results <= bytes(call.1[operand]) && (later || call.1.len() == 1)
}

/// Returns a result of a call on the addends of some operands, reduced after the call.
fn summed(
    g: &Graph,
    node: &ENode,
    call: &Call,
    place: StepPlace,
    operands: &[(usize, Id)],
    axes: &[AxisId],
    result: usize,
) -> Option<Term> {
    let program = &g.analysis;
    let whole = |id: &TypeId| !differs(&program.ty(*id), axes);
    if !call.1.iter().chain(&call.2).all(whole) {
        return None;
    }
    let partial = |id: &TypeId| {
        let mut ty = Type::clone(&program.ty(*id));
        let (kind, all) = ty.sharding.partial.get_or_insert_with(|| (PartialKind::Sum, SmallVec::new()));
        all.extend_from_slice(axes);
        (*kind == PartialKind::Sum).then(|| program.number(&ty))
    };
    let types = call.2.iter().map(partial).collect::<Option<_>>()?;
    let mut args: Vec<Term> = node.args.iter().map(|&arg| arg.into()).collect();
    operands.iter().for_each(|&(i, operand)| args[i] = operand.into());
    let Head::Op(op, _, _) = &node.head else { return None };
    let call_on_addends = Term::Node(Head::Op(op.clone(), types, place), args);
    let addend = take(call_on_addends, call.2.len(), result);
    Some(Term::collective(Collective::AllReduce, addend, call.2[result], place))
}

/// Calls `f` with each node that computes a value, and with the index of the value among the node's results.
fn for_each_call(g: &Graph, n: &ENode, mut f: impl FnMut(&ENode, usize)) {
    match &n.head {
        Head::Op(_, types, _) if types.len() == 1 => f(n, 0),
        Head::Saved(_) => f(n, 0),
        Head::Result(i) => g[n.args[0]].nodes.iter().for_each(|node| f(node, *i as usize)),
        _ => {}
    }
}

/// Returns the gathers in a class: the operand and the change of sharding of each.
fn gathers(g: &Graph, class: Id) -> impl Iterator<Item = (Id, Change)> {
    let gather = |node: &ENode| {
        let (Collective::AllGather, to, _) = node.collective()? else { return None };
        Some((node.args[0], change(g, node.args[0], to)?))
    };
    g[class].nodes.iter().filter_map(gather)
}

/// Whether a class is the result of this collective.
fn is(g: &Graph, class: Id, collective: Collective) -> bool {
    g[class].nodes.iter().any(|node| matches!(node.head, Head::Op(Op::Collective(c), ..) if c == collective))
}

/// Returns the change of sharding from a class to a type.
fn change(g: &Graph, from: Id, to: TypeId) -> Option<Change> {
    let (from, to) = (g.ty(from), g.analysis.ty(to));
    Change::between(&from.sharding, &to.sharding, from.ndim()).ok()
}
