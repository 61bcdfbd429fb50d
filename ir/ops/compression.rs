//! Compression of gradients: the operators that PowerSGD (Vogels et al., NeurIPS 2019, arXiv 1905.13727) needs besides
//! contractions.

use super::*;
use crate::Dim;

/// `y[d, ..] = addends x[..]`: `count` tensors whose sum over `d` is `x`. If `x` is partial over axes of the mesh, `y` is split
/// over the same axes along the new first dim `d`: each device keeps its own addend, and nothing is sent. If `x` is whole, it is
/// the first addend, and the other addends are zeros.
///
/// The numbers of `y` depend on the devices that computed the addends. Sums over `d` of `y`, or of any linear function of `y`, do
/// not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addends {
    /// The size of the new dim: a multiple of the number of devices over which `x` is partial.
    pub count: u64,
}

impl Operator for Addends {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data]).anywhere(PrecisionClass::Update)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        if !x.dtype.is_float() || self.count == 0 {
            let count = self.count;
            return Err(TypeError::new(format!(
                "divides floats into one addend or more, not {x} into {count}"
            )));
        }
        Ok(vec![Type::new(x.dtype, std::iter::once(Dim::known(self.count)).chain(x.dims.iter().cloned()))])
    }

    /// The new dim is split by the axes over which the operand is partial. Factors cannot express this; the verifier and `spmd`
    /// treat the operator specially.
    fn factors(&self, signature: &Signature) -> Factors {
        Factors::rule("* -> d^ *", signature).keeping_zeros()
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::Undefined("gradients are compressed in the update phase, which has no gradient"))
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::streaming(signature, 0)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (x, mut sizes) = (cx.operands[0], cx.sizes(0));
        if cx.parts.is_none() {
            sizes[0] = self.count as usize;
        }
        let mut elements = x.floats().to_vec();
        elements.resize(sizes.iter().product(), 0.0);
        vec![Tensor::float(cx.results[0].dtype, sizes, elements)]
    }
}

/// `q = orthogonalize x`: for each matrix `x[.., m, r]` with `r ≤ m`, an orthonormal basis of the space of its columns, in the
/// same shape. Column `j` of `q` is column `j` of `x` minus its projection on the columns before it, normalised to length 1.
///
/// Modified Gram-Schmidt in f64, with two passes for each column ("twice is enough": Giraud, Langou and Rozložník, Computers and
/// Mathematics with Applications 50, 2005). If the remainder of a column is at most [`Orthogonalize::EPSILON`] times as long as
/// the column, the column depends on those before it. Then a fixed column of signs is orthogonalized in its place. So the columns
/// of `q` are orthonormal for every `x`, zeros included. The code of the paper divides by the length plus 1e-16 instead, which
/// leaves zeros or amplifies rounding; the next step then starts from a column of zeros and never leaves it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Orthogonalize;

impl Orthogonalize {
    /// The relative length below which the remainder of a column is rounding error.
    pub const EPSILON: f64 = 1e-13;

    /// The number of columns of signs that are tried in place of a column. At least half of them fit each time.
    pub const ATTEMPTS: u32 = 64;

    /// Returns the sign in a row of a substitute column: 32 bits, mixed as in Chris Wellons' `lowbias32`.
    pub fn sign(row: u32, column: u32, attempt: u32) -> f64 {
        let words = [(row, 0x9E37_79B1_u32), (column, 0x85EB_CA77), (attempt, 0xC2B2_AE3D)];
        let mut bits = words.iter().fold(0u32, |sum, (word, odd)| sum.wrapping_add(word.wrapping_mul(*odd)));
        bits = (bits ^ bits >> 16).wrapping_mul(0x7FEB_352D);
        bits = (bits ^ bits >> 15).wrapping_mul(0x846C_A68B);
        if (bits ^ bits >> 16) & 1 == 0 { 1.0 } else { -1.0 }
    }

    /// Returns the basis for one matrix of `r` columns, row-major.
    pub fn basis(matrix: &[f64], r: usize) -> Vec<f64> {
        let m = matrix.len() / r.max(1);
        let mut basis: Vec<Vec<f64>> = Vec::with_capacity(r);
        for j in 0..r {
            let own = (0..m).map(|i| matrix[i * r + j]).collect();
            let signs = |attempt| (0..m).map(|i| Self::sign(i as u32, j as u32, attempt)).collect();
            let candidates = std::iter::once(own).chain((1..=Self::ATTEMPTS).map(signs));
            let column = candidates.into_iter().find_map(|column| rest(&basis, column));
            basis.push(column.unwrap_or_else(|| vec![0.0; m]));
        }
        (0..m * r).map(|i| basis[i % r][i / r]).collect()
    }
}

