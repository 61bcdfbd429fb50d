//! Transposes a matrix: lays its rows out as columns.

use crate::math::Real;
use crate::simd::vectorized;
use rayon::prelude::*;

/// The number of columns that one task transposes.
const COLUMNS: usize = 64;

/// `to[c, r] (+)= from[r, c]`. The rows of `from` are `from_distance` elements apart, and the rows of `to` (the columns of `from`) are
/// `to_distance` apart. Each slice starts with its matrix.
pub(crate) fn turn<T: Real>(
    [rows, columns]: [usize; 2],
    (from, from_distance): (&[T], usize),
    (to, to_distance): (&mut [T], usize),
    add: bool,
    parallel: bool,
) {
    let to = &mut to[..(columns - 1) * to_distance + rows];
    let task = |index: usize, to: &mut [T]| {
        let first = index * COLUMNS;
        let sizes = [rows, COLUMNS.min(columns - first)];
        turn_columns(sizes, &from[first..], from_distance, to, to_distance, add);
    };
    if parallel {
        to.par_chunks_mut(COLUMNS * to_distance).enumerate().for_each(|(index, to)| task(index, to));
    } else {
        to.chunks_mut(COLUMNS * to_distance).enumerate().for_each(|(index, to)| task(index, to));
    }
}

/// The side of a square that is transposed at once.
const SIDE: usize = 16;

vectorized! {
    fn turn_columns<'a; T: Real>(
        sizes: [usize; 2],
        from: &'a [T],
        from_distance: usize,
        to: &'a mut [T],
        to_distance: usize,
        add: bool,
    ) {
        let [rows, columns] = sizes;
        let (whole_rows, whole_columns) = (rows - rows % SIDE, columns - columns % SIDE);
        for row in (0..whole_rows).step_by(SIDE) {
            for column in (0..whole_columns).step_by(SIDE) {
                let mut square = [[T::ZERO; SIDE]; SIDE];
                for (i, line) in square.iter_mut().enumerate() {
                    line.copy_from_slice(&from[(row + i) * from_distance + column..][..SIDE]);
                }
                for j in 0..SIDE {
                    let to = &mut to[(column + j) * to_distance + row..][..SIDE];
                    let line: [T; SIDE] = std::array::from_fn(|i| if add { to[i] + square[i][j] } else { square[i][j] });
                    to.copy_from_slice(&line);
                }
            }
        }
        for row in 0..rows {
            let done = if row < whole_rows { whole_columns } else { 0 };
            for column in done..columns {
                let (to, from) = (&mut to[column * to_distance + row], from[row * from_distance + column]);
                *to = if add { *to + from } else { from };
            }
        }
    }
}
