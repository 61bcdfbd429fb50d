//! Convolutions over any number of spatial dims, and their gradients.
//!
//! `conv`, `conv_grad_input` and `conv_grad_weight` are the derivatives of one trilinear form, `Σ y · conv(x, weight)`,
//! in `y`, `x` and `weight`. So the gradient of each is built from the other two, and a transposed convolution is
//! `conv_grad_input`. The dims of an operand are the batch, the channels, then the spatial dims.
//!
//! The number of groups is not an attribute: it is the number of channels of `x` divided by the number of channels that the weight
//! reads. So a device with half of the groups uses the same attributes.

mod geometry;
mod reference;

pub use geometry::{Geometry, Side};

use super::*;
use crate::factors::{DimFactors, FactorId, FactorKind};
use crate::{Dim, PartialKind};
use reference::Reference;
use smallvec::SmallVec;

/// Convolution, without a flip of the weight, as in ONNX and PyTorch (Dumoulin and Visin, arXiv 1603.07285).
///
/// Operands: `x[n, g·i, s..]` and `weight[g·o, i, k..]` of the same float type. Result: `y[n, g·o, t..]`, for each of the `g`
/// groups `y[n, o, t] = Σ_{i, k} x[n, i, t·stride + k·dilation - before] · weight[o, i, k]`, where x is zero outside of its `s`
/// elements. The size of `t` is `⌊(before + s + after - (k - 1)·dilation - 1) / stride⌋ + 1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conv {
    /// The distance between windows, for each spatial dim; not 0.
    pub strides: SmallVec<[u64; 3]>,
    /// The distance between the elements of a window, for each spatial dim; not 0.
    pub dilations: SmallVec<[u64; 3]>,
    /// The numbers of zeros before the elements of each spatial dim, then the numbers of zeros after them.
    pub pads: SmallVec<[u64; 6]>,
}

/// The gradient of [`Conv`] in `x`: operands `weight, d y`, result `d x` of the declared type. It is also ONNX's ConvTranspose of
/// `d y`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConvGradInput {
    /// As in [`Conv`].
    pub strides: SmallVec<[u64; 3]>,
    /// As in [`Conv`].
    pub dilations: SmallVec<[u64; 3]>,
    /// As in [`Conv`].
    pub pads: SmallVec<[u64; 6]>,
}

/// The gradient of [`Conv`] in `weight`: operands `x, d y`, result `d weight` of the declared type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConvGradWeight {
    /// As in [`Conv`].
    pub strides: SmallVec<[u64; 3]>,
    /// As in [`Conv`].
    pub dilations: SmallVec<[u64; 3]>,
    /// As in [`Conv`].
    pub pads: SmallVec<[u64; 6]>,
}

/// The places of the windows: the attributes that the three operators share.
#[derive(Clone, Copy, Debug)]
pub struct Windows<'a> {
    /// As in [`Conv`].
    pub strides: &'a [u64],
    /// As in [`Conv`].
    pub dilations: &'a [u64],
    /// As in [`Conv`].
    pub pads: &'a [u64],
}

macro_rules! windowed {
    ($($operator:ident),*) => { $(
        impl $operator {
            /// Returns the places of the windows.
            pub fn windows(&self) -> Windows<'_> {
                Windows { strides: &self.strides, dilations: &self.dilations, pads: &self.pads }
            }

            /// Makes the operator with these windows.
            fn with(windows: Windows) -> Self {
                Self {
                    strides: SmallVec::from_slice(windows.strides),
                    dilations: SmallVec::from_slice(windows.dilations),
                    pads: SmallVec::from_slice(windows.pads),
                }
            }
        }
    )* };
}
windowed!(Conv, ConvGradInput, ConvGradWeight);

