//! The error that rounding alone makes.
//!
//! In every correct program, some numbers of a step consist of rounding errors alone. The gradient of a bias that a batch norm cancels is zero
//! in exact numbers; an activation at the kink of a ReLU or of a max pooling falls to either side. This module measures the changes of such
//! numbers by another program than the tested one: the untransformed graph with the casts of `precision`, in the interpreter that rounds every
//! value. Each sample first changes every weight by a random part of a rounding unit (Monte Carlo arithmetic: D. S. Parker, UCLA CSD-970002,
//! 1997). Samples are taken only if an error is above the tolerance, and until they explain it.

use super::Mode;
use super::compare::{self, Difference, Kind, RoundingError};
use super::execute::{Execution, Tensors, finite_step, with_tensors};
use super::layout::Layout;
use super::{Subject, evaluation, other_states};
use crate::compilation::Source;
use crate::failure::Failure;
use crate::pipeline::CompilationPlan;
use ir::relative_error::CODE;
use ir::tensor::Elements;
use ir::{DType, Module, Phase, Role, State, Tensor, ValueId, random};
use program::UpdateTime;
use std::collections::{BTreeMap, BTreeSet};

/// The largest number of samples. The largest error of so many samples is rarely a quarter of that of another sample.
const SAMPLES: u64 = 8;

/// The types to which values are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundedTo {
    /// The types of the compiled program, by the casts that the user asked for.
    Asked,
    /// The types of the model's file.
    Model,
    /// f64: a program that is equal in exact numbers rounds in another order. The error is that of the model's own types, times the
    /// quotient of the rounding units.
    F64,
}

/// The samples of a step or of an evaluation, and the largest error of each number that they made.
#[derive(Debug)]
pub struct Rounding<'a> {
    source: &'a Source,
    /// The options of the passes.
    plan: &'a CompilationPlan,
    subject: &'a Subject,
    microbatches: &'a [Tensors],
    to: RoundedTo,
    evaluates: bool,
    program: Option<RoundedProgram>,
    samples: u64,
    largest: BTreeMap<(Kind, String), RoundingError>,
}

/// The untransformed program whose values are rounded, and the numbers of the exact one.
#[derive(Debug)]
struct RoundedProgram {
    module: Module,
    /// The rounding unit of the coarsest type.
    unit: f64,
    layout: Layout,
    exact: Execution,
}

impl<'a> Rounding<'a> {
    /// The rounding of a step on these inputs. Nothing is run yet.
    pub fn new(source: &'a Source, subject: &'a Subject, microbatches: &'a [Tensors], to: RoundedTo) -> Self {
        let (plan, largest) = (&subject.plan, BTreeMap::new());
        Self { source, plan, subject, microbatches, to, evaluates: false, program: None, samples: 0, largest }
    }

    /// The rounding of an evaluation of one batch, by a model that is compiled by `plan`. Nothing is run yet.
    pub fn of_evaluation(
        (source, plan): (&'a Source, &'a CompilationPlan),
        subject: &'a Subject,
        batch: &'a [Tensors],
        to: RoundedTo,
    ) -> Self {
        Self { plan, evaluates: true, ..Self::new(source, subject, batch, to) }
    }

    /// Adds to each difference above the tolerance the error that rounding alone makes. Takes samples until they explain these differences, or
    /// until there are `SAMPLES`. `here` gives the name in the model's file for the tensor of a difference.
    pub fn explain(
        &mut self,
        differences: &mut [Difference],
        tolerance: f64,
        here: impl Fn(&Difference) -> String,
    ) -> Result<(), Failure> {
        // The new parameters and optimizer states are compared with the exact update by the program's own gradients.
        let is_open = |difference: &Difference| {
            let measured = !matches!(difference.kind, Kind::Parameter);
            measured && difference.error.is_finite() && difference.fails(tolerance)
        };
        loop {
            for difference in differences.iter_mut().filter(|difference| difference.error > tolerance) {
                let sampled = self.largest.get(&(difference.kind, here(difference))).copied();
                difference.rounding = sampled.or_else(|| self.kept(difference));
            }
            if self.samples == SAMPLES || !differences.iter().any(is_open) {
                return Ok(());
            }
            self.sample()?;
        }
    }

    /// The error that rounding to the type of a state of the optimizer makes.
    fn kept(&self, difference: &Difference) -> Option<RoundingError> {
        let kind = difference.name.split_once('(').filter(|_| difference.kind == Kind::Optimizer)?.0;
        let is_kind = |state: &&State| state.name.strip_prefix(kind).is_some_and(|of| of.starts_with('('));
        let states = self.subject.compilation.training.states.values().filter(is_kind);
        states.filter_map(|state| kept(state.ty.dtype)).max_by(|a, b| a.error.total_cmp(&b.error))
    }

