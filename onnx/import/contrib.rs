//! `com.microsoft`: the operators that ONNX Runtime's optimizer writes, imported as the operators from which they were fused. This
//! file has the list of import functions, and those of activations and of products and convolutions with an activation.

use super::activation;
use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem, one};
use super::gate::Gate;
use super::registry::Import;
use super::{contraction, contrib_attention, contrib_group_attention, contrib_norm, conv, norm, rotary};
use ir::ValueId;
use ir::ops::elementwise::{Binary, Unary};
use ir::{Dim, ensure};

/// The domain of these operators.
pub(super) const DOMAIN: &str = "com.microsoft";

/// Every imported operator of the domain.
pub(super) const OPERATORS: &[(&[&str], Import)] = &[
    (&["Attention"], contrib_attention::attention),
    (&["BiasGelu", "FastGelu", "Gelu", "QuickGelu"], gelu),
    (&["BiasSplitGelu"], bias_split_gelu),
    (&["EmbedLayerNormalization"], contrib_norm::embed_layer_norm),
    (&["FusedConv"], fused_conv),
    (&["FusedGemm"], fused_gemm),
    (&["FusedMatMul", "TransposeMatMul"], fused_matmul),
    (&["GroupQueryAttention"], contrib_group_attention::group_query_attention),
    (&["LayerNormalization"], norm::layer_norm),
    (&["MultiHeadAttention"], contrib_attention::multi_head_attention),
    (&["RotaryEmbedding"], rotary::contributed),
    (&["SimplifiedLayerNormalization"], norm::rms_norm),
    (&["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"], contrib_norm::skip_norm),
];

/// Gelu and BiasGelu use erf, FastGelu uses tanh, QuickGelu a sigmoid of αx. A bias is added first.
fn gelu(cx: &mut Context, call: &Call) -> Outputs {
    let mut x = cx.value(call, 0)?;
    if let Some(bias) = cx.optional(call, 1)? {
        x = cx.build(x + bias)?;
    }
    one(match call.op() {
        "FastGelu" => cx.build(Unary::GeluTanh.of(x))?,
        "QuickGelu" => activation::swish(cx, x, call.float("alpha").unwrap_or(1.702))?,
        _ => cx.build(Unary::Gelu.of(x))?,
    })
}

/// BiasSplitGelu: the first half of the last dim times the GELU of the second half.
fn bias_split_gelu(cx: &mut Context, call: &Call) -> Outputs {
    let (x, bias) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let x = cx.build(x + bias)?;
    let dim = cx.axis(x, -1)?;
    let width = cx.bound(x, dim, "halves")?;
    ensure!(width.is_multiple_of(2), "the last dim of {} cannot be halved", cx.ty(x));
    let left = cx.b.slice(x, dim, 0, Dim::known(width / 2))?;
    let right = cx.b.slice(x, dim, width / 2, Dim::known(width / 2))?;
    one(cx.build(left * Unary::Gelu.of(right))?)
}

/// FusedMatMul: a product of matrices, which may first be transposed, also with their batch dims, times α.
fn fused_matmul(cx: &mut Context, call: &Call) -> Outputs {
    let flag = |name: &str| call.int(name).unwrap_or(0) != 0;
    let (a, b) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let a = turned(cx, a, flag("transA"), flag("transBatchA"))?;
    let b = turned(cx, b, flag("transB"), flag("transBatchB"))?;
    let product = contraction::multiply(cx, a, b)?;
    let alpha = call.float("alpha").unwrap_or(1.0);
    one(if alpha == 1.0 { product } else { cx.build(product * alpha)? })
}

/// Transposes a tensor of matrices: moves the first dim behind the batch dims, then swaps the last two dims.
fn turned(cx: &mut Context, x: ValueId, swapped: bool, batch_first: bool) -> Result<ValueId, Problem> {
    let ndim = cx.ty(x).ndim();
    if ndim < 2 {
        return Ok(x);
    }
    let mut order: Vec<u32> = (0..ndim as u32).collect();
    if batch_first {
        order[..ndim - 1].rotate_left(1);
    }
    if swapped {
        order.swap(ndim - 2, ndim - 1);
    }
    Ok(cx.b.transpose(x, &order)?)
}

/// FusedGemm: Gemm followed by an activation.
fn fused_gemm(cx: &mut Context, call: &Call) -> Outputs {
    // `beta` scales only the summand, and has no effect without one.
    call.unneeded(&["beta"]);
    let product = contraction::gemm(cx, call)?;
    let Some(name) = call.string("activation") else { return Ok(product) };
    let number = |name: &str| call.float(name).into_iter().collect::<Vec<_>>();
    let gate = Gate::all(&[name], &number("activation_alpha"), &number("activation_beta"))?;
    let product = cx.materialize(product.first().unwrap_or(&Entry::Failed))?;
    one(gate[0].of(cx, product)?)
}

/// FusedConv: Conv, the addition of another tensor, then an activation.
fn fused_conv(cx: &mut Context, call: &Call) -> Outputs {
    let image = conv::conv(cx, call)?;
    let mut image = cx.materialize(image.first().unwrap_or(&Entry::Failed))?;
    if let Some(other) = cx.optional(call, 3)? {
        image = cx.build(image + other)?;
    }
    let numbers = call.floats("activation_params").unwrap_or_default();
    match (call.string("activation"), &numbers[..]) {
        (None | Some(""), []) => one(image),
        (Some("Clip"), [low, high]) => {
            one(cx.build(Binary::AtMost.of(Binary::AtLeast.of(image, *low), *high))?)
        }
        (Some("HardSwish"), []) => {
            let gate = activation::hard_sigmoid(cx, image, 1.0 / 6.0, 0.5)?;
            one(cx.build(image * gate)?)
        }
        (Some(name), numbers) => {
            let (alphas, betas) = numbers.split_at(numbers.len().min(1));
            let gate = Gate::all(&[name], alphas, betas)?;
            one(gate[0].of(cx, image)?)
        }
        (None, numbers) => Err(Problem::new(format!(
            "the node has the activation parameters {numbers:?}, and no activation"
        ))),
    }
}
