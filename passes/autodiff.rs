//! Autodiff: adds the backward phase, and the sums over microbatches that the update starts from.
//!
//! Backward starts at `loss.sum` with the constant 1/n, n the number of label positions of a microbatch, so that
//! gradients have the size of a mean's whatever the batch. The true weight is known only when all microbatches have
//! run: the update multiplies each accumulated gradient by n/weight. Invariants: after it the module is at
//! [`Level::Training`]; each trained parameter that the loss depends on has an output `grad.NAME` in the update
//! phase, of its own type; the outputs of the forward phase stand as they were; the backward phase opens with the constant
//! that it starts from, which [`crate::precision`] scales.

use crate::dead::remove_dead;
use crate::pass::{PassContext, Transform};
use crate::pipeline::Arguments;
use ir::ops::elementwise::{Binary, Compare, Select};
use ir::ops::step::Accumulate;
use ir::{
    At, Builder, Changed, DType, Diagnostic, GradientError, Level, Module, NodeId, NodeRef, Op, Operator,
    Phase, Role, StateId, TypeError, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The pass; it has no options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Autodiff;

impl Transform for Autodiff {
    const NAME: &'static str = "autodiff";
    const NEEDED: bool = true;

    fn parse(_: &mut Arguments) -> Result<Self, String> {
        Ok(Self)
    }

    fn print(&self, _: &mut Arguments) {}

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        let decision = decide(module)?;
        let changed = apply(module, &decision)?;
        let trained: BTreeSet<&str> =
            module.outputs.iter().filter_map(|output| output.name.strip_prefix("grad.")).collect();
        for state in module.states.values().filter(|state| state.role == Role::Parameter) {
            if !trained.contains(state.name.as_str()) {
                let warning =
                    Diagnostic::new(format!("the loss does not depend on parameter `{}`", state.name));
                cx.warn(warning.note("it has no gradient and stays as it is"));
            }
        }
        Ok(changed)
    }
}

/// What will be differentiated.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The value that is minimised: the scalar output `loss.sum`.
    pub loss: ValueId,
    /// The number of terms in it: the scalar output `loss.weight`.
    pub weight: ValueId,
    /// The number of label positions of a microbatch; the largest that the weight can be.
    pub nominal: u64,
    /// The parameters that the loss is computed from. One behind a comparison has no gradient all the same.
    pub trained: Vec<StateId>,
    /// The nodes on a path from a parameter to the loss, last first.
    pub path: Vec<NodeId>,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trained: Vec<String> = self.trained.iter().map(StateId::to_string).collect();
        writeln!(
            f,
            "differentiate {} over {} positions through {} nodes",
            self.loss,
            self.nominal,
            self.path.len()
        )?;
        write!(f, "for {}", trained.join(", "))
    }
}

/// Finds the paths from parameters to the loss.
pub fn decide(module: &Module) -> Result<Decision, Diagnostic> {
    let output = |name: &str| {
        let missing =
            || Diagnostic::new(format!("there is no output `{name}` to train by")).note("run `loss` first");
        module.output(name).map(|output| output.value).ok_or_else(missing)
    };
    if module.level != Level::Imported {
        return Err(Diagnostic::new("the program has a backward phase already"));
    }
    let (loss, weight) = (output("loss.sum")?, output("loss.weight")?);
    let mut trained: Vec<StateId> =
        module.states.iter().filter(|(_, state)| state.role == Role::Parameter).map(|(id, _)| id).collect();
    let path = path(module, &trained, loss);
    let mut read = vec![false; module.value_count()];
    for &node in &path {
        module.node(node).operands.iter().for_each(|value| read[value.as_u32() as usize] = true);
    }
    trained.retain(|&id| read[module.states[id].input.as_u32() as usize]);
    if trained.is_empty() {
        let error = Diagnostic::new("the loss depends on no parameter, so there is nothing to train");
        return Err(error.note("`trainyard inspect` lists the parameters that were found, and why"));
    }
    Ok(Decision { loss, weight, nominal: nominal(module, weight)?, trained, path })
}

/// The nodes between the parameters and the loss, last first.
fn path(module: &Module, parameters: &[StateId], loss: ValueId) -> Vec<NodeId> {
    let index = |value: &ValueId| value.as_u32() as usize;
    let mut depends = vec![false; module.value_count()];
    parameters.iter().for_each(|&id| depends[index(&module.states[id].input)] = true);
    for (_, node) in module.nodes() {
        if node.operands.iter().any(|value| depends[index(value)]) {
            node.results.iter().for_each(|value| depends[index(value)] = true);
        }
    }
    let mut reaches = vec![false; module.value_count()];
    reaches[index(&loss)] = true;
    let mut path = Vec::new();
    for (id, node) in module.nodes().rev() {
        if node.results.iter().any(|value| reaches[index(value)] && depends[index(value)]) {
            node.operands.iter().for_each(|value| reaches[index(value)] = true);
            path.push(id);
        }
    }
    path
}

