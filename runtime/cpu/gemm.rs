//! The only module that calls the gemm crate.
//!
//! The crate multiplies into a column-major result from a column-major left operand. If the left operand is row-major, such as a weight
//! `[outputs, inputs]`, the crate gathers it element by element. Where that is slow, this module multiplies another way.

pub(super) mod turn;

use super::math::Real;
use std::cell::Cell;
use std::ops::Range;
use std::thread::LocalKey;
use turn::turn;

/// The place and strides of a matrix in a slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    /// The offset of its first element.
    pub(super) offset: isize,
    /// The distance from row to row.
    pub(super) rows: isize,
    /// The distance from column to column.
    pub(super) columns: isize,
}

impl Matrix {
    /// Returns a row-major matrix with this distance between rows.
    pub(super) fn with_rows(distance: usize) -> Self {
        Self { offset: 0, rows: distance as isize, columns: 1 }
    }

    /// Returns the transposed matrix over the same elements.
    pub(super) fn transposed(self) -> Self {
        Self { rows: self.columns, columns: self.rows, ..self }
    }

    /// Returns the matrix without its first `count` rows.
    pub(super) fn skip_rows(self, count: usize) -> Self {
        Self { offset: self.offset + count as isize * self.rows, ..self }
    }

    /// Returns the matrix without its first `count` columns.
    pub(super) fn skip_columns(self, count: usize) -> Self {
        self.transposed().skip_rows(count).transposed()
    }

    /// Returns whether all elements of a matrix of these sizes lie in a slice of `len` elements.
    fn fits(&self, rows: usize, columns: usize, len: usize) -> bool {
        let far = |size: usize, stride: isize| (size as i128 - 1) * stride as i128;
        let (down, right) = (far(rows, self.rows), far(columns, self.columns));
        let first = self.offset as i128 + down.min(0) + right.min(0);
        let last = self.offset as i128 + down.max(0) + right.max(0);
        rows == 0 || columns == 0 || (first >= 0 && last < len as i128)
    }
}

/// The options of a multiplication.
#[derive(Clone, Copy, Debug)]
pub(super) struct Multiply<T> {
    /// A factor on the product.
    pub(super) factor: T,
    /// Whether the product is added to the old contents of the result.
    pub(super) add: bool,
    /// Whether the multiplication may use all threads.
    pub(super) parallel: bool,
}

/// `out[m, n] (+)= factor · lhs[m, k] · rhs[k, n]`. Panics if a matrix is not in its slice.
pub(super) fn gemm<T: Real>(
    sizes: [usize; 3],
    out: (&mut [T], Matrix),
    lhs: (&[T], Matrix),
    rhs: (&[T], Matrix),
    how: Multiply<T>,
) {
    if is_mirrored(out.1) {
        let ([m, k, n], mirrored) = (sizes, |(numbers, matrix): (_, Matrix)| (numbers, matrix.transposed()));
        return into_columns([n, k, m], (out.0, out.1.transposed()), mirrored(rhs), mirrored(lhs), how);
    }
    into_columns(sizes, out, lhs, rhs, how);
}

/// Returns whether a product is computed as the transposed product of the transposed operands, because its result is row-major.
fn is_mirrored(out: Matrix) -> bool {
    out.rows.abs() > out.columns.abs()
}

/// Computes `out += factor · Σ lhs · rhs` over these places of the operands, and rounds the sum before it is added: as if [`gemm`] had
/// summed the products elsewhere, place after place. The crate itself adds products of few terms one by one, and products of many terms
/// block by block.
pub(super) fn add_rounded<T: Real>(
    [m, k, n]: [usize; 3],
    (out, out_matrix): (&mut [T], Matrix),
    [lhs, rhs]: [&[T]; 2],
    places: &[[Matrix; 2]],
    how: Multiply<T>,
) {
    if is_mirrored(out_matrix) {
        let places: Vec<_> = places.iter().map(|[lhs, rhs]| [rhs.transposed(), lhs.transposed()]).collect();
        return add_to_columns([n, k, m], (out, out_matrix.transposed()), [rhs, lhs], &places, how);
    }
    add_to_columns([m, k, n], (out, out_matrix), [lhs, rhs], places, how);
}

