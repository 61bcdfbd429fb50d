//! The one door to the gemm crate.

use super::math::Real;

/// How a matrix lies in a slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    /// Where its first element stands.
    pub(super) offset: isize,
    /// From row to row.
    pub(super) rows: isize,
    /// From column to column.
    pub(super) columns: isize,
}

impl Matrix {
    /// Row-major rows with this distance.
    pub(super) fn with_rows(distance: usize) -> Self {
        Self { offset: 0, rows: distance as isize, columns: 1 }
    }

    /// The same elements, mirrored.
    pub(super) fn transposed(self) -> Self {
        Self { rows: self.columns, columns: self.rows, ..self }
    }

    /// Without the rows before `row`.
    pub(super) fn from_row(self, row: usize) -> Self {
        Self { offset: self.offset + row as isize * self.rows, ..self }
    }

    /// Without the columns before `column`.
    pub(super) fn from_column(self, column: usize) -> Self {
        self.transposed().from_row(column).transposed()
    }

    /// Whether all elements of a matrix of these sizes lie in a slice of `len`.
    fn fits(&self, rows: usize, columns: usize, len: usize) -> bool {
        let far = |size: usize, stride: isize| (size as i128 - 1) * stride as i128;
        let (down, right) = (far(rows, self.rows), far(columns, self.columns));
        let first = self.offset as i128 + down.min(0) + right.min(0);
        let last = self.offset as i128 + down.max(0) + right.max(0);
        rows == 0 || columns == 0 || (first >= 0 && last < len as i128)
    }
}

/// What a multiplication does besides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Multiply<T> {
    /// A factor on the product.
    pub(super) factor: T,
    /// Whether the product is added to what is there.
    pub(super) add: bool,
    /// Whether it may use all threads.
    pub(super) parallel: bool,
}

/// `out[m, n] (+)= factor · lhs[m, k] · rhs[k, n]`. Panics if a matrix is not in its slice.
#[allow(unsafe_code)]
pub(super) fn gemm<T: Real>(
    [m, k, n]: [usize; 3],
    (out, out_matrix): (&mut [T], Matrix),
    (lhs, lhs_matrix): (&[T], Matrix),
    (rhs, rhs_matrix): (&[T], Matrix),
    how: Multiply<T>,
) {
    assert!(out_matrix.fits(m, n, out.len()), "{out_matrix:?} [{m}, {n}] is not in {} elements", out.len());
    assert!(lhs_matrix.fits(m, k, lhs.len()), "{lhs_matrix:?} [{m}, {k}] is not in {} elements", lhs.len());
    assert!(rhs_matrix.fits(k, n, rhs.len()), "{rhs_matrix:?} [{k}, {n}] is not in {} elements", rhs.len());
    if m == 0 || n == 0 {
        return;
    }
    let parallelism = if how.parallel { gemm::Parallelism::Rayon(0) } else { gemm::Parallelism::None };
    // SAFETY: every element that the offsets, sizes and strides name lies in its slice (asserted above); `out` is
    // borrowed exclusively, so it overlaps neither operand; the crate reads and writes only those elements, and
    // reads `out` only if `add`.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr().wrapping_offset(out_matrix.offset),
            out_matrix.columns,
            out_matrix.rows,
            how.add,
            lhs.as_ptr().wrapping_offset(lhs_matrix.offset),
            lhs_matrix.columns,
            lhs_matrix.rows,
            rhs.as_ptr().wrapping_offset(rhs_matrix.offset),
            rhs_matrix.columns,
            rhs_matrix.rows,
            T::ONE,
            how.factor,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "is not in 5 elements")]
    fn a_matrix_outside_its_slice_is_refused() {
        let how = Multiply { factor: 1.0, add: false, parallel: false };
        let (lhs, rhs, mut out) = ([1.0f32; 4], [1.0; 4], [0.0; 5]);
        let matrix = Matrix::with_rows(2);
        gemm([2, 2, 2], (&mut out, Matrix::with_rows(4)), (&lhs, matrix), (&rhs, matrix), how);
    }

    #[test]
    fn no_terms_sum_to_zero_and_add_nothing() {
        let matrix = Matrix::with_rows(2);
        for (add, expected) in [(false, 0.0), (true, 7.0)] {
            let how = Multiply { factor: 1.0, add, parallel: false };
            let mut out = [7.0f64; 4];
            gemm([2, 0, 2], (&mut out, matrix), (&[], matrix), (&[], matrix), how);
            assert_eq!(out, [expected; 4]);
        }
    }
}
