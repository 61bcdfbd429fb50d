//! Products of rows with a matrix that each row chooses, as in a mixture of experts: `experts`, and its gradient in the matrices.
//!
//! `experts` combines a [`super::indexing::Gather`] of matrices and a contraction, without copying a matrix for every row. As in a
//! gather, a negative index counts from the end. An index outside chooses no matrix: its row of the result is zeros, and it adds
//! nothing to the gradient. So the dim of the experts can be split, and the devices' results summed.

use super::indexing::{check_indices, element_of_part};
use super::*;

/// `out[t, n] = Σ_k x[t, k] · weights[index[t], k, n]`. Operands: `x[t, k]`, `weights[e, k, n]`, integer `index[t]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Experts {
    /// Whether the matrices are stored transposed: `weights[e, n, k]`.
    pub transposed: bool,
}

/// The gradient of [`Experts`] in its weights: `out[e, k, n] = Σ_{t: index[t] = e} rows[t, k] · columns[t, n]`.
/// Operands: integer `index[t]`, `rows[t, k]`, `columns[t, n]`. The result type is declared (it has the number of
/// experts).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExpertsGrad;

impl Operator for Experts {
    // Depends on the place of a part: indices count all experts.
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data, OperandRole::Weight, OperandRole::Indices])
            .by_place(PrecisionClass::Half)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x, weights, index] = types.operands()?;
        check_indices(index)?;
        let fits = x.dtype == weights.dtype && x.dtype.is_float() && x.ndim() == 2 && weights.ndim() == 3;
        let [summed, made] = if self.transposed { [2, 1] } else { [1, 2] };
        ensure!(
            fits && index.dims[..] == x.dims[..1] && x.dims[1] == weights.dims[summed],
            "the rows {x} do not fit the matrices {weights} at {index}"
        );
        Ok(vec![Type::new(x.dtype, [x.dims[0].clone(), weights.dims[made].clone()])])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        let weights = if self.transposed { "e+ n k+" } else { "e+ k+ n" };
        Factors::rule(&format!("t k+, {weights}, t -> t n"), signature).linear_in(&[0]).linear_in(&[1])
    }

    /// d x multiplies by the transposed matrices. d weights sums, for each matrix, over the rows that chose it.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let &[x, weights, index] = node.operands else {
            return Err(TypeError::new("experts have three operands").into());
        };
        let Some(dout) = d[0] else { return Ok(vec![None; 3]) };
        let dx = b.one(Self { transposed: !self.transposed }, &[dout, weights, index])?;
        let ty = Type::new(b.ty(weights).dtype, b.ty(weights).dims.clone());
        let [rows, columns] = if self.transposed { [dout, x] } else { [x, dout] };
        let dweights = b.one_typed(ExpertsGrad, &[index, rows, columns], ty)?;
        Ok(vec![Some(dx), Some(dweights), None])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        products(signature, &signature.operands[0], &signature.results[0])
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (x, weights, index) = (cx.operands[0].floats(), cx.operands[1].floats(), cx.operands[2].ints());
        let (span, count) = (cx.operand_span(1, 0), cx.operands[1].sizes[0]);
        let (k, n) = (cx.operands[0].sizes[1], cx.sizes(0)[1]);
        let at = |i: usize, j: usize| if self.transposed { j * k + i } else { i * n + j };
        let mut out = vec![0.0; index.len() * n];
        for (t, &index) in index.iter().enumerate() {
            let Some(expert) = element_of_part(index, span, count) else { continue };
            let matrix = &weights[expert * k * n..][..k * n];
            for j in 0..n {
                out[t * n + j] = (0..k).map(|i| x[t * k + i] * matrix[at(i, j)]).sum();
            }
        }
        vec![Tensor::float(cx.results[0].dtype, cx.sizes(0), out)]
    }
}

impl Operator for ExpertsGrad {
    // Depends on the place of a part: indices count all experts.
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Indices, OperandRole::Lhs, OperandRole::Rhs])
            .by_place(PrecisionClass::Half)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let ([index, rows, columns], weights) = (types.operands()?, types.declared()?);
        check_indices(index)?;
        let fits = [rows, columns].iter().all(|ty| {
            ty.ndim() == 2
                && ty.dims[..1] == index.dims[..]
                && ty.dtype == weights.dtype
                && ty.dtype.is_float()
        });
        let made = |rows: &Type, columns: &Type| [rows.dims[1].clone(), columns.dims[1].clone()];
        ensure!(
            fits && weights.ndim() == 3 && weights.dims[1..] == made(rows, columns),
            "{rows} and {columns} at {index} make no {weights}"
        );
        Ok(vec![Type::new(weights.dtype, weights.dims.clone())])
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::rule("t+, t+ k, t+ n -> e k n", signature).linear_in(&[1]).linear_in(&[2])
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::SECOND)
    }

    fn cost(&self, signature: &Signature) -> Cost {
        products(signature, &signature.operands[1], &signature.operands[2])
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (index, rows, columns) =
            (cx.operands[0].ints(), cx.operands[1].floats(), cx.operands[2].floats());
        let (span, sizes) = (cx.result_span(0, 0), cx.sizes(0));
        let (k, n) = (sizes[1], sizes[2]);
        let mut out = vec![0.0; sizes.iter().product()];
        for (t, &index) in index.iter().enumerate() {
            let Some(expert) = element_of_part(index, span, sizes[0]) else { continue };
            for i in 0..k {
                for j in 0..n {
                    out[(expert * k + i) * n + j] += rows[t * k + i] * columns[t * n + j];
                }
            }
        }
        vec![Tensor::float(cx.results[0].dtype, sizes, out)]
    }
}

/// Counts a multiplication and an addition for each pair of an element of a row and an element of the other row.
fn products(signature: &Signature, rows: &Type, columns: &Type) -> Cost {
    let pairs = rows.numel().unwrap_or(0).saturating_mul(columns.dims[1].size().unwrap_or(0));
    Cost::streaming(signature, pairs.saturating_mul(2))
}
