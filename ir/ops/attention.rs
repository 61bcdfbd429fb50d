//! Scaled dot-product attention and its gradient, as one operator each.

use super::constant::Iota;
use super::contract::Contract;
use super::elementwise::{Binary, Compare, Logical, Select, Unary};
use super::loss::sum_dtype;
use super::*;
use crate::tensor::{Elements, broadcast_strides};
use crate::{DType, Dim};

/// `out = softmax(scale · q·kᵀ + mask) · v` (Vaswani et al., arXiv 1706.03762), with grouped key-value heads.
///
/// Operands: `q[b, h, s, d]`, `k[b, g, t, d]`, `v[b, g, t, e]` with `g` dividing `h` (query head `i` reads key-value
/// head `i / (h/g)`), and optionally `mask[b|1, h|1, s|1, t]`: a float is added to the scores, a bool keeps the scores where it is
/// true. A row with all scores masked gives zeros, as the `IsNaN`/`Where` of the exporters does. With `causal`, query `i` sees
/// keys `j ≤ i` (and `s = t`). Results: `out[b, h, s, e]` in q's type, and `logsumexp[b, h, s]` of the masked scores (−∞ for empty
/// rows), in f32 if q is narrower. A float mask may hold −∞, or a huge negative number; a row with only such a number is uniform.
/// No gradient passes through `logsumexp`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attention {
    /// The factor on the scores.
    pub scale: Float,
    /// Whether later keys are hidden.
    pub causal: bool,
}

/// The gradient of [`Attention`]. It recomputes the probabilities from `logsumexp` (Dao et al., arXiv 2205.14135). Operands:
/// `q, k, v, [mask,] out, logsumexp, d out`. Results: `d q, d k, d v`; empty rows give zeros.
///
/// The probabilities `exp(score - logsumexp)` of a row are divided by their sum again: when all scores are around −3.4e38, the
/// logarithm of the sum is lost by rounding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttentionGrad {
    /// As in [`Attention`].
    pub scale: Float,
    /// As in [`Attention`].
    pub causal: bool,
}

/// The factor words of q, k, v and mask. The key dim of k and v is not split, because every query reads all keys. A part of a
/// causal attention knows the position of its queries among the keys from its place in the global tensor.
const OPERANDS: [&str; 4] = ["b (g r) s d^", "b g t^ d^", "b g t^ e^", "b (g r) s t^"];
const OUT: &str = "b (g r) s e^";
const LOGSUMEXP: &str = "b (g r) s";

/// Checks the types of `q, k, v, [mask]`. Returns the types of `out` and `logsumexp`.
fn check(causal: bool, operands: &[Type]) -> Result<[Type; 2], TypeError> {
    let error = |message: String| Err(TypeError::new(message));
    let (q, k, v, mask) = match operands {
        [q, k, v] => (q, k, v, None),
        [q, k, v, mask] => (q, k, v, Some(mask)),
        _ => return error(format!("takes q, k, v and perhaps a mask, not {} operands", operands.len())),
    };
    if let Some(ty) =
        [q, k, v].into_iter().find(|ty| ty.ndim() != 4 || ty.dtype != q.dtype || !q.dtype.is_float())
    {
        return error(format!("q, k and v must have four dims and the same float type; one of them is {ty}"));
    }
    let [batch, heads, queries, width] = [0, 1, 2, 3].map(|i| &q.dims[i]);
    let [groups, keys] = [&k.dims[1], &k.dims[2]];
    if k.dims[0] != *batch || v.dims[0] != *batch || k.dims[3] != *width || v.dims[1..3] != k.dims[1..3] {
        return error(format!("q {q}, k {k} and v {v} do not fit each other"));
    }
    if heads.quotient(groups).is_none() {
        return error(format!(
            "{heads} query heads are not a multiple of {groups} key-value heads: q {q}, k {k}"
        ));
    }
    if causal && queries != keys {
        return error(format!("causal attention needs as many queries as keys: q {q}, k {k}"));
    }
    if let Some(mask) = mask {
        let full = [batch, heads, queries, keys];
        let fits =
            mask.ndim() == 4 && (0..4).all(|i| mask.dims[i] == *full[i] || (i < 3 && mask.dims[i].is_one()));
        if !fits || !(mask.dtype.is_float() || mask.dtype == DType::Bool) {
            return error(format!(
                "the mask is {mask}; it must have floats or bools of dims {full:?}, and every dim but the \
                 last may have size one"
            ));
        }
    }
    let leading = || [batch, heads, queries].into_iter().cloned();
    let out = Type::new(q.dtype, leading().chain([v.dims[3].clone()]));
    Ok([out, Type::new(sum_dtype(q.dtype), leading())])
}

