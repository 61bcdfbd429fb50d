//! The program of a model after a pass: `--after PASS`.

use super::{Question, bind_hint};
use crate::compilation::Source;
use crate::compiler::{self, Stopped};
use crate::failure::Failure;
use crate::{manager, sizes};
use ir::{Diagnostic, Module};

/// Returns the program of a model after the first pass of a name, or before all passes if the name is `import`. The search for stages
/// may run the passes several times. The program of the last run, which becomes the step, is returned.
///
/// # Errors
/// A pass that does not exist or does not run with these flags; an error of a pass before it.
pub fn program_after(source: &Source, question: &Question, after: &str) -> Result<Module, Failure> {
    if after == "import" {
        return Ok(source.imported.module.clone());
    }
    crate::config::look::known_pass("--after", after)?;
    let unbound = sizes::unbound(&source.model, &question.sizes);
    if !unbound.is_empty() {
        return after_unbound(source, question, after, &unbound);
    }
    let mut found: Option<(usize, Module)> = None;
    let mut look = |done: usize, pass: &str, module: &Module| {
        if found.as_ref().is_some_and(|(at, _)| done <= *at) {
            found = None;
        }
        if pass == after && found.is_none() {
            found = Some((done, module.clone()));
        }
    };
    let imported = (source.clone(), question.sizes.clone());
    let forward = compiler::forward(question.job, imported, &question.manager, &mut look);
    let step = forward.map_err(Stopped::from).and_then(|forward| forward.step(question.job, &mut look));
    match (found, step) {
        (Some((_, module)), _) => Ok(module),
        (None, Err(stopped)) => Err(stopped.failure),
        (None, Ok(_)) => {
            let error =
                format!("--after {after}: the pass is not among those that make a step by these flags");
            Err(Diagnostic::new(error).into())
        }
    }
}

/// The program after a pass that runs without the sizes of all dims.
fn after_unbound(
    source: &Source,
    question: &Question,
    after: &str,
    unbound: &[String],
) -> Result<Module, Failure> {
    let mut pipeline = compiler::up_to_parameters(question.job, &source.model, &question.sizes);
    let Some(last) = pipeline.passes.iter().position(|pass| pass.name() == after) else {
        let error = Diagnostic::new(format!("--after {after}: the pass runs only when all dims are bound"));
        return Err(error.note(bind_hint(unbound)).into());
    };
    pipeline.passes.truncate(last + 1);
    let mut module = source.imported.module.clone();
    let mut cx = source.context();
    manager::run(&question.manager, &pipeline, &mut module, &mut cx, |_, _, _| {})?;
    Ok(module)
}