    fn sample(&mut self) -> Result<(), Failure> {
        self.samples += 1;
        let program = match self.program.take() {
            Some(program) => program,
            None => self.prepare()?,
        };
        let weights = moved(&self.subject.tensors, program.unit, self.samples);
        let module = with_tensors(program.module.clone(), &weights);
        let backoff = self.subject.plan.precision.scaling.backoff;
        let mut rounded =
            finite_step(&module, Mode::Typed, self.microbatches, &Tensors::new(), UpdateTime::Late, backoff)?;
        rounded.states = other_states(&module, &rounded.states);
        let differences = if self.evaluates {
            evaluation::compare(&rounded.outputs, &program.exact.outputs)
        } else {
            compare::compare(&rounded, &program.layout, &program.exact)
        };
        for sample in differences {
            let Difference { kind, name, error, size, .. } = sample;
            let error =
                if self.to == RoundedTo::F64 { error * unit(DType::F64) / program.unit } else { error };
            let none = RoundingError { error: 0.0, is_all: false };
            let largest = self.largest.entry((kind, name)).or_insert(none);
            largest.error = largest.error.max(error);
            largest.is_all = size < largest.error;
        }
        self.program = Some(program);
        Ok(())
    }

    fn prepare(&self) -> Result<RoundedProgram, Failure> {
        let program = |step: Module| if self.evaluates { evaluation::of(step) } else { Ok(step) };
        let reference =
            program(self.subject.reference_by(self.source, &self.plan.reference(self.subject.specs()))?)?;
        let module = if self.to == RoundedTo::Asked {
            program(self.source.run(&self.plan.rounded_reference(self.subject.specs()))?)?
        } else {
            reference.clone()
        };
        let mut exact = self.subject.run_reference(&reference, self.microbatches)?;
        exact.states = other_states(&reference, &exact.states);
        let unit = unit(coarsest(&module));
        Ok(RoundedProgram { module, unit, layout: self.subject.layout.whole(), exact })
    }
}

/// The float type with the fewest digits among the values and states of a program. The states of the optimizer are left out, because their
/// rounding does not affect the other numbers of a step.
pub fn coarsest(module: &Module) -> DType {
    let nodes = module.nodes().filter(|(_, node)| node.phase != Phase::Prepare);
    let of_optimizer = module.states.values().filter(|state| state.role == Role::Optimizer);
    let of_optimizer: BTreeSet<ValueId> = of_optimizer.filter_map(|state| state.output).collect();
    let computed = nodes.flat_map(|(_, node)| &node.results).filter(|value| !of_optimizer.contains(value));
    let computed = computed.map(|&value| module.ty(value).dtype);
    let kept = module.states.values().filter(|state| state.role != Role::Optimizer);
    let kept = kept.map(|state| state.ty.dtype);
    let floats = computed.chain(kept).filter(|dtype| dtype.is_float() && *dtype != DType::F64);
    floats.fold(DType::F32, |coarsest, dtype| if unit(dtype) > unit(coarsest) { dtype } else { coarsest })
}

/// The error of rounding a state to its own type, if the type has fewer digits than f32. The error of a code is one code.
fn kept(dtype: DType) -> Option<RoundingError> {
    let error = match dtype {
        DType::F16 | DType::BF16 => unit(dtype),
        DType::U8 => CODE,
        _ => return None,
    };
    Some(RoundingError { error, is_all: false })
}

/// The largest relative error of rounding to a float type.
pub fn unit(dtype: DType) -> f64 {
    let digits = match dtype {
        DType::BF16 => 8,
        DType::F16 => 11,
        DType::F32 => 24,
        _ => 53,
    };
    0.5f64.powi(digits)
}

/// The tensors, with every float changed by a random part of a rounding unit.
fn moved(tensors: &Tensors, unit: f64, sample: u64) -> Tensors {
    let mut moved = tensors.clone();
    for (name, tensor) in &mut moved {
        let stream = random::stream(name);
        if let Tensor { elements: Elements::Float(elements), .. } = tensor {
            for (index, element) in elements.iter_mut().enumerate() {
                *element *= 1.0 + unit * random::normal(sample, stream, index as u64).clamp(-1.0, 1.0);
            }
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_move_by_a_part_of_a_rounding_unit_and_otherwise_in_each_sample() {
        let ones = Tensor::splat(DType::F32, vec![100], 1.0);
        let tensors: Tensors = [("w".to_owned(), ones)].into();
        let [first, second] = [1, 2].map(|sample| moved(&tensors, 0.25, sample));
        assert_ne!(first, second);
        assert!(first["w"].floats().iter().all(|x| (0.75..=1.25).contains(x)));
        assert!(first["w"].floats().iter().any(|x| (x - 1.0).abs() > 0.1));
    }
}
