//! Evaluation: of a program the sums and weights of its loss, as an evaluation reads them.
//!
//! Invariants: no state changes, nothing is drawn at random, no label is smoothed, and batch norms use their running
//! statistics.

use crate::dead::remove_dead;
use crate::dropout;
use crate::loss::{EPSILON, FLOOR, SUM, UNSMOOTHED, WEIGHT, part};
use crate::pass::{PassContext, Transform};
use crate::pipeline::Arguments;
use ir::{Builder, Changed, Diagnostic, Module, NodeId, Op};

/// The pass; it has no options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evaluation;

impl Transform for Evaluation {
    const NAME: &'static str = "evaluation";
    const NEEDED: bool = true;

    fn parse(_: &mut Arguments) -> Result<Self, String> {
        Ok(Self)
    }

    fn print(&self, _: &mut Arguments) {}

    /// Errors: a program without a loss.
    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<Changed, Diagnostic> {
        let outputs = outputs(module);
        if outputs.is_empty() {
            return Err(Diagnostic::new("there is no output `loss.sum` to evaluate").note("run `loss` first"));
        }
        if let Some(unsmoothed) = module.output(UNSMOOTHED).map(|output| output.value) {
            let sum = module.outputs.iter_mut().filter(|output| output.name == part("loss", 0, SUM));
            sum.for_each(|output| output.value = unsmoothed);
        }
        module.outputs.retain(|output| outputs.contains(&output.name));
        module.states.values_mut().for_each(|state| state.output = None);
        dropout::remove(module)?;
        use_running_statistics(module);
        remove_dead(module, Self::NAME);
        Ok(Changed::Yes)
    }
}

/// The outputs that an evaluation reads: those of the classes of the loss.
pub fn outputs(module: &Module) -> Vec<String> {
    let parts = [SUM, WEIGHT, FLOOR, EPSILON];
    let names = |index| parts.into_iter().map(move |of| part("loss", index, of));
    let is_there = |name: &String| module.output(name).is_some();
    let classes = (0..).take_while(|&index| is_there(&part("loss", index, SUM)));
    classes.flat_map(names).filter(is_there).collect()
}

/// Gives readers of a batch norm's batch statistics its running statistics.
fn use_running_statistics(module: &mut Module) {
    let found: Vec<NodeId> =
        module.nodes().filter(|(_, node)| matches!(node.op, Op::InTraining(_))).map(|(id, _)| id).collect();
    let mut b = Builder::new(module, Evaluation::NAME);
    for id in found {
        let (running, result) = (b.module().node(id).operands[1], b.module().node(id).results[0]);
        b.replace(result, running);
        b.remove(id);
    }
    b.finish();
}
