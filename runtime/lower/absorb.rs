//! Casts that kernels of a GPU do by the way, as they read and write: such a node reads what was to be cast, or makes what
//! it was to be cast to, and the cast is gone.
//!
//! What this gives is a program for lowering alone: the types of its nodes are not what their operators infer.

use crate::cuda::lower::{reads_half, writes_as};
use ir::{Builder, DType, Module, Node, NodeId, Op, ValueId};

/// The program without the casts that its kernels do.
pub(super) fn casts(module: &Module) -> Module {
    let mut module = module.clone();
    absorb_before(&mut module);
    absorb_after(&mut module);
    module
}

/// The operand of a node that is a cast.
fn cast_source(module: &Module, node: &Node) -> Option<ValueId> {
    matches!(node.op, Op::Cast(_)).then(|| node.operands[0]).filter(|&from| module.ty(from).dtype.is_float())
}

/// Kernels that compute in f32 read f16 and bf16 themselves.
fn absorb_before(module: &mut Module) {
    let mut found: Vec<(NodeId, usize, ValueId)> = Vec::new();
    for (id, node) in module.nodes() {
        for (index, &operand) in node.operands.iter().enumerate() {
            let Some(producer) = module.producer(operand).filter(|producer| producer.phase == node.phase)
            else {
                continue;
            };
            let Some(from) = cast_source(module, producer) else { continue };
            let widens = is_half(module.ty(from).dtype) && module.ty(operand).dtype == DType::F32;
            if widens && reads_half(&node.op, index) {
                found.push((id, index, from));
            }
        }
    }
    let mut builder = Builder::new(module, "lower");
    found.into_iter().for_each(|(node, index, from)| builder.set_operand(node, index, from));
    builder.finish();
}

/// Kernels write another type than they compute in, where nothing else reads what they make.
fn absorb_after(module: &mut Module) {
    let uses = module.uses();
    let mut found: Vec<(ValueId, NodeId)> = Vec::new();
    for (id, node) in module.nodes() {
        let Some(from) = cast_source(module, node) else { continue };
        let Some(producer) = module.producer(from).filter(|producer| producer.phase == node.phase) else {
            continue;
        };
        let alone = uses[from].as_slice() == [id] && module.roots().all(|root| root != from);
        let index = producer.results.iter().position(|&result| result == from).unwrap_or_default();
        if alone && writes_as(&producer.op, index, module.ty(from).dtype, module.ty(node.results[0]).dtype) {
            found.push((from, id));
        }
    }
    let made: Vec<_> = found.iter().map(|(_, cast)| module.node(*cast).results[0]).collect();
    let mut builder = Builder::new(module, "lower");
    for ((from, cast), made) in found.into_iter().zip(made) {
        let dtype = builder.ty(made).dtype;
        builder.set_dtype(from, dtype);
        builder.replace(made, from);
        builder.remove(cast);
    }
    builder.finish();
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}
