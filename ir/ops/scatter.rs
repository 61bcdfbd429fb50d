//! Writing by index: scatters, and the gradients of reading by index, which are scatters of sums into zeros.
//!
//! In all operators a negative index counts from the end, and an update with an index outside is dropped. Updates with the same
//! place are applied in row-major order, so sums are the same on every machine, and the last of several set updates stays.

use super::constant::Iota;
use super::elementwise::{Binary, Compare, Select, wrap};
use super::indexing::{GatherElements, GatherNd, element_offsets, nd_offsets, nd_words, words_but};
use super::*;
use crate::tensor::Elements;
use crate::{DType, Dim};

/// The effect of an update on the element at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScatterKind {
    /// The update replaces the element.
    Set,
    /// The update is added to the element.
    Add,
    /// The update multiplies the element.
    Mul,
    /// The larger of the two stays.
    Max,
    /// The smaller of the two stays.
    Min,
}

/// A copy of `data` with `out[i, indices[i, j, k], k]` changed by `updates[i, j, k]`, for `dim = 1` (ONNX ScatterElements).
/// Operands: `data`, integer `indices` and `updates` with equal dims, which differ from those of the data only in `dim`. Bools can
/// only be set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScatterElements {
    /// The indexed dim.
    pub dim: u32,
    /// The effect of an update.
    pub kind: ScatterKind,
}

/// A copy of `data` with `out[b.., indices[b.., i.., :], r..]` changed by `updates[b.., i.., r..]` (ONNX ScatterND). Operands:
/// `data`, integer `indices`, and `updates`, with the dims that [`GatherNd`] returns for the first two. Bools can only be set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScatterNd {
    /// The number of leading dims that all three share.
    pub batch_dims: u32,
    /// The effect of an update.
    pub kind: ScatterKind,
}

/// The gradient of [`GatherElements`] in its data: zeros of the result type, with `updates` added at `indices`.
/// Operands: `indices`, `updates`. The result type is declared (the dims of the data).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatherElementsGrad {
    /// As in [`GatherElements`].
    pub dim: u32,
}

/// The gradient of [`GatherNd`] in its data, as [`GatherElementsGrad`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatherNdGrad {
    /// As in [`GatherNd`].
    pub batch_dims: u32,
}

impl Attribute for ScatterKind {
    fn print(&self) -> String {
        match self {
            Self::Set => "set",
            Self::Add => "add",
            Self::Mul => "mul",
            Self::Max => "max",
            Self::Min => "min",
        }
        .into()
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Set, Self::Add, Self::Mul, Self::Max, Self::Min].into_iter().find(|kind| kind.print() == text)
    }
}

impl ScatterKind {
    /// Returns the function of the element and the update; `None` if the update replaces the element.
    pub fn function(self) -> Option<Binary> {
        match self {
            Self::Set => None,
            Self::Add => Some(Binary::Add),
            Self::Mul => Some(Binary::Mul),
            Self::Max => Some(Binary::Max),
            Self::Min => Some(Binary::Min),
        }
    }

