//! Keep: keeps the outputs that are read; removes the other outputs, and the nodes that no kept output and no state needs.
//!
//! Invariants: inputs and states stay as they are; outputs and nodes keep their order.

use crate::arguments::Options;
use crate::pass::{PassContext, Transform};
use crate::rewriting::dead::remove_dead;
use ir::{Changed, Diagnostic, Module};

/// The pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// The names of the outputs that stay.
    pub outputs: Vec<String>,
}

impl Transform for Keep {
    const NAME: &'static str = "keep";
    const NEEDED: bool = false;

    fn options(&mut self, options: &mut Options) {
        options.list("", &mut self.outputs);
    }

    /// Errors: a name of no output.
    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<Changed, Diagnostic> {
        if let Some(name) = self.outputs.iter().find(|name| module.output(name).is_none()) {
            return Err(Diagnostic::new(format!("the program has no output `{name}`")));
        }
        let before = module.outputs.len();
        module.outputs.retain(|output| self.outputs.contains(&output.name));
        let fewer = if module.outputs.len() < before { Changed::Yes } else { Changed::No };
        Ok(fewer.or(remove_dead(module, Self::NAME)))
    }
}
