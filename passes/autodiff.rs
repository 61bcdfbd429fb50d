//! Autodiff: adds the backward phase, and the sums over microbatches that the update starts from.
//!
//! Backward starts at `loss.sum` with the constant 1/n, where n is the number of label positions of a microbatch. So gradients are
//! about as large as those of a mean, at any batch size. The true weight is known only after all microbatches have run: the update
//! multiplies each accumulated gradient by n/weight.
//!
//! A loss of several classes ([`crate::loss`]) has a weight for each class, so the gradients of each class are accumulated separately:
//! backward runs once for each class. A step of one microbatch knows all weights when backward starts. With the option `whole`, each
//! class then starts with 1/weight, and backward runs once.
//!
//! Invariants: after it the module is at [`Level::Training`]; each trained parameter that the loss depends on has an output `grad.NAME` of its
//! own type in the update phase; outputs of forward stay; backward opens with its start constant, which [`crate::precision`] scales.

mod parts;
mod reported;
mod weight;

pub use weight::put_off_all;

use crate::arguments::Options;
use crate::pass::{PassContext, Transform};
use crate::rewriting::dead::remove_dead;
use crate::rewriting::settle::settle;
use ir::ops::elementwise::{Binary, Compare, Select};
use ir::ops::reduce::{Reduce, ReduceKind};
use ir::ops::step::Accumulate;
use ir::ops::transfer::Transfer;
use ir::{
    At, Builder, Changed, DType, Diagnostic, EVERY_STAGE, GradientError, Level, Module, NodeId, NodeRef, Op,
    OperandRole, Operator, Phase, Role, Scalar, ScalarPart, State, StateId, StepOutput, TypeError, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

/// The pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Autodiff {
    /// Whether a step has exactly one microbatch. This matters only for a loss of several classes.
    pub whole: bool,
}

impl Transform for Autodiff {
    const NAME: &'static str = "autodiff";
    const NEEDED: bool = true;

    fn options(&mut self, options: &mut Options) {
        options.flag("whole", &mut self.whole);
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        let decision = decide(module)?;
        let changed = apply(module, self, &decision)?;
        let trained: BTreeSet<&str> =
            module.outputs.iter().filter_map(|output| StepOutput::gradient_of(&output.name)).collect();
        let parameters = || module.states.values().filter(|state| state.role == Role::Parameter);
        if trained.is_empty()
            && let Some(first) = parameters().next()
        {
            let error = format!(
                "no parameter has a gradient: the loss does not depend on `{}`, nor on another of the {} parameters",
                first.name,
                parameters().count()
            );
            return Err(Diagnostic::new(error).note(
                "a comparison, a rounding, an index and a `detach` pass no gradient; --loss output:NAME chooses another loss",
            ));
        }
        for state in parameters().filter(|state| !trained.contains(state.name.as_str())) {
            let warning = Diagnostic::new(format!("the loss does not depend on parameter `{}`", state.name));
            cx.warn(warning.note("the parameter has no gradient and does not change"));
        }
        Ok(changed)
    }
}

/// The losses that are differentiated.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The classes of the loss.
    pub classes: Vec<Class>,
    /// The parameters that the loss is computed from. A parameter that is read only through a comparison has no gradient.
    pub trained: Vec<StateId>,
}

/// A class of the loss: `Σ sum / (max(Σ weight, floor) + epsilon)` over the microbatches. The count, if there is one, multiplies floor and
/// epsilon.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// The dividend: the scalar output `loss.sum`.
    pub sum: ValueId,
    /// The scalar that is differentiated: the output `loss.objective` if the program has one, else the dividend.
    pub objective: ValueId,
    /// The number of terms in the sum: the scalar output `loss.weight`.
    pub weight: ValueId,
    /// The smallest divisor; 0 for none.
    pub floor: f64,
    /// A number that is added to the divisor.
    pub epsilon: f64,
    /// The number of samples of a microbatch, by which floor and epsilon are multiplied: the scalar output `loss.count`.
    pub count: Option<ValueId>,
    /// The number of label positions of a microbatch, which is the largest possible weight.
    pub nominal: u64,
    /// The nodes on a path from a parameter to the sum, last first.
    pub path: Vec<NodeId>,
}

