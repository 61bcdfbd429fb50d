//! Dropout: gives the model's dropouts and random tensors the numbers of their samples, from which they draw.
//!
//! The state `dropout.samples` counts the samples of all microbatches before this one, from step 0 on. So a sample has the same number
//! however a step is cut into microbatches. [`crate::bind`] finds the dim of a value that has the samples. A value without samples (a
//! table of positions) is dropped alike in all microbatches of a step: its number is `-1` minus the count at the step's start, which no
//! sample has. Invariants: every dropout and random tensor that is left has its numbers; its id stays as imported, so that programs of
//! other passes draw the same numbers.
//!
//! Masks that a model computes from random numbers become dropouts first ([`mask`]). A random tensor that is no mask is replaced by its
//! mean in an evaluation, and with `--dropout off`.

pub mod mask;

use crate::arguments::Options;
use crate::bind::{Carry, find_samples};
use crate::pass::{PassContext, Transform};
use crate::rewriting::dead::remove_dead;
use ir::ops::constant::Iota;
use ir::ops::dropout::Dropout as Operator;
use ir::ops::random::RandomUniform;
use ir::{
    At, Builder, Changed, DType, Diagnostic, Dim, Initializer, Level, Module, NodeId, Op, Phase, Role,
    StateId, Type, TypeError, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

/// The pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dropout {
    /// The seed of the run.
    pub seed: u64,
    /// The share that is dropped, in place of the model's own. It does not apply to masks of parts of a value, such as those of
    /// stochastic depth. 0 removes everything random.
    pub ratio: Option<f64>,
}

/// The state that counts the samples.
pub const SAMPLES: &str = "dropout.samples";

impl Transform for Dropout {
    const NAME: &'static str = "dropout";
    const NEEDED: bool = true;

    fn options(&mut self, options: &mut Options) {
        options.value("seed", &mut self.seed, 0);
        options.optional("ratio", &mut self.ratio, |text| match text.parse() {
            Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
            _ => Err(format!("`{text}` is not a dropout ratio from 0 to 1")),
        });
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        let masks = mask::decide(module);
        if !masks.is_empty() {
            let mut b = Builder::new(module, Self::NAME);
            mask::apply(&mut b, &masks)?;
            b.finish();
            remove_dead(module, Self::NAME);
        }
        let decision = decide(module, self)?;
        if self.ratio.is_some_and(|ratio| ratio > 0.0) && settable(module).is_empty() {
            let warning = Diagnostic::new("the model has no dropout whose ratio could be set");
            cx.warn(warning.note("export the model in training mode (torch.onnx.TrainingMode.TRAINING)"));
        }
        if decision.removed.is_empty() && decision.numbered.is_empty() {
            return Ok(if masks.is_empty() { Changed::No } else { Changed::Yes });
        }
        if self.ratio != Some(0.0)
            && let Some(warning) = noise(module)
        {
            cx.warn(warning);
        }
        apply(module, &decision)
    }
}

/// Warns about random tensors that are no dropout: an evaluation does not know the numbers that the model expects in their place.
fn noise(module: &Module) -> Option<Diagnostic> {
    let mut random = module.nodes().filter(|(_, node)| matches!(node.op, Op::RandomUniform(_)));
    let (_, first) = random.next()?;
    let origins: BTreeSet<&str> = random.map(|(_, node)| &*node.origin).chain([&*first.origin]).collect();
    let message = match origins.len() {
        1 => "a random tensor is neither dropout nor stochastic depth".to_string(),
        count => format!("{count} random tensors are neither dropout nor stochastic depth"),
    };
    let warning = Diagnostic::new(message);
    let warning = if first.origin.is_empty() { warning } else { warning.at(first.origin.to_string()) };
    let warning = warning.note(
        "an evaluation uses the mean of a random tensor (0 for normal numbers), and the model may use \
         another value",
    );
    Some(warning.note("--dropout off uses the mean in training too"))
}

/// Returns the ids of the dropouts whose share may be set: dropouts of values of the model. A dropout of ones alone is a mask that the
/// model computes for parts of a value, as stochastic depth does for whole samples.
fn settable(module: &Module) -> BTreeSet<u32> {
    let is_one = |value: ValueId| match module.producer(value).map(|node| &node.op) {
        Some(Op::Splat(splat)) => splat.value.get() == 1.0,
        _ => false,
    };
    let id = |(_, node): (NodeId, &ir::Node)| match &node.op {
        Op::Dropout(op) if !is_one(node[ir::OperandRole::Data]) => Some(op.id),
        _ => None,
    };
    module.nodes().filter_map(id).collect()
}

