//! Operators with a recurrent state instead of past keys: linear attention, and the causal convolution before it.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem};
use super::conv::with_bias;
use ir::ops::contract::Contract;
use ir::ops::conv::Conv;
use ir::ops::elementwise::Unary;
use ir::ops::shape::Concat;
use ir::{DType, Dim, Type, ValueId, ensure};
use smallvec::SmallVec;
use std::slice::from_ref;

/// The most steps. Every step becomes several nodes, so longer sequences would need too many nodes.
const MOST_STEPS: u64 = 4096;

/// The recurrence of the state of a LinearAttention node.
struct Recurrence {
    /// The number of steps.
    steps: u64,
    /// The number of heads of keys and values. Each head has a state.
    heads: Dim,
    /// The factor `exp(decay)` of the state: `[batch, steps, heads, width or 1]`.
    decay: Option<ValueId>,
    /// The factor of the delta: `[batch, steps, heads or 1]`.
    beta: Option<ValueId>,
}

/// LinearAttention (opset 27): in each step `S ← e^g·S`, `S ← S + k ⊗ v`, `o = scale·Sᵀq`. With the delta rule v is replaced by
/// `β(v - Sᵀk)` (Yang et al., arXiv 2412.06464). It is computed in at least f32.
pub(super) fn linear_attention(cx: &mut Context, call: &Call) -> Outputs {
    // The attribute is only a hint on speed.
    call.unneeded(&["chunk_size"]);
    let (query, past) = (cx.value(call, 0)?, cx.optional(call, 3)?);
    let dtype = cx.ty(query).dtype;
    let wide = if dtype == DType::F64 { dtype } else { DType::F32 };
    let (recurrence, [q, k, v]) = Recurrence::of(cx, call, wide)?;
    let width = cx.bound(q, 4, "attends over")?;
    // A scale of 0 means the default.
    let scale = call.float("scale").filter(|&scale| scale != 0.0).unwrap_or(1.0 / (width as f64).sqrt());
    let q = cx.build(q * scale)?;
    let (batch, heads) = (cx.ty(k).dims[0].clone(), recurrence.heads.clone());
    let state = [batch, heads, cx.ty(k).dims[3].clone(), cx.ty(v).dims[3].clone()];
    let (mut state, state_dtype) = match past {
        Some(past) if cx.ty(past).dims[..] == state[..] => (cx.b.cast(past, wide)?, cx.ty(past).dtype),
        Some(past) => {
            return Err(Problem::new(format!(
                "the state is {}; it must be {}",
                cx.ty(past),
                Type::new(wide, state)
            )));
        }
        None => {
            let zeros = cx.b.splat(Type::scalar(wide), 0.0)?;
            (cx.b.broadcast(zeros, state)?, dtype)
        }
    };
    let mut outs = Vec::new();
    for step in 0..recurrence.steps {
        state = recurrence.written(cx, state, [k, v], step)?;
        let q = at(cx, q, step)?;
        let out = cx.b.one(Contract::new("bhgd,bhdm->bhgm"), &[q, state])?;
        let dims = cx.ty(out).dims.clone();
        let merged = dims[1..].iter().try_fold(Dim::known(1), |n, dim| n.product(dim));
        let merged =
            merged.ok_or_else(|| Problem::new("the heads together are wider than 64 bits can count"))?;
        outs.push(cx.b.reshape(out, [dims[0].clone(), Dim::known(1), merged])?);
    }
    let out = cx.b.one(Concat { dim: 1 }, &outs)?;
    let (out, state) = (cx.b.cast(out, dtype)?, cx.b.cast(state, state_dtype)?);
    Ok(vec![Entry::Value(out), Entry::Value(state)])
}

impl Recurrence {
    /// Reads the node: the recurrence, the queries `[batch, steps, heads, group, width]`, and keys and values
    /// `[batch, steps, heads, width]`.
    fn of(cx: &mut Context, call: &Call, wide: DType) -> Result<(Self, [ValueId; 3]), Problem> {
        let heads = |name: &str| {
            let heads = call.int(name).and_then(|n| u64::try_from(n).ok()).filter(|&n| n > 0);
            heads.map(Dim::known).ok_or_else(|| Problem::new(format!("needs `{name}`")))
        };
        let (queries, heads) = (heads("q_num_heads")?, heads("kv_num_heads")?);
        let wrong = || {
            Problem::new(format!("{queries} heads of queries are not a multiple of {heads} heads of keys"))
        };
        let group = queries.quotient(&heads).ok_or_else(wrong)?;
        let rule = call.string("update_rule").unwrap_or("gated_delta");
        let (gated, delta) = match rule {
            "linear" => (false, false),
            "gated" => (true, false),
            "delta" => (false, true),
            "gated_delta" => (true, true),
            other => return Err(Problem::new(format!("the update rule `{other}` is unknown"))),
        };
        ensure!(
            call.input(4).is_some() == gated && call.input(5).is_some() == delta,
            "the node's inputs do not fit its update rule `{rule}`"
        );
        let q = split(cx, call, 0, &[heads.clone(), group], wide)?;
        let k = split(cx, call, 1, from_ref(&heads), wide)?;
        let v = split(cx, call, 2, from_ref(&heads), wide)?;
        let decay = if gated {
            let decay = split(cx, call, 4, from_ref(&heads), wide)?;
            Some(cx.build(Unary::Exp.of(decay))?)
        } else {
            None
        };
        let beta = if delta {
            let beta = cx.value(call, 5)?;
            Some(cx.b.cast(beta, wide)?)
        } else {
            None
        };
        let steps = cx.bound(k, 1, "attends over")?;
        ensure!(
            steps != 0 && steps <= MOST_STEPS,
            "attention over {steps} steps is not supported; 1 to {MOST_STEPS} steps are"
        );
        Ok((Self { steps, heads, decay, beta }, [q, k, v]))
    }

