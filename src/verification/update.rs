//! The update of a step by itself: from given gradients to new parameters.
//!
//! States after a step are compared with the result of this update, and not with those of the reference's step. If a gradient is zero except
//! for rounding, Adam's first step follows the sign of the rounding error, and two correct programs differ by the whole learning rate. The
//! gradients themselves are compared with those of the reference, so no error is overlooked.

use super::Mode;
use super::execute::{Execution, Machine, Tensors};
use super::layout::Layout;
use crate::failure::Failure;
use crate::manager;
use ir::{Module, Role, StepOutput, Tensor};
use passes::update::Update;

/// The exact update of the reference's parameters and of the optimizer's states, by the gradients that the tested program
/// reported. A gradient that it did not report is that of the reference's own step. `start` has the parameters before the step.
pub(super) fn expected(
    reference: &Module,
    own: &Execution,
    layout: &Layout,
    tested: &Execution,
    start: &Tensors,
) -> Result<Tensors, Failure> {
    let (mut gradients, reported) = (own.gradients(), tested.gradients());
    for tensor in &layout.tensors {
        if let Some(gradient) = tensor.assemble(StepOutput::GRADIENT, &reported)? {
            gradients.insert(StepOutput::Gradient(&tensor.name).to_string(), gradient);
        }
    }
    let module = manager::rewritten(reference.clone(), Update)?;
    for input in &module.inputs {
        // The compiled program may keep weights of the file in f32 that are half there: its gradients are f32 too.
        if let Some(gradient) = gradients.get_mut(&input.name) {
            *gradient = Tensor { dtype: module.ty(input.value).dtype, ..gradient.clone() };
        }
    }
    let after = Machine::new(&module, Mode::Exact, 1, start)?.last_step(&[gradients])?;
    let is_updated = |name: &String| {
        let role = module.state(name).map(|state| module.states[state].role);
        matches!(role, Some(Role::Parameter | Role::Optimizer))
    };
    Ok(after.states.into_iter().filter(|(name, _)| is_updated(name)).collect())
}