/// The replacement of each dropout and random tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The dropouts and random tensors that drop nothing, or are replaced by their mean.
    pub removed: Vec<NodeId>,
    /// All others, each with its new operator, and whether its value has samples.
    pub numbered: Vec<(NodeId, Draw, bool)>,
    /// The number of samples in a microbatch.
    pub batch: u64,
}

/// An operator that draws random numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum Draw {
    /// A dropout.
    Dropout(Operator),
    /// A random tensor.
    Uniform(RandomUniform),
}

impl Draw {
    /// Returns the operator of a node, if it draws and its samples have no numbers yet.
    fn without_numbers(node: &ir::Node) -> Option<Self> {
        match &node.op {
            Op::Dropout(op) if node.operands.len() == 1 => Some(Self::Dropout(op.clone())),
            Op::RandomUniform(op) if node.operands.is_empty() => Some(Self::Uniform(op.clone())),
            _ => None,
        }
    }

    fn id(&self) -> u32 {
        match self {
            Self::Dropout(op) => op.id,
            Self::Uniform(op) => op.id,
        }
    }

    fn dim(&mut self) -> &mut u32 {
        match self {
            Self::Dropout(op) => &mut op.dim,
            Self::Uniform(op) => &mut op.dim,
        }
    }

    fn op(&self) -> Op {
        match self {
            Self::Dropout(op) => op.clone().into(),
            Self::Uniform(op) => op.clone().into(),
        }
    }
}

/// Finds the operators that draw and have no numbers yet, and the dim of their samples.
pub fn decide(module: &Module, options: &Dropout) -> Result<Decision, Diagnostic> {
    let (mut decision, settable) = (Decision::default(), settable(module));
    for (id, node) in module.nodes() {
        let Some(mut draw) = Draw::without_numbers(node) else { continue };
        let off = match &mut draw {
            Draw::Dropout(op) => {
                let asked = options.ratio.filter(|&ratio| ratio == 0.0 || settable.contains(&op.id));
                (op.ratio, op.seed) = (asked.map_or(op.ratio, Into::into), options.seed);
                op.ratio.get() == 0.0
            }
            Draw::Uniform(op) => {
                op.seed = options.seed;
                options.ratio == Some(0.0)
            }
        };
        if off {
            decision.removed.push(id);
        } else {
            decision.numbered.push((id, draw, false));
        }
    }
    if decision.numbered.is_empty() {
        return Ok(decision);
    }
    if module.level != Level::Imported {
        return Err(Diagnostic::new("the pass `dropout` must run before the program is differentiated"));
    }
    let samples = find_samples(module).map_err(|error| unclear(&error))?;
    decision.batch = samples.batch.max(1);
    // A dropout of ones makes the mask of a value whose dropout has the same id, and takes its dim of samples from there. The ones are a
    // constant, which would fit any batch.
    let mut places: BTreeMap<u32, Carry> = BTreeMap::new();
    for (id, draw, _) in &decision.numbered {
        let carry = samples.carries.get(&module.node(*id).results[0]);
        places.extend(carry.map(|&carry| (draw.id(), carry)));
    }
    for (id, draw, sampled) in &mut decision.numbered {
        let Some(&Carry { dim, minor }) = places.get(&draw.id()) else { continue };
        let ty = module.ty(module.node(*id).results[0]);
        if ty.dims[dim].size() != Some(decision.batch * minor) {
            let error =
                Diagnostic::new(format!("the samples are not the outermost part of dim {dim} of {ty}"));
            return Err(unclear(&error.at(module.node(*id).origin.to_string())));
        }
        (*draw.dim(), *sampled) = (dim as u32, true);
    }
    Ok(decision)
}

/// Returns the error that the samples cannot be told apart.
fn unclear(error: &Diagnostic) -> Diagnostic {
    let found =
        Diagnostic::new(format!("dropout needs to distinguish the samples of a batch: {}", error.message));
    let found = error.origin.iter().fold(found, |found, origin| found.at(origin.clone()));
    found.note("train without dropout: --dropout off")
}

