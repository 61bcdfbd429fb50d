//! Contractions of bf16 as products of packed panels (`crate::bf16`), by the instructions of a target.
//!
//! The right operand is packed first, all panels of a part of its columns. Then tasks take a few panels of rows each: they pack one panel of
//! the left operand at a time, multiply it with all panels of the right one, and round the sums into the result. If a sum has very many terms,
//! this is repeated for one range of terms after the other, and the sums wait in scratch.
//!
//! The order of a sum is that of its terms, whatever the parts are. So the result depends neither on the scratch nor on the number of threads.

use super::{dot, with_scratch};
use crate::bf16::{BLOCK, MultiplyFn, Operand, Part, SIDE, Sums, TERMS, TILE, pack, place};
use crate::storage::narrow;
use half::bf16;
use program::contraction::{ContractionPlan, StridedLoop, shifted};
use rayon::prelude::*;
use std::ops::Range;

/// Computes `out = lhs × rhs` in the instruction's scratch, which has at least [`Part::LEAST`] numbers.
pub(super) fn multiply(
    plan: &ContractionPlan,
    operands: [&[bf16]; 2],
    out: &mut [bf16],
    scratch: &mut [u32],
    multiply: MultiplyFn,
) {
    if let Some([left, right]) = plan.stretches() {
        out[0] = bf16::from_f32(dot(&operands[0][left], &operands[1][right]));
        return;
    }
    let product = Product::of(plan, operands, multiply);
    let whole = product.whole();
    with_scratch(plan, out, scratch, whole.len(), |starts, out, scratch, alone| {
        let part = if alone { whole.within(scratch.len()) } else { whole };
        product.at(starts).multiply(out, scratch, part);
    });
}

/// One multiplication. Its result is row-major where possible: if that of the contraction is column-major, the operands are exchanged.
#[derive(Clone, Copy)]
struct Product<'a> {
    operands: [Operand<'a>; 2],
    /// The numbers of rows and columns.
    sizes: [usize; 2],
    summed: StridedLoop,
    inner: &'a [StridedLoop],
    result: Destination,
    is_exchanged: bool,
    multiply: MultiplyFn,
}

/// The place of a result in a slice.
#[derive(Clone, Copy)]
struct Destination {
    start: isize,
    /// The distances from row to row and from column to column.
    strides: [isize; 2],
}

impl<'a> Product<'a> {
    fn of(plan: &'a ContractionPlan, operands: [&'a [bf16]; 2], multiply: MultiplyFn) -> Self {
        let ContractionPlan { rows, columns, summed, inner, .. } = plan;
        let is_exchanged = columns.strides[2] != 1 && rows.strides[2] == 1;
        let mut sides = [(0, rows), (1, columns)];
        if is_exchanged {
            sides.reverse();
        }
        let operand = |(side, &(tensor, lines)): (usize, &(usize, &StridedLoop))| {
            let strides = [lines.strides[tensor], summed.strides[tensor]];
            Operand {
                numbers: operands[tensor],
                start: 0,
                lines: strides[0],
                terms: strides[1],
                is_left: side == 0,
            }
        };
        Self {
            operands: [operand((0, &sides[0])), operand((1, &sides[1]))],
            sizes: sides.map(|(_, lines)| lines.size),
            summed: *summed,
            inner,
            result: Destination { start: 0, strides: sides.map(|(_, lines)| lines.strides[2]) },
            is_exchanged,
            multiply,
        }
    }

    /// Returns the multiplication with these places of the first elements of the contraction's tensors.
    fn at(mut self, [left, right, out]: [isize; 3]) -> Self {
        let starts = if self.is_exchanged { [right, left] } else { [left, right] };
        (self.operands[0].start, self.operands[1].start) = (starts[0], starts[1]);
        self.result.start = out;
        self
    }

    fn whole(&self) -> Part {
        let [rows, columns] = self.sizes;
        Part::whole([rows, self.summed.size, columns], self.repeats())
    }

    /// The number of times that the summed dim is passed over.
    fn repeats(&self) -> usize {
        self.inner.iter().map(|run| run.size).product()
    }

    /// Packs blocks of a panel of an operand, by their numbers among the blocks of all terms.
    fn pack(&self, side: usize, panel: usize, blocks: Range<usize>, packed: &mut [u32]) {
        let lines = (self.sizes[side] - panel * SIDE).min(SIDE);
        let of_each = self.summed.size.div_ceil(TERMS).max(1);
        for (block, packed) in blocks.zip(packed.chunks_exact_mut(BLOCK)) {
            let (repeat, first) = (block / of_each, block % of_each * TERMS);
            let operand = &self.operands[side];
            let tensor = side ^ usize::from(self.is_exchanged);
            let shift = shifted([0; 3], self.inner, repeat)[tensor];
            let place = (panel * SIDE) as isize * operand.lines + first as isize * operand.terms;
            let terms = if self.repeats() == 0 { 0 } else { (self.summed.size - first).min(TERMS) };
            pack(Operand { start: operand.start + shift + place, ..*operand }, lines, terms, packed);
        }
    }

    /// Computes the product part by part.
    fn multiply(&self, out: &mut [bf16], scratch: &mut [u32], part: Part) {
        let whole = self.whole();
        let [left_len, right_len, _] = part.lens();
        let (left, rest) = scratch.split_at_mut(left_len);
        let (right, sums) = rest.split_at_mut(right_len);
        for columns in ranges(whole.columns, part.columns) {
            for rows in ranges(whole.rows, part.rows) {
                for blocks in ranges(whole.blocks, part.blocks) {
                    let len = blocks.len() * BLOCK;
                    // The right panels of all terms are still there from the rows before.
                    if rows.start == 0 || part.has_sums {
                        let panels = right.par_chunks_exact_mut(len).take(columns.len());
                        panels.enumerate().for_each(|(i, panel)| {
                            self.pack(1, columns.start + i, blocks.clone(), panel);
                        });
                    }
                    let is_last = blocks.end == whole.blocks;
                    let step = Step { product: self, columns: columns.clone(), blocks, is_last, right };
                    step.run(rows.clone(), out, left, bytemuck::cast_slice_mut(sums), part);
                }
            }
        }
    }

    /// Stores the rounded sums of two panels in the result.
    fn store(&self, rounded: &[[bf16; TILE]; 4 * TILE], panels: [usize; 2], out: &mut [bf16], first: isize) {
        let [down, right] = self.result.strides;
        let [rows, columns] =
            [0, 1].map(|side| panels[side] * SIDE..self.sizes[side].min((panels[side] + 1) * SIDE));
        for (i, row) in rows.enumerate() {
            let at = first + row as isize * down + columns.start as isize * right;
            for (half, start) in (0..columns.len()).step_by(TILE).enumerate() {
                let (from, at) = (&rounded[place(i, half)], at + start as isize * right);
                let count = TILE.min(columns.len() - start);
                if right == 1 && count == TILE {
                    out[at as usize..][..TILE].copy_from_slice(from);
                } else {
                    let from = from.iter().take(count).enumerate();
                    from.for_each(|(j, from)| out[(at + j as isize * right) as usize] = *from);
                }
            }
        }
    }
}

