//! Finds the first pass after which a program is wrong. The program after each pass is completed to a step with as few passes as possible, and
//! compared with the reference.

use super::Mode;
use super::compare::Difference;
use super::evaluation;
use super::execute::{Execution, Tensors};
use super::rounding::Rounding;
use super::{Subject, Tested};
use crate::failure::Failure;
use crate::manager;
use ir::Module;
use passes::parameters::Parameters;
use passes::{Manager, Transform};
use serde::Serialize;

/// The program after a pass of the compiled pipeline.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The pass.
    pub pass: String,
    /// The program after it.
    pub module: Module,
}

/// The first pass after which a program's step differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Culprit {
    /// Its name. `None` if the untransformed program differs already, because of the mode in which it runs.
    pub pass: Option<String>,
    /// Its number in the pipeline, counted from 1. The untransformed program has 0.
    pub number: usize,
    /// The largest difference.
    pub largest: Difference,
}

/// The step that all stages are compared with.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// The untransformed program.
    pub reference: &'a Module,
    /// Its execution.
    pub execution: &'a Execution,
    /// The inputs of the step.
    pub microbatches: &'a [Tensors],
}

/// Returns the first stage with an error above the tolerance in its step, or in the evaluation of the step if `evaluated` is given. An error
/// that `rounding` explains does not count.
///
/// # Errors
/// A stage that cannot be completed or run. The error names its pass.
pub fn bisect(
    subject: &Subject,
    stages: &[Stage],
    mode: Mode,
    tolerance: f64,
    expected: Expected,
    mut rounding: Option<&mut Rounding>,
    mut evaluated: Option<&mut evaluation::Expected>,
) -> Result<Option<Culprit>, Failure> {
    let mut largest = |tested: Tested| -> Result<Option<Difference>, Failure> {
        let execution = subject.run(tested, mode, expected.microbatches)?;
        let against = (expected.reference, expected.execution);
        let mut differences = subject.compare(&execution, tested.cut, against)?;
        if let Some(rounding) = &mut rounding {
            rounding.explain(&mut differences, tolerance, |difference| difference.name.clone())?;
        }
        if let Some(evaluated) = &mut evaluated {
            let module = evaluation::of(tested.module.clone())?;
            differences.extend(evaluated.compare(Tested { module: &module, ..tested }, mode)?);
        }
        let is_broken =
            |difference: &Difference| difference.fails(tolerance) && !difference.is_not_compared();
        Ok(differences.into_iter().find(is_broken))
    };
    if mode != Mode::Exact
        && let Some(largest) = largest(Tested { module: expected.reference, cut: false })?
    {
        return Ok(Some(Culprit { pass: None, number: 0, largest }));
    }
    let mut cut = false;
    for (index, stage) in stages.iter().enumerate() {
        cut |= stage.pass == Parameters::NAME;
        let found = finish(subject, &stage.module, index + 1)
            .and_then(|module| largest(Tested { module: &module, cut }))
            .map_err(|failure| {
                let pass = &stage.pass;
                failure.note(&format!(
                    "the program after pass `{pass}` fails, and the programs before it do not"
                ))
            })?;
        if let Some(largest) = found {
            return Ok(Some(Culprit { pass: Some(stage.pass.clone()), number: index + 1, largest }));
        }
    }
    Ok(None)
}

/// Completes the program after `done` passes to a step.
fn finish(subject: &Subject, module: &Module, done: usize) -> Result<Module, Failure> {
    let (mut module, mut cx) = (module.clone(), subject.compilation.tensors.context());
    let rest = subject.plan.rest(done, subject.specs());
    manager::run(&Manager::default(), &rest, &mut module, &mut cx, |_, _, _| {})?;
    Ok(module)
}
