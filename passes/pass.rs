//! The trait of passes, and the context that passes share while they run.

use crate::arguments::Arguments;
use crate::reports::{
    CompressedActivationsReport, CompressedGradientsReport, LossReport, NearMiss, ParameterReport,
    RecomputeReport, ShardingReport,
};
use ir::{Changed, Diagnostic, Kernels, Module};
use std::collections::{BTreeMap, BTreeSet};

/// A pass: its options, how they are written in a pipeline, and what it does.
pub trait Transform: Sized {
    /// Its name in pipelines, in `by` of nodes, in errors.
    const NAME: &'static str;

    /// Whether a program that it has not run on computes something else than one that it has, or is no whole step.
    const NEEDED: bool;

    /// Reads the options; those left out have their defaults. Errors say what is wrong with an option.
    fn parse(arguments: &mut Arguments) -> Result<Self, String>;

    /// Writes the options so that [`Transform::parse`] reads them back.
    fn print(&self, arguments: &mut Arguments);

    /// Changes the module. An error is the user's, or a limit of the compiler, never a broken module.
    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic>;
}

/// Facts that passes read beside the module, and their reports.
#[derive(Clone, Debug, Default)]
pub struct PassContext {
    /// Other names of the data table's rows: module paths of tensors that the exporter renamed.
    pub aliases: BTreeMap<String, Vec<String>>,
    /// The names that the author's module has for rows of the data table, where the exporter recorded them.
    pub authors: BTreeMap<String, String>,
    /// Rows of the data table that hold vectors, although they have more dims: they decay as biases do.
    pub vectors: BTreeSet<String>,
    /// Rows of the data table that the exporter wrote once for each sample of its batch; filled by `bind`.
    pub repeated: BTreeSet<String>,
    /// Facts about the kernels of the target, where a program is made ready for one.
    pub kernels: Option<&'static dyn Kernels>,
    /// Warnings for the user.
    pub warnings: Vec<Diagnostic>,
    /// The role of each float tensor of the file; filled by `parameters`.
    pub parameters: Vec<ParameterReport>,
    /// Where a pattern was nearly found, and why not; filled by `canonicalize`.
    pub near_misses: Vec<NearMiss>,
    /// How each input and state lies over the mesh; filled by `spmd`.
    pub shardings: Vec<ShardingReport>,
    /// The batch that the constants of the file were made for; filled by `bind`.
    pub exported_batch: Option<u64>,
    /// The objective; filled by `loss`.
    pub loss: Option<LossReport>,
    /// The blocks of the forward phase, and the parts of them that backward repeats; filled by `recompute`.
    pub recomputed: Option<RecomputeReport>,
    /// The gradients that data ranks reduce in another form; filled by `compress_gradients`.
    pub compressed_gradients: Option<CompressedGradientsReport>,
    /// The forms of activations that wait for backward; filled by `compress_activations`.
    pub compressed_activations: Option<CompressedActivationsReport>,
    /// The number of passes that have run, over all parts of a pipeline; counted by the manager.
    pub passes_run: usize,
}

impl PassContext {
    /// The facts about the target's kernels. Errors: no target is given.
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
