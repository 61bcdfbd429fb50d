//! The evaluation of a last batch that is short: the same model, compiled for as many samples as are left.
//!
//! The whole plan runs again, so that the states have the same names, types and shardings. If they differ, or if the batch cannot be bound
//! to that size, the samples are left out of the evaluation, and the user is told the reason.

use super::{Job, Step};
use crate::compilation::{Compilation, Source};
use crate::failure::Failure;
use crate::pipeline::CompilationPlan;
use crate::sizes;
use ir::{Diagnostic, Module, ScalarPart, StepOutput, Type, ValueId};
use passes::Manager;

/// The evaluation of a batch of another size than the microbatch's.
#[derive(Clone, Debug)]
pub struct ShortEvaluation {
    /// The model, imported with a batch of that size.
    pub source: Source,
    /// The options of all passes.
    pub plan: CompilationPlan,
    /// The model compiled with that batch. Its evaluation has states of the training program.
    pub compilation: Compilation,
    /// For each class of the loss, the factor of its sum and its weight before they are added to those of whole batches: the batch's share
    /// of a microbatch if every batch has the same weight, else 1.
    pub shares: Vec<f64>,
}

impl Step<'_> {
    /// Compiles the evaluation of `samples` samples. Errors: a batch that cannot be bound to that size; states that differ from those of
    /// the training program.
    pub fn evaluation_of(&self, job: &Job, samples: u64) -> Result<ShortEvaluation, Diagnostic> {
        let whole = sizes::batch(&self.compilation.forward)
            .ok_or_else(|| Diagnostic::new("the program has no batched input"))?;
        let sizes = sizes::with_batch(&self.source.model, &self.sizes, whole, samples);
        let source = Source::import(&job.model, self.source.model.clone(), &sizes).map_err(first)?;
        let mut plan = self.plan.clone();
        plan.bind.sizes = sizes::left_to_passes(&source.model, sizes);
        // The stages are those of whole batches, and a step has the same number of microbatches.
        (plan.stage, plan.limit) = (self.compilation.stage.clone(), None);
        plan.batch.global = plan.batch.global.map(|global| global / whole * samples);
        let short = source.compile(&plan, &Manager::default(), |_, _, _| {}).map_err(first)?;
        self.check(&short, whole, samples)?;
        let share = |[of_whole, of_short]: [Option<f64>; 2]| match (of_whole, of_short) {
            // A sum over samples has no weight.
            (Some(of_whole), Some(of_short)) if of_whole == of_short && of_whole != 0.0 => {
                samples as f64 / whole as f64
            }
            _ => 1.0,
        };
        let forwards = [&self.compilation.forward, &short.forward];
        let weights = (0..).map_while(|class| {
            let [of_whole, of_short] = forwards.map(|forward| weight(forward, class));
            Some([forwards[0].splat_number(of_whole?), forwards[1].splat_number(of_short?)])
        });
        let shares = weights.map(share).collect();
        Ok(ShortEvaluation { source, plan, compilation: short, shares })
    }

    /// Refuses a program that has other inputs than the whole evaluation, apart from the batch, or other states.
    fn check(&self, short: &Compilation, whole: u64, samples: u64) -> Result<(), Diagnostic> {
        let inputs = |module: &Module| -> Vec<(String, Type, bool)> {
            let input =
                |input: &ir::Input| (input.name.clone(), module.ty(input.value).clone(), input.batched);
            module.inputs.iter().map(input).collect()
        };
        let mut expected = inputs(&self.compilation.forward);
        for (_, ty, _) in expected.iter_mut().filter(|(_, _, batched)| *batched) {
            ty.dims[0] = ir::Dim::known(samples);
        }
        if let Some((name, ty, _)) =
            inputs(&short.forward).into_iter().find(|input| !expected.contains(input))
        {
            let message = format!("input `{name}` is {ty} when the batch of {whole} is bound to {samples}");
            return Err(Diagnostic::new(message));
        }
        let training = &self.compilation.training;
        let same = |state: &ir::State| {
            let state_of_whole = training.state(&state.name).map(|id| &training.states[id]);
            state_of_whole.is_some_and(|other| other.ty == state.ty && other.stage == state.stage)
        };
        match short.evaluation.states.values().find(|state| !same(state)) {
            Some(state) => {
                let message = format!(
                    "state `{}` has another type or another stage with a batch of {samples} than with a batch of \
                     {whole}",
                    state.name
                );
                Err(Diagnostic::new(message))
            }
            None => Ok(()),
        }
    }
}

/// The weight of a class of the loss.
fn weight(module: &Module, class: usize) -> Option<ValueId> {
    module.step_output(StepOutput::loss(class, ScalarPart::Weight)).map(|output| output.value)
}

/// The first of what was found wrong: the reader wants to know why, not all of it.
fn first(failure: impl Into<Failure>) -> Diagnostic {
    let found = failure.into().diagnostics().into_iter().next();
    found.unwrap_or_else(|| Diagnostic::new("the program cannot be compiled"))
}
