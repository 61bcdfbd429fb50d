//! Packs matrices of bf16 into panels.

mod turn;

use super::{SIDE, TERMS, TILE};
use crate::simd::vectorized;
use half::bf16;

/// A strided operand: its lines are the rows of a left operand, or the columns of a right one.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    /// The memory.
    pub(crate) numbers: &'a [bf16],
    /// The place of the first line's first term.
    pub(crate) start: isize,
    /// The distance from line to line.
    pub(crate) lines: isize,
    /// The distance from term to term.
    pub(crate) terms: isize,
    /// Whether it is the left operand.
    pub(crate) is_left: bool,
}

/// The pairs of a tile, by lines and then pairs, or the other way round.
pub(super) type Tile<T = u32> = [[T; TILE]; TILE];

/// Packs a block of a panel: `terms` terms from the operand's start on, at most [`TERMS`], of at most [`SIDE`] lines. There are zeros in place
/// of other lines and terms.
pub(crate) fn pack(operand: Operand, lines: usize, terms: usize, block: &mut [u32]) {
    for (tile, first) in block.chunks_exact_mut(TILE * TILE).zip((0..SIDE).step_by(TILE)) {
        let lines = TILE.min(lines.saturating_sub(first));
        let at = operand.start + first as isize * operand.lines;
        let tile: &mut Tile = bytemuck::cast_mut(<&mut [u32; TILE * TILE]>::try_from(tile).expect("a tile"));
        let is_whole = lines == TILE && terms == TERMS;
        if is_whole && operand.terms == 1 {
            rows_of(operand.numbers, at, operand.lines, tile);
            if !operand.is_left {
                turn::turn(tile);
            }
        } else if is_whole && operand.lines == 1 {
            columns_of(operand.numbers, at, operand.terms, tile);
            if operand.is_left {
                turn::turn(tile);
            }
        } else {
            part_of(operand, at, [lines, terms], tile);
        }
    }
}

/// Packs a part of a tile, or a tile of an operand without neighbours in memory.
fn part_of(operand: Operand, at: isize, [lines, terms]: [usize; 2], tile: &mut Tile) {
    let number = |line: usize, term: usize| {
        if line >= lines || term >= terms {
            return 0;
        }
        let place = at + line as isize * operand.lines + term as isize * operand.terms;
        operand.numbers[place as usize].to_bits()
    };
    for (i, row) in tile.iter_mut().enumerate() {
        for (j, pair) in row.iter_mut().enumerate() {
            let (line, term) = if operand.is_left { (i, 2 * j) } else { (j, 2 * i) };
            *pair = pair_of(number(line, term), number(line, term + 1));
        }
    }
}

#[inline(always)]
fn pair_of(first: u16, second: u16) -> u32 {
    u32::from(first) | u32::from(second) << 16
}

/// Copies 16 lines whose terms are neighbours into the rows of a tile.
fn rows_of(numbers: &[bf16], at: isize, apart: isize, tile: &mut Tile) {
    for (line, row) in tile.iter_mut().enumerate() {
        let from = &numbers[(at + line as isize * apart) as usize..][..TERMS];
        bytemuck::cast_slice_mut::<u32, bf16>(row).copy_from_slice(from);
    }
}

/// Pairs the terms of 16 lines that are neighbours, for each pair a row of a tile.
fn columns_of(numbers: &[bf16], at: isize, apart: isize, tile: &mut Tile) {
    // The first terms of all pairs, and the second ones: one long loop over both uses vector instructions.
    let lines_of = |term: usize| -> [bf16; TILE] {
        let from = (at + term as isize * apart) as usize;
        numbers[from..][..TILE].try_into().expect("16 lines")
    };
    let [first, second]: [Tile<bf16>; 2] =
        [0, 1].map(|of_pair| std::array::from_fn(|pair| lines_of(2 * pair + of_pair)));
    pairs_of(first.as_flattened(), second.as_flattened(), tile.as_flattened_mut());
}

vectorized! {
    fn pairs_of<'a, 'b;>(first: &'a [bf16], second: &'a [bf16], pairs: &'b mut [u32]) {
        for (pair, (first, second)) in pairs.iter_mut().zip(first.iter().zip(second)) {
            *pair = pair_of(first.to_bits(), second.to_bits());
        }
    }
}
