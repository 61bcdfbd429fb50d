//! Rewrites that look at one node and its operands: operations that do nothing, and operations on constants.

use ir::ops::contract::Contract;
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::reduce::ReduceKind;
use ir::ops::{Interp, Labels};
use ir::types::broadcast;
use ir::{
    At, Builder, Changed, Diagnostic, Level, Module, Node, NodeId, Op, OperandRole, Operator, Tensor,
    TypeError, ValueId,
};
use std::collections::BTreeSet;

/// Rewrites every node once, in program order, so that a node sees its rewritten operands.
pub(crate) fn run(module: &mut Module, by: &str) -> Result<Changed, Diagnostic> {
    let order: Vec<NodeId> = module.order().to_vec();
    let accumulations = module.nodes().filter(|(_, node)| matches!(node.op, Op::Accumulate(_)));
    let accumulated: BTreeSet<ValueId> = accumulations.map(|(_, node)| node.operands[0]).collect();
    let mut b = Builder::new(module, by);
    for id in order {
        let mut node = b.module().node(id).clone();
        node.operands.iter_mut().for_each(|value| *value = b.resolve(*value));
        let [result] = node.results[..] else { continue };
        b.at(At::Before(id));
        if let Some(new) = rewrite(&mut b, &node, result)? {
            // A sum over microbatches must keep an operand that every microbatch computes anew.
            if accumulated.contains(&result) && !b.module().phase_of(new).is_microbatch() {
                continue;
            }
            b.replace(result, new);
            b.remove(id);
        }
    }
    Ok(b.finish())
}

/// Returns a simpler value for the single result of a node, if there is one.
fn rewrite(b: &mut Builder, node: &Node, result: ValueId) -> Result<Option<ValueId>, TypeError> {
    if let Some(value) = folded_scalar(b.module(), node, result) {
        let ty = b.ty(result).clone();
        return b.splat(ty, value).map(Some);
    }
    let operand = |i: usize| node.operands[i];
    let same_dims = |b: &Builder, value: ValueId| b.ty(value).same_shape(b.ty(result));
    Ok(match &node.op {
        Op::Splat(_) | Op::Constant(_) | Op::Iota(_) => None,
        Op::Reshape(_) => match producer_in_phase(b, node, operand(0)) {
            _ if same_dims(b, operand(0)) => Some(operand(0)),
            Some(Node { op: Op::Reshape(_), operands, .. }) => {
                Some(b.reshape(operands[0], b.ty(result).dims.clone())?)
            }
            Some(Node { op: Op::Splat(splat), .. }) => {
                Some(b.splat(b.ty(result).clone(), splat.value.get())?)
            }
            _ => None,
        },
        Op::Broadcast(_) => match producer_in_phase(b, node, operand(0)) {
            _ if same_dims(b, operand(0)) => Some(operand(0)),
            Some(Node { op: Op::Splat(splat), .. }) => {
                Some(b.splat(b.ty(result).clone(), splat.value.get())?)
            }
            Some(Node { op: Op::Broadcast(_), operands, .. }) => {
                Some(b.broadcast(operands[0], b.ty(result).dims.clone())?)
            }
            _ => None,
        },
        Op::Transpose(outer) => match producer_in_phase(b, node, operand(0)) {
            _ if outer.permutation.iter().copied().eq(0..outer.permutation.len() as u32) => Some(operand(0)),
            Some(Node { op: Op::Transpose(inner), operands, .. }) => {
                let both: Vec<u32> =
                    outer.permutation.iter().map(|&i| inner.permutation[i as usize]).collect();
                Some(b.transpose(operands[0], &both)?)
            }
            Some(Node { op: Op::Splat(splat), .. }) => {
                Some(b.splat(b.ty(result).clone(), splat.value.get())?)
            }
            _ => None,
        },
        Op::Reduce(reduce) => match producer_in_phase(b, node, operand(0)) {
            Some(Node { op: Op::Splat(splat), .. }) => {
                reduced(b, reduce.kind, splat.value.get(), operand(0), result)?
            }
            _ => None,
        },
        Op::Slice(slice) if slice.start == 0 && slice.step == 1 && same_dims(b, operand(0)) => {
            Some(operand(0))
        }
        Op::Cast(_) if same_dims(b, operand(0)) => Some(operand(0)),
        // After the backward phase is built, no gradient will be asked for.
        Op::Detach(_) if b.module().level >= Level::Training => Some(operand(0)),
        Op::Select(_) if operand(1) == operand(2) && same_dims(b, operand(1)) => Some(operand(1)),
        Op::Unary(Unary::Neg) => match b.module().producer(operand(0)) {
            Some(Node { op: Op::Unary(Unary::Neg), operands, .. }) => Some(operands[0]),
            _ => None,
        },
        Op::Contract(contract) => without_transposes(b, node, contract)?,
        Op::Gather(gather) => match producer_in_phase(b, node, node[OperandRole::Indices]) {
            // A repeated index is looked up once, and the row is broadcast.
            Some(Node { op: Op::Broadcast(_), operands, .. })
                if b.ty(operands[0]).ndim() == b.ty(node[OperandRole::Indices]).ndim() =>
            {
                let once = b.one(node.op.clone(), &[node[OperandRole::Data], operands[0]])?;
                Some(b.broadcast(once, b.ty(result).dims.clone())?)
            }
            // The indices 0, 1, 2…: the positions of a sequence.
            Some(Node { op: Op::Iota(iota), .. }) => first_ones(b, node, gather.dim, iota.dim, result)?,
            _ => None,
        },
        Op::Binary(binary) => match neutral(b.module(), *binary, node)
            .or_else(|| undone(b.module(), *binary, node))
            .filter(|&value| same_dims(b, value))
        {
            Some(value) => Some(value),
            None => without_broadcasts(b, node, result)?,
        },
        Op::Bitwise(_) | Op::Compare(_) | Op::Logical(_) | Op::Select(_) => {
            without_broadcasts(b, node, result)?
        }
        _ => None,
    })
}

