//! Finds the output of the model that is its loss.
//!
//! An output named `loss` is the loss. So is an output that every other float scalar feeds into. A single float scalar is the loss
//! if a prediction feeds into it, or if it alone reads an input, as a loss alone reads labels. In any other case the user must choose.

use super::kind::LossKind;
use super::linear::through_views;
use ir::{Definition, Diagnostic, Module, Op, Output, Role, StepOutput, ValueId};
use std::collections::BTreeSet;

/// The output that is the model's loss.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnLoss {
    /// The name of the output.
    pub output: String,
    /// The value of the output.
    pub value: ValueId,
    /// The reason why it is taken for the loss.
    pub reason: String,
}

/// Returns the float scalars among the outputs of the model that nodes compute.
pub(super) fn scalars(module: &Module) -> impl Iterator<Item = &Output> {
    module.outputs.iter().filter(|output| {
        let ty = module.ty(output.value);
        ty.numel() == Some(1)
            && ty.dtype.is_float()
            && matches!(module.value(output.value).definition, Definition::Node(..))
            && !StepOutput::reserves(&output.name)
    })
}

/// Finds the model's loss. `None`: no output can be one. Errors: several outputs could be the loss; no output has the given name.
pub(super) fn choose(module: &Module, kind: &LossKind) -> Result<Option<OwnLoss>, Diagnostic> {
    if let LossKind::Output(name) = kind {
        return named(module, name).map(Some);
    }
    let is_named_loss = |output: &&Output| output.name.eq_ignore_ascii_case("loss");
    if let Some(output) = scalars(module).find(is_named_loss) {
        return Ok(Some(own(output, "its name")));
    }
    if let Some(output) = module.outputs.iter().find(is_named_loss) {
        let ty = module.ty(output.value);
        let error = Diagnostic::new(format!("output `{}` is {ty}; a loss must be one float", output.name));
        return Err(
            error.note("export the mean or the sum of this output, or choose another loss with --loss")
        );
    }
    let sources = Sources::new(module);
    let mut candidates: Vec<&Output> = Vec::new();
    for output in scalars(module).filter(|output| sources.can_be_minimised(output.value)) {
        let value = through_views(module, output.value);
        if !candidates.iter().any(|other| through_views(module, other.value) == value) {
            candidates.push(output);
        }
    }
    match &candidates[..] {
        [] => Ok(None),
        [output] => single(module, &sources, output, kind).map(Some),
        _ => {
            let takes_all = |output: &&&Output| {
                let behind = sources.behind(output.value);
                candidates.iter().all(|other| behind.contains(&through_views(module, other.value)))
            };
            let found = candidates.iter().find(takes_all);
            let found = found.map(|output| own(output, "it is computed from every other scalar"));
            found.map(Some).ok_or_else(|| ambiguous(&candidates))
        }
    }
}

fn own(output: &Output, reason: impl Into<String>) -> OwnLoss {
    OwnLoss { output: output.name.clone(), value: output.value, reason: reason.into() }
}

/// Returns the output with this name, or the reason why it cannot be the loss.
fn named(module: &Module, name: &str) -> Result<OwnLoss, Diagnostic> {
    let Some(output) = module.output(name) else {
        let error = Diagnostic::new(format!("--loss output:{name}: the model has no output `{name}`"));
        return Err(error.note(format!("its outputs are {}", super::output_list(module))));
    };
    let Some(output) = scalars(module).find(|other| other.name == output.name) else {
        let ty = module.ty(output.value);
        let error =
            Diagnostic::new(format!("--loss output:{name}: the output is {ty}; a loss must be one float"));
        return Err(error.note("export the mean or the sum of this output"));
    };
    if !Sources::new(module).can_be_minimised(output.value) {
        let error = Diagnostic::new(format!("--loss output:{name}: the output depends on no parameter"));
        return Err(error.note("`trainyard inspect` lists the parameters that were found, and why"));
    }
    Ok(own(output, "--loss names it"))
}

