//! Runs passes on a program, and tells a user's mistake from a fault of the compiler.

use crate::failure::Failure;
use anyhow::anyhow;
use ir::Module;
use passes::{Manager, PassContext, Pipeline, Timing};

/// Runs a pipeline. `after` sees the program after each pass, with the number of passes that ran before this pass.
///
/// # Errors
/// A mistake of the user that a pass refuses; a program that the verifier refuses, which is a fault of the compiler.
pub fn run(
    manager: &Manager,
    pipeline: &Pipeline,
    module: &mut Module,
    cx: &mut PassContext,
    mut after: impl FnMut(usize, &str, &Module),
) -> Result<Vec<Timing>, Failure> {
    manager.run(pipeline, module, cx, |i, pass, module| after(i, pass.name(), module)).map_err(|failure| {
        if failure.fault { Failure::Fault(anyhow!(failure)) } else { Failure::User(failure.diagnostics) }
    })
}

/// Returns a program after passes that need no facts about the model's file.
///
/// # Errors
/// As of [`run`].
pub fn rewritten(mut module: Module, passes: impl Into<Pipeline>) -> Result<Module, Failure> {
    run(&Manager::default(), &passes.into(), &mut module, &mut PassContext::default(), |_, _, _| {})?;
    Ok(module)
}
