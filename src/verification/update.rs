//! The update of a step alone: given gradients, new parameters.
//!
//! States after the step are compared with this and not with the reference's own step: where a gradient is zero but for
//! rounding, Adam's first step goes by the sign of the rounding, and two correct programs differ by the whole learning
//! rate. The gradients themselves are compared with the reference's, so that no error goes unseen.

use super::Mode;
use super::execute::{Execution, Machine, Tensors};
use super::layout::Layout;
use crate::compilation::{self, TensorFacts};
use crate::failure::Failure;
use ir::ops::step::Accumulate;
use ir::{At, Builder, DType, Diagnostic, Level, Module, Phase, Role, StepOutput};
use passes::optimizer::Optimizer;
use passes::{Manager, Pipeline};

/// The exact update of the reference's parameters by the gradients that the tested program reported.
pub(super) fn expected(
    reference: &Module,
    optimizer: &Optimizer,
    layout: &Layout,
    tested: &Execution,
    facts: &TensorFacts,
) -> Result<Tensors, Failure> {
    let reported = tested.last_outputs(|name| StepOutput::gradient_of(name).is_some());
    let mut gradients = Tensors::new();
    for tensor in &layout.tensors {
        if let Some(gradient) = tensor.assemble(StepOutput::GRADIENT, &reported)? {
            gradients.insert(StepOutput::Gradient(&tensor.name).to_string(), gradient);
        }
    }
    let module = program(reference, optimizer, &gradients, facts)?;
    Ok(Machine::new(&module, Mode::Exact, 1, &Tensors::new())?.last_step(&[gradients])?.states)
}

/// A program that only updates; its inputs are the gradients.
fn program(
    reference: &Module,
    optimizer: &Optimizer,
    gradients: &Tensors,
    facts: &TensorFacts,
) -> Result<Module, Failure> {
    let mut module = Module::new("update");
    module.data = reference.data.clone();
    for state in reference.states.values().filter(|state| state.role == Role::Parameter) {
        module.add_state(&state.name, state.ty.clone(), Role::Parameter, state.initializer.clone());
    }
    let inputs: Vec<_> = gradients
        .iter()
        .map(|(name, gradient)| (name.clone(), module.add_input(name, gradient.ty(), false)))
        .collect();
    let mut b = Builder::new(&mut module, "verify");
    b.at(At::End(Phase::Update));
    for (name, input) in inputs {
        // The compiled program may keep weights of the file in f32 that are half there: the gradient is f32 too.
        let parameter = StepOutput::gradient_of(&name).and_then(|name| reference.state(name));
        let dtype = parameter.map_or(b.ty(input).dtype, |parameter| reference.states[parameter].ty.dtype);
        let sum = b.one(Accumulate, &[input]).and_then(|sum| b.cast(sum, dtype)).map_err(Diagnostic::from)?;
        b.tables().add_output(name, sum);
    }
    // A training program reports its loss; this one has none to tell.
    let loss = b.scalar(DType::F64, 0.0).map_err(Diagnostic::from)?;
    b.tables().add_output(StepOutput::Loss, loss);
    b.tables().level = Level::Training;
    b.finish();
    let pipeline = Pipeline { passes: vec![optimizer.clone().into()] };
    compilation::run(&Manager::default(), &pipeline, &mut module, &mut facts.context(), |_, _, _| {})?;
    Ok(module)
}
