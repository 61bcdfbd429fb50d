//! Fold: computes, once and for all, what depends on no input and no state.
//!
//! Values are folded where the rest of the program reads them. A stretched constant stays small: the broadcast stays
//! in the program. Invariants: floats of the file, but for single numbers, are never folded through, because they
//! may become parameters; what the program computes does not change. A single number may be a bias, and stays stored
//! where it is more than a factor.

use crate::constants::{Constants, Known, Literals, all_equal};
use crate::dead::remove_dead;
use crate::local;
use crate::numbers::meant_in;
use crate::pass::{PassContext, Transform};
use crate::pipeline::Arguments;
use ir::interp::file_tensor;
use ir::ops::constant::Constant;
use ir::ops::elementwise::Binary;
use ir::{
    At, Builder, Changed, DataId, Definition, Diagnostic, Module, NodeId, Op, Tensor, TypeError, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The pass; it has no options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fold;

impl Transform for Fold {
    const NAME: &'static str = "fold";
    const NEEDED: bool = true;

    fn parse(_: &mut Arguments) -> Result<Self, String> {
        Ok(Self)
    }

    fn print(&self, _: &mut Arguments) {}

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<Changed, Diagnostic> {
        let written = write_factors(module)?;
        let sharpened = written.or(sharpen(module)?);
        let rewritten = sharpened.or(local::run(module, Self::NAME)?);
        let decision = decide(module);
        let folded = apply(module, &decision)?;
        // A folded operand may have made another rewrite possible.
        let again = local::run(module, Self::NAME)?;
        Ok(rewritten.or(folded).or(again).or(remove_dead(module, Self::NAME)))
    }
}

/// Writes stored single numbers that nothing is done with but to multiply and to divide, as exporters store a scale,
/// into the program, as the import does those without dims.
fn write_factors(module: &mut Module) -> Result<Changed, TypeError> {
    let (uses, roots) = (module.uses(), module.roots().collect::<BTreeSet<_>>());
    let multiplies = |&id: &NodeId| matches!(module.node(id).op, Op::Binary(Binary::Mul | Binary::Div));
    let mut values: BTreeMap<DataId, Vec<(NodeId, ValueId)>> = BTreeMap::new();
    for (id, node) in module.nodes() {
        if let Op::Constant(constant) = &node.op {
            values.entry(constant.data).or_default().push((id, node.results[0]));
        }
    }
    let mut factors = Vec::new();
    for (data, values) in values {
        let row = &module.data[data];
        let is_factor =
            |(_, value): &(NodeId, ValueId)| !roots.contains(value) && uses[*value].iter().all(multiplies);
        if row.ty.dtype.is_float()
            && row.ty.numel() == Some(1)
            && values.iter().all(is_factor)
            && let Some(tensor) = file_tensor(row)
        {
            factors.extend(values.into_iter().map(|(id, value)| (id, value, row.ty.clone(), tensor.item())));
        }
    }
    let mut b = Builder::new(module, Fold::NAME);
    for (id, value, ty, number) in factors {
        let written = b.at(At::Before(id)).splat(ty, number)?;
        b.replace(value, written);
        b.remove(id);
    }
    Ok(b.finish())
}

/// Gives numbers that were rounded to their type the value they stand for.
pub(crate) fn sharpen(module: &mut Module) -> Result<Changed, TypeError> {
    let rounded = |(id, node): (NodeId, &ir::Node)| {
        let Op::Splat(splat) = &node.op else { return None };
        let (value, ty) = (splat.value.get(), module.ty(node.results[0]));
        let exact = meant_in(ty.dtype, value);
        (exact != value).then(|| (id, node.results[0], ty.clone(), exact))
    };
    let splats: Vec<_> = module.nodes().filter_map(rounded).collect();
    let mut b = Builder::new(module, Fold::NAME);
    for (id, old, ty, exact) in splats {
        let new = b.at(At::Before(id)).splat(ty, exact)?;
        b.replace(old, new);
        b.remove(id);
    }
    Ok(b.finish())
}

/// The values that become constants, with what they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// In program order.
    pub folded: Vec<(ValueId, Tensor)>,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |(value, tensor): &(ValueId, Tensor)| format!("{value} = {}", tensor.ty());
        f.write_str(&self.folded.iter().map(line).collect::<Vec<_>>().join("\n"))
    }
}

/// Finds the constants that something else reads, and computes them.
pub fn decide(module: &Module) -> Decision {
    let mut constants = Constants::new(module);
    let mut wanted: BTreeSet<ValueId> = BTreeSet::new();
    for (_, node) in module.nodes() {
        if node.results.iter().any(|&result| constants.known(result) != Known::Constant) {
            wanted.extend(node.operands.iter().filter_map(|&value| computed(module, value)));
        }
    }
    wanted.extend(module.roots().filter_map(|value| computed(module, value)));
    wanted.retain(|&value| constants.known(value) == Known::Constant);
    let values = wanted.into_iter().filter_map(|value| Some((value, constants.value(value)?.clone())));
    Decision { folded: values.collect() }
}

/// What was stretched into this value, unless that is as simple as a constant can be.
fn computed(module: &Module, mut value: ValueId) -> Option<ValueId> {
    loop {
        let node = module.producer(value)?;
        match &node.op {
            Op::Broadcast(_) => value = node.operands[0],
            Op::Constant(_) | Op::Splat(_) | Op::Iota(_) => return None,
            _ => return Some(value),
        }
    }
}

/// Puts the constants in their place.
pub fn apply(module: &mut Module, decision: &Decision) -> Result<Changed, TypeError> {
    let mut b = Builder::new(module, Fold::NAME);
    let mut literals = Literals::default();
    for (value, tensor) in &decision.folded {
        if let Definition::Node(node, _) = b.module().value(*value).definition {
            let constant = literal(&mut b, node, &mut literals, tensor)?;
            b.replace(*value, constant);
        }
    }
    Ok(b.finish())
}

fn literal(
    b: &mut Builder,
    at: NodeId,
    literals: &mut Literals,
    tensor: &Tensor,
) -> Result<ValueId, TypeError> {
    b.at(At::Before(at));
    match all_equal(tensor) {
        Some(number) => b.splat(tensor.ty(), number),
        None => {
            let data = literals.row(b.tables(), "folded", tensor);
            b.one_typed(Constant { data }, &[], tensor.ty())
        }
    }
}