    /// Returns the suffix of the factor words of positions. For max and min a split works, because each part includes the data.
    /// For a sum or a product, each part would include the data once more, and for `Set` no part knows which update is the last.
    fn positions(self) -> &'static str {
        match self {
            Self::Max => " max",
            Self::Min => " min",
            Self::Set | Self::Add | Self::Mul => "^",
        }
    }

    /// Returns the precision of a scatter of this kind. Sums and products may leave the range of half.
    fn precision(self) -> PrecisionClass {
        match self {
            Self::Set | Self::Max | Self::Min => PrecisionClass::Follow,
            Self::Add | Self::Mul => PrecisionClass::Full,
        }
    }

    /// Declares the operands in which a scatter of this kind is linear.
    fn linear(self, factors: Factors, data: &Type) -> Factors {
        match self {
            _ if data.dtype == DType::Bool => factors,
            Self::Set | Self::Add => factors.linear_in(&[0, 2]),
            Self::Mul => factors.linear_in(&[0]),
            Self::Max | Self::Min => factors,
        }
    }

    /// Returns the data with each update applied at its offset.
    fn apply(self, data: &Tensor, updates: &Tensor, offsets: Vec<Option<usize>>) -> Tensor {
        let (mut out, dtype, function) = (data.clone(), data.dtype, self.function());
        let places = offsets.into_iter().enumerate().filter_map(|(from, to)| Some((from, to?)));
        match (&mut out.elements, &updates.elements) {
            (Elements::Float(out), Elements::Float(x)) => places.for_each(|(from, to)| {
                out[to] = function.map_or(x[from], |function| function.scalar(out[to], x[from]));
            }),
            (Elements::Int(out), Elements::Int(x)) => places.for_each(|(from, to)| {
                let made = function.map_or(x[from], |function| function.integer(out[to], x[from]));
                out[to] = wrap(dtype, made);
            }),
            (Elements::Bool(out), Elements::Bool(x)) => places.for_each(|(from, to)| out[to] = x[from]),
            _ => unreachable!("infer has checked the types"),
        }
        out
    }

    /// Returns the type of the result, if the updates have the type that a gather with these indices reads.
    fn infer(self, types: &Inference, gather: &impl Operator) -> Result<Vec<Type>, TypeError> {
        let [data, indices, updates] = types.operands()?;
        check_updates(gather, data, indices, updates)?;
        ensure!(
            data.dtype != DType::Bool || self == Self::Set,
            "the reduction {} is not defined for {data}",
            self.print()
        );
        Ok(vec![Type::new(data.dtype, data.dims.clone())])
    }

    /// Returns the gradients of data and updates, given the gradient of the result. `gather` reads at the updates' places,
    /// `scatter` writes there, and `stays` tells of each update whether it was the last at its place.
    fn gradient(
        self,
        b: &mut Builder,
        node: NodeRef,
        dout: ValueId,
        (gather, scatter): (Op, impl Fn(Self) -> Op),
        stays: impl FnOnce(&mut Builder) -> Result<ValueId, TypeError>,
    ) -> Gradients {
        let [data, indices, updates] = [0, 1, 2].map(|i| node.operands[i]);
        let (d_data, d_updates) = match self {
            Self::Add => (dout, b.one(gather, &[dout, indices])?),
            Self::Set => {
                let zeros = b.splat(whole(b.ty(updates)), 0.0)?;
                let d_data = b.one(scatter(self), &[dout, indices, zeros])?;
                let (read, stays) = (b.one(gather, &[dout, indices])?, stays(b)?);
                (d_data, b.build(Select.of(stays, read, zeros))?)
            }
            Self::Mul => {
                let (data_factors, update_factors) = (Factor::of(b, data)?, Factor::of(b, updates)?);
                let all = |b: &mut Builder, kind, data, updates| {
                    let of_places = b.one(scatter(kind), &[data, indices, updates])?;
                    Ok::<_, TypeError>([of_places, b.one(gather.clone(), &[of_places, indices])?])
                };
                let products = all(b, Self::Mul, data_factors.nonzero, update_factors.nonzero)?;
                let zeros = all(b, Self::Add, data_factors.zeros, update_factors.zeros)?;
                let of_data = data_factors.others(b, products[0], zeros[0])?;
                let of_updates = update_factors.others(b, products[1], zeros[1])?;
                let read = b.one(gather.clone(), &[dout, indices])?;
                (b.build(dout * of_data)?, b.build(read * of_updates)?)
            }
            // As in a reduction, equal largest elements share the gradient.
            Self::Max | Self::Min => {
                let out = node.results[0];
                let read = b.one(gather.clone(), &[out, indices])?;
                let (of_data, of_updates) = (hits(b, data, out)?, hits(b, updates, read)?);
                let count = b.one(scatter(Self::Add), &[of_data, indices, of_updates])?;
                let share = b.build(dout / count)?;
                let read = b.one(gather, &[share, indices])?;
                (b.build(of_data * share)?, b.build(of_updates * read)?)
            }
        };
        Ok(vec![Some(d_data), None, Some(d_updates)])
    }
}

/// Returns 1 where two tensors are equal, else 0.
pub(super) fn hits(b: &mut Builder, x: ValueId, y: ValueId) -> Result<ValueId, TypeError> {
    let (one, zero) = (b.splat_like(x, 1.0)?, b.splat_like(x, 0.0)?);
    b.build(Select.of(Compare::Equal.of(x, y), one, zero))
}

/// A factor of products, which may be zero.
struct Factor {
    /// The factor, with zeros replaced by 1.
    nonzero: ValueId,
    /// 1 where the factor is zero, else 0.
    zeros: ValueId,
}

impl Factor {
    fn of(b: &mut Builder, x: ValueId) -> Result<Self, TypeError> {
        let (one, zero) = (b.splat_like(x, 1.0)?, b.splat_like(x, 0.0)?);
        let is_zero = b.build(Compare::Equal.of(x, zero))?;
        let (nonzero, zeros) =
            (b.build(Select.of(is_zero, one, x))?, b.build(Select.of(is_zero, one, zero))?);
        Ok(Self { nonzero, zeros })
    }

    /// Returns the product of the other factors. `product` has the product of all nonzero factors, `zeros` the number of zero
    /// factors.
    fn others(&self, b: &mut Builder, product: ValueId, zeros: ValueId) -> Result<ValueId, TypeError> {
        let zero = b.splat_like(product, 0.0)?;
        b.build(Select.of(Compare::Equal.of(zeros, self.zeros), product / self.nonzero, zero))
    }
}