impl Windows<'_> {
    /// Returns the type of `y`, given the types of `x` and `weight`.
    fn infer(&self, x: &Type, weight: &Type) -> Result<Type, TypeError> {
        let error = |message: String| Err(TypeError::new(format!("{message}: image {x}, weight {weight}")));
        if x.dtype != weight.dtype || !x.dtype.is_float() || x.ndim() != weight.ndim() || x.ndim() < 2 {
            return error(
                "image and weight must have the same float type and the same number of dims, at least two"
                    .into(),
            );
        }
        let spatial = x.ndim() - 2;
        let counts = [self.strides.len(), self.dilations.len(), self.pads.len()];
        if counts != [spatial, spatial, 2 * spatial] {
            return error(format!(
                "{counts:?} strides, dilations and pads do not fit {spatial} spatial dims"
            ));
        }
        let groups = x.dims[1].quotient(&weight.dims[1]);
        if groups.and_then(|groups| weight.dims[0].quotient(&groups)).is_none() {
            let [outputs, channels, taken] = [&weight.dims[0], &x.dims[1], &weight.dims[1]];
            return error(format!(
                "{channels} channels cannot be divided into groups of {taken} channels whose number divides \
                 {outputs} outputs"
            ));
        }
        let mut y = Type::new(x.dtype, [x.dims[0].clone(), weight.dims[0].clone()]);
        for dim in 0..spatial {
            match self.positions(dim, &x.dims[dim + 2], &weight.dims[dim + 2]) {
                Ok(positions) => y.dims.push(positions),
                Err(message) => return error(format!("spatial dim {dim} {message}")),
            }
        }
        Ok(y)
    }

    /// Returns the number of windows along a spatial dim.
    fn positions(&self, dim: usize, image: &Dim, kernel: &Dim) -> Result<Dim, String> {
        let (stride, dilation) = (self.strides[dim], self.dilations[dim]);
        let (before, after) = (self.pads[dim], self.pads[dim + self.strides.len()]);
        if stride == 0 || dilation == 0 {
            return Err(format!("has stride {stride} and dilation {dilation}; neither may be 0"));
        }
        let kernel = kernel.size().filter(|&size| size > 0);
        let window = kernel.and_then(|size| (size - 1).checked_mul(dilation)?.checked_add(1));
        let window = window.ok_or("needs a weight of a known size of at least 1")?;
        let padding = before.checked_add(after).ok_or("has pads that are too large")?;
        if stride == 1 && padding == window - 1 && image.size() != Some(0) {
            return Ok(image.clone()); // also if the size is not bound
        }
        let size = image.size().ok_or("must be bound, since windows do not keep its size")?;
        let padded = size.checked_add(padding).ok_or("has pads that are too large")?;
        let room = padded
            .checked_sub(window)
            .ok_or_else(|| format!("has {padded} elements with its pads, fewer than a window of {window}"))?;
        Ok(Dim::known(room / stride + 1))
    }

    /// Refuses a `d y` whose type is not the type of `y`.
    fn check_gradient(&self, x: &Type, weight: &Type, dy: &Type) -> Result<(), TypeError> {
        let y = self.infer(x, weight)?;
        if y.same_shape(dy) {
            return Ok(());
        }
        Err(TypeError::new(format!("the gradient is {dy}; image {x} and weight {weight} need {y}")))
    }
}

/// Returns the rule of the operator that computes one of `x`, `weight` and `y` from the other two. Factors that the result lacks
/// are summed. Spatial dims cannot be split, because a window also covers neighbouring elements.
fn factors([x, weight, y]: [&Type; 3], result: usize) -> Factors {
    let spatial = |name: &str| (2..x.ndim()).map(|i| format!(" {name}{i}^")).collect::<String>();
    let (image, kernel, positions) = (spatial("s"), spatial("k"), spatial("t"));
    let line = format!("n (g i){image}, (g o) i{kernel} -> n (g o){positions}");
    let forward = Signature { operands: vec![x.clone(), weight.clone()], results: vec![y.clone()] };
    let Factors { mut factors, operands, results, .. } = Factors::rule(&line, &forward);
    let mut tensors: Vec<Vec<DimFactors>> = operands.into_iter().chain(results).collect();
    let result = tensors.remove(result);
    let kept = |factor: usize| result.iter().any(|dim| dim.contains(&(factor as FactorId)));
    for (i, factor) in factors.iter_mut().enumerate() {
        if factor.kind == FactorKind::Free && !kept(i) {
            factor.kind = FactorKind::Reduced(PartialKind::Sum);
        }
    }
    let rule = Factors { factors, operands: tensors, results: vec![result], linear: vec![], zeros: false };
    rule.linear_in(&[0]).linear_in(&[1])
}

