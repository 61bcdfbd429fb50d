//! Simplify: merges common subexpressions, folds scalars, and removes operations without effect and dead nodes.
//!
//! Invariants: nodes of different phase, stage or copy are never merged; no result changes by a bit in `exact` mode,
//! except that a folded computation is rounded once instead of twice.

mod cse;

use crate::pass::{PassContext, Transform};
use crate::rewriting::dead::remove_dead;
use crate::rewriting::local;
use ir::{Changed, Diagnostic, Module};

pub use cse::{Merge, decide as decide_merges};

/// The pass; it has no options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Simplify;

impl Transform for Simplify {
    const NAME: &'static str = "simplify";
    const NEEDED: bool = false;

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<Changed, Diagnostic> {
        let rewritten = local::run(module, Self::NAME)?;
        let merged = cse::apply(module, &cse::decide(module));
        Ok(rewritten.or(merged).or(remove_dead(module, Self::NAME)))
    }
}