/// Builds the reduction of equal floats without their elements, which may exceed memory.
fn reduced(
    b: &mut Builder,
    kind: ReduceKind,
    number: f64,
    operand: ValueId,
    result: ValueId,
) -> Result<Option<ValueId>, TypeError> {
    let (from, to) = (b.ty(operand), b.ty(result).clone());
    let (Some(all), Some(kept)) = (from.numel(), to.numel().filter(|&kept| kept > 0)) else {
        return Ok(None);
    };
    if !to.dtype.is_float() || !to.sharding.is_whole() || !from.sharding.is_whole() || all == 0 {
        return Ok(None);
    }
    let number = if kind == ReduceKind::Sum { number * (all / kept) as f64 } else { number };
    b.splat(to, number).map(Some)
}

/// Replaces a look-up of 0, 1, 2… along a dim by a slice, if the dim has all of these indices.
fn first_ones(
    b: &mut Builder,
    node: &Node,
    dim: u32,
    counted: u32,
    result: ValueId,
) -> Result<Option<ValueId>, TypeError> {
    let [table, indices] = [OperandRole::Data, OperandRole::Indices].map(|role| b.ty(node[role]).clone());
    let length = &indices.dims[counted as usize];
    let one_line = indices.numel().is_some() && indices.numel() == length.size();
    let within = length.size().zip(table.dims[dim as usize].size()).is_some_and(|(n, all)| n <= all);
    if !one_line || !within || !table.sharding.is_whole() || !indices.sharding.is_whole() {
        return Ok(None);
    }
    let first = b.slice(node[OperandRole::Data], dim, 0, length.clone())?;
    b.reshape(first, b.ty(result).dims.clone()).map(Some)
}

/// Returns the contraction of the operands before their transposes, with permuted labels.
fn without_transposes(
    b: &mut Builder,
    node: &Node,
    contract: &Contract,
) -> Result<Option<ValueId>, TypeError> {
    let mut labels = [contract.lhs.clone(), contract.rhs.clone()];
    let mut operands = node.operands.clone();
    for (labels, operand) in labels.iter_mut().zip(&mut operands) {
        if let Some(Node { op: Op::Transpose(transpose), operands, .. }) =
            producer_in_phase(b, node, *operand)
        {
            let mut before = labels.0.clone();
            transpose
                .permutation
                .iter()
                .zip(&labels.0)
                .for_each(|(&from, &label)| before[from as usize] = label);
            (*labels, *operand) = (Labels(before), operands[0]);
        }
    }
    if operands == node.operands {
        return Ok(None);
    }
    let [lhs, rhs] = labels;
    b.one(Contract { lhs, rhs, out: contract.out.clone() }, &operands).map(Some)
}

