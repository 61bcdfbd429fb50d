//! The one door to the gemm crate.

use super::math::Real;
use super::simd::vectorized;
use rayon::prelude::*;
use std::cell::Cell;

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

    /// Without so many first rows.
    pub(super) fn skip_rows(self, count: usize) -> Self {
        Self { offset: self.offset + count as isize * self.rows, ..self }
    }

    /// Without so many first columns.
    pub(super) fn skip_columns(self, count: usize) -> Self {
        self.transposed().skip_rows(count).transposed()
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
pub(super) fn gemm<T: Real>(
    [m, k, n]: [usize; 3],
    (out, out_matrix): (&mut [T], Matrix),
    (lhs, lhs_matrix): (&[T], Matrix),
    (rhs, rhs_matrix): (&[T], Matrix),
    how: Multiply<T>,
) {
    // The crate multiplies into columns, and mirrors what has rows.
    if out_matrix.rows.abs() > out_matrix.columns.abs() {
        return into_columns(
            [n, k, m],
            (out, out_matrix.transposed()),
            (rhs, rhs_matrix.transposed()),
            (lhs, lhs_matrix.transposed()),
            how,
        );
    }
    into_columns([m, k, n], (out, out_matrix), (lhs, lhs_matrix), (rhs, rhs_matrix), how);
}

/// Rows and columns of a left operand that are laid out anew at a time.
const ROWS: usize = 256;
const DEPTH: usize = 512;
/// Whatever is smaller is left as it is.
const SMALL: usize = 32;

thread_local! {
    /// Where a left operand is laid out anew.
    static ROOM: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
}

/// A left operand of rows, such as a weight `[outputs, inputs]`, is turned block by block: the crate would gather each of its
/// columns element by element.
fn into_columns<T: Real>(
    [m, k, n]: [usize; 3],
    (out, out_matrix): (&mut [T], Matrix),
    (lhs, lhs_matrix): (&[T], Matrix),
    (rhs, rhs_matrix): (&[T], Matrix),
    how: Multiply<T>,
) {
    let has_rows = lhs_matrix.columns == 1 && lhs_matrix.rows > 1;
    if !has_rows || [m, k, n].iter().any(|&size| size < SMALL) {
        return multiply([m, k, n], (out, out_matrix), (lhs, lhs_matrix), (rhs, rhs_matrix), how);
    }
    // Taken, not borrowed: while this thread waits for others, it may be given another multiplication.
    let mut room = ROOM.take();
    let needed = (ROWS.min(m) * DEPTH.min(k) * size_of::<T>()).div_ceil(size_of::<u64>());
    room.resize(room.len().max(needed), 0);
    for first in (0..k).step_by(DEPTH) {
        let depth = DEPTH.min(k - first);
        for row in (0..m).step_by(ROWS) {
            let rows = ROWS.min(m - row);
            let turned = &mut bytemuck::cast_slice_mut(&mut room)[..rows * depth];
            let block = lhs_matrix.skip_rows(row).skip_columns(first);
            turn(lhs, block, rows, turned, how.parallel);
            multiply(
                [rows, depth, n],
                (&mut *out, out_matrix.skip_rows(row)),
                (turned, Matrix::with_rows(rows).transposed()),
                (rhs, rhs_matrix.skip_rows(first)),
                Multiply { add: how.add || first > 0, ..how },
            );
        }
    }
    ROOM.set(room);
}

/// Columns that a task turns.
const TURNED: usize = 64;

/// Lays `rows` rows of a matrix out column after column.
fn turn<T: Real>(from: &[T], matrix: Matrix, rows: usize, to: &mut [T], parallel: bool) {
    let distance = matrix.rows as usize;
    let task = |index: usize, to: &mut [T]| {
        let from = &from[matrix.offset as usize + index * TURNED..];
        turn_columns(from, distance, rows, to);
    };
    if parallel {
        to.par_chunks_mut(rows * TURNED).enumerate().for_each(|(index, to)| task(index, to));
    } else {
        to.chunks_mut(rows * TURNED).enumerate().for_each(|(index, to)| task(index, to));
    }
}

/// A square of this side is turned at once.
const SIDE: usize = 16;

vectorized! {
    fn turn_columns<'a; T: Real>(from: &'a [T], distance: usize, rows: usize, to: &'a mut [T]) {
        let columns = to.len() / rows;
        let (whole_rows, whole_columns) = (rows - rows % SIDE, columns - columns % SIDE);
        for row in (0..whole_rows).step_by(SIDE) {
            for column in (0..whole_columns).step_by(SIDE) {
                let mut square = [[T::ZERO; SIDE]; SIDE];
                for (i, line) in square.iter_mut().enumerate() {
                    line.copy_from_slice(&from[(row + i) * distance + column..][..SIDE]);
                }
                for j in 0..SIDE {
                    let line: [T; SIDE] = std::array::from_fn(|i| square[i][j]);
                    to[(column + j) * rows + row..][..SIDE].copy_from_slice(&line);
                }
            }
        }
        for row in 0..rows {
            let done = if row < whole_rows { whole_columns } else { 0 };
            for column in done..columns {
                to[column * rows + row] = from[row * distance + column];
            }
        }
    }
}

/// [`gemm`] as the crate does it.
#[allow(unsafe_code)]
fn multiply<T: Real>(
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

    /// Left operands of rows and of columns, of more than a block and of odd sizes, into rows and into columns.
    #[test]
    fn whichever_way_the_matrices_lie_the_product_is_the_same() {
        let numbers = |count: usize, prime: usize| -> Vec<f64> {
            (0..count).map(|i| (i * prime % 23) as f64 - 11.0).collect()
        };
        let lies = |rows: usize, columns: usize, transposed: bool| {
            let offset = 3;
            if transposed {
                Matrix { offset, ..Matrix::with_rows(rows + 2).transposed() }
            } else {
                Matrix { offset, ..Matrix::with_rows(columns + 2) }
            }
        };
        let at = |matrix: &Matrix, row: usize, column: usize| {
            (matrix.offset + row as isize * matrix.rows + column as isize * matrix.columns) as usize
        };
        for [m, k, n] in [[ROWS + 37, DEPTH + 45, 33], [SMALL, 2 * SIDE + 1, 3 * SIDE + 5], [SIDE, 40, 40]] {
            for way in 0..8 {
                let [left, right, result] =
                    [lies(m, k, way & 1 > 0), lies(k, n, way & 2 > 0), lies(m, n, way & 4 > 0)];
                let room = |rows: usize, columns: usize| (rows + 2) * (columns + 2) + 3;
                let (lhs, rhs) = (numbers(room(m, k), 7), numbers(room(k, n), 11));
                let before = numbers(room(m, n), 5);
                let mut out = before.clone();
                let how = Multiply { factor: 2.0, add: true, parallel: way % 3 == 0 };
                gemm([m, k, n], (&mut out, result), (&lhs, left), (&rhs, right), how);
                let mut expected = before;
                for row in 0..m {
                    for column in 0..n {
                        let terms = (0..k).map(|i| lhs[at(&left, row, i)] * rhs[at(&right, i, column)]);
                        expected[at(&result, row, column)] += 2.0 * terms.sum::<f64>();
                    }
                }
                assert!(out == expected, "[{m}, {k}, {n}] {left:?} {right:?} {result:?}");
            }
        }
    }
}
