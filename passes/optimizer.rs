//! Optimizer: turns gradients into new parameters. Everything that a step decides (rate, clipping) is computed on the device.
//!
//! The pass reads the outputs `grad.NAME` of [`crate::autodiff`]. It adds the states `step`, `adam.m(NAME)`, `adam.v(NAME)`,
//! `sgd.velocity(NAME)` and the like for each parameter NAME, the outputs `lr` and `grad_norm` (f64; the norm before clipping), and the
//! new value of each parameter. If the loss is scaled ([`crate::precision`]), a step whose gradients are not finite leaves
//! every state as it was. The optimizer's operators scale and skip themselves: their operand `scale` has the product of all factors
//! of a gradient, and `skip` says whether the states stay. Plain gradient descent has no operator; its nodes multiply and
//! select. Invariants: all added nodes are in the update phase; a parameter without a gradient keeps its value.

mod adafactor;
mod algorithm;
mod group;
mod scale;
pub mod schedule;
mod update;

pub use adafactor::Adafactor;
pub use algorithm::{Algorithm, Choice, Hyperparameter, Moments, Range, Word};
pub use group::{Group, settings};
pub(crate) use scale::{Casts, Factored, Products};

use crate::arguments::Options;
use crate::pass::{PassContext, Transform};
use crate::rewriting::dead::remove_dead;
use crate::rewriting::settle::settle;
use algorithm::not_negative;
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Binary, Select, Unary};
use ir::ops::{Labels, OperandRole};
use ir::{
    At, Builder, Changed, DType, Diagnostic, Initializer, Level, Module, Node, Phase, Role, State, StateId,
    StepOutput, Type, TypeError, ValueId,
};
use schedule::Schedule;
use std::collections::BTreeMap;
use update::{Scalars, build_update};

/// The pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    /// The rule that updates a parameter.
    pub algorithm: Algorithm,
    /// The highest learning rate.
    pub lr: f64,
    /// The curve of the learning rate over the steps.
    pub schedule: Schedule,
    /// The weight decay: decoupled for AdamW, Lion and Adafactor; added to the gradient for the other rules.
    pub weight_decay: f64,
    /// The parameters that decay.
    pub decay: Decay,
    /// Parameters with a learning rate or a decay of their own.
    pub groups: Vec<Group>,
    /// The largest global norm of the gradients, if they are clipped.
    pub clip: Option<f64>,
    /// Whether the outputs `grad.NAME` stay.
    pub keep_gradients: bool,
    /// Whether the update reads the gradients `grad.NAME` themselves, and not tensors that become gradients by multiplication. The pass
    /// [`crate::update`] needs this.
    pub reads_gradients: bool,
}

/// The learning rate if none is given.
pub const DEFAULT_LEARNING_RATE: f64 = 1e-3;

/// The parameters that decay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decay {
    /// All parameters.
    All,
    /// Parameters whose tensor in the file has two dims or more, which excludes biases and norms. The biases of a recurrent layer have two
    /// dims, and are excluded all the same.
    #[default]
    Matrices,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::ADAMW,
            lr: DEFAULT_LEARNING_RATE,
            schedule: Schedule::default(),
            weight_decay: 0.0,
            decay: Decay::Matrices,
            groups: vec![],
            clip: None,
            keep_gradients: false,
            reads_gradients: false,
        }
    }
}

impl Transform for Optimizer {
    const NAME: &'static str = "optimizer";
    const NEEDED: bool = true;

    fn options(&mut self, options: &mut Options) {
        options.custom(&mut self.algorithm, Algorithm::parse, Algorithm::print);
        options.written("lr", &mut self.lr);
        self.schedule.options(options);
        options.value("weight-decay", &mut self.weight_decay, 0.0);
        let mut decays_all = self.decay == Decay::All;
        options.flag("decay-all", &mut decays_all);
        self.decay = if decays_all { Decay::All } else { Decay::Matrices };
        options.list("group", &mut self.groups);
        let norm = |text: &str| text.parse().map_err(|_| format!("`{text}` is not a norm"));
        options.optional("clip", &mut self.clip, norm);
        options.flag("keep-gradients", &mut self.keep_gradients);
        options.flag("reads-gradients", &mut self.reads_gradients);
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<Changed, Diagnostic> {
        self.check()?;
        let decision = decide(module, self, cx)?;
        apply(module, self, &decision)
    }
}

impl Optimizer {
    /// Refuses numbers that make no sense in any step.
    fn check(&self) -> Result<(), Diagnostic> {
        self.algorithm
            .check()
            .and(not_negative("the learning rate", self.lr))
            .and(not_negative("the lowest learning rate", self.schedule.min))
            .and(not_negative("the weight decay", self.weight_decay))
            .and(not_negative("the largest gradient norm", self.clip.unwrap_or(0.0)))
            .and(self.schedule.check())
            .map_err(Diagnostic::new)
    }
}

/// The updates of all parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// One update for each parameter with a gradient, in the order of the state table.
    pub updates: Vec<Update>,
}

