//! Partial values, at every level: they are read only by operators that are linear in them. Invariant 9.

use super::Check;
use crate::factors::Factors;
use crate::ops::{Op, Operator};
use crate::{AxisId, Mesh, Module, Node, NodeId, PartialKind, Type, ValueId};
use std::collections::BTreeSet;

/// Checks invariant 9.
pub(super) fn check(c: &mut Check) {
    if !c.values().any(|(_, ty)| over(&c.module.mesh, ty).is_some()) {
        return;
    }
    for (id, node) in c.nodes() {
        uses(c, id, node);
    }
    for (what, value) in c.roots() {
        if let Some((kind, axes)) = over(&c.module.mesh, c.module.ty(value)) {
            let (value, axes) = (c.value(value), names(&c.module.mesh, &axes));
            c.fault(format!("{} used as a whole value: {what} is {value}, over {axes}", word(kind)));
        }
    }
}

fn uses(c: &mut Check, id: NodeId, node: &Node) {
    let module = c.module;
    let axes = passed(module, node);
    if axes.is_empty() || matches!(node.op, Op::Collective(_) | Op::Addends(_)) {
        return;
    }
    let factors = node.op.factors(&module.signature(node));
    for axis in axes {
        if let Err(operand) = linear_over(module, node, &factors, axis) {
            let value = node.operands[operand];
            let kind = over(&module.mesh, module.ty(value)).map_or(PartialKind::Sum, |(kind, _)| kind);
            let (kind, value, axis) = (word(kind), c.value(value), &module.mesh.axes[axis].name);
            let linear = linearity(&node.op, &factors);
            c.node_fault(
                id,
                format!("{kind} used as a whole value: operand {operand}, {value}, over `{axis}`; {linear}"),
            );
        }
    }
}

/// Returns the operands in which the operator is linear, as text.
fn linearity(op: &Op, factors: &Factors) -> String {
    let set = |operands: &[u32]| operands.iter().map(u32::to_string).collect::<Vec<_>>().join(" with ");
    let sets: Vec<_> = factors.linear.iter().map(|operands| set(operands)).collect();
    match &sets[..] {
        [] => format!("`{}` is linear in no operand", op.name()),
        sets => format!("`{}` is linear only in operand {}", op.name(), sets.join(", or ")),
    }
}

/// Returns the axes of more than one device over which any operand of a node is partial.
pub(super) fn passed(module: &Module, node: &Node) -> BTreeSet<AxisId> {
    let partial = |&value: &ValueId| over(&module.mesh, module.ty(value));
    node.operands.iter().filter_map(partial).flat_map(|(_, axes)| axes).collect()
}

/// Checks that the operator is linear in the operands that are partial over an axis. The error is an operand that is at fault. The
/// other operands of a linear set may be zeros, which are partial sums over any axis.
fn linear_over(module: &Module, node: &Node, factors: &Factors, axis: AxisId) -> Result<(), usize> {
    let partial = |operand: u32| {
        let value = *node.operands.get(operand as usize)?;
        over(&module.mesh, module.ty(value)).filter(|(_, axes)| axes.contains(&axis))
    };
    let operands: Vec<u32> = (0..node.operands.len() as u32).filter(|&i| partial(i).is_some()).collect();
    if let Some(&operand) =
        operands.iter().find(|&&i| partial(i).is_some_and(|(kind, _)| kind != PartialKind::Sum))
    {
        return Err(operand as usize);
    }
    let fits = |set: &[u32]| {
        let whole = set.iter().filter(|&&i| partial(i).is_none());
        let mut zeros =
            whole.map(|&i| node.operands.get(i as usize).is_some_and(|&value| is_zero(module, value)));
        operands.iter().all(|i| set.contains(i)) && zeros.all(|zero| zero)
    };
    if factors.linear.iter().any(|set| fits(set)) { Ok(()) } else { Err(operands[0] as usize) }
}

/// Whether a value consists of zeros by construction.
pub(super) fn is_zero(module: &Module, value: ValueId) -> bool {
    module.splat_number(value) == Some(0.0)
}

/// Returns the axes of more than one device over which a value is partial, with the kind; `None` if there are none.
pub(super) fn over(mesh: &Mesh, ty: &Type) -> Option<(PartialKind, BTreeSet<AxisId>)> {
    let (kind, axes) = ty.sharding.partial.as_ref()?;
    let axes: BTreeSet<AxisId> = axes.iter().copied().filter(|&axis| mesh.axes[axis].size > 1).collect();
    (!axes.is_empty()).then_some((*kind, axes))
}

/// Returns the kind as text, such as `partial sum`.
pub(super) fn word(kind: PartialKind) -> &'static str {
    match kind {
        PartialKind::Sum => "partial sum",
        PartialKind::Max => "partial max",
        PartialKind::Min => "partial min",
    }
}

/// Returns the names of axes as text, such as `` `dp`, `tp` ``.
pub(super) fn names<'a>(mesh: &Mesh, axes: impl IntoIterator<Item = &'a AxisId>) -> String {
    axes.into_iter().map(|&axis| format!("`{}`", mesh.axes[axis].name)).collect::<Vec<_>>().join(", ")
}
