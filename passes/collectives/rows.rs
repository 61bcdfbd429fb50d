//! Which dims may be cut: those that number the rows of activations.
//!
//! An activation's rows are what its samples consist of: positions of a sequence, patches of an image. They are found
//! from the inputs: the dims of a batched input but the first (the samples), followed through the factors of every
//! operator. Features are no rows: a contraction with a weight ends them. A partial sum that is cut over rows stays
//! cut through everything that treats rows alike, which cutting features or weights would not.

use super::graph::{Program, TypeIds};
use cranelift_entity::SecondaryMap;
use ir::ValueId;

/// The rows of every value, as bitsets of dims.
pub(super) fn rows(program: &Program) -> SecondaryMap<ValueId, u64> {
    let module = program.module;
    let types = |values: &[ValueId]| -> TypeIds {
        values.iter().map(|&value| program.number(module.ty(value))).collect()
    };
    let mut rows: SecondaryMap<ValueId, u64> = SecondaryMap::new();
    for input in module.inputs.iter().filter(|input| input.batched) {
        rows[input.value] = all(module.ty(input.value).ndim()) & !1;
    }
    for (_, node) in module.nodes() {
        if node.operands.iter().all(|&operand| rows[operand] == 0) {
            continue;
        }
        let call = (Some(node.op.clone()), types(&node.operands), types(&node.results));
        let factors = program.factors(&call);
        let mut is_row = vec![false; factors.factors.len()];
        for (&operand, dims) in node.operands.iter().zip(&factors.operands) {
            let marked = dims.iter().enumerate().filter(|(dim, _)| has(rows[operand], *dim));
            marked.flat_map(|(_, dim)| dim).for_each(|&factor| is_row[factor as usize] = true);
        }
        for (&result, dims) in node.results.iter().zip(&factors.results) {
            let marked = |dim: &&usize| dims[**dim].iter().any(|&factor| is_row[factor as usize]);
            rows[result] =
                (0..dims.len().min(64)).filter(|dim| marked(&dim)).fold(0, |set, dim| set | 1 << dim);
        }
    }
    rows
}

/// Every dim.
pub(super) fn all(ndim: usize) -> u64 {
    if ndim < 64 { (1 << ndim) - 1 } else { u64::MAX }
}

/// Whether a dim is in the set.
pub(super) fn has(set: u64, dim: usize) -> bool {
    dim < 64 && set >> dim & 1 == 1
}
