//! Dropout: elements set to zero at random, the rest scaled up (Srivastava et al., JMLR 15, 2014).
//!
//! Which elements are kept depends on nothing but the seed, the operator, the number of the sample and where in the
//! sample an element stands: not on how a step is cut into microbatches or split over devices, nor on how often or by
//! how many threads it is computed. So the mask is never stored: the gradient draws the same numbers again.
//!
//! A random number is a word of Philox ([`crate::random::philox`]). Its key is the seed; its counter is made of the
//! operator (32 bits), the number of the sample (48 bits) and the element within the sample, four to a counter
//! (48 bits), counted in row-major order through the whole tensor without its samples.

use super::*;
use crate::random;

/// `out = keep ? x / (1 - ratio) : 0`, each element kept with probability `1 - ratio`. Operands: `x`, and `i64[n]`
/// with the number of each of the `n` samples in `x`; without them nothing is dropped, as in an evaluation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dropout {
    /// The share that is dropped, from 0 to 1.
    pub ratio: Float,
    /// The operator among others of the program: those with different ids draw different numbers, and a copy keeps its
    /// original's.
    pub id: u32,
    /// The seed of the run.
    pub seed: u64,
    /// The dim of `x` that has the samples, alone or before what it has of each: `[n·m, ..]`.
    pub dim: u32,
}

impl Operator for Dropout {
    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let (x, numbers) = match types.operands {
            [x] => (x, None),
            [x, numbers] => (x, Some(numbers)),
            operands => {
                return Err(TypeError::new(format!("takes 1 or 2 operands, not {}", operands.len())));
            }
        };
        let ratio = self.ratio.get();
        if !x.dtype.is_float() || !(0.0..=1.0).contains(&ratio) {
            return Err(TypeError::new(format!("drops a share from 0 to 1 of floats, not {ratio} of {x}")));
        }
        if let Some(numbers) = numbers {
            self.check_numbers(x, numbers)?;
        }
        Ok(vec![Type::new(x.dtype, x.dims.clone())])
    }

    /// `"d.. n d.., n -> d.. n d.."`, where the dim of the samples may be `(n m)`.
    fn factors(&self, signature: &Signature) -> Factors {
        let [x, numbers] = &signature.operands[..] else {
            return Factors::elementwise(signature).linear_in(&[0]);
        };
        let dim = self.dim as usize;
        let (samples, n) = match &numbers.dims[0] {
            // A single sample may be all of the dim, or none of it: it splits nothing.
            samples if samples.is_one() => (format!("d{dim}"), "1"),
            samples if *samples == x.dims[dim] => ("n".to_string(), "n"),
            _ => ("(n m)".to_string(), "n"),
        };
        let word = |i: usize| if i == dim { samples.clone() } else { format!("d{i}") };
        let x = (0..x.ndim()).map(word).collect::<Vec<_>>().join(" ");
        Factors::rule(&format!("{x}, {n} -> {x}"), signature).linear_in(&[0])
    }

    /// `d x = keep ? d out / (1 - ratio) : 0`, of the same numbers.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let &[_, numbers] = node.operands else {
            return Err(GradientError::Undefined(
                "its samples have no numbers; the pass `dropout` gives them",
            ));
        };
        let Some(dout) = d[0] else { return Ok(vec![None; 2]) };
        Ok(vec![Some(b.one(self.clone(), &[dout, numbers])?), None])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.results[0], 1)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let x = cx.operands[0];
        let &[_, numbers] = cx.operands else { return vec![x.clone()] };
        let samples = cx.operand_span(1, 0).size;
        let positions = self.positions(&x.sizes, numbers.len(), samples, |dim| cx.result_span(0, dim));
        let at = |(index, &x): (usize, &f64)| {
            let (sample, element) = positions.of(index);
            let word = self.words(numbers.ints()[sample], element / 4)[element as usize % 4];
            if self.keeps(word) { x * self.scale() } else { 0.0 }
        };
        vec![Tensor::float(x.dtype, x.sizes.clone(), x.floats().iter().enumerate().map(at).collect())]
    }
}

