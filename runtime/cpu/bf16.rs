//! Products of bf16 matrices by instructions that multiply pairs of bf16 numbers and add them in f32.
//!
//! A product is computed from packed operands, block by block. A **panel** has [`SIDE`] rows of the left operand or columns of the right one,
//! over all terms of the sum. It is a list of blocks of [`TERMS`] terms, and each block is two tiles of 16 x 16 **pairs**: two neighbouring
//! terms of bf16 in the bits of a u32. In a tile of the left operand a row of the matrix is a row of 16 pairs; in a tile of the right operand
//! a column of the matrix is a column of 16 pairs. So both lie as AMX reads them, and lanes of AVX-512 are columns. Lines and terms that a
//! matrix lacks are zeros.
//!
//! The instructions add in another order than each other and than a sum in f32, and they take subnormal numbers as zeros. So the way of
//! multiplying is part of a target ([`Bf16Products`]), and each instruction has an **emulation** with the same bits for processors that lack
//! it.

mod amx;
mod avx512;
mod pack;
mod part;

pub(super) use pack::{Operand, pack};
pub(super) use part::Part;

/// The rows and the columns of a block of results.
pub(super) const SIDE: usize = 32;
/// The terms of a block of an operand.
pub(super) const TERMS: usize = 32;
/// The rows of a tile, and the pairs of a row.
pub(super) const TILE: usize = 16;
/// The pairs of a block of a panel: two tiles.
pub(super) const BLOCK: usize = 2 * TILE * TILE;

/// The sums of a panel of the left operand with a panel of the right one: the rows of four tiles of 16 x 16, in the order of rows and then
/// columns.
pub(super) type Sums = [[f32; TILE]; 4 * TILE];

/// The way in which a target multiplies matrices of bf16. Each sums in its own order, and so has its own bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bf16Products {
    /// Numbers are converted to f32 and multiplied so, on every processor.
    Widened,
    /// AMX: `tdpbf16ps`.
    Amx,
    /// AVX-512: `vdpbf16ps`.
    Avx512,
}

impl Bf16Products {
    /// All ways.
    pub const ALL: [Self; 3] = [Self::Widened, Self::Amx, Self::Avx512];

    /// Returns whether this processor has the instructions. If not, they are emulated.
    pub fn is_here(self) -> bool {
        match self {
            Self::Widened => true,
            Self::Amx => amx::is_here(),
            Self::Avx512 => avx512::is_here(),
        }
    }

    /// Returns the name of the instructions, for people.
    pub(super) fn instructions(self) -> &'static str {
        match self {
            Self::Widened => "products of f32",
            Self::Amx => "AMX for bf16 (`amx_bf16`)",
            Self::Avx512 => "AVX-512 for bf16 (`avx512_bf16`)",
        }
    }

    /// Returns the function that multiplies two panels. `None` if there are no panels.
    pub(super) fn multiply(self) -> Option<MultiplyFn> {
        match (self, self.is_here()) {
            (Self::Widened, _) => None,
            (Self::Amx, true) => Some(amx::multiply),
            (Self::Amx, false) => Some(amx::emulate),
            (Self::Avx512, true) => Some(avx512::multiply),
            (Self::Avx512, false) => Some(avx512::emulate),
        }
    }
}

/// A function that writes the sums of the products of a panel of the left operand and one of the right, or adds to them. Both panels have the
/// same number of blocks, at least one.
pub(super) type MultiplyFn = fn(left: &[u32], right: &[u32], sums: &mut Sums, add: bool);

/// Returns the place in [`Sums`] of the sums of a row with the first or with the second half of the columns.
pub(super) const fn place(row: usize, half: usize) -> usize {
    (row / TILE * 2 + half) * TILE + row % TILE
}

/// The numbers of a pair of the left operand, and those of a pair of the right one.
type Factors = [[f32; 2]; 2];

/// Multiplies two panels on any processor. `add_row` adds the products of a row of 16 pairs with a column of 16 pairs to a sum, in the order
/// of an instruction.
fn emulate(
    [left, right]: [&[u32]; 2],
    sums: &mut Sums,
    add: bool,
    add_row: impl Fn(f32, [Factors; TILE]) -> f32,
) {
    if !add {
        sums.as_flattened_mut().fill(0.0);
    }
    for (left, right) in left.chunks_exact(BLOCK).zip(right.chunks_exact(BLOCK)) {
        for (row, column) in (0..SIDE).flat_map(|row| (0..SIDE).map(move |column| (row, column))) {
            let factors = std::array::from_fn(|pair| {
                let of_right = (column / TILE * TILE + pair) * TILE + column % TILE;
                [left[row * TILE + pair], right[of_right]].map(numbers)
            });
            let sum = &mut sums[place(row, column / TILE)][column % TILE];
            *sum = add_row(*sum, factors);
        }
    }
}

/// Returns the two numbers of a pair, subnormal ones as zeros.
fn numbers(pair: u32) -> [f32; 2] {
    [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)].map(flushed)
}

/// Returns `a * b + c` as these instructions round it: subnormal results are zeros. The product of two bf16 numbers has no rounding error.
fn multiplied(a: f32, b: f32, c: f32) -> f32 {
    flushed(a.mul_add(b, flushed(c)))
}

/// Returns the number, or a zero of its sign in place of a subnormal number.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

#[cfg(test)]
mod tests;