/// Decides whether the only float scalar is the loss. Errors: the user must choose.
fn single(
    module: &Module,
    sources: &Sources,
    output: &Output,
    kind: &LossKind,
) -> Result<OwnLoss, Diagnostic> {
    if module.outputs.len() == 1 {
        return Ok(own(output, "the only output"));
    }
    let behind = sources.behind(output.value);
    let others: Vec<&Output> = module.outputs.iter().filter(|other| other.name != output.name).collect();
    let feeds = |other: &&&Output| behind.contains(&through_views(module, other.value));
    if let Some(other) = others.iter().find(feeds) {
        return Ok(own(output, format!("it is computed from output `{}`", other.name)));
    }
    let read: BTreeSet<ValueId> = others.iter().flat_map(|other| sources.behind(other.value)).collect();
    let alone = |input: &&ir::Input| behind.contains(&input.value) && !read.contains(&input.value);
    if let Some(input) = module.inputs.iter().find(alone) {
        return Ok(own(output, format!("only this output reads input `{}`", input.name)));
    }
    if *kind == LossKind::Model {
        return Ok(own(output, "the only float scalar"));
    }
    let name = &output.name;
    let error =
        Diagnostic::new(format!("output `{name}` is a float scalar that may be the loss, or a part of it"));
    let error = error.note(
        "the scalar is not computed from other outputs, and it reads no input that only it reads, such \
             as labels",
    );
    Err(error
        .note(format!("--loss output:{name} minimises this output"))
        .note("--loss cross-entropy (or mse, bce) trains another output with labels from the data"))
}

fn ambiguous(candidates: &[&Output]) -> Diagnostic {
    let list = |form: &dyn Fn(&str) -> String, between: &str| {
        candidates.iter().map(|output| form(&output.name)).collect::<Vec<_>>().join(between)
    };
    let names = list(&|name| format!("`{name}`"), ", ");
    let error = Diagnostic::new(format!("{} outputs could be the loss: {names}", candidates.len()));
    error
        .note("no output is named `loss`, and no output is computed from all the others")
        .note(format!("choose one: {}", list(&|name| format!("--loss output:{name}"), " or ")))
        .note("or export the weighted sum of these outputs as an output named `loss`")
}

/// Facts about the sources of each value.
struct Sources<'m> {
    module: &'m Module,
    /// Values through which a parameter can be trained.
    trains: Vec<bool>,
    reads_inputs: Vec<bool>,
}

impl<'m> Sources<'m> {
    fn new(module: &'m Module) -> Self {
        let index = |value: ValueId| value.as_u32() as usize;
        let mut trains = vec![false; module.value_count()];
        let mut reads_inputs = trains.clone();
        module.inputs.iter().for_each(|input| reads_inputs[index(input.value)] = true);
        let parameters = module.states.values().filter(|state| state.role == Role::Parameter);
        let parameters: Vec<ValueId> = parameters.map(|state| state.input).collect();
        // Without parameters yet, any value counts as trained.
        trains.fill(parameters.is_empty());
        parameters.iter().for_each(|&value| trains[index(value)] = true);
        for (_, node) in module.nodes() {
            let any = |of: &[bool]| node.operands.iter().any(|&value| of[index(value)]);
            let (trained, reads) = (any(&trains), any(&reads_inputs));
            for &result in &node.results {
                let passes = !matches!(node.op, Op::Compare(_)) && module.ty(result).dtype.is_float();
                trains[index(result)] = passes && (trained || parameters.is_empty());
                reads_inputs[index(result)] = reads;
            }
        }
        Self { module, trains, reads_inputs }
    }

    /// Whether a value depends on inputs, and can be trained.
    fn can_be_minimised(&self, value: ValueId) -> bool {
        let index = value.as_u32() as usize;
        self.trains[index] && self.reads_inputs[index]
    }

    /// Returns the values that a value is computed from, itself included.
    fn behind(&self, value: ValueId) -> BTreeSet<ValueId> {
        let (mut found, mut stack) = (BTreeSet::new(), vec![value]);
        while let Some(value) = stack.pop() {
            if found.insert(value)
                && let Definition::Node(id, _) = self.module.value(value).definition
            {
                stack.extend(&self.module.node(id).operands);
            }
        }
        found
    }
}
