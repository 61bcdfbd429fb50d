//! The memory that a step takes in the interpreter, computed before any of it is allocated.

use super::held::ValueLifetimes;
use crate::{Definition, Module, Op, Phase, Type, ValueId};
use cranelift_entity::SecondaryMap;
use std::collections::BTreeMap;

/// The memory of one step in bytes. Sums saturate at `u64::MAX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepMemory {
    /// The most bytes that are held at one time: every live value, the states before the step, and all inputs.
    pub peak: u64,
    /// The largest value, if the program has any value.
    pub largest: Option<LargestValue>,
}

/// The value of a program that takes the most memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargestValue {
    /// The value as text: `the result of 'reshape'`, `input "x"`, `state "w"`.
    pub described: String,
    /// The type of the value.
    pub ty: Type,
    /// The bytes of the value in the interpreter.
    pub bytes: u64,
    /// The ONNX node that makes it; empty if no node does.
    pub origin: String,
}

/// Returns the bytes of a tensor in the interpreter: 8 for a number, 1 for a boolean. Unbound dims count as 1.
pub fn bytes_of(ty: &Type) -> u64 {
    let each = if ty.dtype == crate::DType::Bool { 1 } else { 8 };
    ty.dims.iter().fold(each, |bytes: u64, dim| bytes.saturating_mul(dim.size().unwrap_or(1)))
}

/// Returns the memory that [`super::step`] takes for so many microbatches. This is a lower bound: each value is counted once.
/// Operators may need more while they run, and a mesh holds partial values on every rank.
pub fn memory(module: &Module, microbatches: usize) -> StepMemory {
    let states: u128 = module.states.values().map(|state| u128::from(bytes_of(&state.ty))).sum();
    let inputs: u128 = module.inputs.iter().map(|input| u128::from(bytes_of(module.ty(input.value)))).sum();
    let mut step = Step::new(module);
    step.run(microbatches);
    // The caller holds the states, and the inputs of all microbatches.
    let peak = step.peak + states + inputs.saturating_mul(microbatches as u128);
    StepMemory {
        peak: u64::try_from(peak).unwrap_or(u64::MAX),
        largest: largest(module).map(|(value, bytes)| described(module, value, bytes)),
    }
}

/// Returns the input, state or node result that takes the most memory; the first if several are equal.
fn largest(module: &Module) -> Option<(ValueId, u64)> {
    let states = module.states.values().map(|state| state.input);
    let inputs = module.inputs.iter().map(|input| input.value);
    let results = module.nodes().flat_map(|(_, node)| node.results.iter().copied());
    let sizes = inputs.chain(states).chain(results).map(|value| (value, bytes_of(module.ty(value))));
    sizes.reduce(|largest, other| if other.1 > largest.1 { other } else { largest })
}

/// A step that counts the bytes of values instead of computing them, in the order of
/// [`StepInterpreter`](super::run::StepInterpreter).
struct Step<'m> {
    module: &'m Module,
    held: ValueLifetimes<'m>,
    /// The bytes of each value that is held.
    values: SecondaryMap<ValueId, u64>,
    /// The bytes of the sums over microbatches, as far as a sum does not share its memory with a value.
    sums: BTreeMap<ValueId, u64>,
    live: u128,
    peak: u128,
}

impl<'m> Step<'m> {
    fn new(module: &'m Module) -> Self {
        let (held, values, sums) = (ValueLifetimes::new(module), SecondaryMap::new(), BTreeMap::new());
        Self { module, held, values, sums, live: 0, peak: 0 }
    }

    fn run(&mut self, microbatches: usize) {
        let module = self.module;
        for state in module.states.values() {
            if self.held.is_needed(state.input) {
                self.enter(state.input);
            }
        }
        self.phase(Phase::Prepare, microbatches > 0);
        // Microbatches after the second and before the last differ from the second only in the outputs that are already held.
        for at in (0..microbatches.min(2)).chain((microbatches > 2).then(|| microbatches - 1)) {
            if at > 2 {
                self.report_again(microbatches - 3);
            }
            self.microbatch(at + 1 < microbatches);
        }
        for (sum, bytes) in std::mem::take(&mut self.sums) {
            self.live -= u128::from(bytes);
            self.enter(sum);
        }
        self.phase(Phase::Update, false);
    }

