//! Reading by index: Gather and its variants, and the running sum.

use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem, dim, one};
use super::integers::{Int, Ints};
use ir::ops::detach::Detach;
use ir::ops::elementwise::{Compare, Select};
use ir::ops::indexing::{Gather, GatherElements, GatherNd};
use ir::ops::reduce::CumulativeSum;
use ir::tensor::{Tensor, offsets, strides};
use ir::{Dim, Dims, ValueId};

/// Imports Gather.
pub(super) fn gather(cx: &mut Context, call: &Call) -> Outputs {
    let axis = call.int("axis").unwrap_or(0);
    if let (Some(table), Some(indices)) = (cx.ints(call, 0), cx.ints(call, 1))
        && axis == 0
        && let Some(rows) = known_rows(&table, &indices)?
    {
        return Ok(vec![Entry::Ints(rows, cx.known_dtype(call, 0))]);
    }
    let x = cx.value(call, 0)?;
    let dim = cx.axis(x, axis)?;
    // A single known index is a slice, which allows its operand to be split.
    if let (Some(indices), Some(size)) = (cx.ints(call, 1), cx.ty(x).dims[dim as usize].size())
        && let ([], [Int::Known(index)]) = (indices.sizes(), indices.elements())
    {
        let at = super::context::dim(*index, size as usize);
        let at =
            at.ok_or_else(|| Problem::new(format!("index {index} is outside dim {dim} of {}", cx.ty(x))))?;
        let cut = cx.b.slice(x, dim, u64::from(at), Dim::known(1))?;
        let mut dims = cx.ty(cut).dims.clone();
        dims.remove(dim as usize);
        return one(cx.b.reshape(cut, dims)?);
    }
    let indices = cx.value(call, 1)?;
    let rows = cx.b.one(Gather { dim }, &[x, indices])?;
    match padding_row(call).filter(|_| dim == 0 && cx.ty(rows).dtype.is_float()) {
        Some(row) => one(without_gradient(cx, rows, indices, row)?),
        None => one(rows),
    }
}

/// Returns the padding row of an embedding, which has no gradient in PyTorch. ONNX cannot express it, so it is read from the
/// traced call, `embedding(table, indices, padding_idx)`.
fn padding_row(call: &Call) -> Option<i64> {
    let traced = call.traced().filter(|traced| traced.operator == "embedding")?;
    traced.integer(2).filter(|&row| row >= 0)
}

/// Detaches the looked-up rows whose index is `row`.
fn without_gradient(cx: &mut Context, rows: ValueId, indices: ValueId, row: i64) -> Result<ValueId, Problem> {
    let is_padding = cx.build(Compare::Equal.of(indices, row as f64))?;
    let mut dims = cx.ty(indices).dims.clone();
    dims.resize(cx.ty(rows).ndim(), Dim::known(1));
    let is_padding = cx.b.reshape(is_padding, dims)?;
    let detached = cx.b.one(Detach, &[rows])?;
    cx.build(Select.of(is_padding, detached, rows))
}

/// Returns the rows of a known table at known indices; `None` if an index is an unbound size, or if the rows exceed the limit.
fn known_rows(table: &Ints, indices: &Ints) -> Result<Option<Ints>, Problem> {
    let Some(numbers) = indices.numbers() else { return Ok(None) };
    let length = table.sizes().first().copied().unwrap_or(0);
    let rows: Option<Vec<usize>> = numbers.iter().map(|&i| dim(i, length).map(|i| i as usize)).collect();
    let elements = rows.and_then(|rows| table.rows(&rows));
    let elements =
        elements.ok_or_else(|| Problem::new(format!("indices {numbers:?} are outside the {length} rows")))?;
    let sizes = indices.sizes().iter().chain(table.sizes().iter().skip(1)).copied().collect();
    Ok(Ints::new(sizes, elements))
}

/// Imports GatherElements.
pub(super) fn gather_elements(cx: &mut Context, call: &Call) -> Outputs {
    let (x, indices) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let dim = cx.axis(x, call.int("axis").unwrap_or(0))?;
    let x = first_elements(cx, x, indices, dim)?;
    one(cx.b.one(GatherElements { dim }, &[x, indices])?)
}

/// Cuts the dims of `x` to the sizes of the indices, as in `torch.gather`. The indexed dim stays whole.
fn first_elements(cx: &mut Context, x: ValueId, indices: ValueId, indexed: u32) -> Result<ValueId, Problem> {
    let wanted = cx.ty(indices).dims.clone();
    if wanted.len() != cx.ty(x).ndim() {
        return Ok(x);
    }
    let mut first = x;
    for (dim, size) in wanted.iter().enumerate().filter(|(dim, _)| *dim != indexed as usize) {
        let fewer = matches!((size.size(), cx.ty(x).dims[dim].size()), (Some(few), Some(all)) if few < all);
        if fewer {
            first = cx.b.slice(first, dim as u32, 0, size.clone())?;
        }
    }
    Ok(first)
}

