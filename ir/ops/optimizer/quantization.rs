//! Moments in 8 bits: blocks with a common scale, and the codes of their elements (Dettmers et al., 8-bit Optimizers via
//! Block-wise Quantization, arXiv 2110.02861).
//!
//! An element is `value(code) · largest`, where `largest` is the largest magnitude of its block. The values of codes are the
//! paper's dynamic tree quantization, in the form of bitsandbytes (`create_dynamic_map`): seven decades between 10⁻⁷ and 1, each
//! evenly divided by twice as many values as the decade below. Here the code of zero is 0, so that states of zeros are moments of
//! zero.

use crate::{Dim, TypeError, ensure};

/// The upper ends of a map's decades, which go from `10⁻⁷..10⁻⁶` to `10⁻¹..1`. Each decade begins at a tenth of its upper end.
const POWERS: [f64; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];

/// The values of the nonnegative codes of a first moment: 0, then the values of seven decades with 1, 2, 4, … 64 values, then 1.
/// The code of a negative number is 256 minus the code of its magnitude, which is at most 127.
pub const SIGNED: [f64; 129] = values(1);

/// The values of the codes of a second moment: 0, then the values of seven decades of 2, 4, 8, … 128 values, then 1.
pub const UNSIGNED: [f64; 256] = values(2);

/// Returns 0, the centres of the parts of each decade, and 1. The first decade has `first` equal parts, and each next decade twice as many.
const fn values<const N: usize>(first: usize) -> [f64; N] {
    let mut values = [0.0; N];
    let (mut decade, mut parts, mut next) = (0, first, 1);
    while decade < POWERS.len() {
        let mut part = 0;
        while part < parts {
            values[next] = POWERS[decade] * (0.1 + 0.9 * (part as f64 + 0.5) / parts as f64);
            (part, next) = (part + 1, next + 1);
        }
        (decade, parts) = (decade + 1, parts * 2);
    }
    values[next] = 1.0;
    values
}

/// Returns the midpoints of neighbours among `N + 1` ascending values.
pub const fn midpoints<const N: usize>(values: &[f64]) -> [f64; N] {
    let mut midpoints = [0.0; N];
    let mut i = 0;
    while i < N {
        midpoints[i] = (values[i] + values[i + 1]) / 2.0;
        i += 1;
    }
    midpoints
}

/// Returns the index of the value that is nearest to a number from 0 to 1. Halfway between two values, it is the lower one.
fn nearest(values: &[f64], x: f64) -> u8 {
    let above = values.partition_point(|&value| value < x).clamp(1, values.len() - 1);
    let half = (values[above - 1] + values[above]) / 2.0;
    (if half < x { above } else { above - 1 }) as u8
}

/// Returns the number of a first moment's code, between -1 and 1.
pub fn signed_value(code: u8) -> f64 {
    if code <= 128 { SIGNED[usize::from(code)] } else { -SIGNED[256 - usize::from(code)] }
}

/// Returns the code of a first moment's number between -1 and 1.
pub fn signed_code(x: f64) -> u8 {
    if x < 0.0 { nearest(&SIGNED[..128], -x).wrapping_neg() } else { nearest(&SIGNED, x) }
}

/// Returns the number of a second moment's code, between 0 and 1.
pub fn unsigned_value(code: u8) -> f64 {
    UNSIGNED[usize::from(code)]
}

/// Returns the code of a second moment's number between 0 and 1.
pub fn unsigned_code(x: f64) -> u8 {
    nearest(&UNSIGNED, x)
}

/// Returns the number of steps between two codes of a moment. Codes form a circle: 255 is next to 0.
pub fn distance(a: i64, b: i64) -> i64 {
    (a - b).rem_euclid(256).min((b - a).rem_euclid(256))
}

/// The blocks of a tensor. The tensor's last dims form rows, in row-major order. A row is cut into blocks of equal size; its last
/// block may be shorter. No block has elements of two rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The first dim of a row: the last dim at which a row has at least one whole block, or dim 0.
    pub first: usize,
    /// The number of elements of a row.
    pub row: u64,
    /// The number of elements of a full block.
    pub size: u64,
}

impl Blocks {
    /// Returns the blocks of `size` elements in a tensor with these dims.
    ///
    /// # Errors
    /// A dim is unbound; `size` is 0; the number of elements does not fit in a u64.
    pub fn of(dims: &[Dim], size: u64) -> Result<Self, TypeError> {
        ensure!(size != 0, "blocks have no element");
        let mut blocks = Self { first: dims.len(), row: 1, size };
        while blocks.row < size && blocks.first > 0 {
            blocks.first -= 1;
            let dim = dims[blocks.first].size();
            let dim = dim.ok_or_else(|| TypeError::new("blocks need the sizes of all dims"))?;
            let row = blocks.row.checked_mul(dim);
            blocks.row = row.ok_or_else(|| TypeError::new("a row of blocks is too large"))?;
        }
        Ok(blocks)
    }

