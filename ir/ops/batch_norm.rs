//! Batch normalisation (Ioffe and Szegedy, arXiv 1502.03167) over all dims but the channels, dim 1.
//!
//! There are two operators, so that the same graph serves training and evaluation, and devices can share a batch. The first
//! computes the statistics of the whole microbatch, however it is split. The second normalises each element by given statistics.
//! Between them, [`InTraining`] selects the statistics of the batch in a step and the running statistics in an evaluation. The
//! running statistics are buffers, which the forward phase carries from microbatch to microbatch.
//!
//! ```text
//! %mean, %variance, %unbiased = batch_statistics %x
//! %m = in_training %mean, %running_mean
//! %v = in_training %variance, %running_variance
//! %y = batch_norm %x, %m, %v, %scale, %bias
//! ```
//!
//! All operands have the same float type.

use super::loss::sum_dtype;
use super::reduce::{Reduce, ReduceKind};
use super::*;
use crate::{Dim, Dims};
use smallvec::SmallVec;

/// The statistics of each channel of `x[n, c, ..]`: `mean[c]`, `variance[c] = Σ (x - mean)² / N` and
/// `unbiased[c] = Σ (x - mean)² / (N - 1)`, where N is the number of elements of a channel (for N = 1 the divisor is 1). Running
/// statistics are computed from `unbiased`, through which no gradient passes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchStatistics;

/// `y = (x - mean) / √(variance + eps) · scale + bias`. Operands: `x[n, c, ..]`, and for each channel, `[c]`, `mean`,
/// `variance`, `scale` and `bias`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchNorm {
    /// A number that is added to the variance.
    pub eps: Float,
}

/// The gradient of [`BatchNorm`] in each of its operands. Operands: `x, mean, variance, scale, d y`. Results:
/// `d x, d mean, d variance, d scale, d bias`; `d x` takes the statistics as fixed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchNormGrad {
    /// As in [`BatchNorm`].
    pub eps: Float,
}

/// Returns its first operand in a training step, and its second in an evaluation program. Both have the same type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InTraining;

/// Returns the channels of `x[n, c, ..]`. Refuses an `x` whose channels have no elements.
fn channels(x: &Type) -> Result<&Dim, TypeError> {
    let empty = x.dims.iter().enumerate().any(|(i, dim)| i != 1 && dim.size() == Some(0));
    match x.dims.get(1).filter(|_| x.dtype.is_float() && !empty) {
        Some(channels) => Ok(channels),
        None => Err(TypeError::new(format!("takes floats with channels in dim 1, not {x}"))),
    }
}

/// Refuses operands that do not have one number for each channel.
fn for_each_channel(x: &Type, operands: &[(&str, &Type)]) -> Result<Type, TypeError> {
    let expected = Type::new(x.dtype, [channels(x)?.clone()]);
    match operands.iter().find(|(_, ty)| !ty.same_shape(&expected)) {
        Some((what, ty)) => Err(TypeError::new(format!("the {what} is {ty}, not {expected}, for {x}"))),
        None => Ok(expected),
    }
}

/// Returns the number of elements of a channel; `None` while a dim is unbound.
fn count(x: &Type) -> Option<u64> {
    let others = x.dims.iter().enumerate().filter(|(i, _)| *i != 1);
    others.map(|(_, dim)| dim.size()).try_fold(1u64, |count, size| count.checked_mul(size?))
}

/// Returns the dims in which a value with one number per channel broadcasts to `x`.
fn broadcast_dims(x: &Type) -> Dims {
    let ones = std::iter::repeat_n(Dim::known(1), x.ndim() - 2);
    std::iter::once(x.dims[1].clone()).chain(ones).collect()
}

/// Returns the channel of each element, in row-major order.
fn channel_of(sizes: &[usize]) -> impl Iterator<Item = usize> + use<> {
    let (samples, channels) = (sizes[0], sizes[1]);
    let plane: usize = sizes[2..].iter().product();
    (0..samples).flat_map(move |_| (0..channels).flat_map(move |c| std::iter::repeat_n(c, plane)))
}

/// Returns `Σ f(i)` over the elements of each channel.
fn sums(sizes: &[usize], f: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let mut sums = vec![0.0; sizes[1]];
    channel_of(sizes).enumerate().for_each(|(i, channel)| sums[channel] += f(i, channel));
    sums
}

