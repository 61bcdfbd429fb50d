//! Cuts a tensor into states by the views that all its uses go through.

use cranelift_entity::SecondaryMap;
use ir::{Data, Module, Node, NodeId, Op, ValueId, View, ViewStep};
use smallvec::SmallVec;

/// A part of a tensor that becomes one state.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorCut {
    /// The view from the file's tensor to the state.
    pub view: View,
    /// The values of the program that are this part. The state replaces them.
    pub values: Vec<ValueId>,
}

type Uses = SecondaryMap<ValueId, SmallVec<[NodeId; 2]>>;

/// Returns the parts in which the tensor `data` is used. Each of `values` is the whole tensor.
pub(super) fn cuts(module: &Module, uses: &Uses, data: &Data, values: &[ValueId]) -> Vec<TensorCut> {
    let mut view = View::new();
    let declared = module.ty(values[0]);
    if let (Some(declared), true) = (declared.sizes(), declared.dims != data.ty.dims) {
        view.push(ViewStep::Reshape(declared.into_iter().collect()));
    }
    // Each part is followed through its views as long as all uses go through them.
    let (mut cuts, mut parts) = (Vec::new(), vec![TensorCut { view, values: values.to_vec() }]);
    while let Some(part) = parts.pop() {
        match inner_parts(module, uses, data, &part) {
            Some(inner) => parts.extend(inner.into_iter().rev()),
            None => cuts.push(part),
        }
    }
    cuts
}

/// Returns the parts behind a part: its only view, or its disjoint slices, if all uses go through them.
fn inner_parts(module: &Module, uses: &Uses, data: &Data, part: &TensorCut) -> Option<Vec<TensorCut>> {
    let mut steps: Vec<(ViewStep, Vec<ValueId>)> = Vec::new();
    for &value in &part.values {
        if module.roots().any(|root| root == value) {
            return None;
        }
        for &id in &uses[value] {
            let node = module.node(id);
            let step = step(module, node)?;
            match steps.iter_mut().find(|(known, _)| *known == step) {
                Some((_, values)) => values.push(node.results[0]),
                None => steps.push((step, vec![node.results[0]])),
            }
        }
    }
    let is_one_view = steps.len() == 1 && !matches!(steps[0].0, ViewStep::Slice { .. });
    if steps.is_empty() || !is_one_view && !are_whole(module, data, part, &steps) {
        return None;
    }
    steps.sort_by(|(a, _), (b, _)| a.cmp(b));
    let inner = |(step, values): (ViewStep, Vec<ValueId>)| {
        let mut view = part.view.clone();
        view.push(step);
        TensorCut { view, values }
    };
    Some(steps.into_iter().map(inner).collect())
}

/// Returns the step of a view that a node is, if it is one.
fn step(module: &Module, node: &Node) -> Option<ViewStep> {
    let (from, to) = (module.ty(*node.operands.first()?), module.ty(node.results[0]));
    match &node.op {
        Op::Reshape(_) => Some(ViewStep::Reshape(to.sizes()?.into_iter().collect())),
        Op::Transpose(transpose) => Some(ViewStep::Transpose(transpose.permutation.clone())),
        Op::Slice(slice) if slice.step == 1 => {
            let length = to.dims[slice.dim as usize].size()?;
            Some(ViewStep::Slice { dim: slice.dim, start: u64::try_from(slice.start).ok()?, length })
        }
        // Only a cast to a wider type loses nothing of the file's tensor.
        Op::Cast(cast) if cast.to.is_float() && cast.to.bytes() > from.dtype.bytes() => {
            Some(ViewStep::Cast(cast.to))
        }
        _ => None,
    }
}

/// Whether slices cut the whole of a part into disjoint states. An element that nothing reads still belongs to the parameter: weight
/// decay shrinks it. If an exporter repeated a tensor along the batch, one slice stands for all.
fn are_whole(module: &Module, data: &Data, part: &TensorCut, steps: &[(ViewStep, Vec<ValueId>)]) -> bool {
    if let [(ViewStep::Slice { dim, start: 0, length: 1 }, _)] = steps
        && part.view.is_empty()
        && crate::analysis::constants::equal_along(data, *dim as usize) == Some(true)
    {
        return true;
    }
    let mut ranges = Vec::new();
    for (step, _) in steps {
        let ViewStep::Slice { dim, start, length } = step else { return false };
        ranges.push((*dim, *start, start + length));
    }
    ranges.sort();
    let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return false };
    let size = module.ty(part.values[0]).dims[first.0 as usize].size();
    let are_separate = ranges.windows(2).all(|pair| pair[0].0 == pair[1].0 && pair[0].2 == pair[1].1);
    are_separate && first.1 == 0 && size == Some(last.2)
}

/// Returns the suffix of a name for the slices of a view: `[0..128]`, `[:,128..256]`.
pub(super) fn suffix(view: &View) -> String {
    let mut suffix = String::new();
    for step in view {
        if let ViewStep::Slice { dim, start, length } = step {
            let before = ":,".repeat(*dim as usize);
            suffix += &format!("[{before}{start}..{}]", start + length);
        }
    }
    suffix
}

/// Returns the views of a tensor that a state stands for. Usually it is the state's own view. If the state is the first slice along a dim
/// and the tensor is the same along that dim (an exporter repeated it for the batch), every slice has one.
pub(super) fn copies(data: &Data, view: &View) -> Vec<View> {
    let alone = || vec![view.clone()];
    let Some((ViewStep::Slice { dim, start: 0, length: 1 }, rest)) = view.split_first() else {
        return alone();
    };
    let size = data.ty.dims[*dim as usize].size().unwrap_or(1);
    if crate::analysis::constants::equal_along(data, *dim as usize) != Some(true) {
        return alone();
    }
    let copy = |start| {
        let first = ViewStep::Slice { dim: *dim, start, length: 1 };
        std::iter::once(first).chain(rest.iter().cloned()).collect()
    };
    (0..size).map(copy).collect()
}