/// The scores of every query against every key.
struct Scores<'a> {
    q: &'a [f64],
    k: &'a [f64],
    mask: Option<(&'a Elements, Vec<usize>)>,
    scale: f64,
    causal: bool,
    /// The global position of the first query.
    first: usize,
    batch: usize,
    heads: usize,
    groups: usize,
    queries: usize,
    keys: usize,
    width: usize,
}

impl<'a> Scores<'a> {
    /// Takes the forward operands of a call: all but the last `kept`, which only the gradient has.
    fn new(scale: Float, causal: bool, cx: &'a Interp, kept: usize) -> Self {
        let operands = &cx.operands[..cx.operands.len() - kept];
        let first = cx.operand_span(0, 2).start as usize;
        let (q, k) = (operands[0], operands[1]);
        let [batch, heads, queries, width] = [0, 1, 2, 3].map(|i| q.sizes[i]);
        let (groups, keys) = (k.sizes[1], k.sizes[2]);
        let full = [batch, heads, queries, keys];
        let mask = operands.get(3).map(|mask| (&mask.elements, broadcast_strides(&mask.sizes, &full)));
        let (q, k, scale) = (q.floats(), k.floats(), scale.get());
        Self { q, k, mask, scale, causal, first, batch, heads, groups, queries, keys, width }
    }

    /// Returns the batch element, head and query of every row of the result, in order.
    fn rows(&self) -> impl Iterator<Item = [usize; 3]> + use<'_> {
        let heads = (0..self.batch).flat_map(|b| (0..self.heads).map(move |h| [b, h]));
        heads.flat_map(|[b, h]| (0..self.queries).map(move |s| [b, h, s]))
    }

    /// Returns the row of a query in `q`, `out` and `logsumexp`.
    fn query(&self, [b, h, s]: [usize; 3]) -> usize {
        (b * self.heads + h) * self.queries + s
    }

    /// Returns the row in `k` and `v` of a key that a query reads.
    fn key(&self, [b, h, _]: [usize; 3], t: usize) -> usize {
        (b * self.groups + h / (self.heads / self.groups)) * self.keys + t
    }

    /// Returns the masked scores of one query; −∞ where the key is hidden.
    fn of(&self, query: [usize; 3]) -> Vec<f64> {
        let row = self.query(query) * self.width;
        let score = |t: usize| {
            let key = self.key(query, t) * self.width;
            let product: f64 = (0..self.width).map(|i| self.q[row + i] * self.k[key + i]).sum();
            let score = self.scale * product;
            if self.causal && t > self.first + query[2] {
                return f64::NEG_INFINITY;
            }
            let Some((mask, strides)) = &self.mask else { return score };
            let at = (0..3).map(|i| query[i] * strides[i]).sum::<usize>() + t * strides[3];
            match mask {
                Elements::Bool(keep) => {
                    if keep[at] {
                        score
                    } else {
                        f64::NEG_INFINITY
                    }
                }
                Elements::Float(bias) => score + bias[at],
                Elements::Int(_) => unreachable!("infer has checked the types"),
            }
        };
        (0..self.keys).map(score).collect()
    }
}

impl Operator for Attention {
    // Depends on the place of a part if causal: a query reads the keys up to its own place.
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Query, OperandRole::Key, OperandRole::Value, OperandRole::Mask])
            .optional(OperandRole::Mask)
            .facts(self.causal, PrecisionClass::Half)
            .reading(&[(OperandRole::Mask, Reads::Any)])
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        Ok(check(self.causal, types.operands)?.into())
    }

    /// `"b (g r) s d^, b g t^ d^, b g t^ e^, b (g r) s t^ -> b (g r) s e^, b (g r) s"`
    fn factors(&self, signature: &Signature) -> Factors {
        let operands = OPERANDS[..signature.operands.len()].join(", ");
        Factors::rule(&format!("{operands} -> {OUT}, {LOGSUMEXP}"), signature)
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        if d[1].is_some() {
            return Err(GradientError::Undefined("the logsumexp of attention has no gradient"));
        }
        let mut gradients = vec![None; node.operands.len()];
        let Some(dout) = d[0] else { return Ok(gradients) };
        let operands: Vec<ValueId> =
            node.operands.iter().chain(node.results).copied().chain([dout]).collect();
        let op = AttentionGrad { scale: self.scale, causal: self.causal };
        for (gradient, value) in gradients.iter_mut().zip(b.push(op, &operands)?) {
            *gradient = Some(value);
        }
        if node.operands.get(3).is_some_and(|&mask| b.ty(mask).dtype.is_float()) {
            gradients[3] = Some(self.mask_gradient(b, node, dout)?);
        }
        Ok(gradients)
    }

    /// Two contractions; half of each if causal.
    fn cost(&self, signature: &Signature) -> Cost {
        flops(self.causal, signature, 1, 1)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let scores = Scores::new(self.scale, self.causal, cx, 0);
        let v = cx.operands[2].floats();
        let width = cx.operands[2].sizes[3];
        let (mut out, mut logsumexps) = (Vec::new(), Vec::new());
        for query in scores.rows() {
            let scored = scores.of(query);
            let largest = scored.iter().copied().fold(f64::NEG_INFINITY, |a, b| Binary::Max.scalar(a, b));
            if largest == f64::NEG_INFINITY {
                out.extend((0..width).map(|_| 0.0));
                logsumexps.push(largest);
                continue;
            }
            let exp: Vec<f64> = scored.iter().map(|score| (score - largest).exp()).collect();
            let sum: f64 = exp.iter().sum();
            let value = |t: usize, i: usize| v[scores.key(query, t) * width + i];
            out.extend((0..width).map(|i| (0..exp.len()).map(|t| exp[t] / sum * value(t, i)).sum::<f64>()));
            logsumexps.push(largest + sum.ln());
        }
        let tensor = |i: usize, elements| Tensor::float(cx.results[i].dtype, cx.sizes(i), elements);
        vec![tensor(0, out), tensor(1, logsumexps)]
    }
}

