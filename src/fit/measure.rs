//! The bytes of candidates: each is made from the compiled step, and lowered as the programs of a run are.

use super::{Candidate, Conditions, Peaks, costs};
use crate::compilation::{self, Compilation};
use crate::failure::Failure;
use crate::lowering::Lowering;
use crate::training::{Programs, lower_evaluation, lower_step};
use ir::Module;
use passes::evaluation::Evaluation;
use passes::{Manager, PassContext, compress_activations, recompute};
use program::{StagePrograms, UpdateTime};

/// Lowers steps of a compilation.
pub(super) struct Measure<'a> {
    compilation: &'a Compilation,
    manager: &'a Manager,
    conditions: Conditions<'a>,
    lowering: Lowering<'a>,
    /// The evaluation of all steps whose states stay where they are: it has no backward phase.
    evaluation: Option<StagePrograms>,
    /// The number of steps that were lowered.
    pub(super) tries: usize,
}

impl<'a> Measure<'a> {
    /// Returns the measurement of steps of a compilation. `manager` runs the passes of lowering.
    pub(super) fn new(
        compilation: &'a Compilation,
        manager: &'a Manager,
        conditions: Conditions<'a>,
    ) -> Self {
        let lowering = compilation.lowering(manager);
        Self { compilation, manager, conditions, lowering, evaluation: None, tries: 0 }
    }

    /// Returns the bytes of a candidate's programs.
    ///
    /// # Errors
    /// A program that cannot be lowered.
    pub(super) fn candidate(&mut self, candidate: &Candidate) -> Result<Peaks, Failure> {
        let mut step = self.compilation.training.clone();
        if let Some(options) = &candidate.recompute {
            let decision = recompute::decide(&step, options);
            recompute::apply(&mut step, &decision)?;
        }
        if let Some(forms) = &candidate.compress {
            let decision = compress_activations::decide(&step, forms);
            compress_activations::apply(&mut step, &decision)?;
        }
        let Some(offload) = &candidate.offload else { return self.step(step, candidate.update) };
        let step = costs::offloaded(&step, offload)?;
        let mut evaluation = step.clone();
        let mut cx = PassContext::default();
        compilation::run(self.manager, &Evaluation.into(), &mut evaluation, &mut cx, |_, _, _| {})?;
        let training = self.training(step, candidate.update)?;
        let evaluation = self.evaluation(evaluation, &training)?;
        Ok(self.peaks(training, evaluation))
    }

    /// Returns the bytes of a step's programs. The states of the step rest where those of the compilation do.
    ///
    /// # Errors
    /// A program that cannot be lowered.
    pub(super) fn step(&mut self, step: Module, update: UpdateTime) -> Result<Peaks, Failure> {
        let training = self.training(step, update)?;
        let evaluation = match &self.evaluation {
            Some(evaluation) => evaluation.clone(),
            None => self.evaluation(self.compilation.evaluation.clone(), &training)?,
        };
        self.evaluation = Some(evaluation.clone());
        Ok(self.peaks(training, evaluation))
    }

    fn training(&mut self, step: Module, update: UpdateTime) -> Result<StagePrograms, Failure> {
        self.tries += 1;
        let Conditions { microbatches, target, multiprocessors, .. } = self.conditions;
        lower_step(&mut self.lowering, step, microbatches, update, target, multiprocessors)
    }

    fn evaluation(&mut self, evaluation: Module, training: &StagePrograms) -> Result<StagePrograms, Failure> {
        lower_evaluation(&mut self.lowering, evaluation, self.conditions.target, training)
    }

    fn peaks(&self, training: StagePrograms, evaluation: StagePrograms) -> Peaks {
        let target = self.conditions.target;
        Peaks::of(&Programs { target, training, evaluation, short_evaluation: None })
    }
}