/// Finds the paths from parameters to the loss.
pub fn decide(module: &Module) -> Result<Decision, Diagnostic> {
    if module.level != Level::Imported {
        return Err(Diagnostic::new("the program already has a backward phase"));
    }
    let mut classes = classes(module, Scalar::Loss)?;
    if classes.is_empty() {
        let error =
            Diagnostic::new("the program has no output `loss.sum`, which is the loss to differentiate");
        return Err(error.note("run the pass `loss` first"));
    }
    let mut trained: Vec<StateId> =
        module.states.iter().filter(|(_, state)| state.role == Role::Parameter).map(|(id, _)| id).collect();
    let mut read = vec![false; module.value_count()];
    for class in &mut classes {
        class.path = path(module, &trained, class.objective);
        for &node in &class.path {
            module.node(node).operands.iter().for_each(|value| read[value.as_u32() as usize] = true);
        }
        // The objective may be a parameter itself.
        read[class.objective.as_u32() as usize] = true;
    }
    trained.retain(|&id| read[module.states[id].input.as_u32() as usize]);
    if trained.is_empty() {
        return Err(nothing_to_train());
    }
    Ok(Decision { classes, trained })
}

/// Returns the error about a program whose loss depends on no parameter.
pub fn nothing_to_train() -> Diagnostic {
    let error = Diagnostic::new("the loss depends on no parameter, so there is nothing to train");
    error.note("`trainyard inspect` lists the parameters that were found, and why")
}

/// Returns the classes of a scalar, from the outputs that the loss pass added.
fn classes(module: &Module, scalar: Scalar) -> Result<Vec<Class>, Diagnostic> {
    let named = |class, part| StepOutput::Part { scalar, class, part };
    let output = |class, part| module.step_output(named(class, part)).map(|output| output.value);
    let number = |class, part| {
        let node = output(class, part).and_then(|value| module.producer(value));
        node.map_or(0.0, |node| if let Op::Splat(splat) = &node.op { splat.value.get() } else { 0.0 })
    };
    let mut classes = Vec::new();
    while let Some(sum) = output(classes.len(), ScalarPart::Sum) {
        let index = classes.len();
        let missing = || {
            let weight = named(index, ScalarPart::Weight);
            Diagnostic::new(format!("the program has no output `{weight}`, which is the weight of the loss"))
                .note("run the pass `loss` first")
        };
        let weight = output(index, ScalarPart::Weight).ok_or_else(missing)?;
        let nominal = nominal(module, weight)?;
        let (floor, epsilon) = (number(index, ScalarPart::Floor), number(index, ScalarPart::Epsilon));
        let count = output(index, ScalarPart::Count);
        let objective = module.step_output(StepOutput::Objective).map(|output| output.value);
        let objective = objective.filter(|_| index == 0 && scalar == Scalar::Loss).unwrap_or(sum);
        classes.push(Class { sum, objective, weight, floor, epsilon, count, nominal, path: vec![] });
    }
    Ok(classes)
}

/// Returns the nodes between the parameters and the loss, last first.
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