/// The multiplication of some panels of rows with packed panels of columns, over a range of terms.
struct Step<'a> {
    product: &'a Product<'a>,
    columns: Range<usize>,
    blocks: Range<usize>,
    /// Whether the sums have all their terms after this step.
    is_last: bool,
    right: &'a [u32],
}

impl Step<'_> {
    /// Distributes the rows over tasks, if the rows of the result lie one after the other.
    fn run(&self, rows: Range<usize>, out: &mut [bf16], left: &mut [u32], sums: &mut [f32], part: Part) {
        let Destination { start, strides: [down, right] } = self.product.result;
        let of_task = rows.len().div_ceil(part.tasks());
        let tasks = rows.clone().step_by(of_task).map(|first| first..(first + of_task).min(rows.end));
        let tasks: Vec<_> = tasks.collect();
        let panel = self.blocks.len() * BLOCK;
        let of_sums = of_task * self.columns.len() * SIDE * SIDE;
        let apart = usize::try_from(down).ok().filter(|&down| right == 1 && down >= self.product.sizes[1]);
        match apart {
            Some(down) => {
                let out = &mut out[start as usize + rows.start * SIDE * down..];
                let mut sums = sums.chunks_mut(of_sums);
                let sums_of: Vec<_> = tasks.iter().map(|_| sums.next().unwrap_or_default()).collect();
                let tasks = tasks.into_par_iter().zip(out.par_chunks_mut(of_task * SIDE * down));
                let tasks = tasks.zip(left.par_chunks_exact_mut(panel)).zip(sums_of);
                tasks.for_each(|(((rows, out), left), sums)| {
                    let first = -((rows.start * SIDE * down) as isize);
                    self.rows(rows, (out, first), left, sums);
                });
            }
            None => {
                let mut sums = sums.chunks_mut(of_sums);
                for rows in tasks {
                    self.rows(rows, (out, start), &mut left[..panel], sums.next().unwrap_or_default());
                }
            }
        }
    }

    /// Computes some panels of rows. `first` is the place of the product's first result in `out`.
    fn rows(
        &self,
        rows: Range<usize>,
        (out, first): (&mut [bf16], isize),
        left: &mut [u32],
        sums: &mut [f32],
    ) {
        let product = self.product;
        let add = self.blocks.start > 0;
        let mut finished = Aligned([[0.0; TILE]; 4 * TILE]);
        let mut rounded = [[bf16::ZERO; TILE]; 4 * TILE];
        let mut kept = sums.chunks_exact_mut(SIDE * SIDE);
        for row in rows {
            product.pack(0, row, self.blocks.clone(), left);
            for (column, right) in self.columns.clone().zip(self.right.chunks_exact(left.len())) {
                let sums = match kept.next() {
                    Some(kept) => bytemuck::from_bytes_mut(bytemuck::cast_slice_mut(kept)),
                    None => &mut finished.0,
                };
                (product.multiply)(left, right, sums, add);
                if self.is_last {
                    narrow(sums.as_flattened(), rounded.as_flattened_mut());
                    product.store(&rounded, [row, column], out, first);
                }
            }
        }
    }
}

/// Sums whose rows begin where lines of the cache begin: a row in two lines takes twice the time.
#[repr(align(64))]
struct Aligned(Sums);

/// Returns neighbouring ranges of this length; the last may be shorter.
fn ranges(size: usize, length: usize) -> impl Iterator<Item = Range<usize>> {
    (0..size).step_by(length).map(move |start| start..(start + length).min(size))
}
