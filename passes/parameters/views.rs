//! How a tensor is cut into states: the views that all its uses go through.

use cranelift_entity::SecondaryMap;
use ir::{Data, Module, Node, NodeId, Op, Type, ValueId, View, ViewStep};
use smallvec::SmallVec;

/// A part of a tensor that becomes one state.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// From the file's tensor to the state.
    pub view: View,
    /// The values of the program that are this part; they will be the state's.
    pub values: Vec<ValueId>,
}

type Uses = SecondaryMap<ValueId, SmallVec<[NodeId; 2]>>;

/// The parts of the tensor of type `ty` that `values`, all of which are the whole tensor, are used in.
pub(super) fn cuts(module: &Module, uses: &Uses, ty: &Type, values: &[ValueId]) -> Vec<Cut> {
    let mut view = View::new();
    if let (Some(declared), true) = (module.ty(values[0]).sizes(), module.ty(values[0]).dims != ty.dims) {
        view.push(ViewStep::Reshape(declared.into_iter().collect()));
    }
    // Each part is followed through its views as far as all uses go through them.
    let (mut cuts, mut parts) = (Vec::new(), vec![Cut { view, values: values.to_vec() }]);
    while let Some(part) = parts.pop() {
        match inner_parts(module, uses, &part) {
            Some(inner) => parts.extend(inner.into_iter().rev()),
            None => cuts.push(part),
        }
    }
    cuts
}

/// The one view, or the separate slices, that all uses of a part go through; `None` when there is no such.
fn inner_parts(module: &Module, uses: &Uses, part: &Cut) -> Option<Vec<Cut>> {
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
    if steps.is_empty() || steps.len() > 1 && !are_separate_slices(&steps) {
        return None;
    }
    steps.sort_by(|(a, _), (b, _)| a.cmp(b));
    let inner = |(step, values): (ViewStep, Vec<ValueId>)| {
        let mut view = part.view.clone();
        view.push(step);
        Cut { view, values }
    };
    Some(steps.into_iter().map(inner).collect())
}

/// The step of a view that a node is, if it is one.
fn step(module: &Module, node: &Node) -> Option<ViewStep> {
    let (from, to) = (module.ty(*node.operands.first()?), module.ty(node.results[0]));
    match &node.op {
        Op::Reshape(_) => Some(ViewStep::Reshape(to.sizes()?.into_iter().collect())),
        Op::Transpose(transpose) => Some(ViewStep::Transpose(transpose.permutation.clone())),
        Op::Slice(slice) if slice.step == 1 => {
            let length = to.dims[slice.dim as usize].size()?;
            Some(ViewStep::Slice { dim: slice.dim, start: u64::try_from(slice.start).ok()?, length })
        }
        // Only a wider state holds what the file's tensor does.
        Op::Cast(cast) if cast.to.is_float() && cast.to.bytes() > from.dtype.bytes() => {
            Some(ViewStep::Cast(cast.to))
        }
        _ => None,
    }
}

fn are_separate_slices(steps: &[(ViewStep, Vec<ValueId>)]) -> bool {
    let mut ranges = Vec::new();
    for (step, _) in steps {
        let ViewStep::Slice { dim, start, length } = step else { return false };
        ranges.push((*dim, *start, start + length));
    }
    ranges.sort();
    ranges.windows(2).all(|pair| pair[0].0 == pair[1].0 && pair[0].2 <= pair[1].1)
}

/// What the slices of a view add to a name: `[0..128]`, `[:,128..256]`.
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

/// The views of a tensor that all are this state: one, or, when the state is the first of a dim's slices and the
/// tensor is the same along that dim (an exporter baked the batch), one for every slice.
pub(super) fn copies(data: &Data, view: &View) -> Vec<View> {
    let alone = || vec![view.clone()];
    let Some((ViewStep::Slice { dim, start: 0, length: 1 }, rest)) = view.split_first() else {
        return alone();
    };
    let size = data.ty.dims[*dim as usize].size().unwrap_or(1);
    if crate::constants::equal_along(data, *dim as usize) != Some(true) {
        return alone();
    }
    let copy = |start| {
        let first = ViewStep::Slice { dim: *dim, start, length: 1 };
        std::iter::once(first).chain(rest.iter().cloned()).collect()
    };
    (0..size).map(copy).collect()
}
