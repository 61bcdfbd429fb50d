//! Rewrites lookups whose indices count the samples: exporters look up row `b` for sample `b` by writing the number `b` into a
//! constant. Such a lookup is a gather along the other dims, at any batch.

use super::Bind;
use crate::analysis::constants::{Constants, Constness, Literals};
use crate::pass::Transform;
use ir::ops::constant::Constant;
use ir::ops::indexing::{Gather, GatherNd};
use ir::{At, Builder, Changed, Dim, Module, Node, NodeId, Op, OperandRole, Tensor, TypeError, ValueId};

/// A lookup `data[b, indices[..]]` for every sample `b`.
struct Lookup {
    node: NodeId,
    /// The data, and the dims to reshape it to. Then dim 0 counts the samples.
    data: (ValueId, Vec<Dim>),
    /// The indices of one sample, without the index that counts samples: `[i.., k]`.
    indices: Tensor,
}

/// Rewrites every lookup whose first index is the number of the sample.
pub(super) fn run(module: &mut Module) -> Result<Changed, TypeError> {
    let lookups = decide(module);
    let mut b = Builder::new(module, Bind::NAME);
    let mut literals = Literals::default();
    for lookup in lookups {
        let result = b.module().node(lookup.node).results[0];
        b.at(At::Before(lookup.node));
        let (data, dims) = lookup.data;
        let data = b.reshape(data, dims)?;
        let new = build(&mut b, &mut literals, data, lookup.indices)?;
        b.replace(result, new);
        b.remove(lookup.node);
    }
    Ok(b.finish())
}

fn decide(module: &Module) -> Vec<Lookup> {
    let mut constants = Constants::new(module);
    let lookup = |(id, node): (NodeId, &Node)| match &node.op {
        Op::GatherNd(GatherNd { batch_dims: 0 }) => by_number(module, &mut constants, id, node),
        Op::Gather(Gather { dim: 0 }) => by_position(module, &mut constants, id, node),
        _ => None,
    };
    module.nodes().filter_map(lookup).collect()
}

/// Finds `data[b, ..]`: the indices hold the number `b`, and their dim 0 counts the samples too.
fn by_number(module: &Module, constants: &mut Constants, id: NodeId, node: &Node) -> Option<Lookup> {
    let data = node[OperandRole::Data];
    let dims = module.ty(data).dims.to_vec();
    if constants.known(data) == Constness::Constant {
        return None;
    }
    let table = constants.value(node[OperandRole::Indices])?;
    let (&samples, &width) = (table.sizes.first()?, table.sizes.last()?);
    if dims.first()?.size() != Some(samples as u64) || table.sizes.len() < 2 || width < 2 || table.is_empty()
    {
        return None;
    }
    let rest =
        |sample: &[i64]| -> Vec<i64> { sample.chunks(width).flat_map(|index| index[1..].to_vec()).collect() };
    let mut parts = table.ints().chunks(table.len() / samples).enumerate();
    let first = rest(parts.clone().next()?.1);
    let fits = |(number, sample): (usize, &[i64])| {
        sample.chunks(width).all(|index| index[0] == number as i64) && rest(sample) == first
    };
    let mut sizes = table.sizes[1..].to_vec();
    *sizes.last_mut()? -= 1;
    parts.all(fits).then(|| Lookup {
        node: id,
        data: (data, dims),
        indices: Tensor::int(table.dtype, sizes, first),
    })
}

/// Finds `data[b·n + ..]`: the data were flattened from `[b, n]`, and dim 0 of the indices counts the samples.
fn by_position(module: &Module, constants: &mut Constants, id: NodeId, node: &Node) -> Option<Lookup> {
    let data = node[OperandRole::Data];
    if constants.known(data) != Constness::Nothing {
        return None;
    }
    let table = constants.value(node[OperandRole::Indices])?;
    let &samples = table.sizes.first()?;
    let flattened = module.producer(data).filter(|node| matches!(node.op, Op::Reshape(_)))?;
    let before = module.ty(flattened.operands[0]).dims.first()?.size();
    if before != Some(samples as u64) || table.is_empty() {
        return None;
    }
    let mut dims = module.ty(data).dims.to_vec();
    let each = dims.first()?.size().filter(|size| size.is_multiple_of(samples as u64))? / samples as u64;
    dims.splice(..1, [Dim::known(samples as u64), Dim::known(each)]);
    let mut parts = table.ints().chunks(table.len() / samples).enumerate();
    let first = parts.clone().next()?.1;
    let inside = first.iter().all(|&index| (0..each as i64).contains(&index));
    let fits = |(number, sample): (usize, &[i64])| {
        sample.iter().zip(first).all(|(index, base)| *index == base + number as i64 * each as i64)
    };
    let mut sizes = table.sizes[1..].to_vec();
    sizes.push(1);
    let indices = Tensor::int(table.dtype, sizes, first.to_vec());
    (inside && parts.all(fits)).then_some(Lookup { node: id, data: (data, dims), indices })
}

/// Builds `data[b, indices[i.., 0], ..]`: a gather, or with several indices a `gather_nd` that shares the batch.
fn build(
    b: &mut Builder,
    literals: &mut Literals,
    data: ValueId,
    mut indices: Tensor,
) -> Result<ValueId, TypeError> {
    let single = indices.sizes.last() == Some(&1);
    if single {
        indices.sizes.pop();
    }
    let row = literals.row(b.tables(), "indices", &indices);
    let indices = b.one_typed(Constant { data: row }, &[], indices.ty())?;
    if single {
        return b.one(Gather { dim: 1 }, &[data, indices]);
    }
    let samples = b.ty(data).dims[0].clone();
    let dims: Vec<Dim> = std::iter::once(samples).chain(b.ty(indices).dims.clone()).collect();
    let repeated = b.broadcast(indices, dims)?;
    b.one(GatherNd { batch_dims: 1 }, &[data, repeated])
}