impl Attention {
    /// d mask = d score = p·(d out·vᵀ - Σ d out·out), summed over the dims in which the mask is broadcast. The result is as large
    /// as the scores, which the kernels never hold. So it is built from separate nodes, which are removed if no mask is trained.
    fn mask_gradient(&self, b: &mut Builder, node: NodeRef, dout: ValueId) -> Result<ValueId, TypeError> {
        let mask = node.operands[3];
        let wide = sum_dtype(b.ty(node.operands[0]).dtype);
        let mut of = |i: usize| b.cast(node.operands[i], wide);
        let (q, k, v, bias) = (of(0)?, of(1)?, of(2)?, of(3)?);
        let (out, dout) = (b.cast(node.results[0], wide)?, b.cast(dout, wide)?);
        let product = against_keys(b, q, k)?;
        let scores = b.build(product * self.scale.get() + bias)?;
        let [batch, heads, queries, keys] = [0, 1, 2, 3].map(|i| b.ty(scores).dims[i].clone());
        let rows = [batch, heads, queries.clone(), Dim::known(1)];
        let total = b.reshape(node.results[1], rows.clone())?;
        let mut hidden = b.build(Compare::Equal.of(total, f64::NEG_INFINITY))?;
        if self.causal {
            let places = Type::new(DType::I64, [queries, keys]);
            let [query, key] = [0, 1].map(|dim| b.one_typed(Iota { dim }, &[], places.clone()));
            hidden = b.build(Logical::Or.of(hidden, Compare::Greater.of(key?, query?)))?;
        }
        let exp = b.build(Unary::Exp.of(scores - total))?;
        let zero = b.splat_like(exp, 0.0)?;
        let exp = b.build(Select.of(hidden, zero, exp))?;
        // As in `AttentionGrad`; an empty row has no sum.
        let sum = b.sum(exp, &[3])?;
        let sum = b.reshape(sum, rows.clone())?;
        let probability = b.build(Select.of(hidden, zero, exp / sum))?;
        let dprobability = against_keys(b, dout, v)?;
        let dot = b.sum(dout * out, &[3])?;
        let dot = b.reshape(dot, rows)?;
        let dmask = b.sum_to_like(probability * (dprobability - dot), mask)?;
        b.cast(dmask, b.ty(mask).dtype)
    }
}

/// `q·kᵀ` as `[b, h, s, t]`; each group of query heads uses its key-value head.
fn against_keys(b: &mut Builder, q: ValueId, k: ValueId) -> Result<ValueId, TypeError> {
    let ([batch, heads, queries, width], [groups, keys]) =
        ([0, 1, 2, 3].map(|i| b.ty(q).dims[i].clone()), [1, 2].map(|i| b.ty(k).dims[i].clone()));
    let shared =
        heads.quotient(&groups).ok_or_else(|| TypeError::new("the groups do not divide the heads"))?;
    let grouped = b.reshape(q, [batch.clone(), groups, shared, queries.clone(), width])?;
    let scores = b.one(Contract::new("bgrsd,bgtd->bgrst"), &[grouped, k])?;
    b.reshape(scores, [batch, heads, queries, keys])
}