/// Returns the number of positions that the weight of a loss counts, or 1 if the weight is no count.
fn nominal(module: &Module, weight: ValueId) -> Result<u64, Diagnostic> {
    let Some(node) = module.producer(weight) else { return Ok(1) };
    let counted = match &node.op {
        Op::CrossEntropy(_) => module.ty(node[OperandRole::Labels]),
        Op::Reduce(Reduce { kind: ReduceKind::Sum, .. }) => module.ty(node.operands[0]),
        Op::Splat(splat) => return Ok((splat.value.get() as u64).max(1)),
        // The weight is a mean over samples, multiplied by their number.
        Op::Binary(Binary::Mul) => {
            let factor = node.operands.iter().find_map(|&operand| module.splat_number(operand));
            return Ok(factor.map_or(1, |factor| (factor as u64).max(1)));
        }
        _ => return Ok(1),
    };
    let unbound =
        || Diagnostic::new(format!("the labels have unbound dims: {counted}")).note("bind them with --bind");
    Ok(counted.numel().ok_or_else(unbound)?.max(1))
}

/// Builds the backward phase and the accumulated loss and gradients.
pub fn apply(module: &mut Module, options: &Autodiff, decision: &Decision) -> Result<Changed, Diagnostic> {
    let mut b = Builder::new(module, Autodiff::NAME);
    let sums = accumulate(&mut b, &decision.classes)?;
    let loss = value(&mut b, &sums)?;
    b.tables().add_output(StepOutput::Loss, loss);
    let objective = StepOutput::Objective.to_string();
    b.tables().outputs.retain(|output| output.name != objective);
    let gradients = match &decision.classes[..] {
        classes @ ([] | [_]) => each_class(&mut b, decision, classes, &sums)?,
        classes if options.whole => all_classes(&mut b, decision, classes)?,
        classes => each_class(&mut b, decision, classes, &sums)?,
    };
    for (state, gradient) in gradients {
        let name = StepOutput::Gradient(&b.module().states[state].name).to_string();
        b.tables().add_output(name, gradient);
    }
    reported::metrics(&mut b)?;
    reported::loads(&mut b)?;
    b.tables().level = Level::Training;
    b.finish();
    remove_dead(module, Autodiff::NAME);
    settle(module, Autodiff::NAME)?;
    weight::put_off(module, Autodiff::NAME);
    Ok(Changed::Yes)
}

/// Builds the gradients of a loss. Backward runs once for each class, and the gradients are divided by the class's weight over all
/// microbatches.
fn each_class(
    b: &mut Builder,
    decision: &Decision,
    classes: &[Class],
    sums: &[Sums],
) -> Result<BTreeMap<StateId, ValueId>, Diagnostic> {
    let mut totals = BTreeMap::new();
    let mut base = None;
    for (class, sums) in classes.iter().zip(sums) {
        b.origin("loss").stage(0).at(At::End(Phase::Backward));
        let start = 1.0 / class.nominal as f64;
        let seed = match base {
            None if classes.len() == 1 => b.splat_like(class.objective, start)?,
            None => {
                let one = b.splat_like(class.objective, 1.0)?;
                base = Some(one);
                b.build(one * start)?
            }
            Some(one) => {
                let one = b.cast(one, b.ty(class.objective).dtype)?;
                b.build(one * start)?
            }
        };
        let mut backward = Backward::default();
        backward.add(class.objective, seed);
        let gradients = backward.run(b, &class.path, &decision.trained)?;
        b.origin("loss").stage(0).at(At::End(Phase::Update));
        let factor = sums.divisor.divide(b, class.nominal as f64)?;
        for (state, gradient) in gradients {
            let total = total_of(b, state, &gradient)?;
            let factor = b.cast(factor, b.ty(total).dtype)?;
            let mean = b.build(total * factor)?;
            let sum = match totals.get(&state) {
                None => mean,
                Some(&other) => b.build(other + mean)?,
            };
            totals.insert(state, sum);
        }
    }
    Ok(totals)
}