/// Gives the operators their numbers, and removes the operators that drop nothing.
pub fn apply(module: &mut Module, decision: &Decision) -> Result<Changed, Diagnostic> {
    let mut b = Builder::new(module, Dropout::NAME);
    for &id in &decision.removed {
        bypass(&mut b, id)?;
    }
    if !decision.numbered.is_empty() {
        let numbers = Numbers::build(&mut b, decision)?;
        for (id, draw, sampled) in &decision.numbered {
            let node = b.module().node(*id);
            let (mut operands, result) = (node.operands.clone(), node.results[0]);
            operands.push(if *sampled { numbers.of_samples } else { numbers.of_the_step });
            let ty = b.ty(result).clone();
            let drawn = b.at(At::Before(*id)).one_typed(draw.op(), &operands, ty)?;
            b.replace(result, drawn);
            b.remove(*id);
        }
    }
    b.finish();
    remove_dead(module, Dropout::NAME);
    Ok(Changed::Yes)
}

/// Removes every dropout and random tensor, as an evaluation does.
pub fn remove(module: &mut Module) -> Result<Changed, TypeError> {
    let draws = |op: &Op| matches!(op, Op::Dropout(_) | Op::RandomUniform(_));
    let found: Vec<NodeId> = module.nodes().filter(|(_, node)| draws(&node.op)).map(|(id, _)| id).collect();
    let mut b = Builder::new(module, Dropout::NAME);
    for id in found {
        bypass(&mut b, id)?;
    }
    Ok(b.finish())
}

/// Replaces the result of a dropout by its operand, and random numbers by their mean.
fn bypass(b: &mut Builder, id: NodeId) -> Result<(), TypeError> {
    let node = b.module().node(id);
    let (op, operands, result) = (node.op.clone(), node.operands.clone(), node.results[0]);
    let without = match op {
        Op::RandomUniform(_) => {
            let (ty, stage, copy) = (b.ty(result).clone(), node.stage, node.copy);
            let sharding = ty.sharding.clone();
            let mean = b.at(At::Before(id)).stage(stage).copy(copy).splat(ty, RandomUniform::MEAN)?;
            b.shard(mean, sharding);
            mean
        }
        _ => operands[0],
    };
    b.replace(result, without);
    b.remove(id);
    Ok(())
}

/// The numbers that dropouts read.
struct Numbers {
    /// `[batch]`: the numbers of the samples of the microbatch.
    of_samples: ValueId,
    /// `[1]`: the number for all microbatches of the step.
    of_the_step: ValueId,
}

impl Numbers {
    fn build(b: &mut Builder, decision: &Decision) -> Result<Self, TypeError> {
        let count = Type::scalar(DType::I64);
        let id = b.tables().add_state(SAMPLES, count, Role::Counter, Initializer::Zeros);
        let before = b.module().states[id].input;
        b.origin("dropout").at(At::Start(Phase::Prepare));
        let of_the_step = b.reshape(-1.0 - before, [Dim::known(1)])?;
        b.at(At::Start(Phase::Forward));
        Ok(Self { of_samples: count_samples(b, id, decision.batch)?, of_the_step })
    }
}

/// Returns the numbers of a microbatch's samples, `i64[batch]`, and makes the counter count them.
fn count_samples(b: &mut Builder, counter: StateId, batch: u64) -> Result<ValueId, TypeError> {
    let before = b.module().states[counter].input;
    let index = b.one_typed(Iota { dim: 0 }, &[], Type::of(DType::I64, &[batch]))?;
    let of_samples = b.build(before + index)?;
    let after = b.build(before + batch as f64)?;
    b.tables().states[counter].output = Some(after);
    Ok(of_samples)
}

/// Returns the numbers of a microbatch's samples, `i64[batch]`, for another pass that draws random numbers.
pub(crate) fn numbers_of_samples(b: &mut Builder, batch: u64) -> Result<ValueId, TypeError> {
    let counter = b.module().states.iter().find(|(_, state)| state.name == SAMPLES).map(|(id, _)| id);
    let counter = counter.unwrap_or_else(|| {
        b.tables().add_state(SAMPLES, Type::scalar(DType::I64), Role::Counter, Initializer::Zeros)
    });
    count_samples(b, counter, batch)
}

/// Returns an id that no random operator of the program has.
pub(crate) fn next_id(module: &Module) -> u32 {
    let ids = module.nodes().filter_map(|(_, node)| match &node.op {
        Op::Dropout(dropout) => Some(dropout.id + 1),
        Op::RandomUniform(uniform) => Some(uniform.id + 1),
        _ => None,
    });
    ids.max().unwrap_or(0)
}