/// Returns the cost with `over_q` contractions over the width of q and `over_v` over the width of v.
fn flops(causal: bool, signature: &Signature, over_q: u64, over_v: u64) -> Cost {
    let [q, k, v] = [0, 1, 2].map(|i| &signature.operands[i]);
    let size = |dim: &Dim| dim.size().unwrap_or(0);
    let pairs = q.dims[..3].iter().chain([&k.dims[2]]).map(size).fold(1, u64::saturating_mul);
    let widths =
        over_q.saturating_mul(size(&q.dims[3])).saturating_add(over_v.saturating_mul(size(&v.dims[3])));
    let flops = pairs.saturating_mul(widths.saturating_mul(2));
    Cost::streaming(signature, if causal { flops / 2 } else { flops })
}

impl Operator for AttentionGrad {
    // Depends on the place of a part if causal: a query reads the keys up to its own place. Reads the sums of exponentials in f32,
    // which they are in any case.
    fn facts(&self) -> Facts {
        use OperandRole::*;
        Operands::new(&[Query, Key, Value, Mask, Output, LogSumExp, Gradient])
            .optional(Mask)
            .facts(self.causal, PrecisionClass::Half)
            .reading(&[(Mask, Reads::Any), (LogSumExp, Reads::Full)])
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let Some((forward, [out, logsumexp, dout])) = types.operands.split_last_chunk::<3>() else {
            let count = types.operands.len();
            return Err(TypeError::new(format!(
                "takes q, k, v, perhaps a mask, and three more, not {count} operands"
            )));
        };
        let [expected_out, expected_logsumexp] = check(self.causal, forward)?;
        for (what, ty, expected) in [
            ("out", out, &expected_out),
            ("logsumexp", logsumexp, &expected_logsumexp),
            ("d out", dout, &expected_out),
        ] {
            ensure!(ty.same_shape(expected), "`{what}` is {ty}, not {expected}");
        }
        Ok(forward[..3].iter().map(|ty| Type::new(ty.dtype, ty.dims.clone())).collect())
    }

    /// As in [`Attention`]. The gradients of k and v are sums over the queries and over the heads that share them.
    fn factors(&self, signature: &Signature) -> Factors {
        let ([q, k, v, mask], count) = (OPERANDS, signature.operands.len());
        let operands = ["b (g r+) s+ d^", k, v, mask][..count - 3].join(", ");
        let line = format!("{operands}, {OUT}, {LOGSUMEXP}, {OUT} -> {q}, {k}, {v}");
        Factors::rule(&line, signature).linear_in(&[count as u32 - 1])
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::SECOND)
    }

    /// Five contractions; half of each if causal.
    fn cost(&self, signature: &Signature) -> Cost {
        flops(self.causal, signature, 3, 2)
    }

    /// With the probabilities p and `d p = d out · v`: d score = p·(d p - Σ d out·out), from which d q and d k follow;
    /// d v = Σ p · d out.
    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (forward, [out, logsumexp, dout]) =
            cx.operands.split_last_chunk::<3>().expect("infer has counted");
        let scores = Scores::new(self.scale, self.causal, cx, 3);
        let [q, k, v] = [0, 1, 2].map(|i| forward[i].floats());
        let (width, value_width) = (forward[0].sizes[3], forward[2].sizes[3]);
        let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
        for query in scores.rows() {
            let row = scores.query(query);
            let total = logsumexp.floats()[row];
            if total == f64::NEG_INFINITY {
                continue;
            }
            let exp: Vec<f64> = scores.of(query).into_iter().map(|score| (score - total).exp()).collect();
            let sum: f64 = exp.iter().sum();
            let slice =
                |tensor: &Tensor| tensor.floats()[row * value_width..(row + 1) * value_width].to_vec();
            let (out, dout) = (slice(out), slice(dout));
            let dot: f64 = out.iter().zip(&dout).map(|(out, dout)| out * dout).sum();
            for (t, exp) in exp.into_iter().enumerate() {
                let (probability, key) = (exp / sum, scores.key(query, t));
                let dprobability: f64 = (0..value_width).map(|i| dout[i] * v[key * value_width + i]).sum();
                let dscore = self.scale.get() * probability * (dprobability - dot);
                for i in 0..width {
                    dq[row * width + i] += dscore * k[key * width + i];
                    dk[key * width + i] += dscore * q[row * width + i];
                }
                (0..value_width).for_each(|i| dv[key * value_width + i] += probability * dout[i]);
            }
        }
        let tensor = |i: usize, elements| Tensor::float(cx.results[i].dtype, cx.sizes(i), elements);
        vec![tensor(0, dq), tensor(1, dk), tensor(2, dv)]
    }
}
