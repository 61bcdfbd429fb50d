//! From a module to the program that a device runs: the rewrites that its target wants, by the pass manager, and then
//! `runtime`'s lowering.

use crate::compilation;
use crate::failure::Failure;
use ir::Module;
use passes::{Manager, PassContext, Pipeline};
use runtime::lower::LowerOptions;
use runtime::program::Program;

/// The passes between a compiled program and its lowering, with the manager that runs, verifies and shows them.
#[derive(Debug)]
pub struct Lowering<'a> {
    manager: &'a Manager,
    cx: PassContext,
}

impl<'a> Lowering<'a> {
    /// Lowers programs on which so many passes have run, for the numbers of the files that the manager writes.
    pub fn new(manager: &'a Manager, passes_run: usize) -> Self {
        Self { manager, cx: PassContext { passes_run, ..PassContext::default() } }
    }

    /// Lowers a program, first rewritten by these passes and by those that the target wants.
    ///
    /// # Errors
    /// As of the passes, and of [`runtime::lower::lower`].
    pub fn lower(
        &mut self,
        mut module: Module,
        first: Pipeline,
        options: &LowerOptions,
    ) -> Result<Program, Failure> {
        let mut pipeline = first;
        pipeline.passes.extend(rewrites(options)?.passes);
        self.cx.kernels = options.target.kernels();
        compilation::run(self.manager, &pipeline, &mut module, &mut self.cx, |_, _, _| {})?;
        Ok(runtime::lower::lower(&module, options)?)
    }
}

/// The rewrites that a target wants.
fn rewrites(options: &LowerOptions) -> Result<Pipeline, Failure> {
    let text = options.target.rewrites();
    text.parse().map_err(|error| Failure::Fault(anyhow::anyhow!("`{text}` is no pipeline: {error}")))
}

/// Lowers a program as it is rewritten for its target. All outputs are kept.
///
/// # Errors
/// As of [`Lowering::lower`].
pub fn lower(module: &Module, options: &LowerOptions) -> Result<Program, Failure> {
    Lowering::new(&Manager::default(), 0).lower(module.clone(), Pipeline::default(), options)
}