/// Builds the gradients of a loss in a step of one microbatch. Backward runs once, and starts with 1/weight for each class.
fn all_classes(
    b: &mut Builder,
    decision: &Decision,
    classes: &[Class],
) -> Result<BTreeMap<StateId, ValueId>, Diagnostic> {
    b.origin("loss").stage(0).at(At::End(Phase::Forward));
    let mut inverses = Vec::new();
    for class in classes {
        let weight = b.cast(class.weight, DType::F64)?;
        let inverse = Divided::by(b, class, weight, class.count)?.divide(b, 1.0)?;
        let inverse = b.cast(inverse, b.ty(class.objective).dtype)?;
        inverses.push(where_backward_begins(b, class, inverse)?);
    }
    b.at(At::End(Phase::Backward));
    let base = b.splat_like(classes[0].objective, 1.0)?;
    let mut backward = Backward::default();
    for (class, inverse) in classes.iter().zip(inverses) {
        let one = b.cast(base, b.ty(class.objective).dtype)?;
        let seed = b.build(one * inverse)?;
        backward.add(class.objective, seed);
    }
    let on_path: BTreeSet<NodeId> = classes.iter().flat_map(|class| class.path.iter().copied()).collect();
    let path: Vec<NodeId> =
        b.module().order().iter().rev().copied().filter(|node| on_path.contains(node)).collect();
    let gradients = backward.run(b, &path, &decision.trained)?;
    b.origin("loss").stage(0).at(At::End(Phase::Update));
    let accumulated =
        |(state, gradient): (StateId, Vec<ValueId>)| Ok((state, total_of(b, state, &gradient)?));
    gradients.into_iter().map(accumulated).collect()
}

/// Sends the inverse of a class's weight to the stage where backward of the class begins, if the inverse lies on an earlier stage.
/// Backward goes from the last stage to the first.
fn where_backward_begins(b: &mut Builder, class: &Class, inverse: ValueId) -> Result<ValueId, TypeError> {
    let [made, begins] = [class.weight, class.objective].map(|value| b.module().stage_of(value));
    if made >= begins || begins == EVERY_STAGE {
        return Ok(inverse);
    }
    let there = b.stage(begins).one(Transfer, &[inverse])?;
    b.stage(0);
    Ok(there)
}

/// Builds the sum of a parameter's gradient over the microbatches. Each stage that reads the parameter has a gradient of its own, which
/// is summed up on that stage.
fn total_of(b: &mut Builder, state: StateId, gradients: &[ValueId]) -> Result<ValueId, TypeError> {
    let mut total = None;
    for &gradient in gradients {
        let stage = b.module().stage_of(gradient);
        let sum = b.stage(stage).one(Accumulate, &[gradient])?;
        let stage = b.module().states[state].stage;
        b.stage(stage);
        total = Some(match total {
            None => sum,
            Some(total) => b.build(total + sum)?,
        });
    }
    total.ok_or_else(|| TypeError::new("a trained parameter has a gradient"))
}

/// The gradients of values as far as they are built: lists of addends that are still to be summed.
#[derive(Default)]
struct Backward {
    gradients: BTreeMap<ValueId, Vec<ValueId>>,
    /// Gradients from other stages, by parameter. These stages receive the parameter once for all microbatches.
    elsewhere: BTreeMap<ValueId, Vec<ValueId>>,
}

impl Backward {
    fn add(&mut self, value: ValueId, gradient: ValueId) {
        self.gradients.entry(value).or_default().push(gradient);
    }

    /// Goes back along a path. Returns the gradients of each parameter: one for each stage that reads it.
    fn run(
        &mut self,
        b: &mut Builder,
        path: &[NodeId],
        trained: &[StateId],
    ) -> Result<Vec<(StateId, Vec<ValueId>)>, Diagnostic> {
        for &node in path {
            self.node(b, node)?;
        }
        let mut gradients = Vec::new();
        for &state in trained {
            let State { input, stage, .. } = b.module().states[state];
            b.stage(stage);
            let mut own: Vec<ValueId> = self.total(b, input)?.into_iter().collect();
            own.extend(self.elsewhere.remove(&input).into_iter().flatten());
            if !own.is_empty() {
                gradients.push((state, own));
            }
        }
        Ok(gradients)
    }