    /// Builds the state after a step: the decayed state plus the step's key and value.
    fn written(&self, cx: &mut Context, mut state: ValueId, [k, v]: [ValueId; 2], step: u64) -> Built {
        let (k, mut v) = (at(cx, k, step)?, at(cx, v, step)?);
        if let Some(decay) = self.decay {
            let decay = at(cx, decay, step)?;
            let decay = cx.with_dim(decay, 3)?;
            state = cx.build(state * decay)?;
        }
        if let Some(beta) = self.beta {
            let read = cx.b.one(Contract::new("bhdm,bhd->bhm"), &[state, k])?;
            let beta = at(cx, beta, step)?;
            let beta = cx.with_dim(beta, 2)?;
            v = cx.build((v - read) * beta)?;
        }
        let (column, row) = (cx.with_dim(k, 3)?, cx.with_dim(v, 2)?);
        cx.build(state + column * row)
    }
}

/// Reads an input `[batch, steps, heads·width]`, and divides it into heads.
fn split(cx: &mut Context, call: &Call, i: usize, heads: &[Dim], dtype: DType) -> Built {
    let x = cx.value(call, i)?;
    let ty = cx.ty(x).clone();
    let wrong = || Problem::new(format!("input {i}, {ty}, cannot be divided into heads"));
    let [batch, steps, all] = &ty.dims[..] else { return Err(wrong()) };
    let width = heads.iter().try_fold(all.clone(), |width, heads| width.quotient(heads)).ok_or_else(wrong)?;
    let dims = [batch, steps].into_iter().chain(heads).chain([&width]).cloned();
    let apart = cx.b.reshape(x, dims.collect::<Vec<_>>())?;
    Ok(cx.b.cast(apart, dtype)?)
}

/// Returns a step of `x[batch, steps, ..]`.
fn at(cx: &mut Context, x: ValueId, step: u64) -> Built {
    let cut = cx.b.slice(x, 1, step, Dim::known(1))?;
    cx.without(cut, 1)
}

/// CausalConvWithState (opset 27): a separate convolution of each channel over the previous elements, perhaps followed by `silu`.
/// The second output has the last elements, which precede those of the next call.
pub(super) fn causal_conv(cx: &mut Context, call: &Call) -> Outputs {
    let (x, weight) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let (image, kernel) = (cx.ty(x).clone(), cx.ty(weight).clone());
    ensure!(
        image.ndim() == 3 && kernel.ndim() == 3 && kernel.dims[0] == image.dims[1] && kernel.dims[1].is_one(),
        "weight {kernel} does not fit signal {image}"
    );
    let (length, taps) = (cx.bound(x, 2, "convolves")?, cx.bound(weight, 2, "convolves with")?);
    let before = taps.checked_sub(1).ok_or_else(|| Problem::new(format!("the weight {kernel} is empty")))?;
    let whole = match cx.optional(call, 3)? {
        Some(past) if cx.ty(past).dims.get(2).and_then(Dim::size) != Some(before) => {
            return Err(Problem::new(format!(
                "the state {} does not fit windows of {taps} steps",
                cx.ty(past)
            )));
        }
        Some(past) => cx.b.one(Concat { dim: 2 }, &[past, x])?,
        None => cx.padded(x, 2, [before, 0], 0.0)?,
    };
    let unit = SmallVec::from_slice(&[1]);
    let op = Conv { strides: unit.clone(), dilations: unit, pads: SmallVec::from_slice(&[0, 0]) };
    let y = cx.b.one(op, &[whole, weight])?;
    let bias = cx.optional(call, 2)?;
    let y = with_bias(cx, bias, y)?;
    let y = match call.string("activation").unwrap_or("none") {
        "none" => y,
        "silu" | "swish" => cx.build(Unary::Silu.of(y))?,
        other => return Err(Problem::new(format!("the activation `{other}` is unknown"))),
    };
    let state = cx.b.slice(whole, 2, length, Dim::known(before))?;
    Ok(vec![Entry::Value(y), Entry::Value(state)])
}