fn rstd(variance: &[f64], eps: Float) -> Vec<f64> {
    variance.iter().map(|variance| 1.0 / (variance + eps.get()).sqrt()).collect()
}

impl Operator for BatchStatistics {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data]).anywhere(PrecisionClass::Full)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        let statistic = Type::new(x.dtype, [channels(x)?.clone()]);
        Ok(vec![statistic; 3])
    }

    /// `"n~ c d2~ d3~ -> c, c, c"`: only a partition rule splits the other dims, because the variance needs the mean first.
    fn factors(&self, signature: &Signature) -> Factors {
        let word = |i| if i == 1 { "c".to_string() } else { format!("d{i}~") };
        let words: Vec<String> = (0..signature.operands[0].ndim()).map(word).collect();
        Factors::rule(&format!("{} -> c, c, c", words.join(" ")), signature)
    }

    /// `d x = (d mean + 2·(x - mean)·d variance) / N`
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        if d[2].is_some() {
            return Err(GradientError::Undefined("running statistics have no gradient"));
        }
        let (x, ty) = (node.operands[0], b.ty(node.operands[0]).clone());
        let dims = broadcast_dims(&ty);
        let count = count(&ty).ok_or(GradientError::Undefined("the dims of a batch must be bound"))?;
        let share = 1.0 / count as f64;
        let through_mean = match d[0] {
            Some(dmean) => Some(b.reshape(dmean * share, dims.clone())?),
            None => None,
        };
        let Some(dvariance) = d[1] else {
            return Ok(vec![through_mean.map(|dx| b.broadcast(dx, ty.dims)).transpose()?]);
        };
        let dvariance = b.build(dvariance * (2.0 * share))?;
        let [dvariance, mean] = [dvariance, node.results[0]].map(|value| b.reshape(value, dims.clone()));
        let through_variance = (x - mean?) * dvariance?;
        Ok(vec![Some(b.build(match through_mean {
            Some(through_mean) => through_variance + through_mean,
            None => through_variance,
        })?)])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.operands[0], 4)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (x, sizes) = (cx.operands[0].floats(), &cx.operands[0].sizes);
        let count = (x.len() / sizes[1].max(1)) as f64;
        let mut mean = sums(sizes, |i, _| x[i]);
        mean.iter_mut().for_each(|sum| *sum /= count);
        let squares = sums(sizes, |i, channel| (x[i] - mean[channel]).powi(2));
        let over = |count: f64| squares.iter().map(|sum| sum / count).collect::<Vec<f64>>();
        let (variance, unbiased) = (over(count), over((count - 1.0).max(1.0)));
        let tensor = |elements| Tensor::float(cx.results[0].dtype, vec![sizes[1]], elements);
        vec![tensor(mean), tensor(variance), tensor(unbiased)]
    }

    /// Computes the statistics from two sums: of the elements, and of the squares of their distances from the mean of all parts.
    fn partition(&self, b: &mut Builder, node: NodeRef) -> Result<Vec<ValueId>, TypeError> {
        let ty = b.ty(node.operands[0]).clone();
        let count = count(&ty).ok_or_else(|| TypeError::new("the dims of a batch must be bound"))?;
        let x = b.cast(node.operands[0], sum_dtype(ty.dtype))?;
        let others: SmallVec<[u32; 4]> = (0..ty.ndim() as u32).filter(|&dim| dim != 1).collect();
        let sum = |b: &mut Builder, value| {
            let sum = Reduce { kind: ReduceKind::Sum, dims: others.clone(), keep: false };
            b.one(sum, &[value])
        };
        let over = |b: &mut Builder, sum: ValueId, count: u64| b.build(sum / count as f64);
        let total = sum(b, x)?;
        let mean = over(b, total, count)?;
        let wide = b.reshape(mean, broadcast_dims(&ty))?;
        let centred = b.build(x - wide)?;
        let squares = b.build(centred * centred)?;
        let squares = sum(b, squares)?;
        let (variance, unbiased) = (over(b, squares, count)?, over(b, squares, (count - 1).max(1))?);
        [mean, variance, unbiased].into_iter().map(|statistic| b.cast(statistic, ty.dtype)).collect()
    }
}