/// Returns the elementwise node on its operands before their broadcasts, if it broadcasts them itself to the same dims.
fn without_broadcasts(b: &mut Builder, node: &Node, result: ValueId) -> Result<Option<ValueId>, TypeError> {
    let mut operands = node.operands.clone();
    for i in 0..operands.len() {
        let narrow = match producer_in_phase(b, node, operands[i]) {
            Some(Node { op: Op::Broadcast(_), operands: source, .. }) => source[0],
            Some(Node { op: Op::Splat(splat), .. }) if b.ty(operands[i]).ndim() > 0 => {
                b.splat_like(operands[i], splat.value.get())?
            }
            _ => continue,
        };
        let wide = std::mem::replace(&mut operands[i], narrow);
        let dims =
            operands.iter().try_fold(ir::Dims::new(), |dims, &value| broadcast(&dims, &b.ty(value).dims));
        if dims != Ok(b.ty(result).dims.clone()) {
            operands[i] = wide;
        }
    }
    if operands == node.operands { Ok(None) } else { b.one(node.op.clone(), &operands).map(Some) }
}

/// Returns the node that makes a value, if it is in the phase of its reader: views are not moved over phases, since that would change
/// the values that are kept between them.
fn producer_in_phase(b: &Builder, reader: &Node, value: ValueId) -> Option<Node> {
    b.module().producer(value).filter(|node| node.phase == reader.phase).cloned()
}

/// Returns the operand that a binary node passes on unchanged: `x + 0`, `x - 0`, `x · 1`, `x / 1`.
fn neutral(module: &Module, op: Binary, node: &Node) -> Option<ValueId> {
    let [x, y] = node.operands[..] else { return None };
    match op {
        Binary::Add if splat(module, y) == Some(0.0) => Some(x),
        Binary::Add if splat(module, x) == Some(0.0) => Some(y),
        Binary::Sub if splat(module, y) == Some(0.0) => Some(x),
        Binary::Mul if splat(module, y) == Some(1.0) => Some(x),
        Binary::Mul if splat(module, x) == Some(1.0) => Some(y),
        Binary::Div if splat(module, y) == Some(1.0) => Some(x),
        _ => None,
    }
}

/// Returns the number and the other factor of a product with a number, or of a quotient by one, if they are floats.
fn multiple(module: &Module, op: Binary, node: &Node) -> Option<(f64, ValueId)> {
    let [x, y] = node.operands[..] else { return None };
    let (factor, rest) = match (op, splat(module, x), splat(module, y)) {
        (Binary::Mul, _, Some(factor)) => (factor, x),
        (Binary::Mul, Some(factor), None) => (factor, y),
        (Binary::Div, _, Some(divisor)) => (1.0 / divisor, x),
        _ => return None,
    };
    module.ty(rest).dtype.is_float().then_some((factor, rest))
}

/// Returns `x` for `x · c / c` and `x / c · c`. In an e-graph, a value that is many multiples of itself makes searches long.
fn undone(module: &Module, op: Binary, node: &Node) -> Option<ValueId> {
    let (outer, product) = multiple(module, op, node)?;
    let Op::Binary(inner_op) = module.producer(product)?.op else { return None };
    let (inner, x) = multiple(module, inner_op, module.producer(product)?)?;
    (outer.is_finite() && inner.is_finite() && outer * inner == 1.0).then_some(x)
}

/// Returns the number that all elements of a value equal, if it is a splat.
fn splat(module: &Module, value: ValueId) -> Option<f64> {
    match &module.producer(value)?.op {
        Op::Splat(splat) => Some(splat.value.get()),
        _ => None,
    }
}

/// Computes a scalar node whose operands are all known scalars.
fn folded_scalar(module: &Module, node: &Node, result: ValueId) -> Option<f64> {
    let ty = module.ty(result);
    if node.operands.is_empty() || ty.ndim() != 0 || matches!(node.op, Op::Accumulate(_) | Op::Dropout(_)) {
        return None;
    }
    let is_float = ty.dtype.is_float();
    let known = |&value: &ValueId| {
        let number = splat(module, value)?;
        let ty = module.ty(value);
        let exact = (ty.ndim() == 0).then(|| Tensor::splat(ty.dtype, vec![], number))?;
        // An integer result follows from the floats as their types hold them.
        Some(if is_float { exact } else { exact.rounded() })
    };
    let operands: Vec<Tensor> = node.operands.iter().map(known).collect::<Option<_>>()?;
    let operands: Vec<&Tensor> = operands.iter().collect();
    let results = [ty.clone()];
    let tensor =
        node.op.interp(&Interp { operands: &operands, results: &results, data: &module.data, parts: None });
    let value = tensor.first()?.numbers()[0];
    // A splat of integers must hold the number exactly.
    (is_float || value.abs() < 2f64.powi(53)).then_some(value)
}