    fn microbatch(&mut self, more: bool) {
        let module = self.module;
        module.inputs.iter().for_each(|input| self.enter(input.value));
        self.phase(Phase::Forward, more);
        self.phase(Phase::Backward, more);
        self.phase(Phase::Weight, more);
        // A buffer that the microbatch wrote enters the next microbatch in the same memory.
        for state in module.states.values() {
            if state.output.is_some_and(|output| module.phase_of(output).is_microbatch()) {
                self.free(state.input);
            }
        }
    }

    fn phase(&mut self, phase: Phase, more: bool) {
        let module = self.module;
        for (id, node) in module.nodes().filter(|(_, node)| node.phase == phase) {
            if matches!(node.op, Op::Accumulate(_)) {
                continue;
            }
            let results = node.results.iter().map(|&result| u128::from(self.bytes(result))).sum::<u128>();
            self.peak = self.peak.max(self.live + results);
            for &operand in &node.operands {
                if self.held.is_freed(operand, id, node, more) {
                    self.free(operand);
                }
            }
            node.results.iter().for_each(|&result| self.enter(result));
        }
    }

    /// Counts a value when it is made: its sums, its outputs and, if it is held, the value itself.
    fn enter(&mut self, value: ValueId) {
        let bytes = self.bytes(value);
        for &sum in self.held.sums(value) {
            // The first addend becomes the sum, without a copy. If it is held, its bytes are counted below.
            let is_counted = !self.sums.contains_key(&sum) && self.held.is_held(value);
            let of_sum = if is_counted { 0 } else { bytes };
            let before = self.sums.insert(sum, of_sum).unwrap_or(0);
            self.live = self.live + u128::from(of_sum) - u128::from(before);
        }
        let reported = self.module.outputs.iter().filter(|output| output.value == value).count();
        self.live += u128::from(bytes) * reported as u128;
        self.free(value);
        if self.held.is_held(value) {
            self.values[value] = bytes;
            self.live += u128::from(bytes);
        }
        self.peak = self.peak.max(self.live);
    }

    /// Counts the outputs of so many further microbatches.
    fn report_again(&mut self, microbatches: usize) {
        let reported = self.module.outputs.iter().map(|output| output.value);
        let reported = reported.filter(|&value| self.module.phase_of(value).is_microbatch());
        let bytes = reported.map(|value| u128::from(self.bytes(value))).sum::<u128>();
        self.live += bytes.saturating_mul(microbatches as u128);
    }

    fn free(&mut self, value: ValueId) {
        self.live -= u128::from(std::mem::take(&mut self.values[value]));
    }

    fn bytes(&self, value: ValueId) -> u64 {
        bytes_of(self.module.ty(value))
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

    /// A chain of negations that begins with a broadcast of `x` to so many elements; each result is read only by the next node.
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
        // An operand and a result are alive at once, and the caller holds the input. The output is a copy of its value.
        for length in [2, 100] {
            assert_eq!(memory(&chain(1000, length), 1).peak, 3 * 8000);
        }
    }

    /// A program in which `w + x` is the new value of `w`, after so many negations of `w`.
    fn update(negations: usize) -> Module {
        let mut module = Module::new("update");
        let ty = Type::of(DType::F32, &[1000]);
        let state = module.add_state("w", ty, crate::Role::Parameter, crate::Initializer::Zeros);
        let mut value = module.states[state].input;
        let mut b = Builder::new(&mut module, "test");
        b.at(At::End(Phase::Update));
        for _ in 0..negations {
            value = b.one(Unary::Neg, &[value]).expect("it is well-typed");
        }
        b.tables().states[state].output = Some(value);
        b.finish();
        module
    }

    #[test]
    fn a_state_that_is_read_no_more_takes_nothing() {
        // The caller holds the state; its copy is freed once it has been read.
        for negations in [1, 2, 100] {
            assert_eq!(memory(&update(negations), 1).peak, 3 * 8000);
        }
    }

    #[test]
    fn outputs_of_all_microbatches_are_held() {
        let peak = |microbatches| memory(&chain(1000, 2), microbatches).peak;
        assert_eq!([1, 2, 3, 4, 50].map(peak), [3, 5, 7, 9, 101].map(|values: u64| values * 8000));
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