impl Operator for BatchNorm {
    fn facts(&self) -> Facts {
        use OperandRole::*;
        Operands::new(&[Data, Mean, Variance, Scale, Bias]).anywhere(PrecisionClass::Norm)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x, mean, variance, scale, bias] = types.operands()?;
        let operands = [("mean", mean), ("variance", variance), ("scale", scale), ("bias", bias)];
        for_each_channel(x, &operands)?;
        Ok(vec![Type::new(x.dtype, x.dims.clone())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::rule("n c *, c, c, c, c -> n c *", signature)
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let Some(dy) = d[0] else { return Ok(vec![None; 5]) };
        let &[x, mean, variance, scale, _] = node.operands else {
            return Err(TypeError::new("a batch norm has five operands").into());
        };
        let gradients = b.push(BatchNormGrad { eps: self.eps }, &[x, mean, variance, scale, dy])?;
        Ok(gradients.into_iter().map(Some).collect())
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.results[0], 3)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let [x, mean, variance, scale, bias] = [0, 1, 2, 3, 4].map(|i| cx.operands[i].floats());
        let (rstd, sizes) = (rstd(variance, self.eps), &cx.operands[0].sizes);
        let y = |(x, c): (&f64, usize)| (x - mean[c]) * rstd[c] * scale[c] + bias[c];
        let y = x.iter().zip(channel_of(sizes)).map(y).collect();
        vec![Tensor::float(cx.results[0].dtype, sizes.clone(), y)]
    }
}

impl Operator for BatchNormGrad {
    fn facts(&self) -> Facts {
        use OperandRole::*;
        Operands::new(&[Data, Mean, Variance, Scale, Gradient]).anywhere(PrecisionClass::NormGrad)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x, mean, variance, scale, dy] = types.operands()?;
        let operands = [("mean", mean), ("variance", variance), ("scale", scale)];
        let statistic = for_each_channel(x, &operands)?;
        ensure!(dy.same_shape(&Type::new(x.dtype, x.dims.clone())), "the gradient is {dy}, for {x}");
        let dx = Type::new(x.dtype, x.dims.clone());
        Ok(vec![dx, statistic.clone(), statistic.clone(), statistic.clone(), statistic])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::rule("n+ c *+, c, c, c, n c * -> n c *, c, c, c, c", signature).linear_in(&[4])
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::SECOND)
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.results[0], 5)
    }

    /// With r = 1/√(variance + eps): d x = d y·r·scale, d scale = r·Σ d y·(x - mean), d bias = Σ d y,
    /// d mean = -r·scale·Σ d y, d variance = -½·r³·scale·Σ d y·(x - mean).
    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let [x, mean, variance, scale, dy] = [0, 1, 2, 3, 4].map(|i| cx.operands[i].floats());
        let (rstd, sizes) = (rstd(variance, self.eps), &cx.operands[0].sizes);
        let dx = dy.iter().zip(channel_of(sizes)).map(|(dy, c)| dy * rstd[c] * scale[c]).collect();
        let dbias = sums(sizes, |i, _| dy[i]);
        let dot = sums(sizes, |i, c| dy[i] * (x[i] - mean[c]));
        let each = |f: &dyn Fn(usize) -> f64| (0..sizes[1]).map(f).collect::<Vec<f64>>();
        let dmean = each(&|c| -rstd[c] * scale[c] * dbias[c]);
        let dvariance = each(&|c| -0.5 * rstd[c].powi(3) * scale[c] * dot[c]);
        let dscale = each(&|c| rstd[c] * dot[c]);
        let tensor = |elements| Tensor::float(cx.results[1].dtype, vec![sizes[1]], elements);
        let dx = Tensor::float(cx.results[0].dtype, sizes.clone(), dx);
        vec![dx, tensor(dmean), tensor(dvariance), tensor(dscale), tensor(dbias)]
    }
}

impl Operator for InTraining {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data, OperandRole::State])
            .moving(Movement::Same)
            .anywhere(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [training, evaluation] = types.operands()?;
        ensure!(training.same_shape(evaluation), "{training} and {evaluation} are not of one type");
        Ok(vec![Type::new(training.dtype, training.dims.clone())])
    }

    /// Not linear: the first operand could be a partial sum in training while the second is a whole value in an evaluation.
    fn factors(&self, signature: &Signature) -> Factors {
        Factors::elementwise(signature)
    }

    /// The gradient goes to the first operand, which a training step reads.
    fn gradient(&self, _: &mut Builder, _: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        Ok(vec![d[0], None])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        let bytes = signature.results[0].bytes().unwrap_or(0);
        Cost { flops: 0, read: bytes, written: bytes }
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        vec![cx.operands[0].clone()]
    }
}
