//! Adam and AdamW with moments in 8 bits.

use super::adam::AdamStep;
use super::quantization::{Blocks, signed_code, signed_value, unsigned_code, unsigned_value};
use super::{Adam, OPTIONAL, no_gradient, scale, skipped, update_types};
use crate::ops::*;
use crate::{DType, Dim};

/// One step of [`super::Adam`] with moments stored in 8 bits (see [`super::quantization`]).
///
/// Operands: `parameter, gradient` of one type; `m` in u8, and the largest magnitude of each of its blocks in the parameter's
/// type; `v` in u8, and the largest magnitude of each of its blocks; `lr, weight_decay, step` as f64 scalars; then `scale` and
/// `skip`. Results: the new parameter, and the four states. The moments are those of Adam. The parameter is updated with the
/// moments before they are rounded to codes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Adam8bit {
    /// The decay of the first moment.
    pub beta1: Float,
    /// The decay of the second moment.
    pub beta2: Float,
    /// A number that is added to the root of the second moment.
    pub eps: Float,
    /// Whether the weight decay bypasses the moments (AdamW).
    pub decoupled: bool,
    /// The number of elements of a block.
    pub block: u64,
}

/// The number of operands before `scale`.
const REQUIRED: usize = 9;

impl Adam8bit {
    /// Returns the blocks of a parameter with these dims.
    fn blocks(&self, dims: &[Dim]) -> Result<Blocks, TypeError> {
        Blocks::of(dims, self.block)
    }

    /// Returns the types of the states of a parameter of this type, in the order of the operands.
    ///
    /// # Errors
    /// A dim is unbound; the block size is 0.
    pub fn states(&self, parameter: &Type) -> Result<[Type; 4], TypeError> {
        let Type { dtype, dims, .. } = parameter;
        let codes = Type::new(DType::U8, dims.iter().cloned());
        let largest = Type::new(*dtype, self.blocks(dims)?.dims(dims));
        Ok([codes.clone(), largest.clone(), codes, largest])
    }
}

impl Operator for Adam8bit {
    fn facts(&self) -> Facts {
        use OperandRole::*;
        Operands::new(&[
            Weight,
            Gradient,
            Codes,
            State,
            Codes,
            State,
            LearningRate,
            WeightDecay,
            Step,
            GradientScale,
            Skip,
        ])
        .optional_last(OPTIONAL)
        .anywhere(PrecisionClass::Update)
    }

    fn infer(&self, types: &Inference) -> Result<Vec<Type>, TypeError> {
        update_types(types, REQUIRED, |parameter| Ok(self.states(parameter)?.to_vec()))
    }

    /// Blocks are not split.
    fn factors(&self, signature: &Signature) -> Factors {
        let dims = &signature.operands[0].dims;
        let blocks = self.blocks(dims).expect("infer has made the blocks");
        let [tensor, of_blocks] = blocks.words(dims);
        let states = [&tensor, &of_blocks, &tensor, &of_blocks].map(String::as_str).join(", ");
        let scalars = ", .".repeat(signature.operands.len() - 6);
        let line = format!("{tensor}, {tensor}, {states}{scalars} -> {tensor}, {states}");
        Factors::rule(&line, signature).keeping_zeros()
    }

    fn gradient(&self, _: &mut Builder, _: NodeRef, _: &[Option<ValueId>]) -> Gradients {
        no_gradient()
    }

    /// The cost of Adam and, for each moment, a product to read its code, a quotient to write it, and a search among 256 values.
    fn cost(&self, signature: &Signature) -> Cost {
        let scaled = u64::from(signature.operands.len() > REQUIRED);
        Cost::per_element(signature, &signature.results[0], 15 + 2 * 10 + scaled)
    }

    fn interp(&self, cx: &Interp) -> Vec<Tensor> {
        if let Some(old) = skipped(cx, REQUIRED) {
            return old;
        }
        let scale = scale(cx, REQUIRED);
        let Self { beta1, beta2, eps, decoupled, .. } = *self;
        let rule = Adam { beta1, beta2, eps, decoupled };
        let step = AdamStep::of(&rule, [6, 7, 8].map(|i| cx.operands[i].item()));
        let [parameter, gradient] = [0, 1].map(|i| cx.operands[i].floats());
        let [first, second] = [2, 4].map(|i| cx.operands[i].ints());
        let [first_largest, second_largest] = [3, 5].map(|i| cx.operands[i].floats());
        let len = parameter.len();
        let mut new = Vec::with_capacity(len);
        let [mut first_codes, mut second_codes] = [0; 2].map(|_| Vec::with_capacity(len));
        let [mut new_first_largest, mut new_second_largest] = [0; 2].map(|_| Vec::new());
        let blocks = self.blocks(&cx.results[0].dims).expect("interp runs on bound dims");
        for (block, elements) in blocks.ranges(len).enumerate() {
            let (mut ms, mut vs) = (vec![], vec![]);
            for i in elements {
                let m = signed_value(first[i] as u8) * first_largest[block];
                let v = unsigned_value(second[i] as u8) * second_largest[block];
                let [p, m, v] = step.next(scale * gradient[i], [parameter[i], m, v]);
                new.push(p);
                ms.push(m);
                vs.push(v);
            }
            new_first_largest.push(quantize(&ms, signed_code, &mut first_codes));
            new_second_largest.push(quantize(&vs, unsigned_code, &mut second_codes));
        }
        let float =
            |result: usize, elements| Tensor::float(cx.results[result].dtype, cx.sizes(result), elements);
        let codes = |result: usize, codes| Tensor::int(DType::U8, cx.sizes(result), codes);
        vec![
            float(0, new),
            codes(1, first_codes),
            float(2, new_first_largest),
            codes(3, second_codes),
            float(4, new_second_largest),
        ]
    }
}

/// Appends the codes of a block, and returns its largest magnitude; NaN if a number of the block is NaN.
fn quantize(numbers: &[f64], code: fn(f64) -> u8, codes: &mut Vec<i64>) -> f64 {
    let larger = |largest: f64, x: &f64| if x.abs() > largest || x.is_nan() { x.abs() } else { largest };
    let largest = numbers.iter().fold(0.0, larger);
    codes.extend(numbers.iter().map(|x| if *x == 0.0 { 0 } else { i64::from(code(x / largest)) }));
    largest
}