/// Subtracts from a column its projection on an orthonormal basis, and normalises it. `None` if only rounding error is left.
fn rest(basis: &[Vec<f64>], mut column: Vec<f64>) -> Option<Vec<f64>> {
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    for _ in 0..2 {
        let before = dot(&column, &column).sqrt();
        for other in basis {
            let part = dot(other, &column);
            column.iter_mut().zip(other).for_each(|(x, other)| *x -= part * other);
        }
        let length = dot(&column, &column).sqrt();
        // NaN is refused too.
        if !(length > Orthogonalize::EPSILON * before && length.is_finite()) {
            return None;
        }
        column.iter_mut().for_each(|x| *x /= length);
    }
    Some(column)
}

impl Operator for Orthogonalize {
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data]).anywhere(PrecisionClass::Update)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let [x] = types.operands()?;
        match &x.dims[..] {
            [.., m, r] if x.dtype.is_float() && m.size().zip(r.size()).is_none_or(|(m, r)| r <= m) => {
                Ok(vec![Type::new(x.dtype, x.dims.clone())])
            }
            _ => Err(TypeError::new(format!(
                "takes matrices of floats with at most as many columns as rows, not {x}"
            ))),
        }
    }

    fn factors(&self, signature: &Signature) -> Factors {
        Factors::rule("* m^ r^ -> * m^ r^", signature)
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Err(GradientError::Undefined("gradients are compressed in the update phase, which has no gradient"))
    }

    /// Two passes, in each of which every column meets half of the columns: a product and a difference of 2m operations.
    fn cost(&self, signature: &Signature) -> Cost {
        let r = signature.operands[0].dims.last().and_then(Dim::size).unwrap_or(1);
        Cost::per_element(signature, &signature.results[0], r.saturating_mul(4).saturating_add(6))
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (x, sizes) = (cx.operands[0], cx.sizes(0));
        let (m, r) = (sizes[sizes.len() - 2], sizes[sizes.len() - 1]);
        let matrices = x.floats().chunks_exact((m * r).max(1));
        let elements = matrices.flat_map(|matrix| Self::basis(matrix, r)).collect();
        vec![Tensor::float(cx.results[0].dtype, sizes, elements)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    /// Returns the largest difference between `qᵀ q` and the identity.
    fn skew(q: &[f64], r: usize) -> f64 {
        let mut largest: f64 = 0.0;
        for (a, b) in (0..r).flat_map(|a| (0..r).map(move |b| (a, b))) {
            let dot: f64 = q.chunks_exact(r).map(|row| row[a] * row[b]).sum();
            largest = largest.max((dot - f64::from(u8::from(a == b))).abs());
        }
        largest
    }

    fn drawn(len: usize) -> Vec<f64> {
        (0..len).map(|i| random::normal(1, 2, i as u64)).collect()
    }

    #[test]
    fn columns_become_orthonormal_and_span_the_same_space() {
        let x = drawn(20 * 4);
        let q = Orthogonalize::basis(&x, 4);
        assert!(skew(&q, 4) < 1e-14);
        // x = q qᵀ x
        for column in 0..4 {
            let parts: Vec<f64> =
                (0..4).map(|k| (0..20).map(|i| q[i * 4 + k] * x[i * 4 + column]).sum()).collect();
            for i in 0..20 {
                let back: f64 = (0..4).map(|k| q[i * 4 + k] * parts[k]).sum();
                assert!((back - x[i * 4 + column]).abs() < 1e-13);
            }
        }
    }

    #[test]
    fn columns_that_depend_on_others_are_replaced() {
        assert!(skew(&Orthogonalize::basis(&[0.0; 5 * 3], 3), 3) < 1e-14);
        assert!(skew(&Orthogonalize::basis(&[0.0; 4 * 4], 4), 4) < 1e-14);
        // The third column is the sum of the others, up to rounding.
        let x: Vec<f64> =
            drawn(7 * 2).chunks_exact(2).flat_map(|row| [row[0], row[1], row[0] + row[1]]).collect();
        assert!(skew(&Orthogonalize::basis(&x, 3), 3) < 1e-14);
        // Columns that are nearly equal.
        let x: Vec<f64> = drawn(9).iter().flat_map(|x| [*x, x * (1.0 + 1e-9 * x)]).collect();
        assert!(skew(&Orthogonalize::basis(&x, 2), 2) < 1e-14);
    }

    #[test]
    fn a_column_that_is_not_finite_is_replaced() {
        for bad in [f64::NAN, f64::INFINITY] {
            let q = Orthogonalize::basis(&[bad, 1.0, 1.0, 2.0, 3.0, 4.0], 2);
            assert!(skew(&q, 2) < 1e-14, "{q:?}");
        }
    }

    #[test]
    fn the_size_of_numbers_does_not_matter() {
        let (x, tiny) = (drawn(12), drawn(12).iter().map(|x| x * 1e-30).collect::<Vec<_>>());
        let (one, other) = (Orthogonalize::basis(&x, 3), Orthogonalize::basis(&tiny, 3));
        assert!(one.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-12));
    }
}
