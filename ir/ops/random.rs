//! Uniform random numbers. The import computes normal ones from them (Box and Muller, 1958).
//!
//! As with dropout ([`Draws`]), the numbers depend on the seed, the operator, the number of the sample and the place of an element
//! in the sample. So they are never stored, and are the same on every mesh.

use super::draws::Draws;
use super::*;

/// `out = (w >> 8) / 2²⁴`, in the result type, for a random word `w` of each element: from 0 to below 1, and exact in
/// f32. Operand: `i64[n]` with the number of each of the `n` samples in the result. Without it every element is the
/// mean, 1/2, as in an evaluation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RandomUniform {
    /// The number of the operator among the program's operators that draw. A recomputed copy keeps the id of its original.
    pub id: u32,
    /// The seed of the run.
    pub seed: u64,
    /// The dim of the result that counts the samples, alone or as the major part of a merged dim: `[n·m, ..]`.
    pub dim: u32,
}

impl Operator for RandomUniform {
    // Depends on the place of a part: a random number belongs to the place of its element in the whole tensor. Full precision: in half,
    // numbers near 1 would be rounded up to 1.
    fn facts(&self) -> Facts {
        Operands::new(&[OperandRole::Samples]).optional(OperandRole::Samples).by_place(PrecisionClass::Full)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        let ty = types.declared()?;
        ensure!(ty.dtype.is_float(), "draws floats, not {ty}");
        match types.operands {
            [] => {}
            [numbers] => self.draws().check(ty, numbers)?,
            operands => return Err(TypeError::new(format!("takes 0 or 1 operands, not {}", operands.len()))),
        }
        Ok(vec![Type::new(ty.dtype, ty.dims.clone())])
    }

    /// `"n -> d.. n d.."`; the dim of the samples may be `(n m)`.
    fn factors(&self, signature: &Signature) -> Factors {
        let [numbers] = &signature.operands[..] else { return Factors::source(signature) };
        let (result, n) = self.draws().factors(&signature.results[0], numbers);
        Factors::rule(&format!("{n} -> {result}"), signature)
    }

    /// The numbers of the samples are integers, which have no gradient.
    fn gradient(&self, _: &mut Builder, node: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        Ok(vec![None; node.operands.len()])
    }

    fn cost(&self, signature: &Signature) -> Cost {
        Cost::per_element(signature, &signature.results[0], 1)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        let (dtype, sizes) = (cx.results[0].dtype, cx.sizes(0));
        let &[numbers] = cx.operands else { return vec![Tensor::splat(dtype, sizes, Self::MEAN)] };
        let samples = cx.operand_span(0, 0).size;
        let draws = self.draws();
        let positions = draws.positions(&sizes, numbers.len(), samples, |dim| cx.result_span(0, dim));
        let at = |index| {
            let (sample, element) = positions.of(index);
            Self::number(draws.word(numbers.ints()[sample], element))
        };
        let count = sizes.iter().product::<usize>();
        vec![Tensor::float(dtype, sizes, (0..count).map(at).collect())]
    }
}

impl RandomUniform {
    /// The mean of the random numbers.
    pub const MEAN: f64 = 0.5;

    /// Returns the random number of a random word.
    pub fn number(word: u32) -> f64 {
        f64::from(word >> 8) / 2f64.powi(24)
    }

    /// Returns the random words of the operator.
    pub fn draws(&self) -> Draws {
        Draws { id: self.id, seed: self.seed, dim: self.dim }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn drawn(id: u32, samples: &[i64]) -> Vec<f64> {
        let op = RandomUniform { id, seed: 11, dim: 0 };
        let numbers = Tensor::int(DType::I64, vec![samples.len()], samples.to_vec());
        let results = [Type::of(DType::F32, &[samples.len() as u64, 4000])];
        let (operands, data) = ([&numbers], PrimaryMap::new());
        let call = Interp { operands: &operands, results: &results, data: &data, parts: None };
        op.interp(&call)[0].floats().to_vec()
    }

    #[test]
    fn numbers_are_uniform_and_exact_in_f32() {
        let numbers = drawn(3, &(0..25).collect::<Vec<_>>());
        assert!(numbers.iter().all(|&x| (0.0..1.0).contains(&x) && f64::from(x as f32) == x));
        let count = numbers.len() as f64;
        for limit in [0.1, 0.25, 0.5, 0.9] {
            let below = numbers.iter().filter(|&&x| x < limit).count() as f64 / count;
            // Four standard deviations of the mean of so many draws.
            assert!((below - limit).abs() < 4.0 * (limit * (1.0 - limit) / count).sqrt(), "{limit}: {below}");
        }
        assert!((RandomUniform::number(u32::MAX), RandomUniform::number(0)) == (1.0 - 2f64.powi(-24), 0.0));
    }

    #[test]
    fn a_sample_draws_alike_wherever_it_stands_and_operators_draw_independently() {
        let together = drawn(3, &[4, 5, 6]);
        assert_eq!(together[4000..8000], drawn(3, &[5]));
        for other in [drawn(4, &[5]), drawn(3, &[6]), drawn(3, &[-5])] {
            assert!(together[4000..8000].iter().zip(&other).filter(|(x, y)| x == y).count() < 4);
        }
    }
}