/// The update of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The parameter.
    pub state: StateId,
    /// The gradient, of the parameter's type.
    pub gradient: ValueId,
    /// The weight decay.
    pub weight_decay: f64,
    /// The factor of the learning rate.
    pub lr_factor: f64,
}

/// Pairs parameters with their gradients, decays and factors of the rate.
///
/// # Errors
/// The program is not ready for an optimizer, or has one already; a group has no parameter.
pub fn decide(module: &Module, options: &Optimizer, cx: &PassContext) -> Result<Decision, Diagnostic> {
    if module.level != Level::Training || module.state("step").is_some() {
        let error = Diagnostic::new("the optimizer needs a program with gradients and without an optimizer");
        return Err(error.note("run `autodiff` once before `optimizer`"));
    }
    let gradients = module.outputs.iter();
    let gradients: BTreeMap<&str, ValueId> =
        gradients.filter_map(|output| Some((StepOutput::gradient_of(&output.name)?, output.value))).collect();
    let mut updates = Vec::new();
    for (state, row) in module.states.iter().filter(|(_, row)| row.role == Role::Parameter) {
        let Some(&gradient) = gradients.get(row.name.as_str()) else { continue };
        // The tensor in the file decides whether this is a matrix: a slice or a reshape of a bias is still a bias.
        let data = row.initializer.data().map(|data| &module.data[data]);
        let ndim = data.map_or(row.ty.ndim(), |data| data.ty.ndim());
        let is_vector = data.is_some_and(|data| cx.vectors.contains(&data.name));
        let decays = options.decay == Decay::All || ndim >= 2 && !is_vector;
        let (lr_factor, own_decay) = settings(&options.groups, &names(module, row, cx));
        let weight_decay = own_decay.unwrap_or(if decays { options.weight_decay } else { 0.0 });
        updates.push(Update { state, gradient, weight_decay, lr_factor });
    }
    check_groups(module, options, cx, &updates)?;
    Ok(Decision { updates })
}

/// Returns the names by which a group finds a parameter: those of its tensor in the file, so that all parts of a tensor are in the same
/// groups; the state's own name if there is no file.
fn names<'a>(module: &'a Module, row: &'a State, cx: &'a PassContext) -> Vec<&'a str> {
    let Some(data) = row.initializer.data() else { return vec![row.name.as_str()] };
    let name = &module.data[data].name;
    let aliases = cx.aliases.get(name).into_iter().flatten();
    std::iter::once(name).chain(aliases).map(String::as_str).collect()
}

/// Refuses a group without a parameter: its pattern is mistyped, or the matching tensors are not trained.
fn check_groups(
    module: &Module,
    options: &Optimizer,
    cx: &PassContext,
    updates: &[Update],
) -> Result<(), Diagnostic> {
    // If no parameter is trained at all, another error says so.
    if updates.is_empty() {
        return Ok(());
    }
    let known: Vec<Vec<&str>> =
        updates.iter().map(|update| names(module, &module.states[update.state], cx)).collect();
    let is_empty = |group: &&Group| !known.iter().any(|names| group.fits(names.iter().copied()));
    let Some(group) = options.groups.iter().find(is_empty) else { return Ok(()) };
    let error =
        Diagnostic::new(format!("no trained parameter matches the pattern `{}` of a group", group.pattern));
    let some: Vec<&str> = known.iter().take(5).filter_map(|names| names.last().copied()).collect();
    Err(error.note(format!("trained parameters are, for example, {}", some.join(", "))))
}

/// Builds the update.
pub fn apply(module: &mut Module, options: &Optimizer, decision: &Decision) -> Result<Changed, Diagnostic> {
    let mut b = Builder::new(module, Optimizer::NAME);
    b.at(At::End(Phase::Update)).origin("optimizer");
    let step = build_step(&mut b)?;
    let lr = options.schedule.build(&mut b, options.lr, step.before)?;
    b.tables().add_output(StepOutput::LearningRate, lr);
    let gradients = factored(&b, options, decision);
    let norm = match b.module().step_output(StepOutput::GradientNorm) {
        // If the loss is scaled, the norm is there already: it shows whether the gradients are finite.
        Some(output) => output.value,
        None => {
            let norm = build_norm(&mut b, &gradients)?;
            b.tables().add_output(StepOutput::GradientNorm, norm);
            norm
        }
    };
    let skip = b.module().step_output(StepOutput::Skipped).map(|output| output.value);
    let clip = options.clip.map(|clip| build_clip_scale(&mut b, clip, norm)).transpose()?;
    let mut scales =
        Scales { clip: clip.map(Casts::of), products: Products::default(), needed: skip.is_some() };
    let mut rates: BTreeMap<u64, ValueId> = BTreeMap::from([(1f64.to_bits(), lr)]);
    for (update, gradient) in decision.updates.iter().zip(gradients) {
        let stage = b.module().states[update.state].stage;
        b.stage(stage);
        let scale = scales.build(&mut b, &gradient)?;
        let weight_decay = b.scalar(DType::F64, update.weight_decay)?;
        let lr = match rates.get(&update.lr_factor.to_bits()) {
            Some(&rate) => rate,
            None => {
                let rate = b.build(lr * update.lr_factor)?;
                rates.insert(update.lr_factor.to_bits(), rate);
                rate
            }
        };
        let decays = update.weight_decay != 0.0;
        let scalars = Scalars { lr, weight_decay, decays, step: step.after, scale, skip };
        build_update(&mut b, options.algorithm, update.state, gradient.tensor, &scalars)?;
    }
    if let Some(skip) = skip {
        build_skip(&mut b, skip)?;
    }
    if !options.keep_gradients {
        b.tables().outputs.retain(|output| StepOutput::gradient_of(&output.name).is_none());
    }
    let changed = b.finish().or(remove_dead(module, Optimizer::NAME));
    Ok(changed.or(settle(module, Optimizer::NAME)?))
}

