//! The update of a step alone: given gradients, new parameters.
//!
//! States after the step are compared with this and not with the reference's own step: where a gradient is zero but for
//! rounding, Adam's first step goes by the sign of the rounding, and two correct programs differ by the whole learning
//! rate. The gradients themselves are compared with the reference's, so that no error goes unseen.

use super::Mode;
use super::execute::{Execution, Machine, Tensors};
use super::layout::Layout;
use crate::compilation;
use crate::failure::Failure;
use ir::{Module, Role, StepOutput, Tensor};
use passes::update::Update;
use passes::{Manager, PassContext};

/// The exact update of the reference's parameters and of the optimizer's states, by the gradients that the tested program
/// reported. A gradient that it did not report is that of the reference's own step. `start` has the parameters before the step.
pub(super) fn expected(
    reference: &Module,
    own: &Execution,
    layout: &Layout,
    tested: &Execution,
    start: &Tensors,
) -> Result<Tensors, Failure> {
    let is_gradient = |name: &str| StepOutput::gradient_of(name).is_some();
    let mut gradients = own.last_outputs(is_gradient);
    let reported = tested.last_outputs(is_gradient);
    for tensor in &layout.tensors {
        if let Some(gradient) = tensor.assemble(StepOutput::GRADIENT, &reported)? {
            gradients.insert(StepOutput::Gradient(&tensor.name).to_string(), gradient);
        }
    }
    let mut module = reference.clone();
    let (manager, mut cx) = (Manager::default(), PassContext::default());
    compilation::run(&manager, &Update.into(), &mut module, &mut cx, |_, _, _| {})?;
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