/// The number of labels behind the weight of a loss, or 1 if the weight is no count of labels.
fn nominal(module: &Module, weight: ValueId) -> Result<u64, Diagnostic> {
    let Some(node) = module.producer(weight).filter(|node| matches!(node.op, Op::CrossEntropy(_))) else {
        return Ok(1);
    };
    let labels = module.ty(node.operands[1]);
    let unbound =
        || Diagnostic::new(format!("the labels have unbound dims: {labels}")).note("bind them with --bind");
    Ok(labels.numel().ok_or_else(unbound)?.max(1))
}

/// Builds the backward phase and the accumulated loss and gradients.
pub fn apply(module: &mut Module, decision: &Decision) -> Result<Changed, Diagnostic> {
    let mut b = Builder::new(module, Autodiff::NAME);
    let mut backward = Backward { gradients: BTreeMap::new() };
    b.origin("loss").at(At::End(Phase::Backward));
    let seed = b.splat_like(decision.loss, 1.0 / decision.nominal as f64)?;
    backward.add(decision.loss, seed);
    for &node in &decision.path {
        backward.node(&mut b, node)?;
    }
    let mut gradients = Vec::new();
    for &state in &decision.trained {
        let input = b.module().states[state].input;
        if let Some(gradient) = backward.total(&mut b, input)? {
            gradients.push((state, gradient));
        }
    }
    update(&mut b, decision, &gradients)?;
    b.tables().level = Level::Training;
    b.finish();
    remove_dead(module, Autodiff::NAME);
    Ok(Changed::Yes)
}

/// The gradients of the loss in values, as far as they are built: addends that are still to be summed.
struct Backward {
    gradients: BTreeMap<ValueId, Vec<ValueId>>,
}

impl Backward {
    fn add(&mut self, value: ValueId, gradient: ValueId) {
        self.gradients.entry(value).or_default().push(gradient);
    }

    /// The sum of a value's addends, in the value's dims.
    fn total(&mut self, b: &mut Builder, value: ValueId) -> Result<Option<ValueId>, TypeError> {
        let Some(addends) = self.gradients.remove(&value) else { return Ok(None) };
        let mut sum = addends[0];
        for &addend in &addends[1..] {
            sum = b.add(sum, addend)?;
        }
        let dims = b.ty(value).dims.clone();
        b.broadcast(sum, dims).map(Some)
    }

    /// Passes the gradients of a node's results on to its operands.
    fn node(&mut self, b: &mut Builder, id: NodeId) -> Result<(), Diagnostic> {
        let node = b.module().node(id).clone();
        b.at(At::End(Phase::Backward)).origin(node.origin.clone()).stage(node.stage);
        let mut results = Vec::new();
        for &result in &node.results {
            results.push(self.total(b, result)?);
        }
        if results.iter().all(Option::is_none) {
            return Ok(());
        }
        let reference = NodeRef { operands: &node.operands, results: &node.results };
        let gradients = node.op.gradient(b, reference, &results).map_err(|error| refused(&node, error))?;
        for (&operand, gradient) in node.operands.iter().zip(gradients) {
            if let Some(gradient) = gradient {
                self.add(operand, gradient);
            }
        }
        Ok(())
    }
}

fn refused(node: &ir::Node, error: GradientError) -> Diagnostic {
    let diagnostic = Diagnostic::new(format!("`{}` cannot be trained through: {error}", node.op.name()));
    let diagnostic = if node.origin.is_empty() { diagnostic } else { diagnostic.at(node.origin.to_string()) };
    diagnostic.note("parameters behind it can be left as they are with --freeze PATTERN")
}

/// `loss = Σ sum / Σ weight`, and each gradient times nominal / Σ weight; 0 where the weight is 0.
fn update(b: &mut Builder, decision: &Decision, gradients: &[(StateId, ValueId)]) -> Result<(), TypeError> {
    b.origin("loss").stage(0);
    b.at(At::End(Phase::Forward));
    let sum = b.cast(decision.loss, DType::F64)?;
    let weight = b.cast(decision.weight, DType::F64)?;
    b.at(At::End(Phase::Update));
    let sum = b.one(Accumulate, &[sum])?;
    let weight = b.one(Accumulate, &[weight])?;
    let (zero, one) = (b.scalar(DType::F64, 0.0)?, b.scalar(DType::F64, 1.0)?);
    let counts = b.one(Compare::Greater, &[weight, zero])?;
    let divisor = b.one(Select, &[counts, weight, one])?;
    let loss = b.one(Binary::Div, &[sum, divisor])?;
    b.tables().add_output("loss", loss);
    let nominal = b.scalar(DType::F64, decision.nominal as f64)?;
    let ratio = b.one(Binary::Div, &[nominal, divisor])?;
    let factor = b.one(Select, &[counts, ratio, zero])?;
    for &(state, gradient) in gradients {
        let total = b.one(Accumulate, &[gradient])?;
        let factor = b.cast(factor, b.ty(total).dtype)?;
        let mean = b.mul(total, factor)?;
        let name = format!("grad.{}", b.module().states[state].name);
        b.tables().add_output(name, mean);
    }
    Ok(())
}
