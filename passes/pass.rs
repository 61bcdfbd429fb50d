//! The trait of passes, and the context that passes share while they run.

use crate::arguments::Options;
use crate::reports::Reports;
use ir::{Changed, Diagnostic, Kernels, Module};
use std::collections::{BTreeMap, BTreeSet};

/// A pass: its options, their text in a pipeline, and its effect.
pub trait Transform: Clone + Default {
    /// The name of the pass in pipelines, in `by` of nodes, and in errors.
    const NAME: &'static str;

    /// Whether a program is wrong or incomplete if this pass is skipped.
    const NEEDED: bool;

    /// Names each option, for reading and for writing. A pass without options names nothing. The defaults are those of `Default`. Writing
    /// runs on a copy.
    fn options(&mut self, _: &mut Options) {}

    /// Changes the module. An error is the user's fault or a limit of the compiler, never a broken module.
    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic>;
}

/// Facts that passes read beside the module, and the reports of passes.
#[derive(Clone, Debug, Default)]
pub struct PassContext {
    /// Other names of rows in the data table: module paths of tensors that the exporter renamed.
    pub aliases: BTreeMap<String, Vec<String>>,
    /// The names of rows of the data table in the author's module, if the exporter recorded them.
    pub authors: BTreeMap<String, String>,
    /// The names of rows of the data table that hold vectors although they have more dims. They decay as biases do.
    pub vectors: BTreeSet<String>,
    /// The names of rows of the data table that the exporter repeated for each sample of its batch; filled by `bind`.
    pub repeated: BTreeSet<String>,
    /// Facts about the kernels of the target, if the program is made for one.
    pub kernels: Option<&'static dyn Kernels>,
    /// Warnings for the user.
    pub warnings: Vec<Diagnostic>,
    /// The batch that the constants of the file were made for; filled by `bind`.
    pub exported_batch: Option<u64>,
    /// The reports of the passes.
    pub reports: Reports,
    /// The number of passes that have run, over all parts of a pipeline; counted by the manager.
    pub passes_run: usize,
}

impl PassContext {
    /// Returns the facts about the target's kernels. Errors: no target is given.
    pub fn kernels(&self) -> Result<&'static dyn Kernels, Diagnostic> {
        let missing =
            || Diagnostic::new("the pass writes a program for the kernels of a target, and none is given");
        self.kernels.ok_or_else(|| missing().note("give one: --kernels cuda"))
    }

    /// Adds a warning.
    pub fn warn(&mut self, warning: Diagnostic) {
        self.warnings.push(warning);
    }
}