/// Returns the type without its sharding.
fn whole(ty: &Type) -> Type {
    Type::new(ty.dtype, ty.dims.clone())
}

/// Checks that the updates have the type that a gather reads from the data.
fn check_updates(
    gather: &impl Operator,
    data: &Type,
    indices: &Type,
    updates: &Type,
) -> Result<(), TypeError> {
    let read = gather.infer(&Inference { operands: &[data.clone(), indices.clone()], declared: &[] })?;
    if read[0].same_shape(updates) {
        return Ok(());
    }
    Err(TypeError::new(format!("the updates at {indices} of {data} are {updates}, not {}", read[0])))
}

/// Returns the type of a gather's gradient in its data: the declared type, if updates and indices fit it.
fn infer_gradient(types: &Inference, gather: &impl Operator) -> Result<Vec<Type>, TypeError> {
    let ([indices, updates], data) = (types.operands()?, types.declared()?);
    check_updates(gather, data, indices, updates)?;
    ensure!(data.dtype.is_float(), "has no gradient with respect to {data}");
    Ok(vec![whole(data)])
}

/// Returns the gradient in the updates of a sum into zeros: the elements of `d[0]` at the updates' places.
fn read_back(b: &mut Builder, gather: Op, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
    Ok(vec![None, d[0].map(|dout| b.one(gather, &[dout, node.operands[0]])).transpose()?])
}

/// Returns the sums of the updates at their offsets.
fn sums(cx: &Interp, offsets: Vec<Option<usize>>) -> Vec<Tensor> {
    let zeros = Tensor::splat(cx.results[0].dtype, cx.sizes(0), 0.0);
    vec![ScatterKind::Add.apply(&zeros, cx.operands[1], offsets)]
}

impl Operator for ScatterElements {
    // Depends on the place of a part: indices count along the whole dim.
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data, OperandRole::Indices, OperandRole::Updates])
            .by_place(self.kind.precision())
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        self.kind.infer(types, &GatherElements { dim: self.dim })
    }

    /// `"d v d, d i^ d, d i^ d -> d v d"`; `i max` for the largest.
    fn factors(&self, signature: &Signature) -> Factors {
        let data = &signature.operands[0];
        let [whole, positions] = ["v".into(), format!("i{}", self.kind.positions())]
            .map(|word| words_but(data.ndim(), self.dim, &word));
        let line = format!("{whole}, {positions}, {positions} -> {whole}");
        self.kind.linear(Factors::rule(&line, signature), data)
    }

    /// If several updates have the same place, the last one gets the gradient.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let (data, indices, gather) = (node.operands[0], node.operands[1], GatherElements { dim: self.dim });
        let Some(dout) = d[0].filter(|_| b.ty(data).dtype.is_float()) else { return Ok(vec![None; 3]) };
        let ops = (gather.clone().into(), |kind| Self { kind, ..self.clone() }.into());
        self.kind.gradient(b, node, dout, ops, |b| {
            let (places, positions) = (b.ty(data).dims.clone(), b.ty(indices).dims.clone());
            let numbers = b.one_typed(Iota { dim: self.dim }, &[], Type::new(DType::I64, positions))?;
            let zeros = b.splat(Type::new(DType::I64, places), 0.0)?;
            let last = b.one(self.clone(), &[zeros, indices, numbers])?;
            let last = b.one(gather, &[last, indices])?;
            b.build(Compare::Equal.of(last, numbers))
        })
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.operands[2], 1)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (data, dim) = (cx.operands[0], self.dim as usize);
        let offsets = element_offsets(&data.sizes, cx.operands[1], dim, cx.operand_span(0, dim));
        vec![self.kind.apply(data, cx.operands[2], offsets)]
    }
}

