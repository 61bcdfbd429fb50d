//! The random words of operators. They are computed from counters, so nothing has to be stored.
//!
//! Random words come from Philox ([`crate::random::philox`]). Its key is made from the seed. Its counter consists of the operator
//! (32 bits), the number of the sample (48 bits), and the block of four elements within the sample (48 bits). Elements are
//! numbered in row-major order through the whole tensor without its dim of samples.

use super::*;
use crate::random;

/// The random words of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draws {
    /// The number of the operator among the program's operators that draw.
    pub id: u32,
    /// The seed of the run.
    pub seed: u64,
    /// The dim of the tensor that counts the samples, alone or as the major part of a merged dim: `[n·m, ..]`.
    pub dim: u32,
}

impl Draws {
    /// Checks that `numbers` has one i64 for each sample of `x`.
    pub(super) fn check(&self, x: &Type, numbers: &Type) -> Result<(), TypeError> {
        let error =
            |what: &str| Err(TypeError::new(format!("{what}: {numbers} for dim {} of {x}", self.dim)));
        if numbers.dtype != crate::DType::I64 || numbers.ndim() != 1 || self.dim as usize >= x.ndim() {
            return error("takes a number of type i64 for each sample");
        }
        match (x.dims[self.dim as usize].size(), numbers.dims[0].size()) {
            (Some(size), Some(samples)) if samples > 0 && size.is_multiple_of(samples) => Ok(()),
            _ => error("the dim is not a multiple of the number of samples"),
        }
    }

    /// Returns the factor words of a tensor, and the word of the numbers of its samples.
    pub(super) fn factors(&self, x: &Type, numbers: &Type) -> (String, &'static str) {
        let dim = self.dim as usize;
        let (samples, n) = match &numbers.dims[0] {
            // A single sample may be all of the dim or only its major part; either way it splits nothing.
            samples if samples.is_one() => (format!("d{dim}"), "1"),
            samples if *samples == x.dims[dim] => ("n".to_string(), "n"),
            _ => ("(n m)".to_string(), "n"),
        };
        let word = |i: usize| if i == dim { samples.clone() } else { format!("d{i}") };
        ((0..x.ndim()).map(word).collect::<Vec<_>>().join(" "), n)
    }

    /// Returns the random word of an element of a sample.
    pub fn word(&self, sample: i64, element: u64) -> u32 {
        self.words(sample, element / 4)[element as usize % 4]
    }

    /// Returns the four random words of elements `4·block` to `4·block + 3` of a sample.
    pub fn words(&self, sample: i64, block: u64) -> [u32; 4] {
        random::philox(self.key(), self.counter(sample, block))
    }

    /// Returns the key of [`Self::words`]: the seed, mixed with a constant so that other uses of the seed draw other words.
    pub fn key(&self) -> u64 {
        self.seed ^ random::stream("dropout")
    }

    /// Returns the counter of [`Self::words`]. Bits beyond the 48 bits of the sample and of the block are dropped.
    #[inline]
    pub fn counter(&self, sample: i64, block: u64) -> [u32; 4] {
        let high = (block >> 32) as u32 & 0xffff | ((sample >> 32) as u32) << 16;
        [block as u32, high, sample as u32, self.id]
    }

    /// Returns the places of the elements of a part of `x`. The part has the sizes `sizes` and `own_samples` samples; the whole
    /// tensor has `samples` samples. `span` returns the range of each dim of the part in the whole dim.
    pub fn positions(
        &self,
        sizes: &[usize],
        own_samples: usize,
        samples: u64,
        span: impl Fn(usize) -> Span,
    ) -> Positions {
        let (dim, mut stride) = (self.dim as usize, 1);
        let mut dims = SmallVec::new();
        for (i, &size) in sizes.iter().enumerate().rev() {
            let Span { start, size: whole } = span(i);
            if i != dim {
                dims.push(DrawnDim { size, start, stride });
                stride *= whole;
                continue;
            }
            let of_each = whole / samples;
            let start = start.checked_rem(of_each).unwrap_or(0);
            dims.push(DrawnDim { size: size / own_samples.max(1), start, stride });
            dims.push(DrawnDim { size: own_samples, start: 0, stride: 0 });
            stride *= of_each;
        }
        dims.reverse();
        Positions { dims, samples: dim }
    }
}

/// The places of a part's elements in their samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Positions {
    /// The dims of the part, outermost first. The dim of the samples is given as two: the samples, and the elements of each
    /// sample.
    pub dims: SmallVec<[DrawnDim; 5]>,
    /// The index in `dims` of the dim that counts the samples.
    pub samples: usize,
}

/// A dim of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawnDim {
    /// The number of the part's elements along the dim.
    pub size: usize,
    /// The place in the whole dim at which the part begins.
    pub start: u64,
    /// The distance between neighbours along the dim in the whole sample; 0 for the dim of the samples.
    pub stride: u64,
}

impl Positions {
    /// Returns the sample (counted within the part) and the number in the whole sample of an element of the part, given by its
    /// row-major index.
    pub fn of(&self, index: usize) -> (usize, u64) {
        let (mut rest, mut sample, mut element) = (index, 0, 0);
        for (i, along) in self.dims.iter().enumerate().rev() {
            let at = rest % along.size;
            rest /= along.size;
            element += (along.start + at as u64) * along.stride;
            if i == self.samples {
                sample = at;
            }
        }
        (sample, element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_of_samples_and_elements_have_counters_of_their_own() {
        let counters = [(0, 0), (1, 0), (0, 1), (1 << 32, 0), (0, 1 << 32), (-1, 0), (0, (1 << 48) - 1)];
        let draws = Draws { id: 3, seed: 11, dim: 0 };
        let counters: Vec<[u32; 4]> =
            counters.into_iter().map(|(sample, block)| draws.counter(sample, block)).collect();
        let different: std::collections::BTreeSet<&[u32; 4]> = counters.iter().collect();
        assert_eq!(different.len(), counters.len(), "{counters:?}");
    }
}
