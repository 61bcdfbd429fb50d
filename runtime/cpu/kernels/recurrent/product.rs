//! The products of a step: a few rows times a weight that is packed once for all steps.
//!
//! The crate `gemm` would pack the weight again in every step. Here, a panel has [`LANES`] columns of the weight, row after row, so that a
//! step reads the weight from its first to its last element. A sum has its terms in the order of the rows, whatever the number of threads.

use crate::gemm::turn::turn;
use crate::math::{Float, Real};
use crate::simd::vectorized;
use crate::storage::{Scratch, widen};
use rayon::prelude::*;
use std::ops::Range;

/// The columns of a panel.
pub(super) const LANES: usize = crate::scratch::PANEL;
/// The largest number of rows that are multiplied at once.
const ROWS: usize = 8;

/// Returns the number of rows that are multiplied at once. Their sums are in registers: in 16 with two vectors a row in AVX2, or in 32 with one
/// in AVX-512. An addition takes four cycles, in which a core begins eight, so few rows would wait.
fn rows_at_once<T>() -> usize {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        return ROWS * size_of::<f32>() / size_of::<T>();
    }
    6
}

/// A matrix `[depth, sections · columns]` in panels. Each section begins with a panel, whose missing columns are zeros at the section's end.
pub(super) struct Packed<'a, T> {
    panels: &'a [T],
    depth: usize,
    sections: usize,
    columns: usize,
}

impl<'a, T: Real> Packed<'a, T> {
    /// Packs the transposed matrix of `rows`, `[sections · columns, depth]`.
    pub(super) fn transposed<S: Float<Real = T>>(
        rows: &[S],
        [depth, sections, columns]: [usize; 3],
        room: &'a mut [T],
    ) -> Self {
        let panels = columns.div_ceil(LANES);
        room.par_chunks_exact_mut((depth * LANES).max(1)).enumerate().for_each_init(
            Scratch::new,
            |wide, (panel, room)| {
                let first = panel % panels * LANES;
                let count = LANES.min(columns - first);
                let rows = &rows[(panel / panels * columns + first) * depth..][..count * depth];
                let rows = wide.read(rows);
                if count < LANES {
                    room.fill(T::ZERO);
                }
                turn([count, depth], (rows, depth), (room, LANES), false, false);
            },
        );
        Self { panels: room, depth, sections, columns }
    }

    /// Packs a matrix `[depth, columns]`, which is one section.
    pub(super) fn of<S: Float<Real = T>>(
        matrix: &[S],
        [depth, columns]: [usize; 2],
        room: &'a mut [T],
    ) -> Self {
        room.par_chunks_exact_mut((depth * LANES).max(1)).enumerate().for_each(|(panel, room)| {
            let first = panel * LANES;
            let count = LANES.min(columns - first);
            for (row, room) in matrix.chunks_exact(columns).zip(room.chunks_exact_mut(LANES)) {
                let (lanes, missing) = room.split_at_mut(count);
                widen(&row[first..first + count], lanes);
                missing.fill(T::ZERO);
            }
        });
        Self { panels: room, depth, sections: 1, columns }
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Adds the products of some rows with a range of the columns of each section. `sums` has the sections of a row one after the other. The
    /// range begins at a multiple of [`LANES`].
    pub(super) fn add_products(&self, rows: &[T], columns: &Range<usize>, sums: &mut [&mut [T]]) {
        let of_section = self.columns.div_ceil(LANES);
        for panel in columns.start / LANES..columns.end.div_ceil(LANES) {
            let first = panel * LANES - columns.start;
            let count = LANES.min(columns.len() - first);
            for section in 0..self.sections {
                let panel = &self.panels[(section * of_section + panel) * self.depth * LANES..];
                let panel = &panel[..self.depth * LANES];
                let all = rows.len() / self.depth;
                for rows_at_once in parts(all, rows_at_once::<T>()) {
                    let sums = &mut sums[rows_at_once.start * self.sections..];
                    let rows = &rows[rows_at_once.start * self.depth..rows_at_once.end * self.depth];
                    let mut made = [[T::ZERO; LANES]; ROWS];
                    multiply(rows, self.depth, panel, &mut made);
                    for (row, made) in made.iter().enumerate().take(rows_at_once.len()) {
                        let sums = &mut sums[row * self.sections + section][first..first + count];
                        sums.iter_mut().zip(made).for_each(|(sum, &made)| *sum = *sum + made);
                    }
                }
            }
        }
    }
}

/// Cuts a size into parts of nearly equal length, of at most `most` elements.
fn parts(size: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let count = size.div_ceil(most);
    (0..count).map(move |part| part * size / count..(part + 1) * size / count)
}

vectorized! {
    /// Multiplies up to [`ROWS`] rows of this depth with a panel.
    fn multiply<'a; T: Real>(rows: &'a [T], depth: usize, panel: &'a [T], made: &'a mut [[T; LANES]; ROWS]) {
        macro_rules! multiply_these {
            ($($count:literal)*) => {
                match rows.len() / depth {
                    $($count => multiply_rows::<T, $count>(rows, depth, panel, made),)*
                    count => unreachable!("{count} rows at once"),
                }
            };
        }
        multiply_these!(1 2 3 4 5 6 7 8);
    }
}

#[inline(always)]
fn multiply_rows<T: Real, const N: usize>(
    rows: &[T],
    depth: usize,
    panel: &[T],
    made: &mut [[T; LANES]; ROWS],
) {
    let rows: [&[T]; N] = std::array::from_fn(|row| &rows[row * depth..][..depth]);
    let panel = &panel.as_chunks::<LANES>().0[..depth];
    let mut sums = [[T::ZERO; LANES]; N];
    for k in 0..depth {
        for row in 0..N {
            for lane in 0..LANES {
                sums[row][lane] = rows[row][k].mul_add(panel[k][lane], sums[row][lane]);
            }
        }
    }
    made[..N].copy_from_slice(&sums);
}
