//! The program of a model after a pass: `--after PASS`.

use super::{Question, bind_hint, pipelines, unbound};
use crate::compilation::{self, Source};
use crate::failure::Failure;
use ir::{Diagnostic, Module};
use passes::{Pass, Pipeline};

/// The program of a model after the first pass of that name; `import` is before all passes.
///
/// # Errors
/// A pass that does not exist or does not run here; what keeps the model from getting there.
pub fn program_after(source: &Source, question: &Question, after: &str) -> Result<Module, Failure> {
    if after == "import" {
        return Ok(source.imported.module.clone());
    }
    crate::config::look::known_pass("--after", after)?;
    let unbound = unbound(&source.model, &question.bindings);
    let (known, rest) = pipelines(&question.plan, !unbound.is_empty());
    let mut passes: Vec<Pass> =
        known.passes.into_iter().chain(rest.into_iter().flat_map(|rest| rest.passes)).collect();
    let Some(last) = passes.iter().position(|pass| pass.name() == after) else {
        if unbound.is_empty() {
            let error =
                format!("--after {after}: the pass is not among those that make a step by these flags");
            return Err(Diagnostic::new(error).into());
        }
        let error = Diagnostic::new(format!("--after {after}: the pass runs only when all dims are bound"));
        return Err(error.note(bind_hint(&unbound)).into());
    };
    passes.truncate(last + 1);
    let forward = question.plan.forward().passes.len();
    let rest = passes.split_off(forward.min(passes.len())).len();
    let mut module = source.imported.module.clone();
    let mut cx = source.context();
    let mut run = |passes: Vec<Pass>, module: &mut Module| {
        compilation::run(&question.manager, &Pipeline { passes }, module, &mut cx, |_, _, _| {})
    };
    run(passes, &mut module)?;
    if rest > 0 {
        // The loss says how many microbatches a step has.
        let mut passes = question.plan.clone().for_batch(&module, &[])?.0.training().passes;
        passes.truncate(rest);
        run(passes, &mut module)?;
    }
    Ok(module)
}
