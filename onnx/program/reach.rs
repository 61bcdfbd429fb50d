//! The part of a program that a file has: its outputs, and the nodes and states behind them.

use super::Form;
use ir::{Definition, Diagnostic, Level, Module, Node, NodeId, Op, Phase, StepOutput, ValueId};

/// The part of a program that a file has.
pub(super) struct Reach {
    /// The names and values of the outputs.
    pub(super) outputs: Vec<(String, ValueId)>,
    values: Vec<bool>,
    nodes: Vec<bool>,
}

impl Reach {
    /// Finds this part of the program.
    ///
    /// # Errors
    /// No output of the program belongs to a forward pass.
    pub(super) fn of(module: &Module, form: Form) -> Result<Self, Diagnostic> {
        let outputs = outputs(module, form);
        if outputs.is_empty() && form != Form::Program {
            return Err(Diagnostic::new("the program has no output of a forward pass")
                .note("outputs of the update, such as the loss of a step, do not belong to the model"));
        }
        let mut values = vec![false; module.value_count()];
        let mut nodes = vec![form == Form::Program; module.node_count()];
        outputs.iter().for_each(|(_, value)| values[value.as_u32() as usize] = true);
        if form == Form::Program {
            module.roots().for_each(|value| values[value.as_u32() as usize] = true);
        }
        for (id, node) in module.nodes().rev() {
            let is_read = node.results.iter().any(|result| values[result.as_u32() as usize]);
            if is_read || form == Form::Program {
                nodes[id.as_u32() as usize] = true;
                read(node, form).for_each(|value| values[value.as_u32() as usize] = true);
            }
        }
        Ok(Self { outputs, values, nodes })
    }

    /// Whether the file has a node.
    pub(super) fn has(&self, node: NodeId) -> bool {
        self.nodes[node.as_u32() as usize]
    }

    /// Whether the file has a value.
    pub(super) fn has_value(&self, value: ValueId) -> bool {
        self.values[value.as_u32() as usize]
    }
}

/// Returns the operands that a node reads in a form. An inference omits operands that only training reads.
fn read(node: &Node, form: Form) -> impl Iterator<Item = ValueId> + '_ {
    let is_read = move |index: usize| match (&node.op, form) {
        (_, Form::Program) => true,
        (Op::InTraining(_), Form::Inference) => index == 1,
        (Op::Dropout(_), _) => index == 0,
        (Op::RandomUniform(_), _) => false,
        _ => true,
    };
    node.operands.iter().enumerate().filter(move |(index, _)| is_read(*index)).map(|(_, &value)| value)
}

/// Returns the outputs that a form has. Those of a forward pass are the model's own outputs, which are known before the update.
fn outputs(module: &Module, form: Form) -> Vec<(String, ValueId)> {
    let is_model = |name: &str, value: ValueId| {
        let is_forward = match module.value(value).definition {
            Definition::Node(node, _) => matches!(module.node(node).phase, Phase::Prepare | Phase::Forward),
            Definition::Input(_) | Definition::State(_) => true,
        };
        let is_step = StepOutput::of(name).is_some_and(|output| output != StepOutput::Loss);
        module.level == Level::Imported || is_forward && !is_step
    };
    let outputs = module.outputs.iter();
    outputs
        .filter(|output| form == Form::Program || is_model(&output.name, output.value))
        .map(|output| (output.name.clone(), output.value))
        .collect()
}
