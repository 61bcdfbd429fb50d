//! Normalisations over the last dim. All operands and the statistics have the same float type.
//!
//! Only `y` has a gradient: `mean` and `rstd` are kept for the backward pass.

use super::*;
use crate::{DType, Dim};

/// Layer normalisation (Ba et al., arXiv 1607.06450) over the last dim: operands `x[.., n]`, `scale[n]`, `bias[n]`;
/// results `y[.., n] = (x - mean)·rstd·scale + bias`, `mean[..]`, `rstd[..] = 1/√(variance + eps)`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerNorm {
    /// A number that is added to the variance.
    pub eps: Float,
}

/// The gradient of [`LayerNorm`]. Operands: `x, scale, mean, rstd, d y`. Results: `d x, d scale, d bias`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerNormGrad;

/// Root-mean-square normalisation (Zhang and Sennrich, arXiv 1910.07467) over the last dim: operands `x[.., n]`,
/// `scale[n]`; results `y[.., n] = x·rstd·scale`, `rstd[..] = 1/√(mean(x²) + eps)`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RmsNorm {
    /// A number that is added to the mean square.
    pub eps: Float,
}

/// The gradient of [`RmsNorm`]. Operands: `x, scale, rstd, d y`. Results: `d x, d scale`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RmsNormGrad;

/// Returns the dims before the last dim, which is normalised. The last dim must exist and not be empty.
fn leading<'a>(x: &'a Type, scale: &Type) -> Result<&'a [Dim], TypeError> {
    let Some((last, leading)) = x.dims.split_last().filter(|(last, _)| last.size() != Some(0)) else {
        return Err(TypeError::new(format!("{x} has no last dim to normalise")));
    };
    ensure!(
        x.dtype.is_float() && scale.dtype == x.dtype && scale.dims[..] == [last.clone()],
        "the scale is {scale}, but {x} needs the float type {}[{last}]",
        x.dtype
    );
    Ok(leading)
}

/// Refuses an operand without this element type and these dims.
fn expect(what: &str, ty: &Type, dtype: DType, dims: &[Dim]) -> Result<(), TypeError> {
    if ty.dtype == dtype && ty.dims[..] == *dims {
        return Ok(());
    }
    let expected = Type::new(dtype, dims.iter().cloned());
    Err(TypeError::new(format!("the {what} is {ty}, not {expected}")))
}

/// Returns the gradient of the first result. The other results of a norm must have none.
fn only_first(d: &[Option<ValueId>]) -> Result<Option<ValueId>, GradientError> {
    if d[1..].iter().any(Option::is_some) {
        return Err(GradientError::Undefined("the statistics of a norm have no gradient"));
    }
    Ok(d[0])
}

fn mean(x: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = x.len() as f64;
    x.sum::<f64>() / count
}

impl Operator for LayerNorm {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data, OperandRole::Scale, OperandRole::Bias])
            .anywhere(PrecisionClass::Norm)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x, scale, bias] = types.operands()?;
        let leading = leading(x, scale)?;
        expect("bias", bias, x.dtype, &scale.dims)?;
        let statistic = Type::new(x.dtype, leading.iter().cloned());
        Ok(vec![Type::new(x.dtype, x.dims.clone()), statistic.clone(), statistic])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::rule("* n^, n^, n^ -> * n^, *, *", signature)
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let Some(dy) = only_first(d)? else { return Ok(vec![None; 3]) };
        let (x, scale, mean, rstd) = (node.operands[0], node.operands[1], node.results[1], node.results[2]);
        let gradients = b.push(LayerNormGrad, &[x, scale, mean, rstd, dy])?;
        Ok(gradients.into_iter().map(Some).collect())
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.results[0], 8)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let [x, scale, bias] = [0, 1, 2].map(|i| cx.operands[i].floats());
        let (mut y, mut means, mut rstds) = (vec![], vec![], vec![]);
        for row in x.chunks_exact(scale.len()) {
            let centre = mean(row.iter().copied());
            let variance = mean(row.iter().map(|x| (x - centre).powi(2)));
            let rstd = 1.0 / (variance + self.eps.get()).sqrt();
            y.extend((0..row.len()).map(|i| (row[i] - centre) * rstd * scale[i] + bias[i]));
            means.push(centre);
            rstds.push(rstd);
        }
        let out = |i: usize, elements| Tensor::float(cx.results[i].dtype, cx.sizes(i), elements);
        vec![out(0, y), out(1, means), out(2, rstds)]
    }
}

