//! How operators draw random words: from counters, so that nothing has to be stored.
//!
//! A random word is one of Philox ([`crate::random::philox`]). Its key is the seed; its counter is made of the
//! operator (32 bits), the number of the sample (48 bits) and the element within the sample, four to a counter
//! (48 bits), counted in row-major order through the whole tensor without its samples.

use super::*;
use crate::random;

/// The counters of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draws {
    /// The operator among those of the program that draw.
    pub id: u32,
    /// The seed of the run.
    pub seed: u64,
    /// The dim of the tensor that has the samples, alone or before the elements of each: `[n·m, ..]`.
    pub dim: u32,
}

impl Draws {
    /// Refuses numbers that are not one for each sample of `x`.
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

    /// The words of a factor rule for a tensor, and for the numbers of its samples.
    pub(super) fn factors(&self, x: &Type, numbers: &Type) -> (String, &'static str) {
        let dim = self.dim as usize;
        let (samples, n) = match &numbers.dims[0] {
            // A single sample may be all of the dim, or none of it: it splits nothing.
            samples if samples.is_one() => (format!("d{dim}"), "1"),
            samples if *samples == x.dims[dim] => ("n".to_string(), "n"),
            _ => ("(n m)".to_string(), "n"),
        };
        let word = |i: usize| if i == dim { samples.clone() } else { format!("d{i}") };
        ((0..x.ndim()).map(word).collect::<Vec<_>>().join(" "), n)
    }

    /// The random word of an element of a sample.
    pub fn word(&self, sample: i64, element: u64) -> u32 {
        self.words(sample, element / 4)[element as usize % 4]
    }

    /// The four random words of elements `4·block` to `4·block + 3` of a sample.
    pub fn words(&self, sample: i64, block: u64) -> [u32; 4] {
        random::philox(self.key(), self.counter(sample, block))
    }

    /// The key of [`Self::words`]: the seed, told from the same seed of other purposes.
    pub fn key(&self) -> u64 {
        self.seed ^ random::stream("dropout")
    }

    /// The counter of [`Self::words`]. What does not fit in the 48 bits of the sample and the block is cut off.
    #[inline]
    pub fn counter(&self, sample: i64, block: u64) -> [u32; 4] {
        let high = (block >> 32) as u32 & 0xffff | ((sample >> 32) as u32) << 16;
        [block as u32, high, sample as u32, self.id]
    }

    /// Where the elements of a part of `x` stand: a part of these sizes with so many samples, of `samples` in the whole
    /// tensor, in which its dims lie as `span` says.
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
                dims.push(Along { size, start, stride });
                stride *= whole;
                continue;
            }
            let of_each = whole / samples;
            let start = start.checked_rem(of_each).unwrap_or(0);
            dims.push(Along { size: size / own_samples.max(1), start, stride });
            dims.push(Along { size: own_samples, start: 0, stride: 0 });
            stride *= of_each;
        }
        dims.reverse();
        Positions { dims, samples: dim }
    }
}

/// Where the elements of a part of a tensor stand in their samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Positions {
    /// The dims of the part, outermost first; that of the samples is two, the samples and what it has of each.
    pub dims: SmallVec<[Along; 5]>,
    /// The dim that counts the samples.
    pub samples: usize,
}

/// A dim of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Along {
    /// Elements of the part along it.
    pub size: usize,
    /// Where the part begins in the whole dim.
    pub start: u64,
    /// How far neighbours along it are from each other in the whole sample; 0 for the samples themselves.
    pub stride: u64,
}

impl Positions {
    /// Of an element of the part, counted in row-major order: which of the part's samples it is in, and which element
    /// of the whole sample it is.
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
