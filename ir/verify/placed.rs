//! Level placed: shardings agree with their dims, with their nodes and with each other. Invariants 15 to 18.

use super::Check;
use super::partial::{self, is_zero, names, over, word};
use crate::factors::{FactorId, FactorKind, Factors};
use crate::ops::collective::{Change, Collective};
use crate::ops::{Op, Operator};
use crate::{AxisId, Mesh, Node, NodeId, PartialKind, Sharding, Type};
use std::collections::{BTreeMap, BTreeSet};

/// Checks invariants 15 to 18.
pub(super) fn check(c: &mut Check) {
    let mesh = &c.module.mesh;
    for (id, _) in c.values().filter(|(_, ty)| ty.local(mesh).is_none()) {
        c.fault(format!("{} cannot be divided equally over the mesh {mesh}", c.value(id)));
    }
    for state in c.module.states.values() {
        if let Some(output) =
            state.output.filter(|&output| !same(&c.module.ty(output).sharding, &state.ty.sharding))
        {
            let (ty, output) = (c.ty(&state.ty), c.value(output));
            c.fault(format!(
                "state `{}` is {ty}, and its new value has another sharding: {output}",
                state.name
            ));
        }
    }
    if c.faults.is_empty() {
        c.nodes().for_each(|(id, node)| agreement(c, id, node));
    }
}

fn same(a: &Sharding, b: &Sharding) -> bool {
    a == b || a.is_whole() && b.is_whole()
}

/// The axes that split each factor of a node, and the place where this split was first seen.
type Splits = BTreeMap<FactorId, (Vec<AxisId>, String)>;

/// Checks that a node's operands and results are split alike, and that its results are partial as required.
fn agreement(c: &mut Check, id: NodeId, node: &Node) {
    if let Op::Collective(collective) = node.op {
        if let Err(message) = collective_changes(c, collective, node) {
            c.node_fault(id, message);
        }
        return;
    }
    if let Op::Addends(_) = node.op {
        if let Err(message) = addends(c, node) {
            c.node_fault(id, message);
        }
        return;
    }
    let signature = c.module.signature(node);
    let factors = node.op.factors(&signature);
    let mut splits = Splits::new();
    let operands = signature.operands.iter().zip(&factors.operands).enumerate();
    let results = signature.results.iter().zip(&factors.results).enumerate();
    let operands = operands.map(|(i, tensor)| (format!("operand {i}"), tensor));
    for (what, (ty, dims)) in operands.chain(results.map(|(i, tensor)| (format!("result {i}"), tensor))) {
        for (i, dim) in dims.iter().enumerate() {
            // A sharding without entries splits no dim.
            let axes = ty.sharding.dims.get(i).map_or(&[][..], |axes| axes);
            let place = format!("dim {i} of {what}");
            if let Err(message) = split(&c.module.mesh, &factors, dim, axes, &place, &mut splits) {
                return c.node_fault(id, message);
            }
        }
    }
    if let Err(message) = roles(c, node, &factors, &splits) {
        return c.node_fault(id, message);
    }
    for (i, ty) in signature.results.iter().enumerate() {
        if let Err(message) = result(c, node, &factors, &splits, i, ty) {
            c.node_fault(id, message);
        }
    }
}

/// Checks that a collective makes the change that its name says, the same change on all operands.
fn collective_changes(c: &Check, collective: Collective, node: &Node) -> Result<(), String> {
    let mut first: Option<Change> = None;
    for (i, (&operand, &result)) in node.operands.iter().zip(&node.results).enumerate() {
        let (from, to) = (c.module.ty(operand), c.module.ty(result));
        let change = Change::between(&from.sharding, &to.sharding, from.ndim());
        let change = change.map_err(|message| format!("operand {i}: {message}"))?;
        match Collective::of(&change) {
            Some(made) if made == collective => {}
            Some(made) => {
                let (made, name) = (Op::from(made), Op::from(collective));
                return Err(format!(
                    "the sharding of operand {i} changes by `{}`, not by `{}`",
                    made.name(),
                    name.name()
                ));
            }
            None => return Err(format!("operand {i} already has the sharding of its result")),
        }
        let first = first.get_or_insert_with(|| change.clone());
        if first.axes != change.axes || first.reduced != change.reduced {
            let (axes, other) = (names(&c.module.mesh, &change.axes), names(&c.module.mesh, &first.axes));
            return Err(format!(
                "operand {i} is exchanged over {axes} and operand 0 over {other}: one collective cannot do \
                 both"
            ));
        }
    }
    Ok(())
}

