//! Dropout: random elements are set to zero, and the others are scaled up (Srivastava et al., JMLR 15, 2014).
//!
//! The choice of the kept elements depends only on the seed, the operator, the number of the sample and the place of the element
//! in the sample. It does not depend on the division of a step into microbatches or over devices, on recomputation, or on the
//! number of threads. So the mask is never stored: the gradient draws the same numbers again.
//!
//! [`Draws`] explains how the random words are computed.

use super::draws::Draws;
use super::*;

/// `out = keep ? x / (1 - ratio) : 0`, each element kept with probability `1 - ratio`. Operands: `x`, and `i64[n]` with the number
/// of each of the `n` samples in `x`. Without sample numbers nothing is dropped, as in an evaluation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dropout {
    /// The fraction of elements that is dropped, from 0 to 1.
    pub ratio: Float,
    /// The number of the operator in the program. Operators with different ids draw different numbers; a recomputed copy keeps the
    /// id of its original.
    pub id: u32,
    /// The seed of the run.
    pub seed: u64,
    /// The dim of `x` that counts the samples, alone or as the major part of a merged dim: `[n·m, ..]`.
    pub dim: u32,
}

impl Operator for Dropout {
    // Depends on the place of a part: a random number belongs to the place of its element in the whole tensor.
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Data, OperandRole::Samples])
            .optional(OperandRole::Samples)
            .by_place(PrecisionClass::Follow)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let (x, numbers) = match types.operands {
            [x] => (x, None),
            [x, numbers] => (x, Some(numbers)),
            operands => {
                return Err(TypeError::new(format!("takes 1 or 2 operands, not {}", operands.len())));
            }
        };
        let ratio = self.ratio.get();
        ensure!(
            x.dtype.is_float() && (0.0..=1.0).contains(&ratio),
            "takes floats and a ratio from 0 to 1, not {x} and {ratio}"
        );
        if let Some(numbers) = numbers {
            self.draws().check(x, numbers)?;
        }
        Ok(vec![Type::new(x.dtype, x.dims.clone())])
    }

    /// `"d.. n d.., n -> d.. n d.."`; the dim of the samples may be `(n m)`.
    fn factors(&self, signature: &Signature) -> Factors {
        let [x, numbers] = &signature.operands[..] else {
            return Factors::elementwise(signature).linear_in(&[0]);
        };
        let (x, n) = self.draws().factors(x, numbers);
        Factors::rule(&format!("{x}, {n} -> {x}"), signature).linear_in(&[0])
    }

    /// `d x = keep ? d out / (1 - ratio) : 0`, with the same random numbers.
    fn gradient(&self, b: &mut Builder, node: NodeRef, d: &[Option<ValueId>]) -> Gradients {
        let &[_, numbers] = node.operands else {
            return Err(GradientError::Undefined(
                "its samples have no numbers; the pass `dropout` assigns them",
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
        let draws = self.draws();
        let positions = draws.positions(&x.sizes, numbers.len(), samples, |dim| cx.result_span(0, dim));
        let at = |(index, &x): (usize, &f64)| {
            let (sample, element) = positions.of(index);
            if self.keeps(draws.word(numbers.ints()[sample], element)) { x * self.scale() } else { 0.0 }
        };
        vec![Tensor::float(x.dtype, x.sizes.clone(), x.floats().iter().enumerate().map(at).collect())]
    }
}

impl Dropout {
    /// Returns the random words of the operator.
    pub fn draws(&self) -> Draws {
        Draws { id: self.id, seed: self.seed, dim: self.dim }
    }

    /// Returns the threshold `ratio·2³²`: elements whose word is at least this number are kept.
    pub fn threshold(&self) -> u64 {
        (self.ratio.get() * 2f64.powi(32)).round() as u64
    }

    fn keeps(&self, word: u32) -> bool {
        u64::from(word) >= self.threshold()
    }

    /// Returns the factor of kept elements; 0 if no element is kept.
    pub fn scale(&self) -> f64 {
        let kept = 1.0 - self.ratio.get();
        if kept > 0.0 { 1.0 / kept } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn op(ratio: f64) -> Dropout {
        Dropout { ratio: Float::new(ratio), id: 3, seed: 11, dim: 0 }
    }

    /// Returns the dropout of ones, 100 by 40 for each sample.
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
            // Four standard deviations of the mean of so many draws.
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
}