/// Returns the gradients in the form that the update reads.
fn factored(b: &Builder, options: &Optimizer, decision: &Decision) -> Vec<Factored> {
    let factored = |update: &Update| {
        if options.reads_gradients {
            Factored::whole(update.gradient)
        } else {
            Factored::of(b.module(), update.gradient)
        }
    };
    decision.updates.iter().map(factored).collect()
}

/// The factors of the gradients.
struct Scales {
    /// The clip factor.
    clip: Option<Casts>,
    products: Products,
    /// Whether every update needs a scale, because the operand `skip` follows it.
    needed: bool,
}

impl Scales {
    /// Returns the product of all factors of a gradient, in the gradient's element type; `None` if there are none.
    fn build(&mut self, b: &mut Builder, gradient: &Factored) -> Result<Option<ValueId>, TypeError> {
        let dtype = b.ty(gradient.tensor).dtype;
        let mut factors = gradient.factors.clone();
        if let Some(clip) = &mut self.clip {
            factors.push(clip.cast(b, dtype)?);
        }
        match self.products.product(b, &factors)? {
            None if self.needed => b.scalar(dtype, 1.0).map(Some),
            product => Ok(product),
        }
    }
}

/// The step counter as f64 scalars.
struct Step {
    /// The number of steps before this one.
    before: ValueId,
    /// The number of steps including this one: at least 1.
    after: ValueId,
}

fn build_step(b: &mut Builder) -> Result<Step, TypeError> {
    let id = b.tables().add_state("step", Type::scalar(DType::I64), Role::Counter, Initializer::Zeros);
    let counter = b.module().states[id].input;
    let next = b.build(counter + 1.0)?;
    b.tables().states[id].output = Some(next);
    Ok(Step { before: b.cast(counter, DType::F64)?, after: b.cast(next, DType::F64)? })
}

/// Builds `√Σ g²` over all elements of all gradients.
pub(crate) fn build_norm(b: &mut Builder, gradients: &[Factored]) -> Result<ValueId, TypeError> {
    let mut total = b.scalar(DType::F64, 0.0)?;
    let (mut products, mut squares_of) = (Products::default(), BTreeMap::new());
    for Factored { tensor, factors } in gradients {
        let stage = b.module().stage_of(*tensor);
        b.stage(stage);
        let labels = Labels((0..b.ty(*tensor).ndim()).map(|i| b'a' + i as u8).collect());
        let square = Contract { lhs: labels.clone(), rhs: labels, out: Labels::default() };
        let squares = b.one(square, &[*tensor, *tensor])?;
        let mut squares = b.cast(squares, DType::F64)?;
        if let Some(factor) = products.product(b, factors)? {
            let square = match squares_of.get(&factor) {
                Some(&square) => square,
                None => {
                    let wide = b.cast(factor, DType::F64)?;
                    *squares_of.entry(factor).or_insert(b.build(wide * wide)?)
                }
            };
            squares = b.build(squares * square)?;
        }
        total = b.build(total + squares)?;
    }
    b.build(Unary::Sqrt.of(total))
}

/// Builds `min(1, clip / (norm + 1e-6))`, as PyTorch's `clip_grad_norm_` does.
fn build_clip_scale(b: &mut Builder, clip: f64, norm: ValueId) -> Result<ValueId, TypeError> {
    let (clip, one) = (b.scalar(DType::F64, clip)?, b.scalar(DType::F64, 1.0)?);
    b.build(Binary::Min.of(clip / (norm + 1e-6), one))
}

/// Selects the old value of every state that the update changes, if a step is skipped. The scaler's states change in any case, and
/// operators that skip by themselves need no selection.
fn build_skip(b: &mut Builder, skipped: ValueId) -> Result<(), TypeError> {
    let states: Vec<StateId> = b.module().states.keys().collect();
    for id in states {
        let State { role, input, output, .. } = b.module().states[id];
        let Some(new) = output.filter(|&new| role != Role::Scaler && is_overwritten(b.module(), new)) else {
            continue;
        };
        let new = b.build(Select.of(skipped, input, new))?;
        b.tables().states[id].output = Some(new);
    }
    Ok(())
}

/// Whether a state's new value comes from a node of the update without an operand `skip`.
fn is_overwritten(module: &Module, new: ValueId) -> bool {
    let skips = |node: &Node| node.roles().contains(&OperandRole::Skip);
    module.producer(new).is_some_and(|node| node.phase == Phase::Update && !skips(node))
}
