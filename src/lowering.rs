//! From a module to the program that a device runs: the pass manager runs the rewrites of the target, and then `program` lowers the module.

use crate::failure::Failure;
use crate::manager;
use ir::{Diagnostic, Module};
use passes::{Manager, PassContext, Pipeline};
use program::lower::LowerOptions;
use program::{Program, StagePrograms, Target};
use std::sync::Arc;

/// The passes between a compiled program and its lowering, with the manager that runs, verifies and shows them.
#[derive(Debug)]
pub struct Lowering<'a> {
    manager: &'a Manager,
    cx: PassContext,
}

impl<'a> Lowering<'a> {
    /// A lowering after `passes_run` passes. The manager numbers the files that it writes from there.
    pub fn new(manager: &'a Manager, passes_run: usize) -> Self {
        Self { manager, cx: PassContext { passes_run, ..PassContext::default() } }
    }

    /// Lowers a program, after the given passes and the rewrites of the target. The program shares its states with `states_of`.
    ///
    /// # Errors
    /// As of the passes, and of [`program::lower::lower`].
    pub fn lower(
        &mut self,
        mut module: Module,
        first: Pipeline,
        options: &LowerOptions,
        states_of: Option<&StagePrograms>,
    ) -> Result<StagePrograms, Failure> {
        let mut pipeline = first;
        pipeline.passes.extend(rewrites(options.target)?.passes);
        self.cx.kernels = options.target.kernels();
        manager::run(self.manager, &pipeline, &mut module, &mut self.cx, |_, _, _| {})?;
        let of = |rank: u32| {
            let states_of = states_of.and_then(|programs| programs.iter().nth(rank as usize));
            LowerOptions { states_of: states_of.map(|program| &**program), ..*options }
        };
        let Some(pipeline) = &module.pipeline else {
            return Ok(Arc::new(program::lower::lower(&module, &of(0))?).into());
        };
        let lower = |rank| Ok(Arc::new(program::lower::lower_rank(&module, rank, &of(rank))?));
        let programs = (0..pipeline.ranks()).map(lower).collect::<Result<_, Diagnostic>>()?;
        Ok(StagePrograms::new(programs))
    }
}

/// The rewrites of a target.
pub(crate) fn rewrites(target: Target) -> Result<Pipeline, Failure> {
    let text = target.rewrites();
    text.parse().map_err(|error| Failure::Fault(anyhow::anyhow!("`{text}` is no pipeline: {error}")))
}

/// Lowers a program after the rewrites of its target. All outputs are kept.
///
/// # Errors
/// As of [`Lowering::lower`].
pub fn lower_stages(module: &Module, options: &LowerOptions) -> Result<StagePrograms, Failure> {
    Lowering::new(&Manager::default(), 0).lower(module.clone(), Pipeline::default(), options, None)
}

/// As [`lower_stages`], of a program without stages.
///
/// # Errors
/// As of [`Lowering::lower`].
pub fn lower(module: &Module, options: &LowerOptions) -> Result<Program, Failure> {
    Ok(Arc::unwrap_or_clone(lower_stages(module, options)?.first().clone()))
}