impl Operator for LayerNormGrad {
    fn facts(&self) -> Facts {
        use OperandRole::*;
        Operands::new(&[Data, Scale, Mean, InverseDeviation, Gradient]).anywhere(PrecisionClass::NormGrad)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x, scale, mean, rstd, dy] = types.operands()?;
        let leading = leading(x, scale)?;
        expect("mean", mean, x.dtype, leading)?;
        expect("rstd", rstd, x.dtype, leading)?;
        expect("gradient", dy, x.dtype, &x.dims)?;
        let of_scale = Type::new(x.dtype, scale.dims.clone());
        Ok(vec![Type::new(x.dtype, x.dims.clone()), of_scale.clone(), of_scale])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::rule("*+ n^, n^, *, *, * n^ -> * n^, n^, n^", signature).linear_in(&[4])
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::SECOND)
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.results[0], 14)
    }

    /// With x̂ = (x - mean)·rstd and g = d y·scale: d x = rstd·(g - mean(g) - x̂·mean(g·x̂)), d scale = Σ d y·x̂,
    /// d bias = Σ d y.
    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let [x, scale, means, rstds, dy] = [0, 1, 2, 3, 4].map(|i| cx.operands[i].floats());
        let n = scale.len();
        let (mut dx, mut dscale, mut dbias) = (vec![], vec![0.0; n], vec![0.0; n]);
        for (row, (x, dy)) in x.chunks_exact(n).zip(dy.chunks_exact(n)).enumerate() {
            let (centre, rstd) = (means[row], rstds[row]);
            let unit = |i: usize| (x[i] - centre) * rstd;
            let g = |i: usize| dy[i] * scale[i];
            let (mean_g, mean_gx) = (mean((0..n).map(g)), mean((0..n).map(|i| g(i) * unit(i))));
            dx.extend((0..n).map(|i| rstd * (g(i) - mean_g - unit(i) * mean_gx)));
            for i in 0..n {
                dscale[i] += dy[i] * unit(i);
                dbias[i] += dy[i];
            }
        }
        let out = |i: usize, elements| Tensor::float(cx.results[i].dtype, cx.sizes(i), elements);
        vec![out(0, dx), out(1, dscale), out(2, dbias)]
    }
}

impl Operator for RmsNorm {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data, OperandRole::Scale]).anywhere(PrecisionClass::Norm)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x, scale] = types.operands()?;
        let leading = leading(x, scale)?;
        Ok(vec![Type::new(x.dtype, x.dims.clone()), Type::new(x.dtype, leading.iter().cloned())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::rule("* n^, n^ -> * n^, *", signature)
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let Some(dy) = only_first(d)? else { return Ok(vec![None; 2]) };
        let (x, scale, rstd) = (node.operands[0], node.operands[1], node.results[1]);
        let gradients = b.push(RmsNormGrad, &[x, scale, rstd, dy])?;
        Ok(gradients.into_iter().map(Some).collect())
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.results[0], 5)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let [x, scale] = [0, 1].map(|i| cx.operands[i].floats());
        let (mut y, mut rstds) = (vec![], vec![]);
        for row in x.chunks_exact(scale.len()) {
            let rstd = 1.0 / (mean(row.iter().map(|x| x * x)) + self.eps.get()).sqrt();
            y.extend(row.iter().zip(scale).map(|(x, scale)| x * rstd * scale));
            rstds.push(rstd);
        }
        let out = |i: usize, elements| Tensor::float(cx.results[i].dtype, cx.sizes(i), elements);
        vec![out(0, y), out(1, rstds)]
    }
}

impl Operator for RmsNormGrad {
    fn facts(&self) -> Facts {
        use OperandRole::*;
        Operands::new(&[Data, Scale, InverseDeviation, Gradient]).anywhere(PrecisionClass::NormGrad)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x, scale, rstd, dy] = types.operands()?;
        expect("rstd", rstd, x.dtype, leading(x, scale)?)?;
        expect("gradient", dy, x.dtype, &x.dims)?;
        Ok(vec![Type::new(x.dtype, x.dims.clone()), Type::new(x.dtype, scale.dims.clone())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::rule("*+ n^, n^, *, * n^ -> * n^, n^", signature).linear_in(&[3])
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::SECOND)
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.results[0], 11)
    }

    /// With x̂ = x·rstd and g = d y·scale: d x = rstd·(g - x̂·mean(g·x̂)), d scale = Σ d y·x̂.
    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let [x, scale, rstds, dy] = [0, 1, 2, 3].map(|i| cx.operands[i].floats());
        let n = scale.len();
        let (mut dx, mut dscale) = (vec![], vec![0.0; n]);
        for ((x, dy), &rstd) in x.chunks_exact(n).zip(dy.chunks_exact(n)).zip(rstds) {
            let mean_gx = mean((0..n).map(|i| dy[i] * scale[i] * x[i] * rstd));
            dx.extend((0..n).map(|i| rstd * (dy[i] * scale[i] - x[i] * rstd * mean_gx)));
            (0..n).for_each(|i| dscale[i] += dy[i] * x[i] * rstd);
        }
        let out = |i: usize, elements| Tensor::float(cx.results[i].dtype, cx.sizes(i), elements);
        vec![out(0, dx), out(1, dscale)]
    }
}
