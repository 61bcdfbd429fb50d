//! Update: reduces a whole step to its update, whose inputs are the gradients. `verify` runs it on the reference, to compare new
//! parameters with the exact update by the gradients that a program reported.
//!
//! Each output `grad.NAME` becomes an input of that name, summed over microbatches, and readers of the gradient read this sum.
//! Invariants: the update's own nodes stay as they are; parameters and the optimizer's states change as before, and no other
//! state does. A program of level training reports its loss, so the output is there, with the value 0.

use crate::pass::{PassContext, Transform};
use crate::rewriting::dead::remove_dead;
use ir::ops::step::Accumulate;
use ir::{At, Builder, Changed, DType, Diagnostic, Level, Module, Output, Phase, Role, StepOutput, ValueId};
use std::collections::BTreeSet;

/// The pass; it has no options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update;

impl Transform for Update {
    const NAME: &'static str = "update";
    const NEEDED: bool = false;

    /// Errors: the program is split over devices, or reports no gradients; the update reads more of a microbatch than its gradients.
    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<Changed, Diagnostic> {
        let gradients = decide(module)?;
        apply(module, &gradients)?;
        Ok(Changed::Yes)
    }
}

/// Finds the gradients that become inputs.
///
/// # Errors
/// As [`Update::run`].
pub fn decide(module: &Module) -> Result<Vec<Output>, Diagnostic> {
    let gradients: Vec<Output> = module
        .outputs
        .iter()
        .filter(|output| StepOutput::gradient_of(&output.name).is_some())
        .cloned()
        .collect();
    if module.level != Level::Training || gradients.is_empty() {
        let error = Diagnostic::new("only a step on one device that reports its gradients has an update");
        return Err(error.note("run `optimizer(…, keep-gradients, reads-gradients)` before it"));
    }
    let values: BTreeSet<ValueId> = gradients.iter().map(|gradient| gradient.value).collect();
    if values.len() < gradients.len() {
        return Err(Diagnostic::new("two parameters have one gradient"));
    }
    Ok(gradients)
}

/// Turns these outputs into inputs.
///
/// # Errors
/// As [`Update::run`].
pub fn apply(module: &mut Module, gradients: &[Output]) -> Result<(), Diagnostic> {
    module.inputs.clear();
    module.outputs.retain(|output| StepOutput::gradient_of(&output.name).is_some());
    for state in module.states.values_mut() {
        state.output = state.output.filter(|_| matches!(state.role, Role::Parameter | Role::Optimizer));
    }
    let mut b = Builder::new(module, Update::NAME);
    b.at(At::Start(Phase::Update));
    for Output { name, value } in gradients {
        let ty = b.ty(*value).clone();
        let input = b.tables().add_input(name, ty, false);
        let sum = b.one(Accumulate, &[input])?;
        b.replace(*value, sum);
    }
    let loss = b.scalar(DType::F64, 0.0)?;
    b.tables().add_output(StepOutput::Loss, loss);
    b.finish();
    remove_dead(module, Update::NAME);
    let gone = |value: ValueId| {
        let is_input = matches!(module.value(value).definition, ir::Definition::Input(_));
        is_input && !module.inputs.iter().any(|input| input.value == value)
    };
    match module.nodes().find(|(_, node)| node.operands.iter().any(|&operand| gone(operand))) {
        Some((_, node)) => {
            let error = Diagnostic::new("the update reads more of a microbatch than its gradients");
            Err(error.at(node.origin.to_string()))
        }
        None => Ok(()),
    }
}