/// Counts a multiply-add for every element of `y` and every weight that contributes to it. The count is the same for all three
/// operators.
fn cost(signature: &Signature, weight: &Type, y: &Type) -> Cost {
    let taken = weight.dims[1..].iter().map(|dim| dim.size().unwrap_or(0)).fold(1, u64::saturating_mul);
    Cost::streaming(signature, y.numel().unwrap_or(0).saturating_mul(taken).saturating_mul(2))
}

impl Operator for Conv {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data, OperandRole::Weight]).anywhere(PrecisionClass::Half)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x, weight] = types.operands()?;
        Ok(vec![self.windows().infer(x, weight)?])
    }

    /// `"n (g i+) s^.., (g o) i k^.. -> n (g o) t^.."`
    fn factors(&self, signature: &Signature) -> Factors {
        factors([&signature.operands[0], &signature.operands[1], &signature.results[0]], 2)
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let (x, weight) = (node.operands[0], node.operands[1]);
        let Some(dy) = d[0] else { return Ok(vec![None; 2]) };
        let (of_x, of_weight) = (b.ty(x).clone(), b.ty(weight).clone());
        let dx = b.one_typed(ConvGradInput::with(self.windows()), &[weight, dy], of_x)?;
        let dweight = b.one_typed(ConvGradWeight::with(self.windows()), &[x, dy], of_weight)?;
        Ok(vec![Some(dx), Some(dweight)])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        cost(signature, &signature.operands[1], &signature.results[0])
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (x, weight) = (cx.operands[0], cx.operands[1]);
        let reference = Reference::new(self.windows(), &x.sizes, &weight.sizes);
        let positions = reference.geometry.sides.iter().take(self.strides.len()).map(|side| side.positions);
        let sizes = [x.sizes[0], weight.sizes[0]].into_iter().chain(positions).collect();
        vec![Tensor::float(cx.results[0].dtype, sizes, reference.convolve(x, weight))]
    }
}

impl Operator for ConvGradInput {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Weight, OperandRole::Gradient]).anywhere(PrecisionClass::Half)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let ([weight, dy], x) = (types.operands()?, types.declared()?);
        self.windows().check_gradient(x, weight, dy)?;
        Ok(vec![Type::new(x.dtype, x.dims.clone())])
    }

    /// `"(g o+) i k^.., n (g o+) t^.. -> n (g i) s^.."`
    fn factors(&self, signature: &Signature) -> Factors {
        factors([&signature.results[0], &signature.operands[0], &signature.operands[1]], 0)
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let (weight, dy) = (node.operands[0], node.operands[1]);
        let Some(dx) = d[0] else { return Ok(vec![None; 2]) };
        let of_weight = b.ty(weight).clone();
        let dweight = b.one_typed(ConvGradWeight::with(self.windows()), &[dx, dy], of_weight)?;
        Ok(vec![Some(dweight), Some(b.one(Conv::with(self.windows()), &[dx, weight])?)])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        cost(signature, &signature.operands[0], &signature.operands[1])
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let ([weight, dy], sizes) = ([cx.operands[0], cx.operands[1]], cx.sizes(0));
        let reference = Reference::new(self.windows(), &sizes, &weight.sizes);
        vec![Tensor::float(cx.results[0].dtype, sizes, reference.input_gradient(weight, dy))]
    }
}

