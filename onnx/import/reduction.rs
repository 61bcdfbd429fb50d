//! Reductions. Axes are an attribute up to opset 12 (ReduceSum) or 17 (others), and an input from then on.

use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use ir::ValueId;
use ir::ops::reduce::{Reduce, ReduceKind};
use smallvec::SmallVec;

/// Imports ReduceSum, ReduceMean, ReduceMax, ReduceMin.
pub(super) fn reduce(cx: &mut Context, call: &Call) -> Outputs {
    let kind = match call.op() {
        "ReduceSum" => ReduceKind::Sum,
        "ReduceMean" => ReduceKind::Mean,
        "ReduceMax" => ReduceKind::Max,
        "ReduceMin" => ReduceKind::Min,
        other => return Err(Problem::new(format!("`{other}` is not a reduction"))),
    };
    let x = cx.value(call, 0)?;
    let Some(Over { dims, keep }) = over(cx, call, x)? else { return one(x) };
    if let [dim] = dims[..]
        && is_first_of_equals(call)
    {
        let first = super::ranking::first_extreme(cx, x, dim, kind == ReduceKind::Max)?;
        return one(if keep { first } else { cx.without(first, dim)? });
    }
    one(if dims.is_empty() { x } else { cx.b.one(Reduce { kind, dims, keep }, &[x])? })
}

/// Whether a reduction was PyTorch's `max` or `min` over a dim, which gives the gradient to the first of equal elements. In
/// `amax`, `amin`, and `max` over all elements, equal elements share it.
fn is_first_of_equals(call: &Call) -> bool {
    call.traced().is_some_and(|traced| matches!(traced.operator, "max" | "min") && traced.arguments.len() > 1)
}

/// The dims of a reduction.
pub(super) struct Over {
    /// The dims, ascending.
    pub(super) dims: SmallVec<[u32; 4]>,
    /// Whether the reduced dims are kept with size one.
    pub(super) keep: bool,
}

/// Returns the dims that a node reduces; `None` if it names none and `noop_with_empty_axes` is set.
pub(super) fn over(cx: &Context, call: &Call, x: ValueId) -> Result<Option<Over>, Problem> {
    let axes = cx.attribute_or_input(call, "axes", 1)?;
    let axes = axes.filter(|axes| !axes.is_empty());
    if axes.is_none() && call.int("noop_with_empty_axes") == Some(1) {
        return Ok(None);
    }
    let mut dims: SmallVec<[u32; 4]> = match axes {
        Some(axes) => axes.iter().map(|&axis| cx.axis(x, axis)).collect::<Result<_, _>>()?,
        None => (0..cx.ty(x).ndim() as u32).collect(),
    };
    dims.sort_unstable();
    dims.dedup();
    let keep = call.int("keepdims").unwrap_or(1) != 0;
    Ok(Some(Over { dims, keep }))
}

/// GlobalAveragePool: the mean over all dims after the channels.
pub(super) fn global_average_pool(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let dims: SmallVec<[u32; 4]> = (2..cx.ty(x).ndim() as u32).collect();
    one(if dims.is_empty() {
        x
    } else {
        cx.b.one(Reduce { kind: ReduceKind::Mean, dims, keep: true }, &[x])?
    })
}