/// The number of elements of a product that wait to be added.
const WAITING: usize = 1 << 15;

/// Does the same as [`add_rounded`] for a column-major result, block by block.
fn add_to_columns<T: Real>(
    sizes: [usize; 3],
    (out, out_matrix): (&mut [T], Matrix),
    [lhs, rhs]: [&[T]; 2],
    places: &[[Matrix; 2]],
    how: Multiply<T>,
) {
    let [m, k, n] = sizes;
    if m == 0 || n == 0 || places.is_empty() {
        return;
    }
    // The way depends on the distances between rows and columns, which are the same for all places.
    let way = way(sizes, out_matrix, places[0][0]);
    let rows = m.min(WAITING / n.min(FEW));
    let columns = n.min(WAITING / rows);
    with_memory(&SUMS, rows * columns, |room: &mut [T]| {
        for (column, row) in
            parts(n, columns).flat_map(|column| parts(m, rows).map(move |row| (column.clone(), row)))
        {
            let (rows, columns) = (row.len(), column.len());
            let block = Matrix { offset: 0, rows: 1, columns: rows as isize };
            for (place, [lhs_matrix, rhs_matrix]) in places.iter().enumerate() {
                way(
                    [rows, k, columns],
                    (&mut *room, block),
                    (lhs, lhs_matrix.skip_rows(row.start)),
                    (rhs, rhs_matrix.skip_columns(column.start)),
                    Multiply { add: place > 0, ..how },
                );
            }
            let to = out_matrix.skip_rows(row.start).skip_columns(column.start);
            for (i, made) in room.chunks_exact(rows).take(columns).enumerate() {
                add_column(made, out, to.offset + i as isize * to.columns, to.rows);
            }
        }
    });
}

/// The crate multiplies fewer columns than this in another order.
const FEW: usize = 16;

/// Cuts a size into parts of nearly equal length, of at most `most` elements. The crate multiplies small matrices in another order than
/// large ones: a small last part would have other bits than the same rows of another division.
fn parts(size: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let count = size.div_ceil(most);
    (0..count).map(move |part| part * size / count..(part + 1) * size / count)
}

/// Adds numbers to the elements of a slice that start at `first` and are `apart` elements from each other.
fn add_column<T: Real>(made: &[T], out: &mut [T], first: isize, apart: isize) {
    if apart == 1 {
        let out = &mut out[first as usize..][..made.len()];
        return out.iter_mut().zip(made).for_each(|(out, &made)| *out = *out + made);
    }
    for (i, &made) in made.iter().enumerate() {
        let out = &mut out[(first + i as isize * apart) as usize];
        *out = *out + made;
    }
}

/// Matrices with a smaller size are left to the crate.
const SMALL: usize = 32;
/// The largest number of columns of a product that is mirrored.
const LARGE: usize = 512;
/// If the distance of rows is a multiple of this number of bytes, rows fall into the same few sets of an L1 cache with 4 KiB per way.
/// Gathering a column then evicts the lines that the next column needs.
const SAME_SETS: usize = 2048;

fn into_columns<T: Real>(
    sizes: [usize; 3],
    (out, out_matrix): (&mut [T], Matrix),
    (lhs, lhs_matrix): (&[T], Matrix),
    (rhs, rhs_matrix): (&[T], Matrix),
    how: Multiply<T>,
) {
    way(sizes, out_matrix, lhs_matrix)(sizes, (out, out_matrix), (lhs, lhs_matrix), (rhs, rhs_matrix), how);
}

/// A function that multiplies into a column-major result.
type MultiplyFn<T> = fn([usize; 3], (&mut [T], Matrix), (&[T], Matrix), (&[T], Matrix), Multiply<T>);

