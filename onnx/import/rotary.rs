//! RotaryEmbedding (opset 23), and SwiGLU, the gate of feed-forward blocks in many models that use it.

use super::activation;
use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use super::heads::{merge_heads, split_heads_by_attribute, turn_first};
use ir::ops::indexing::Gather;
use ir::{DType, Dim, ValueId, ensure};

/// RotaryEmbedding of `[batch, heads, sequence, width]`, or of `[batch, sequence, heads·width]` with the number of heads as an
/// attribute. It rotates all elements of each head, or the first `rotary_embedding_dim`. The tables have a row for each position
/// or, without positions, a row for each place of each sample.
pub(super) fn rotary_embedding(cx: &mut Context, call: &Call) -> Outputs {
    let input = cx.value(call, 0)?;
    let ty = cx.ty(input).clone();
    let x = if ty.ndim() == 3 { split_heads_by_attribute(cx, input, call.int("num_heads"))? } else { input };
    ensure!(cx.ty(x).ndim() == 4, "the operand is {ty}; it must have three or four dims");
    let mut tables = [cx.value(call, 1)?, cx.value(call, 2)?];
    let positions = cx.optional(call, 3)?;
    for table in &mut tables {
        if let Some(positions) = positions {
            *table = cx.b.one(Gather { dim: 0 }, &[*table, positions])?;
        }
        *table = cx.with_dim(*table, 1)?;
    }
    let width = cx.bound(x, 3, "rotates")?;
    let turned =
        call.int("rotary_embedding_dim").filter(|&n| n != 0).map_or(Some(width), |n| u64::try_from(n).ok());
    let turned = turned.ok_or_else(|| Problem::new("rotary_embedding_dim is negative"))?;
    let out = turn(cx, call, x, tables, turned)?;
    one(if ty.ndim() == 3 { merge_heads(cx, out)? } else { out })
}

/// RotaryEmbedding of `com.microsoft`: positions come before the tables. They are given for each place of each sample, or only for
/// the first place. Heads of a merged dim are as wide as the tables, unless an attribute says otherwise.
pub(super) fn contributed(cx: &mut Context, call: &Call) -> Outputs {
    ensure!(
        call.int("is_packed_batching").unwrap_or(0) == 0
            && call.float("scale").is_none_or(|scale| scale == 1.0),
        "a packed batch and a scale are not supported"
    );
    let (input, mut positions) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let mut tables = [cx.value(call, 2)?, cx.value(call, 3)?];
    let ty = cx.ty(input).clone();
    let turned = cx.bound(tables[0], 1, "rotates")?.saturating_mul(2);
    let said = call.int("rotary_embedding_dim").unwrap_or(0);
    ensure!(
        said == 0 || u64::try_from(said) == Ok(turned),
        "a table {} does not fit {said} rotated elements",
        cx.ty(tables[0])
    );
    let count = call.int("num_heads").unwrap_or(0);
    let x = match ty.ndim() {
        3 if said != 0 => split_heads_by_attribute(cx, input, call.int("num_heads"))?,
        3 => {
            let width = Dim::known(turned);
            let heads = ty.dims[2].quotient(&width);
            let heads = heads.ok_or_else(|| {
                Problem::new(format!("the last dim of {ty} is not a multiple of a head of {turned} elements"))
            })?;
            ensure!(
                count <= 0 || heads.size() == u64::try_from(count).ok(),
                "{count} heads of {turned} elements do not fit {ty}"
            );
            let split = cx.b.reshape(input, [ty.dims[0].clone(), ty.dims[1].clone(), heads, width])?;
            cx.b.transpose(split, &[0, 2, 1, 3])?
        }
        4 => input,
        _ => return Err(Problem::new(format!("the operand is {ty}; it must have three or four dims"))),
    };
    if cx.ty(positions).ndim() == 1 {
        let places = cx.counted(DType::I64, 2, 1, cx.ty(x).dims[2].clone())?;
        let first = cx.b.cast(positions, DType::I64)?;
        let first = cx.b.reshape(first, [Dim::known(1), Dim::known(1)])?;
        positions = cx.build(places + first)?;
    }
    for table in &mut tables {
        let rows = cx.b.one(Gather { dim: 0 }, &[*table, positions])?;
        *table = cx.with_dim(rows, 1)?;
    }
    let out = turn(cx, call, x, tables, turned)?;
    one(if ty.ndim() == 3 { merge_heads(cx, out)? } else { out })
}

/// Rotates the first elements of each head.
fn turn(cx: &mut Context, call: &Call, x: ValueId, tables: [ValueId; 2], turned: u64) -> Built {
    let width = cx.bound(x, 3, "rotates")?;
    ensure!(turned <= width, "rotary_embedding_dim is above the {width} elements of a head");
    let interleaved = call.int("interleaved").unwrap_or(0) != 0;
    turn_first(cx, x, tables, interleaved, [turned, width])
}

/// SwiGLU (Shazeer, arXiv 2002.05202): `a·sigmoid(αa)·b`.
pub(super) fn swiglu(cx: &mut Context, call: &Call) -> Outputs {
    let (a, b) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let gate = activation::swish(cx, a, call.float("alpha").unwrap_or(1.0))?;
    one(cx.build(gate * b)?)
}
