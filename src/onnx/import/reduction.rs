//! Reductions. Axes are an attribute until opset 12 (ReduceSum) or 17 (others), an input from then on.

use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use ir::ops::reduce::{Reduce, ReduceKind};
use smallvec::SmallVec;

/// ReduceSum, ReduceMean, ReduceMax, ReduceMin.
pub(super) fn reduce(cx: &mut Context, call: &Call) -> Outputs {
    let kind = match call.op() {
        "ReduceSum" => ReduceKind::Sum,
        "ReduceMean" => ReduceKind::Mean,
        "ReduceMax" => ReduceKind::Max,
        "ReduceMin" => ReduceKind::Min,
        other => return Err(Problem::new(format!("`{other}` is not a reduction"))),
    };
    let x = cx.value(call, 0)?;
    let axes = match call.ints("axes") {
        Some(axes) => Some(axes),
        None => cx.numbers(call, 1, "axes")?,
    };
    let axes = axes.filter(|axes| !axes.is_empty());
    if axes.is_none() && call.int("noop_with_empty_axes") == Some(1) {
        return one(x);
    }
    let mut dims: SmallVec<[u32; 4]> = match axes {
        Some(axes) => axes.iter().map(|&axis| cx.axis(x, axis)).collect::<Result<_, _>>()?,
        None => (0..cx.ty(x).ndim() as u32).collect(),
    };
    dims.sort_unstable();
    dims.dedup();
    let keep = call.int("keepdims").unwrap_or(1) != 0;
    one(if dims.is_empty() { x } else { cx.b.one(Reduce { kind, dims, keep }, &[x])? })
}

/// GlobalAveragePool: the mean over all dims after the channel.
pub(super) fn global_average_pool(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let dims: SmallVec<[u32; 4]> = (2..cx.ty(x).ndim() as u32).collect();
    one(if dims.is_empty() {
        x
    } else {
        cx.b.one(Reduce { kind: ReduceKind::Mean, dims, keep: true }, &[x])?
    })
}