impl Operator for ConvGradWeight {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data, OperandRole::Gradient]).anywhere(PrecisionClass::Half)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let ([x, dy], weight) = (types.operands()?, types.declared()?);
        self.windows().check_gradient(x, weight, dy)?;
        Ok(vec![Type::new(weight.dtype, weight.dims.clone())])
    }

    /// `"n+ (g i) s^.., n+ (g o) t^.. -> (g o) i k^.."`
    fn factors(&self, signature: &Signature) -> Factors {
        factors([&signature.operands[0], &signature.results[0], &signature.operands[1]], 1)
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let (x, dy) = (node.operands[0], node.operands[1]);
        let Some(dweight) = d[0] else { return Ok(vec![None; 2]) };
        let of_x = b.ty(x).clone();
        let dx = b.one_typed(ConvGradInput::with(self.windows()), &[dweight, dy], of_x)?;
        Ok(vec![Some(dx), Some(b.one(Conv::with(self.windows()), &[x, dweight])?)])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        cost(signature, &signature.results[0], &signature.operands[1])
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let ([x, dy], sizes) = ([cx.operands[0], cx.operands[1]], cx.sizes(0));
        let reference = Reference::new(self.windows(), &x.sizes, &sizes);
        vec![Tensor::float(cx.results[0].dtype, sizes, reference.weight_gradient(x, dy))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn infer(strides: &[u64], dilations: &[u64], pads: &[u64], x: &Type, weight: &Type) -> String {
        let op = Conv::with(Windows { strides, dilations, pads });
        match op.infer(&Inference { operands: &[x.clone(), weight.clone()], declared: &[] }) {
            Ok(types) => types[0].to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn sizes_follow_from_windows() {
        let f32_of = |sizes: &[u64]| Type::of(DType::F32, sizes);
        let (x, weight) = (f32_of(&[1, 3, 224, 224]), f32_of(&[64, 3, 7, 7]));
        assert_eq!(infer(&[2, 2], &[1, 1], &[3, 3, 3, 3], &x, &weight), "f32[1, 64, 112, 112]");
        let depthwise = f32_of(&[6, 1, 3, 5]);
        assert_eq!(infer(&[1, 2], &[2, 1], &[0, 2, 1, 2], &x, &depthwise), "f32[1, 6, 221, 112]");
        let error = infer(&[1, 1], &[1, 1], &[0, 0, 0, 0], &x, &f32_of(&[8, 2, 3, 3]));
        assert!(error.starts_with("3 channels cannot be divided into groups of 2"), "{error}");
        let error = infer(&[1, 1], &[1, 40], &[0, 0, 0, 0], &x, &weight);
        assert!(error.starts_with("spatial dim 1 has 224 elements"), "{error}");
        let error = infer(&[1], &[1], &[0, 0], &x, &weight);
        assert!(error.contains("do not fit 2 spatial dims"), "{error}");
    }

    #[test]
    fn a_size_that_windows_keep_need_not_be_bound() {
        let x = Type::new(DType::F32, [Dim::symbol("batch"), Dim::known(4), Dim::symbol("width")]);
        let weight = Type::of(DType::F32, &[4, 1, 3]);
        assert_eq!(infer(&[1], &[2], &[2, 2], &x, &weight), "f32[batch, 4, width]");
        assert!(infer(&[2], &[1], &[1, 1], &x, &weight).contains("must be bound"));
    }

    #[test]
    fn the_number_of_groups_is_a_factor() {
        let types = [&[2u64, 6, 5][..], &[9, 2, 3], &[2, 9, 3]].map(|sizes| Type::of(DType::F32, sizes));
        let sizes =
            |rule: &Factors| -> Vec<u64> { rule.factors.iter().flat_map(|f| f.size.size()).collect() };
        for result in 0..3 {
            let rule = factors([&types[0], &types[1], &types[2]], result);
            // The factors in order: n g i s o k t.
            assert_eq!(sizes(&rule), [2, 3, 2, 5, 3, 3, 3]);
            let summed: Vec<usize> =
                (0..7).filter(|&i| rule.factors[i].kind == FactorKind::Reduced(PartialKind::Sum)).collect();
            assert_eq!(summed, [[4], [0], [2]][result]);
        }
    }
}
