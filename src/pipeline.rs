//! Which passes run, as data.
//!
//! A program is compiled in two halves: [`Plan::forward`] ends with the loss, and what it leaves is also the program
//! that evaluates; [`Plan::training`] goes on to the whole step. [`Plan::reference`] is what both are verified against:
//! the same model through as few passes as will do.

use passes::Pipeline;
use passes::autodiff::Autodiff;
use passes::bind::Bind;
use passes::fold::Fold;
use passes::loss::Loss;
use passes::optimizer::Optimizer;
use passes::parameters::{ParameterSpec, Parameters, Set};
use passes::registry::{Canonicalize, Pass};
use passes::simplify::Simplify;

/// The options of all passes.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Sizes of dims.
    pub bind: Bind,
    /// What is trained.
    pub parameters: Parameters,
    /// What is minimised.
    pub loss: Loss,
    /// How.
    pub optimizer: Optimizer,
}

impl Plan {
    /// From the import to the loss.
    pub fn forward(&self) -> Pipeline {
        pipeline([
            self.bind.clone().into(),
            Fold.into(),
            Canonicalize.into(),
            self.parameters.clone().into(),
            self.loss.clone().into(),
        ])
    }

    /// From the loss to the whole step.
    pub fn training(&self) -> Pipeline {
        pipeline([Autodiff.into(), self.optimizer.clone().into(), Simplify.into()])
    }

    /// From the loss to a program that only evaluates.
    pub fn evaluation() -> Pipeline {
        pipeline([Simplify.into()])
    }

    /// The untransformed program's step, with the parameters that the compiled one was found to have.
    pub fn reference(&self, parameters: Vec<ParameterSpec>) -> Pipeline {
        pipeline([
            self.bind.clone().into(),
            Fold.into(),
            self.given(parameters).into(),
            self.loss.clone().into(),
            Autodiff.into(),
            self.optimizer.clone().into(),
        ])
    }

    /// What turns the program that `done` passes of [`Plan::forward`] and [`Plan::training`] left into a whole step,
    /// with as few passes as will do: how a pass that broke something is found.
    pub fn rest(&self, done: usize, parameters: Vec<ParameterSpec>) -> Pipeline {
        let given: Pass = self.given(parameters).into();
        let mut all: Vec<Pass> =
            self.forward().passes.into_iter().chain(self.training().passes).skip(done).collect();
        all.retain(|pass| !matches!(pass, Pass::Canonicalize(_) | Pass::Simplify(_)));
        for pass in &mut all {
            if matches!(pass, Pass::Parameters(_)) {
                *pass = given.clone();
            }
        }
        Pipeline { passes: all }
    }

    fn given(&self, parameters: Vec<ParameterSpec>) -> Parameters {
        Parameters { set: Set::Only(parameters), ..Parameters::default() }
    }
}

fn pipeline<const N: usize>(passes: [Pass; N]) -> Pipeline {
    Pipeline { passes: passes.into() }
}