/// Returns the fastest way to multiply matrices with these sizes and strides.
fn way<T: Real>(sizes: [usize; 3], out_matrix: Matrix, lhs_matrix: Matrix) -> MultiplyFn<T> {
    let [m, k, n] = sizes;
    let is_gathered =
        lhs_matrix.columns == 1 && lhs_matrix.rows > 1 && sizes.iter().all(|&size| size >= SMALL);
    let has_columns = out_matrix.rows == 1 && out_matrix.columns >= m as isize;
    let distance = lhs_matrix.rows.unsigned_abs() * size_of::<T>();
    if is_gathered && has_columns && n <= LARGE && m * k > n * (k + 2 * m) {
        mirrored::<T>
    } else if is_gathered && distance.is_multiple_of(SAME_SETS) {
        turned
    } else {
        multiply
    }
}

/// The number of elements of working memory, which stays in an L2 cache.
const ROOM: usize = 1 << 17;

thread_local! {
    static MEMORY: WorkingMemory = const { WorkingMemory::new() };
    static SUMS: WorkingMemory = const { WorkingMemory::new() };
}

/// Memory of a thread, which stays allocated.
struct WorkingMemory(Cell<Vec<u64>>);

impl WorkingMemory {
    const fn new() -> Self {
        Self(Cell::new(Vec::new()))
    }
}

/// Calls `f` with memory of this thread for this number of elements.
fn with_memory<T: Real>(of: &'static LocalKey<WorkingMemory>, elements: usize, f: impl FnOnce(&mut [T])) {
    // The memory is taken, not borrowed: while this thread waits for others, rayon may run another multiplication on it.
    let mut memory = of.with(|memory| memory.0.take());
    memory.resize((elements * size_of::<T>()).div_ceil(size_of::<u64>()), 0);
    f(&mut bytemuck::cast_slice_mut(&mut memory)[..elements]);
    of.with(|of| of.0.set(memory));
}

/// Calls `f` with [`ROOM`] elements of this thread.
fn with_room<T: Real>(f: impl FnOnce(&mut [T])) {
    with_memory(&MEMORY, ROOM, f);
}

/// Computes a product of few columns as one of few rows and transposes it afterwards. Then the crate gathers the smaller operand.
fn mirrored<T: Real>(
    [m, k, n]: [usize; 3],
    (out, out_matrix): (&mut [T], Matrix),
    (lhs, lhs_matrix): (&[T], Matrix),
    (rhs, rhs_matrix): (&[T], Matrix),
    how: Multiply<T>,
) {
    with_room(|room| {
        for rows in parts(m, ROOM / n) {
            multiply(
                [n, k, rows.len()],
                (&mut *room, Matrix::with_rows(n).transposed()),
                (rhs, rhs_matrix.transposed()),
                (lhs, lhs_matrix.skip_rows(rows.start).transposed()),
                Multiply { add: false, ..how },
            );
            let out = &mut out[out_matrix.skip_rows(rows.start).offset as usize..];
            turn([rows.len(), n], (room, n), (out, out_matrix.columns as usize), how.add, how.parallel);
        }
    });
}

/// Computes the product in blocks of the left operand, each of which is first transposed.
fn turned<T: Real>(
    [m, k, n]: [usize; 3],
    (out, out_matrix): (&mut [T], Matrix),
    (lhs, lhs_matrix): (&[T], Matrix),
    (rhs, rhs_matrix): (&[T], Matrix),
    how: Multiply<T>,
) {
    const ROWS: usize = 256;
    const DEPTH: usize = ROOM / ROWS;
    with_room(|room| {
        for first in (0..k).step_by(DEPTH) {
            let depth = DEPTH.min(k - first);
            for rows in parts(m, ROWS) {
                let block = &lhs[lhs_matrix.skip_rows(rows.start).skip_columns(first).offset as usize..];
                let count = rows.len();
                turn([count, depth], (block, lhs_matrix.rows as usize), (room, count), false, how.parallel);
                multiply(
                    [count, depth, n],
                    (&mut *out, out_matrix.skip_rows(rows.start)),
                    (room, Matrix::with_rows(count).transposed()),
                    (rhs, rhs_matrix.skip_rows(first)),
                    Multiply { add: how.add || first > 0, ..how },
                );
            }
        }
    });
}

