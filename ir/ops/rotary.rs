//! Rotary position embedding.

use super::*;
use crate::tensor::{broadcast_strides, offsets};
use crate::types::broadcast;
use crate::{Dim, Dims};

/// Rotary position embedding (Su et al., arXiv 2104.09864). Operands: `x[.., d]` with d even, and `cos`, `sin` of half the width,
/// which broadcast to `[.., d/2]`. Each pair (a, b) becomes `(a·cos - b·sin, b·cos + a·sin)`. The pairs are `(x[i], x[i + d/2])`
/// or, if `interleaved`, `(x[2i], x[2i + 1])`. All operands are floats; `cos` and `sin` have the same type, and the result has the
/// type of `x`. The gradient is the rotation with `-sin`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rotary {
    /// Whether neighbours are paired, instead of the two halves.
    pub interleaved: bool,
}

impl Rotary {
    /// Returns the places of the two elements of pair `i` in a row of `2·half`.
    fn pair(&self, i: usize, half: usize) -> (usize, usize) {
        if self.interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) }
    }

    /// Returns the gradient in a table of the shape of `like`: the sums of the elements `x` over each pair.
    fn of_table(&self, b: &mut Builder, x: ValueId, like: ValueId) -> Result<ValueId, TypeError> {
        let x = b.cast(x, b.ty(like).dtype)?;
        let (mut dims, two) = (b.ty(x).dims.clone(), Dim::known(2));
        let last = dims.len() - 1;
        dims[last] = dims[last]
            .quotient(&two)
            .ok_or_else(|| TypeError::new("a dim of odd size cannot be divided into pairs"))?;
        let within = if self.interleaved { last + 1 } else { last };
        dims.insert(within, two);
        let pairs = b.reshape(x, dims)?;
        let sums = b.sum(pairs, &[within as u32])?;
        b.sum_to_like(sums, like)
    }
}

impl Operator for Rotary {
    // Reads the tables in f32: they may have another type than the data that they rotate.
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data, OperandRole::Cosines, OperandRole::Sines])
            .anywhere(PrecisionClass::Half)
            .reading(&[(OperandRole::Cosines, Reads::Full), (OperandRole::Sines, Reads::Full)])
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x, cos, sin] = types.operands()?;
        ensure!(
            x.dtype.is_float() && cos.dtype.is_float() && cos.dtype == sin.dtype,
            "takes floats, not {x} with {cos} and {sin}"
        );
        let Some(half) = x.dims.last().and_then(|width| width.quotient(&Dim::known(2))) else {
            return Err(TypeError::new(format!("{x} does not have a last dim of pairs")));
        };
        let mut pairs: Dims = x.dims.clone();
        pairs[x.ndim() - 1] = half;
        for table in [cos, sin] {
            ensure!(
                table.ndim() != 0 && broadcast(&table.dims, &pairs)? == pairs,
                "the table {table} does not broadcast to {pairs:?}"
            );
        }
        Ok(vec![Type::new(x.dtype, x.dims.clone())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::rule("* d^, * c^, * c^ -> * d^", signature).linear_in(&[0]).linear_in(&[1, 2])
    }

    /// d x is the rotation back. `d cos` is the sum of `x·dy` over each pair, and `d sin` is the sum of `x'·dy`, where `x'` is `x`
    /// rotated by a right angle.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let [x, cos, sin] = [0, 1, 2].map(|i| node.operands[i]);
        let Some(dy) = d[0] else { return Ok(vec![None; 3]) };
        let back = b.build(-sin)?;
        let dx = b.one(self.clone(), &[dy, cos, back])?;
        let along = b.build(x * dy)?;
        let table = Type::new(b.ty(cos).dtype, b.ty(cos).dims.clone());
        let right_angle = [b.splat(table.clone(), 0.0)?, b.splat(table, 1.0)?];
        let turned = b.one(self.clone(), &[x, right_angle[0], right_angle[1]])?;
        let across = b.build(turned * dy)?;
        Ok(vec![Some(dx), Some(self.of_table(b, along, cos)?), Some(self.of_table(b, across, sin)?)])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.results[0], 3)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (x, sizes) = (cx.operands[0].floats(), cx.sizes(0));
        let half = sizes[sizes.len() - 1] / 2;
        let mut pairs = sizes.clone();
        pairs[sizes.len() - 1] = half;
        let [cos, sin] = [1, 2].map(|i| {
            let table = cx.operands[i];
            let at = offsets(&pairs, &broadcast_strides(&table.sizes, &pairs));
            at.into_iter().map(|i| table.floats()[i]).collect::<Vec<f64>>()
        });
        let mut out = vec![0.0; x.len()];
        for (i, (cos, sin)) in cos.into_iter().zip(sin).enumerate() {
            let row = i / half * 2 * half;
            let (first, second) = self.pair(i % half, half);
            let (a, b) = (x[row + first], x[row + second]);
            out[row + first] = a * cos - b * sin;
            out[row + second] = b * cos + a * sin;
        }
        vec![Tensor::float(cx.results[0].dtype, sizes, out)]
    }
}