/// Checks that the axes of the partial sum split the new dim of its addends, and that nothing else changes.
fn addends(c: &Check, node: &Node) -> Result<(), String> {
    let mesh = &c.module.mesh;
    let (from, to) = (c.module.ty(node.operands[0]), c.module.ty(node.results[0]));
    let (kind, summed) = over(mesh, from).unwrap_or((PartialKind::Sum, BTreeSet::new()));
    let wide = |axes: &[AxisId]| -> Vec<AxisId> {
        axes.iter().copied().filter(|&axis| mesh.axes[axis].size > 1).collect()
    };
    let split = wide(to.sharding.axes(0));
    if kind != PartialKind::Sum {
        return Err(format!("operand 0 is a {}, which has no addends", word(kind)));
    }
    if !split.iter().eq(&summed) {
        return Err(format!(
            "operand 0 is partial over {} and dim 0 of result 0 is split over {}: each device has the addends that it computed",
            names(mesh, &summed),
            names(mesh, &split)
        ));
    }
    let moved =
        (0..from.ndim()).find(|&dim| wide(from.sharding.axes(dim)) != wide(to.sharding.axes(dim + 1)));
    match moved {
        Some(dim) => {
            Err(format!("dim {dim} of operand 0 and dim {} of result 0 are split in different ways", dim + 1))
        }
        None if over(mesh, to).is_some() => Err("result 0 is declared partial, and addends are whole".into()),
        None => Ok(()),
    }
}

/// Distributes the axes of a dim over its factors, and compares the result with the splits by other dims.
fn split(
    mesh: &Mesh,
    factors: &Factors,
    dim: &[FactorId],
    axes: &[AxisId],
    place: &str,
    splits: &mut Splits,
) -> Result<(), String> {
    let list = |axes: &[AxisId]| if axes.is_empty() { "nothing".into() } else { names(mesh, axes) };
    let spread = factors.spread(mesh, dim, axes);
    let spread = spread.map_err(|axis| format!("{place} cannot be split over `{}`", mesh.axes[axis].name))?;
    for (factor, own) in spread {
        match splits.get(&factor) {
            Some((other, at)) if other[..] != own[..] => {
                let (own, other) = (list(&own), list(other));
                return Err(format!(
                    "{place} is split over {own} and {at} over {other}: a collective must stand between them"
                ));
            }
            Some(_) => {}
            None => drop(splits.insert(factor, (own.to_vec(), place.to_string()))),
        }
    }
    Ok(())
}

/// Checks that only factors that can be split are split, and that no axis splits two factors.
fn roles(c: &Check, node: &Node, factors: &Factors, splits: &Splits) -> Result<(), String> {
    let mesh = &c.module.mesh;
    let mut used: BTreeMap<AxisId, &str> = BTreeMap::new();
    for (&factor, (axes, place)) in splits {
        match factors.factors[factor as usize].kind {
            FactorKind::Whole if !axes.is_empty() => {
                return Err(format!(
                    "{place} is split over {}, but `{}` needs it whole",
                    names(mesh, axes),
                    node.op.name()
                ));
            }
            FactorKind::Custom if !axes.is_empty() => {
                let (axes, name) = (names(mesh, axes), node.op.name());
                return Err(format!(
                    "{place} is split over {axes}, and only the partition rule of `{name}` may do this"
                ));
            }
            _ => {}
        }
        for &axis in axes {
            if let Some(other) = used.insert(axis, place) {
                let axis = &mesh.axes[axis].name;
                return Err(format!("`{axis}` splits both {other} and {place}, which are different factors"));
            }
        }
    }
    match partial::passed(c.module, node).iter().find_map(|axis| Some((axis, used.get(axis)?))) {
        Some((&axis, place)) => {
            let axis = &mesh.axes[axis].name;
            Err(format!(
                "an operand is partial over `{axis}`, which also splits {place}: each part would lack the \
                 other addends"
            ))
        }
        None => Ok(()),
    }
}

/// Checks that a result is partial over exactly the split reduced factors that it lacks and the partial axes of its operands.
fn result(
    c: &Check,
    node: &Node,
    factors: &Factors,
    splits: &Splits,
    i: usize,
    ty: &Type,
) -> Result<(), String> {
    let mesh = &c.module.mesh;
    let mut kinds: BTreeMap<PartialKind, BTreeSet<AxisId>> = BTreeMap::new();
    for (&factor, (axes, _)) in splits.iter().filter(|(_, (axes, _))| !axes.is_empty()) {
        if let FactorKind::Reduced(kind) = factors.factors[factor as usize].kind
            && !factors.results[i].iter().any(|dim| dim.contains(&factor))
        {
            kinds.entry(kind).or_default().extend(axes);
        }
    }
    let passed = partial::passed(c.module, node);
    if !passed.is_empty() {
        kinds.entry(PartialKind::Sum).or_default().extend(passed);
    }
    let mut made = kinds.into_iter();
    let (first, second) = (made.next(), made.next());
    if let (Some((a, _)), Some((b, _))) = (&first, &second) {
        return Err(format!("result {i} would be both a {} and a {}", word(*a), word(*b)));
    }
    let said = over(mesh, ty);
    let zero = matches!(node.op, Op::Splat(_)) && is_zero(c.module, node.results[i]);
    let zero = zero && said.as_ref().is_none_or(|(kind, _)| *kind == PartialKind::Sum);
    if first == said || zero {
        return Ok(());
    }
    let describe = |partial: &Option<(PartialKind, BTreeSet<AxisId>)>| match partial {
        Some((kind, axes)) => format!("a {} over {}", word(*kind), names(mesh, axes)),
        None => "whole".into(),
    };
    Err(format!("result {i} is declared {}, and the operands make it {}", describe(&said), describe(&first)))
}
