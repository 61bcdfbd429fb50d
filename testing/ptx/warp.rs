//! Instructions that the lanes of a warp execute together: shuffles, and loads and products of matrices.

use super::instruction::{Address, Operand, Register, Shuffle, Space};
use super::machine::{COPIED, LANES, Machine, Mask, lanes};
use super::types::Type;

impl Machine<'_> {
    /// `shfl.sync`, by the PTX ISA's table of source lanes. A segment is a part of the warp that `clamp` bounds.
    pub(super) fn shuffle(
        &mut self,
        warp: usize,
        mask: Mask,
        (kind, to, is_within): (Shuffle, Register, Option<Register>),
        [of, by, clamp]: [Operand; 3],
    ) -> Result<(), String> {
        let mut all = [0; LANES];
        lanes(mask).for_each(|lane| all[lane] = self.get(warp, lane, of));
        for lane in lanes(mask) {
            let by = (self.get(warp, lane, by) & 31) as usize;
            let clamp = self.get(warp, lane, clamp) as usize;
            let (segment, clamp) = (clamp >> 8 & 31, clamp & 31);
            let [first, last] = [lane & segment, lane & segment | clamp & !segment];
            let (source, within) = match kind {
                Shuffle::Butterfly => (lane ^ by, lane ^ by <= last),
                Shuffle::Index => (first | by & !segment, first | by & !segment <= last),
            };
            let source = if within { source } else { lane };
            if mask >> source & 1 == 0 {
                return Err(format!("lane {lane} takes a number of lane {source}, which is not there"));
            }
            self.set(warp, lane, to, all[source]);
            if let Some(is_within) = is_within {
                self.set(warp, lane, is_within, within.into());
            }
        }
        Ok(())
    }

    /// `ldmatrix.x4`: lane `8 i + r` names row r of matrix i. Lane l gets the numbers `2 (l % 4)` and the next of row `l / 4` of each
    /// matrix, or of column `l / 4` if the matrices are transposed.
    pub(super) fn load_matrices(
        &mut self,
        warp: usize,
        mask: Mask,
        to: [Register; 4],
        from: Address,
        is_transposed: bool,
        at_fault: &mut usize,
    ) -> Result<(), String> {
        if mask != Mask::MAX {
            return Err("a part of a warp loads matrices".into());
        }
        let mut matrices = [[[0_u16; 8]; 8]; 4];
        for lane in 0..LANES {
            *at_fault = LANES * warp + lane;
            let address = self.address(warp, lane, from);
            let row = self
                .access(warp, lane, (Space::Shared, address, COPIED), false)
                .map_err(|problem| problem.to_string())?;
            for (number, bytes) in matrices[lane / 8][lane % 8].iter_mut().zip(row.chunks_exact(2)) {
                *number = u16::from_le_bytes([bytes[0], bytes[1]]);
            }
        }
        for lane in 0..LANES {
            let (row, column) = (lane / 4, 2 * (lane % 4));
            for (matrix, to) in matrices.iter().zip(to) {
                let pair = if is_transposed {
                    [matrix[column][row], matrix[column + 1][row]]
                } else {
                    [matrix[row][column], matrix[row][column + 1]]
                };
                self.set(warp, lane, to, u64::from(pair[0]) | u64::from(pair[1]) << 16);
            }
        }
        Ok(())
    }

    /// `mma.m16n8k16`, with the places of the PTX ISA, 9.7.15.5.8. Sums in f64 are rounded once to f32, whereas a device rounds or cuts
    /// each term in its own way.
    pub(super) fn multiply_matrices(
        &mut self,
        warp: usize,
        ty: Type,
        to: [Register; 4],
        (lhs, rhs, addend): ([Operand; 4], [Operand; 2], [Operand; 4]),
    ) {
        let (mut a, mut b, mut sums) = ([[0.0; 16]; 16], [[0.0; 8]; 16], [[0.0; 8]; 16]);
        let half = |word: u64, high: usize| ty.real(word >> (16 * high)).unwrap_or(f64::NAN);
        for lane in 0..LANES {
            let (row, column) = (lane / 4, 2 * (lane % 4));
            for i in 0..4 {
                let word = self.get(warp, lane, lhs[i]);
                for high in [0, 1] {
                    a[row + 8 * (i % 2)][column + 8 * (i / 2) + high] = half(word, high);
                }
                sums[row + 8 * (i / 2)][column + i % 2] =
                    f64::from(f32::from_bits(self.get(warp, lane, addend[i]) as u32));
            }
            for (i, rhs) in rhs.into_iter().enumerate() {
                let word = self.get(warp, lane, rhs);
                for high in [0, 1] {
                    b[column + 8 * i + high][row] = half(word, high);
                }
            }
        }
        for (row, sums) in a.iter().zip(&mut sums) {
            for (column, sum) in sums.iter_mut().enumerate() {
                *sum += row.iter().zip(&b).map(|(x, y)| x * y[column]).sum::<f64>();
            }
        }
        for lane in 0..LANES {
            let (row, column) = (lane / 4, 2 * (lane % 4));
            for (i, to) in to.into_iter().enumerate() {
                let sum = sums[row + 8 * (i / 2)][column + i % 2] as f32;
                self.set(warp, lane, to, sum.to_bits().into());
            }
        }
    }
}