impl Operator for ScatterNd {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data, OperandRole::Indices, OperandRole::Updates])
            .anywhere(self.kind.precision())
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        self.kind.infer(types, &GatherNd { batch_dims: self.batch_dims })
    }

    /// `"b.. v^.. r.., b.. i^.. q^, b.. i^.. r.. -> b.. v^.. r.."`; `i max` for the largest.
    fn factors(&self, signature: &Signature) -> Factors {
        let (data, indices) = (&signature.operands[0], &signature.operands[1]);
        let gather = GatherNd { batch_dims: self.batch_dims };
        let [data_words, indices, updates] = nd_words(&gather, data, indices, self.kind.positions());
        let line = format!("{data_words}, {indices}, {updates} -> {data_words}");
        self.kind.linear(Factors::rule(&line, signature), data)
    }

    /// If several updates have the same place, the last one gets the gradient.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let (data, indices) = (node.operands[0], node.operands[1]);
        let gather = GatherNd { batch_dims: self.batch_dims };
        let Some(dout) = d[0].filter(|_| b.ty(data).dtype.is_float()) else { return Ok(vec![None; 3]) };
        let ops = (gather.clone().into(), |kind| Self { kind, ..self.clone() }.into());
        self.kind.gradient(b, node, dout, ops, |b| {
            let (data, index_type) = (b.ty(data).clone(), b.ty(indices).clone());
            let used = self.batch_dims as usize + gather.indexed(&data, &index_type)?;
            let positions = &index_type.dims[..index_type.ndim() - 1];
            let count = positions.iter().try_fold(Dim::known(1), |count, dim| count.product(dim));
            let count =
                count.ok_or_else(|| TypeError::new(format!("{index_type} has too many positions")))?;
            let numbers = b.one_typed(Iota { dim: 0 }, &[], Type::new(DType::I64, [count]))?;
            let numbers = b.reshape(numbers, positions.iter().cloned())?;
            let zeros = b.splat(Type::new(DType::I64, data.dims[..used].iter().cloned()), 0.0)?;
            let last = b.one(self.clone(), &[zeros, indices, numbers])?;
            let last = b.one(gather, &[last, indices])?;
            let stays = b.build(Compare::Equal.of(last, numbers))?;
            let rest = data.dims[used..].iter().map(|_| Dim::known(1));
            b.reshape(stays, positions.iter().cloned().chain(rest))
        })
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.operands[2], 1)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let data = cx.operands[0];
        let offsets = nd_offsets(&data.sizes, cx.operands[1], self.batch_dims as usize);
        vec![self.kind.apply(data, cx.operands[2], offsets)]
    }
}

impl Operator for GatherElementsGrad {
    // Depends on the place of a part: indices count along the whole dim.
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Indices, OperandRole::Gradient]).by_place(PrecisionClass::Full)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        infer_gradient(types, &GatherElements { dim: self.dim })
    }

    /// `"d i+ d, d i+ d -> d v d"`
    fn factors(&self, signature: &Signature) -> Factors {
        let [whole, positions] =
            ["v", "i+"].map(|word| words_but(signature.results[0].ndim(), self.dim, word));
        Factors::rule(&format!("{positions}, {positions} -> {whole}"), signature).linear_in(&[1])
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        read_back(b, GatherElements { dim: self.dim }.into(), node, d)
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.operands[1], 1)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let dim = self.dim as usize;
        sums(cx, element_offsets(&cx.sizes(0), cx.operands[0], dim, cx.result_span(0, dim)))
    }
}

impl Operator for GatherNdGrad {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Indices, OperandRole::Gradient]).anywhere(PrecisionClass::Full)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        infer_gradient(types, &GatherNd { batch_dims: self.batch_dims })
    }

    /// `"b.. i+.. q^, b.. i+.. r.. -> b.. v^.. r.."`
    fn factors(&self, signature: &Signature) -> Factors {
        let gather = GatherNd { batch_dims: self.batch_dims };
        let [data, indices, updates] = nd_words(&gather, &signature.results[0], &signature.operands[0], "+");
        Factors::rule(&format!("{indices}, {updates} -> {data}"), signature).linear_in(&[1])
    }

    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        read_back(b, GatherNd { batch_dims: self.batch_dims }.into(), node, d)
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.operands[1], 1)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        sums(cx, nd_offsets(&cx.sizes(0), cx.operands[0], self.batch_dims as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_of_one_place_are_taken_in_their_order() {
        let row = |x: &[f64]| Tensor::float(DType::F32, vec![x.len()], x.to_vec());
        let (data, updates) = (row(&[1.0, 2.0, 3.0]), row(&[5.0, -1.0, 7.0, 9.0]));
        let offsets = || vec![Some(2), Some(0), Some(2), None];
        for (kind, expected) in [
            (ScatterKind::Set, [-1.0, 2.0, 7.0]),
            (ScatterKind::Add, [0.0, 2.0, 15.0]),
            (ScatterKind::Mul, [-1.0, 2.0, 105.0]),
            (ScatterKind::Max, [1.0, 2.0, 7.0]),
            (ScatterKind::Min, [-1.0, 2.0, 3.0]),
        ] {
            assert_eq!(kind.apply(&data, &updates, offsets()).floats(), expected, "{kind:?}");
        }
    }

    #[test]
    fn bools_are_set_alone() {
        let types = [Type::of(DType::Bool, &[4]), Type::of(DType::I64, &[2]), Type::of(DType::Bool, &[2])];
        let infer =
            |kind| ScatterElements { dim: 0, kind }.infer(&Inference { operands: &types, declared: &[] });
        assert!(infer(ScatterKind::Set).is_ok());
        assert_eq!(
            infer(ScatterKind::Add).unwrap_err().to_string(),
            "the reduction add is not defined for bool[4]"
        );
    }
}
