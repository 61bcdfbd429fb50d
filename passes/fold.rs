//! Fold: computes the values that depend on no input and no state, once at compile time.
//!
//! A value is folded where the rest of the program reads it. A broadcast of a constant stays in the program, so that the constant stays
//! small. Invariants: floats of the file, except single numbers, are never folded away, because they may become parameters; the program
//! computes the same values.

use crate::analysis::constants::{Constants, Constness, Literals, all_equal};
use crate::analysis::numbers::meant_in;
use crate::pass::{PassContext, Transform};
use crate::rewriting::dead::remove_dead;
use crate::rewriting::local;
use ir::ops::constant::Constant;
use ir::{
    At, Builder, Changed, Definition, Diagnostic, Module, Movement, NodeId, Op, Tensor, TypeError, ValueId,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The pass; it has no options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fold;

impl Transform for Fold {
    const NAME: &'static str = "fold";
    const NEEDED: bool = true;

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<Changed, Diagnostic> {
        let sharpened = sharpen(module)?;
        let rewritten = sharpened.or(local::run(module, Self::NAME)?);
        let decision = decide(module);
        let folded = apply(module, &decision)?;
        // A folded operand may have made another local rewrite possible.
        let again = local::run(module, Self::NAME)?;
        Ok(rewritten.or(folded).or(again).or(remove_dead(module, Self::NAME)))
    }
}

/// Replaces numbers that were rounded to their type by the exact numbers.
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

/// The values that become constants, with their tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The constants, in program order. Values of the same computation share one tensor.
    pub folded: Vec<(ValueId, Arc<Tensor>)>,
}

/// Finds the constants that other nodes read, and computes them.
pub fn decide(module: &Module) -> Decision {
    let mut constants = Constants::new(module);
    let mut wanted: BTreeSet<ValueId> = BTreeSet::new();
    for (_, node) in module.nodes() {
        if node.results.iter().any(|&result| constants.known(result) != Constness::Constant) {
            wanted.extend(node.operands.iter().filter_map(|&value| computed(module, value)));
        }
    }
    wanted.extend(module.roots().filter_map(|value| computed(module, value)));
    wanted.retain(|&value| constants.known(value) == Constness::Constant);
    let values = wanted.into_iter().filter_map(|value| Some((value, constants.shared(value)?.clone())));
    Decision { folded: values.collect() }
}

/// Returns the value behind the broadcasts of a value, unless it is already a constant, a splat or an iota.
fn computed(module: &Module, value: ValueId) -> Option<ValueId> {
    let value = module.viewed(value, |movement| movement == Movement::Repeated);
    match module.producer(value)?.op {
        Op::Constant(_) | Op::Splat(_) | Op::Iota(_) => None,
        _ => Some(value),
    }
}

/// Replaces the values by constants.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_computed_alike_share_a_tensor() {
        let module = ir::text::parse(
            "trainyard-ir 1
module @masks imported {
  func @forward(%0 \"x\" batched : i64[4]) {
    %1 = iota {dim = 0} : i64[4]
    %2 = mul %1, %1 : i64[4]
    %3 = iota {dim = 0} : i64[4]
    %4 = mul %3, %3 : i64[4]
    %5 = add %3, %4 : i64[4]
    %6 = add %0, %2 : i64[4]
    %7 = add %6, %4 : i64[4]
    %8 = add %7, %5 : i64[4]
  }
  output \"y\" = %8
}
",
        )
        .expect("a module");
        let folded = decide(&module).folded;
        let numbers: Vec<_> = folded.iter().map(|(_, tensor)| tensor.numbers().to_vec()).collect();
        assert_eq!(numbers, [[0.0, 1.0, 4.0, 9.0], [0.0, 1.0, 4.0, 9.0], [0.0, 2.0, 6.0, 12.0]]);
        assert!(Arc::ptr_eq(&folded[0].1, &folded[1].1) && !Arc::ptr_eq(&folded[0].1, &folded[2].1));
    }
}