/// GatherND. Exporters read masks by a grid of constant indices, `out[b, 1, 1, s] = mask[b, s]`, which fixes the batch. Such a
/// grid is imported as a view.
pub(super) fn gather_nd(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let batch_dims = call.int("batch_dims").unwrap_or(0);
    let batch_dims = u32::try_from(batch_dims)
        .map_err(|_| Problem::new(format!("batch_dims {batch_dims} is not supported")))?;
    let grid = match cx.entry(call, 1)? {
        Entry::Stored(data) => ir::interp::file_tensor(&cx.b.module().data[*data]),
        Entry::Ints(ints, dtype) => {
            ints.numbers().map(|numbers| Tensor::int(*dtype, ints.sizes().to_vec(), numbers))
        }
        _ => None,
    };
    if let Some(view) = grid.filter(|_| batch_dims == 0).and_then(|grid| grid_view(&cx.ty(x).dims, &grid)) {
        let (permutation, dims) = view;
        let moved: ValueId = cx.b.transpose(x, &permutation)?;
        return one(cx.b.reshape(moved, dims)?);
    }
    let indices = cx.value(call, 1)?;
    // An index of one component is a Gather, as exporters use it to pick the matrices of experts.
    let mut dims = cx.ty(indices).dims.clone();
    if batch_dims == 0 && dims.last().is_some_and(Dim::is_one) {
        dims.pop();
        let indices = cx.b.reshape(indices, dims)?;
        return one(cx.b.one(Gather { dim: 0 }, &[x, indices])?);
    }
    one(cx.b.one(GatherNd { batch_dims }, &[x, indices])?)
}

/// Returns the transpose and the dims to which a grid of indices is equal: every component of the index counts along one dim of
/// the grid, from 0 to the size of the dim that it indexes, and all dims are indexed.
fn grid_view(data: &Dims, grid: &Tensor) -> Option<(Vec<u32>, Dims)> {
    let (&depth, outer) = grid.sizes.split_last()?;
    let sizes: Vec<usize> =
        data.iter().map(|dim| dim.size().map(|size| size as usize)).collect::<Option<_>>()?;
    if depth != sizes.len() {
        return None;
    }
    // For each component, the dim of the grid along which it counts. A component of a dim of size one counts along no dim.
    let counted = (0..depth).map(|component| {
        let candidates = (0..outer.len()).filter(|&d| outer[d] == sizes[component] && outer[d] > 1);
        let own = strides(outer);
        let counts = |d: usize| {
            offsets(outer, &own)
                .into_iter()
                .all(|at| grid.ints()[at * depth + component] == (at / own[d] % outer[d]) as i64)
        };
        candidates.into_iter().find(|&d| counts(d)).map(Some).or_else(|| {
            let zero = (0..outer.iter().product()).all(|at: usize| grid.ints()[at * depth + component] == 0);
            (zero && sizes[component] == 1).then_some(None)
        })
    });
    let counted: Vec<Option<usize>> = counted.collect::<Option<_>>()?;
    let all_used = (0..outer.len()).all(|d| outer[d] == 1 || counted.contains(&Some(d)));
    let distinct = counted.iter().flatten().collect::<std::collections::BTreeSet<_>>().len()
        == counted.iter().flatten().count();
    let mut permutation: Vec<u32> = (0..depth as u32).collect();
    permutation.sort_by_key(|&component| counted[component as usize]);
    let dims = outer.iter().enumerate().map(|(d, &size)| match counted.iter().position(|c| *c == Some(d)) {
        Some(component) => data[component].clone(),
        None => Dim::known(size as u64),
    });
    (all_used && distinct).then(|| (permutation, dims.collect()))
}

/// Imports CumSum.
pub(super) fn cumulative_sum(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let axis = cx.numbers(call, 1, "axis")?.and_then(|axis| axis.first().copied());
    let dim = cx.axis(x, axis.ok_or_else(|| Problem::new("needs `axis`"))?)?;
    let flag = |name: &str| call.int(name).unwrap_or(0) != 0;
    let op = CumulativeSum { dim, exclusive: flag("exclusive"), reverse: flag("reverse") };
    one(cx.b.one(op, &[x])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::DType;

    #[test]
    fn a_grid_of_indices_is_a_view() {
        // The grid for out[b, 0, 0, s] = mask[b, s].
        let (batch, sequence) = (2, 3);
        let pairs = (0..batch).flat_map(|b| (0..sequence).flat_map(move |s| [b, s])).collect();
        let grid = Tensor::int(DType::I64, vec![2, 1, 1, 3, 2], pairs);
        let data: Dims = [2u64, 3].into_iter().map(Dim::known).collect();
        let (permutation, dims) = grid_view(&data, &grid).unwrap();
        assert_eq!((permutation, dims.to_vec()), (vec![0, 1], [2u64, 1, 1, 3].map(Dim::known).to_vec()));
        let mut broken = grid.ints().to_vec();
        broken[3] = 0;
        assert_eq!(grid_view(&data, &Tensor::int(DType::I64, grid.sizes.clone(), broken)), None);
    }
}
