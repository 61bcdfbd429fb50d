//! The memory that a step takes in the interpreter, known before anything of it is allocated.

use crate::analysis::liveness;
use crate::{Definition, Module, Type, ValueId};

/// The memory of one step in bytes. Sums that do not fit are `u64::MAX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepMemory {
    /// The most that is held at one time: every live value, the states before the step, and all inputs.
    pub peak: u64,
    /// The largest value, if the program has any.
    pub largest: Option<LargestValue>,
}

/// The value of a program that takes the most memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargestValue {
    /// The value in words: `the result of 'reshape'`, `input "x"`, `state "w"`.
    pub described: String,
    /// Its type.
    pub ty: Type,
    /// Its bytes in the interpreter.
    pub bytes: u64,
    /// The ONNX node that makes it; empty if no node does.
    pub origin: String,
}

/// Bytes of a tensor in the interpreter: 8 for a number, 1 for a boolean. Dims without a size count as 1.
pub fn bytes_of(ty: &Type) -> u64 {
    let each = if ty.dtype == crate::DType::Bool { 1 } else { 8 };
    ty.dims.iter().fold(each, |bytes: u64, dim| bytes.saturating_mul(dim.size().unwrap_or(1)))
}

/// The memory that [`super::step`] takes for so many microbatches. It is at least what the values themselves take;
/// operators may need some more while they run.
pub fn memory(module: &Module, microbatches: usize) -> StepMemory {
    // Changes of the sum of all live values, by position.
    let mut changes = vec![0i128; module.order().len() + 2];
    let mut largest: Option<(ValueId, u64)> = None;
    for (value, lifetime) in liveness::values(module).iter() {
        let Some(lifetime) = lifetime else { continue };
        let bytes = bytes_of(module.ty(value));
        changes[lifetime.first as usize] += i128::from(bytes);
        changes[lifetime.last as usize + 1] -= i128::from(bytes);
        if largest.is_none_or(|(_, most)| bytes > most) {
            largest = Some((value, bytes));
        }
    }
    let mut live = 0;
    let sums = changes.into_iter().map(|change| {
        live += change;
        live
    });
    let most_live = sums.max().unwrap_or(0);
    let states = module.states.values().map(|state| i128::from(bytes_of(&state.ty))).sum::<i128>();
    let inputs = module.inputs.iter().map(|input| i128::from(bytes_of(module.ty(input.value)))).sum::<i128>();
    // One copy of the inputs is live; the caller holds those of all microbatches besides.
    let peak = most_live + states + inputs.saturating_mul(microbatches as i128);
    StepMemory {
        peak: u64::try_from(peak).unwrap_or(u64::MAX),
        largest: largest.map(|(value, bytes)| described(module, value, bytes)),
    }
}

fn described(module: &Module, value: ValueId, bytes: u64) -> LargestValue {
    let state = module.states.values().find(|state| state.input == value);
    let input = module.inputs.iter().find(|input| input.value == value);
    let (described, origin) = match (state, input, module.value(value).definition) {
        (Some(state), ..) => (format!("state `{}`", state.name), String::new()),
        (_, Some(input), _) => (format!("input `{}`", input.name), String::new()),
        (_, _, Definition::Node(node, _)) => {
            let node = module.node(node);
            (format!("the result of `{}`", node.op.name()), node.origin.to_string())
        }
        _ => ("a value".to_owned(), String::new()),
    };
    LargestValue { described, ty: module.ty(value).clone(), bytes, origin }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::elementwise::Unary;
    use crate::{At, Builder, DType, Phase};

    /// `x` of so many elements through a chain of negations of a broadcast, each read by the next alone.
    fn chain(elements: u64, length: usize) -> Module {
        let mut module = Module::new("chain");
        let mut value = module.add_input("x", Type::of(DType::F32, &[elements]), false);
        let mut b = Builder::new(&mut module, "test");
        b.at(At::End(Phase::Forward));
        for _ in 0..length {
            value = b.one(Unary::Neg, &[value]).expect("it is well-typed");
        }
        b.tables().add_output("y", value);
        b.finish();
        module
    }

    #[test]
    fn values_that_are_read_no_more_take_nothing() {
        // An operand and a result are alive at once, and the caller holds the input.
        for length in [2, 100] {
            assert_eq!(memory(&chain(1000, length), 1).peak, 3 * 8000);
        }
    }

    #[test]
    fn the_caller_holds_the_inputs_of_all_microbatches() {
        assert_eq!(memory(&chain(1000, 2), 5).peak, 7 * 8000);
    }

    #[test]
    fn the_largest_value_is_named_with_its_bytes() {
        let mut module = chain(10, 1);
        let mut b = Builder::new(&mut module, "test");
        b.at(At::End(Phase::Forward)).origin("node \"/Expand\"");
        let large = b.splat(Type::of(DType::F32, &[1 << 40, 1 << 20]), 0.0).expect("it is well-typed");
        b.tables().add_output("large", large);
        b.finish();
        let memory = memory(&module, 1);
        let largest = memory.largest.expect("there are values");
        assert_eq!(largest.bytes, 1 << 63);
        assert!(memory.peak >= largest.bytes);
        assert_eq!((&*largest.described, &*largest.origin), ("the result of `splat`", "node \"/Expand\""));
    }
}