/// Multiplies as [`gemm`] does, by the crate.
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

    #[test]
    fn a_sum_of_products_is_rounded_before_it_is_added() {
        let numbers = |count: usize, key: u64| -> Vec<f32> {
            let number = |i: usize| ir::random::philox(key, [i as u32, 0, 0, 0])[0] as f32 * 1e-9 - 2.0;
            (0..count).map(number).collect()
        };
        for [m, k, n] in [
            [5, 1, 7],
            [64, 2, 48],
            [96, 32, 80],
            [33, 700, 40],
            [WAITING + 9, 3, 2],
            [WAITING / 8 + 1, 40, 17],
            [300, 1500, 260],
            [ROOM / 40 + 24, 700, 40],
            [257, 700, 48],
        ] {
            for (way, count) in (0..8).flat_map(|way| [1, 3].map(|count| (way, count))) {
                let lies = |rows: usize, columns: usize, transposed: bool| {
                    if transposed { Matrix::with_rows(rows).transposed() } else { Matrix::with_rows(columns) }
                };
                let [left, right, result] =
                    [lies(m, k, way & 1 > 0), lies(k, n, way & 2 > 0), lies(m, n, way & 4 > 0)];
                let at = |place: usize, size: usize, matrix: Matrix| Matrix {
                    offset: (place * size) as isize,
                    ..matrix
                };
                let places: Vec<_> =
                    (0..count).map(|place| [at(place, m * k, left), at(place, k * n, right)]).collect();
                let (lhs, rhs) = (numbers(count * m * k, 1), numbers(count * k * n, 2));
                let before = numbers(m * n, 3);
                let how = Multiply { factor: 1.0, add: false, parallel: way % 3 == 0 };
                let mut sum = vec![0.0; m * n];
                for (place, [left, right]) in places.iter().enumerate() {
                    let how = Multiply { add: place > 0, ..how };
                    gemm([m, k, n], (&mut sum, result), (&lhs, *left), (&rhs, *right), how);
                }
                let expected: Vec<f32> = before.iter().zip(&sum).map(|(a, b)| a + b).collect();
                let mut out = before;
                add_rounded([m, k, n], (&mut out, result), [&lhs, &rhs], &places, how);
                assert!(out == expected, "[{m}, {k}, {n}] {way}, {count} places");
            }
        }
    }

    /// Row-major and column-major operands and results; rows that fall into the same cache sets and rows that do not; sizes above one
    /// block, and odd sizes.
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
        // The distance between rows is two elements more than their length.
        let turned = [293, 3 * SAME_SETS / size_of::<f64>() - 2, 170];
        let mirrored = [ROOM / 100 + 90, 250, 100];
        for [m, k, n] in [turned, mirrored, [SMALL, SMALL + 1, 53], [SMALL / 2, 40, 40]] {
            for way in 0..16 {
                let [left, right, result] =
                    [lies(m, k, way & 1 > 0), lies(k, n, way & 2 > 0), lies(m, n, way & 4 > 0)];
                let room = |rows: usize, columns: usize| (rows + 2) * (columns + 2) + 3;
                let (lhs, rhs) = (numbers(room(m, k), 7), numbers(room(k, n), 11));
                let before = numbers(room(m, n), 5);
                let mut out = before.clone();
                let (add, parallel) = (way & 8 > 0, way % 3 == 0);
                let how = Multiply { factor: 2.0, add, parallel };
                gemm([m, k, n], (&mut out, result), (&lhs, left), (&rhs, right), how);
                let mut expected = before;
                let kept = if add { 1.0 } else { 0.0 };
                for row in 0..m {
                    for column in 0..n {
                        let terms = (0..k).map(|i| lhs[at(&left, row, i)] * rhs[at(&right, i, column)]);
                        let expected = &mut expected[at(&result, row, column)];
                        *expected = kept * *expected + 2.0 * terms.sum::<f64>();
                    }
                }
                assert!(out == expected, "[{m}, {k}, {n}] {left:?} {right:?} {result:?}");
            }
        }
    }
}