    /// Adds up a value's addends, and broadcasts the sum to the value's dims.
    fn total(&mut self, b: &mut Builder, value: ValueId) -> Result<Option<ValueId>, TypeError> {
        let Some(addends) = self.gradients.remove(&value) else { return Ok(None) };
        let addends = parts::join(b, addends)?;
        let mut sum = addends[0];
        for &addend in &addends[1..] {
            sum = b.build(sum + addend)?;
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
        if let (Op::Transfer(_), &[Some(gradient)]) = (&node.op, &results[..]) {
            let from = node.operands[0];
            if node.phase == Phase::Prepare {
                self.elsewhere.entry(from).or_default().push(gradient);
                return Ok(());
            }
            // The gradient goes back to the stage of the operand.
            let stage = b.module().stage_of(from);
            b.stage(stage);
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
    diagnostic.note("--freeze PATTERN excludes the parameters before this node from training")
}

/// The sums of a class of a scalar over the microbatches, in f64.
struct Sums {
    sum: ValueId,
    divisor: Divided,
}

/// The divisor of a class.
struct Divided {
    /// Whether the divisor is 0, because no term counts.
    is_zero: ValueId,
    /// The divisor, or 1 in place of 0.
    by: ValueId,
    zero: ValueId,
}

impl Divided {
    /// Builds the divisor `max(weight, floor) + epsilon`. The count, if there is one, multiplies floor and epsilon.
    fn by(
        b: &mut Builder,
        class: &Class,
        weight: ValueId,
        count: Option<ValueId>,
    ) -> Result<Self, TypeError> {
        let bound = |b: &mut Builder, number: f64| {
            let number = b.scalar(DType::F64, number)?;
            count.map_or(Ok(number), |count| b.build(count * number))
        };
        let mut divisor = weight;
        if class.floor != 0.0 {
            let floor = bound(b, class.floor)?;
            divisor = b.build(Binary::Max.of(divisor, floor))?;
        }
        if class.epsilon != 0.0 {
            let epsilon = bound(b, class.epsilon)?;
            divisor = b.build(divisor + epsilon)?;
        }
        let (zero, one) = (b.scalar(DType::F64, 0.0)?, b.scalar(DType::F64, 1.0)?);
        let is_zero = b.build(Compare::Equal.of(divisor, zero))?;
        Ok(Self { is_zero, by: b.build(Select.of(is_zero, one, divisor))?, zero })
    }

    /// Divides a number by this divisor. The quotient is 0 where the divisor is 0.
    fn divide(&self, b: &mut Builder, number: f64) -> Result<ValueId, TypeError> {
        b.build(Select.of(self.is_zero, self.zero, number / self.by))
    }
}

/// Sums up the classes of a scalar over the microbatches.
fn accumulate(b: &mut Builder, classes: &[Class]) -> Result<Vec<Sums>, TypeError> {
    b.origin("loss").stage(0);
    let mut sums = Vec::new();
    for class in classes {
        b.at(At::End(Phase::Forward));
        let sum = b.cast(class.sum, DType::F64)?;
        let weight = b.cast(class.weight, DType::F64)?;
        b.at(At::End(Phase::Update));
        let sum = b.one(Accumulate, &[sum])?;
        let weight = b.one(Accumulate, &[weight])?;
        let count = class.count.map(|count| b.one(Accumulate, &[count])).transpose()?;
        sums.push(Sums { sum, divisor: Divided::by(b, class, weight, count)? });
    }
    Ok(sums)
}

/// Builds the value of a scalar over all microbatches.
fn value(b: &mut Builder, sums: &[Sums]) -> Result<ValueId, TypeError> {
    let mut total = None;
    for class in sums {
        let quotient = b.build(class.sum / class.divisor.by)?;
        total = Some(match total {
            None => quotient,
            Some(total) => b.build(total + quotient)?,
        });
    }
    total.ok_or_else(|| TypeError::new("a scalar has at least one class"))
}
