//! Determinants.

use super::constant::Iota;
use super::elementwise::{Binary, Compare, Select};
use super::indexing::Gather;
use super::*;
use crate::{DType, Dim};

/// The determinant of each matrix `x[.., n, n]` of floats.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Det;

/// Returns the determinant of an n×n matrix, row-major: the product of the pivots of its LU factorization, with rows exchanged so
/// that each pivot is the largest of its column (Golub and Van Loan, Matrix Computations, section 3.4). 1 if n is 0.
pub fn determinant(mut matrix: Vec<f64>, n: usize) -> f64 {
    let mut product = 1.0;
    for column in 0..n {
        let size = |row: usize| matrix[row * n + column].abs();
        let pivot = (column..n).reduce(|best, row| if size(row) > size(best) { row } else { best });
        let pivot = pivot.expect("a column below n has rows");
        if pivot != column {
            (0..n).for_each(|i| matrix.swap(pivot * n + i, column * n + i));
            product = -product;
        }
        let diagonal = matrix[column * n + column];
        product *= diagonal;
        if diagonal == 0.0 {
            return product;
        }
        for row in column + 1..n {
            let factor = matrix[row * n + column] / diagonal;
            (column..n).for_each(|i| matrix[row * n + i] -= factor * matrix[column * n + i]);
        }
    }
    product
}

impl Operator for Det {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data]).anywhere(PrecisionClass::Full)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        match x.dims.split_last_chunk::<2>() {
            Some((leading, [rows, columns])) if rows == columns && x.dtype.is_float() => {
                Ok(vec![Type::new(x.dtype, leading.iter().cloned())])
            }
            _ => Err(TypeError::new(format!("takes square matrices of floats, not {x}"))),
        }
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::rule("* n^ n^ -> *", signature)
    }

    /// Builds the cofactors: `d x[i, j] = ±d y · det(x without row i and column j)` (Jacobi's formula). Unlike
    /// `d y · det x · x⁻ᵀ`, it also holds for singular matrices. It takes n⁵ operations, which is acceptable for the small
    /// matrices of models.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let (x, Some(dy)) = (node.operands[0], d[0]) else { return Ok(vec![None]) };
        let dims = b.ty(x).dims.clone();
        let rows = dims.len() as u32 - 2;
        let leading = dims[..rows as usize].iter().cloned();
        let dy = b.reshape(dy, leading.chain([Dim::known(1), Dim::known(1)]))?;
        let size = dims[rows as usize].size().ok_or(GradientError::Undefined("a matrix must be bound"))?;
        if size < 2 {
            return Ok(vec![Some(b.broadcast(dy, dims)?)]);
        }
        let counted = |b: &mut Builder, dim, columns| {
            b.one_typed(Iota { dim }, &[], Type::of(DType::I64, &[size, columns]))
        };
        let [own, other] = [counted(b, 0, size - 1)?, counted(b, 1, size - 1)?];
        let others = b.build(other + Compare::GreaterEqual.of(other, own).cast(DType::I64))?;
        let without_row = b.one(Gather { dim: rows }, &[x, others])?;
        let without_both = b.one(Gather { dim: rows + 2 }, &[without_row, others])?;
        let order: Vec<u32> = (0..rows).chain([rows, rows + 2, rows + 1, rows + 3]).collect();
        let smaller = b.transpose(without_both, &order)?;
        let minors = b.one(Self, &[smaller])?;
        let [row, column] = [counted(b, 0, size)?, counted(b, 1, size)?];
        let odd = b.build(Binary::Mod.of(row + column, 2.0).cast(DType::Bool))?;
        let (plus, minus) = (b.splat_like(x, 1.0)?, b.splat_like(x, -1.0)?);
        Ok(vec![Some(b.build(minors * Select.of(odd, minus, plus) * dy)?)])
    }

    /// ⅔n³ operations for each matrix.
    fn cost(&self, signature: &Signature) -> Cost {
        let n = signature.operands[0].dims.last().and_then(|n| n.size()).unwrap_or(1);
        let flops = n.saturating_mul(n).saturating_mul(n) / 3;
        Cost::per_element(signature, &signature.results[0], flops.saturating_mul(2))
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (x, sizes) = (cx.operands[0], cx.sizes(0));
        let n = x.sizes[x.sizes.len() - 1];
        let one = |matrix| determinant(x.floats()[matrix * n * n..][..n * n].to_vec(), n);
        vec![Tensor::float(
            cx.results[0].dtype,
            sizes.clone(),
            (0..sizes.iter().product()).map(one).collect(),
        )]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_exchanged_where_a_pivot_is_zero() {
        assert_eq!(determinant(vec![0.0, 2.0, 3.0, 0.0], 2), -6.0);
        assert_eq!(determinant(vec![0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], 3), 1.0);
        assert_eq!(determinant(vec![1.0, 2.0, 2.0, 4.0], 2), 0.0);
        assert_eq!(determinant(vec![], 0), 1.0);
        assert!(determinant(vec![f64::NAN, 1.0, 1.0, 1.0], 2).is_nan());
    }
}