    /// Returns the number of blocks of a row.
    pub fn in_row(&self) -> u64 {
        self.row.div_ceil(self.size)
    }

    /// Returns the dims of a tensor with one number per block, given the dims of the tensor that is cut into blocks.
    pub fn dims(&self, dims: &[Dim]) -> Vec<Dim> {
        dims[..self.first].iter().cloned().chain([Dim::known(self.in_row())]).collect()
    }

    /// Returns the range of elements of each block, for a tensor with so many elements.
    pub fn ranges(self, elements: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        let (row, size) = (self.row as usize, self.size as usize);
        let rows = (0..elements).step_by(row.max(1));
        rows.flat_map(move |start| {
            (start..start + row).step_by(size).map(move |from| from..(from + size).min(start + row))
        })
    }

    /// Returns the words of a sharding rule for the tensor, and for the tensor with one number per block. The dims of a row are
    /// not split, unless its first dim can be divided into whole blocks.
    pub fn words(&self, dims: &[Dim]) -> [String; 2] {
        let outer = (0..self.first).map(|dim| format!("a{dim}")).collect::<Vec<_>>();
        let mut inner: Vec<String> = (self.first..dims.len()).map(|dim| format!("r{dim}^")).collect();
        let mut blocks = if self.in_row() == 1 { "1" } else { "k^" };
        if self.in_row() > 1 && self.row.is_multiple_of(self.size) {
            // The dims after the first have fewer elements than a block; otherwise the row would begin with one of them.
            let behind = self.row / dims[self.first].size().expect("`of` has read the dims of a row");
            if self.size.is_multiple_of(behind) {
                (inner[0], blocks) = ("(k r^)".into(), "k");
            }
        }
        let join = |words: &[String]| words.join(" ");
        [[join(&outer), join(&inner)].join(" "), format!("{} {blocks}", join(&outer))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected numbers are those of bitsandbytes 0.45: `create_dynamic_map(signed)[i]`, sorted.
    #[test]
    fn values_are_those_of_bitsandbytes() {
        for (given, expected) in [
            (SIGNED[1], 5.5e-7),
            (SIGNED[2], 3.25e-6),
            (SIGNED[3], 7.75e-6),
            (SIGNED[127], 0.99296875),
            (SIGNED[128], 1.0),
            (UNSIGNED[1], 3.25e-7),
            (UNSIGNED[2], 7.75e-7),
            (UNSIGNED[254], 0.996484375),
            (UNSIGNED[255], 1.0),
        ] {
            assert!((given - expected).abs() < 1e-12 * expected, "{given} {expected}");
        }
        assert!(SIGNED.is_sorted_by(|a, b| a < b) && UNSIGNED.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn codes_stand_in_a_circle() {
        for (a, b, apart) in [(0, 255, 1), (255, 0, 1), (3, 3, 0), (1, 129, 128), (10, 200, 66)] {
            assert_eq!(distance(a, b), apart, "{a} and {b}");
        }
    }

    #[test]
    fn every_code_is_that_of_its_value() {
        for code in 0..=255 {
            assert_eq!(signed_code(signed_value(code)), code);
            assert_eq!(unsigned_code(unsigned_value(code)), code);
        }
        assert_eq!((signed_code(-1.0), signed_code(1.0)), (129, 128));
    }

    #[test]
    fn rows_have_a_whole_block_where_the_tensor_does() {
        let blocks = |dims: &[u64]| {
            let dims: Vec<Dim> = dims.iter().map(|&dim| Dim::known(dim)).collect();
            let blocks = Blocks::of(&dims, 256).expect("sizes");
            (
                blocks.first,
                blocks.row,
                blocks.in_row(),
                blocks.words(&dims).map(|words| words.trim().to_owned()),
            )
        };
        let words = |tensor: &str, blocks: &str| [tensor.to_owned(), blocks.to_owned()];
        assert_eq!(blocks(&[64, 768]), (1, 768, 3, words("a0 (k r^)", "a0 k")));
        assert_eq!(blocks(&[64, 256]), (1, 256, 1, words("a0 r1^", "a0 1")));
        assert_eq!(blocks(&[64, 700]), (1, 700, 3, words("a0 r1^", "a0 k^")));
        assert_eq!(blocks(&[64, 64]), (0, 4096, 16, words("(k r^) r1^", "k")));
        assert_eq!(blocks(&[64, 32, 3, 3]), (1, 288, 2, words("a0 r1^ r2^ r3^", "a0 k^")));
        assert_eq!(blocks(&[20]), (0, 20, 1, words("r0^", "1")));
        assert_eq!(blocks(&[]), (0, 1, 1, words("", "1")));
    }

    #[test]
    fn blocks_end_with_their_row() {
        let blocks = Blocks { first: 1, row: 5, size: 2 };
        assert_eq!(blocks.ranges(10).collect::<Vec<_>>(), [0..2, 2..4, 4..5, 5..7, 7..9, 9..10]);
    }
}