impl Dropout {
    fn check_numbers(&self, x: &Type, numbers: &Type) -> Result<(), TypeError> {
        let error =
            |what: &str| Err(TypeError::new(format!("{what}: {numbers} for dim {} of {x}", self.dim)));
        if numbers.dtype != crate::DType::I64 || numbers.ndim() != 1 || self.dim as usize >= x.ndim() {
            return error("takes a number of type i64 for each sample");
        }
        match (x.dims[self.dim as usize].size(), numbers.dims[0].size()) {
            (Some(size), Some(samples)) if samples > 0 && size.is_multiple_of(samples) => Ok(()),
            _ => error("the samples do not divide the dim"),
        }
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

    /// The words from this number on keep their element: `ratio·2³²`.
    pub fn threshold(&self) -> u64 {
        (self.ratio.get() * 2f64.powi(32)).round() as u64
    }

    fn keeps(&self, word: u32) -> bool {
        u64::from(word) >= self.threshold()
    }

    /// What kept elements are multiplied by; 0 where none is.
    pub fn scale(&self) -> f64 {
        let kept = 1.0 - self.ratio.get();
        if kept > 0.0 { 1.0 / kept } else { 0.0 }
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
    use crate::DType;

    fn op(ratio: f64) -> Dropout {
        Dropout { ratio: Float::new(ratio), id: 3, seed: 11, dim: 0 }
    }

    /// What is left of ones, 100 by 40 for each sample.
    fn left(op: &Dropout, samples: &[i64]) -> Vec<f64> {
        let ty = Type::of(DType::F32, &[samples.len() as u64, 100, 40]);
        let ones = Tensor::splat(DType::F32, vec![samples.len(), 100, 40], 1.0);
        let numbers = Tensor::int(DType::I64, vec![samples.len()], samples.to_vec());
        let (operands, results, data) = ([&ones, &numbers], [ty], PrimaryMap::new());
        let call = Interp { operands: &operands, results: &results, data: &data, parts: None };
        op.interp(&call)[0].floats().to_vec()
    }

    #[test]
    fn the_share_kept_and_the_mean_are_those_of_the_ratio() {
        let samples: Vec<i64> = (0..25).collect();
        for ratio in [0.1, 0.25, 0.5, 0.9] {
            let left = left(&op(ratio), &samples);
            let (count, kept) = (left.len() as f64, left.iter().filter(|&&x| x != 0.0).count() as f64);
            assert!(left.iter().all(|&x| x == 0.0 || (x - 1.0 / (1.0 - ratio)).abs() < 1e-15));
            // Four deviations of the mean of so many draws.
            let limit = 4.0 * (ratio * (1.0 - ratio) / count).sqrt();
            assert!((kept / count - (1.0 - ratio)).abs() < limit, "{ratio}: kept {}", kept / count);
        }
        assert!(left(&op(0.0), &[5]).iter().all(|&x| x == 1.0));
        assert!(left(&op(1.0), &[5]).iter().all(|&x| x == 0.0));
    }

    #[test]
    fn seeds_operators_samples_and_neighbours_drop_independently() {
        let base = left(&op(0.5), &[0, 1, 1 << 40, -1]);
        let (first, rest) = base.split_at(4000);
        let others = [
            left(&Dropout { seed: 12, ..op(0.5) }, &[0]),
            left(&Dropout { id: 4, ..op(0.5) }, &[0]),
            rest[..4000].to_vec(),
            rest[4000..8000].to_vec(),
            rest[8000..].to_vec(),
            first.iter().cycle().skip(1).take(4000).copied().collect(),
            first.iter().cycle().skip(4).take(4000).copied().collect(),
        ];
        for (i, other) in others.iter().enumerate() {
            let agree = first.iter().zip(other).filter(|(x, y)| x == y).count() as f64 / 4000.0;
            assert!((agree - 0.5).abs() < 4.0 * 0.5 / 4000f64.sqrt(), "{i}: {agree} agree");
        }
    }

    #[test]
    fn a_sample_is_dropped_alike_wherever_it_stands() {
        let together = left(&op(0.3), &[4, 5, 6]);
        assert_eq!(together[4000..8000], left(&op(0.3), &[5]));
        assert_eq!(together[8000..], left(&op(0.3), &[6, 4])[..4000]);
    }

    #[test]
    fn large_numbers_of_samples_and_elements_have_counters_of_their_own() {
        let counters = [(0, 0), (1, 0), (0, 1), (1 << 32, 0), (0, 1 << 32), (-1, 0), (0, (1 << 48) - 1)];
        let counters: Vec<[u32; 4]> =
            counters.into_iter().map(|(sample, block)| op(0.5).counter(sample, block)).collect();
        let different: std::collections::BTreeSet<&[u32; 4]> = counters.iter().collect();
        assert_eq!(different.len(), counters.len(), "{counters:?}");
    }
}
