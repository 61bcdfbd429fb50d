//! Optimizer: turns gradients into new parameters, with everything that a step decides (rate, clipping) on the device.
//!
//! Reads the outputs `grad.NAME` of [`crate::autodiff`]; adds the states `step`, `adam.m(NAME)`, `adam.v(NAME)` or
//! `sgd.velocity(NAME)`, the outputs `lr` and `grad_norm` (f64; the norm before clipping), and the new value of each
//! parameter. If the loss is scaled ([`crate::precision`]), a step whose gradients are not finite leaves every state as
//! it was. Invariants: everything it adds is in the update phase; a parameter without a gradient keeps its value.

use crate::pass::{PassContext, Transform};
use crate::pipeline::Arguments;
use crate::precision::SKIPPED;
use crate::schedule::Schedule;
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Binary, Select, Unary};
use ir::ops::optimizer::{Adam, Sgd};
use ir::ops::{Float, Labels};
use ir::{
    At, Builder, Changed, DType, Diagnostic, Initializer, Level, Module, Phase, Role, State, StateId, Type,
    TypeError, ValueId,
};
use std::fmt;

/// The pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    /// The rule by which a parameter moves.
    pub algorithm: Algorithm,
    /// The highest learning rate.
    pub lr: f64,
    /// How the learning rate changes.
    pub schedule: Schedule,
    /// Weight decay: decoupled for AdamW, added to the gradient for the others.
    pub weight_decay: f64,
    /// Which parameters decay.
    pub decay: Decay,
    /// The largest global norm of the gradients, if they are clipped.
    pub clip: Option<f64>,
    /// Whether the outputs `grad.NAME` stay.
    pub keep_gradients: bool,
}

/// The rule by which a parameter moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Algorithm {
    /// Gradient descent, with momentum unless it is 0; see [`Sgd`].
    Sgd {
        /// Decay of the velocity.
        momentum: f64,
        /// Whether the step looks ahead.
        nesterov: bool,
    },
    /// Adam, or AdamW if `decoupled`; see [`Adam`].
    Adam {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        eps: f64,
        /// Whether the weight decay bypasses the moments.
        decoupled: bool,
    },
}

/// Which parameters decay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decay {
    /// All.
    All,
    /// Those whose tensor in the file has two dims or more: no biases, no norms.
    #[default]
    Matrices,
}

impl Algorithm {
    /// AdamW with PyTorch's defaults.
    pub const ADAMW: Self = Self::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, decoupled: true };
    /// Every algorithm with its name, with default hyperparameters.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Sgd { momentum: 0.0, nesterov: false }, "sgd"),
        (Self::Sgd { momentum: 0.9, nesterov: false }, "momentum"),
        (Self::Sgd { momentum: 0.9, nesterov: true }, "nesterov"),
        (Self::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, decoupled: false }, "adam"),
        (Self::ADAMW, "adamw"),
    ];

    fn parse(arguments: &mut Arguments) -> Result<Self, String> {
        Ok(match arguments.word(&Self::ALL).unwrap_or(Self::ADAMW) {
            Self::Sgd { momentum, nesterov } => {
                Self::Sgd { momentum: arguments.value("momentum", momentum)?, nesterov }
            }
            Self::Adam { beta1, beta2, eps, decoupled } => Self::Adam {
                beta1: arguments.value("beta1", beta1)?,
                beta2: arguments.value("beta2", beta2)?,
                eps: arguments.value("eps", eps)?,
                decoupled,
            },
        })
    }

    fn print(&self, arguments: &mut Arguments) {
        match *self {
            Self::Sgd { momentum, nesterov } => {
                arguments.push(
                    "",
                    if nesterov {
                        "nesterov"
                    } else if momentum == 0.0 {
                        "sgd"
                    } else {
                        "momentum"
                    },
                );
                arguments.push("momentum", momentum);
            }
            Self::Adam { beta1, beta2, eps, decoupled } => {
                arguments.push("", if decoupled { "adamw" } else { "adam" });
                arguments.push_unless(&0.9, "beta1", &beta1);
                arguments.push_unless(&0.999, "beta2", &beta2);
                arguments.push_unless(&1e-8, "eps", &eps);
            }
        }
    }
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::ADAMW,
            lr: 1e-3,
            schedule: Schedule::default(),
            weight_decay: 0.0,
            decay: Decay::Matrices,
            clip: None,
            keep_gradients: false,
        }
    }
}

impl Transform for Optimizer {
    const NAME: &'static str = "optimizer";

    fn parse(arguments: &mut Arguments) -> Result<Self, String> {
        let default = Self::default();
        let clip =
            arguments.take("clip").map(|text| text.parse().map_err(|_| format!("`{text}` is no norm")));
        Ok(Self {
            algorithm: Algorithm::parse(arguments)?,
            lr: arguments.value("lr", default.lr)?,
            schedule: Schedule::parse(arguments)?,
            weight_decay: arguments.value("weight-decay", default.weight_decay)?,
            decay: if arguments.flag("decay-all") { Decay::All } else { Decay::Matrices },
            clip: clip.transpose()?,
            keep_gradients: arguments.flag("keep-gradients"),
        })
    }

    fn print(&self, arguments: &mut Arguments) {
        self.algorithm.print(arguments);
        arguments.push("lr", self.lr);
        self.schedule.print(arguments);
        arguments.push_unless(&0.0, "weight-decay", &self.weight_decay);
        arguments.push_flag("decay-all", self.decay == Decay::All);
        self.clip.iter().for_each(|clip| arguments.push("clip", clip));
        arguments.push_flag("keep-gradients", self.keep_gradients);
    }

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<Changed, Diagnostic> {
        self.check()?;
        let decision = decide(module, self)?;
        apply(module, self, &decision)
    }
}

impl Optimizer {
    /// Refuses numbers with which no step makes sense.
    fn check(&self) -> Result<(), Diagnostic> {
        let share = |name: &str, value: f64| match (0.0..1.0).contains(&value) {
            true => Ok(()),
            false => Err(format!("{name} is {value}; it must be at least 0 and below 1")),
        };
        let positive = |name: &str, value: f64| match value.is_finite() && value >= 0.0 {
            true => Ok(()),
            false => Err(format!("{name} is {value}; it must be a number that is not negative")),
        };
        let algorithm = match self.algorithm {
            Algorithm::Sgd { momentum, nesterov } => {
                share("momentum", momentum).and(match nesterov && momentum == 0.0 {
                    true => Err("Nesterov's rule needs a momentum above 0".to_string()),
                    false => Ok(()),
                })
            }
            Algorithm::Adam { beta1, beta2, eps, .. } => {
                share("beta1", beta1).and(share("beta2", beta2)).and(positive("eps", eps))
            }
        };
        algorithm
            .and(positive("the learning rate", self.lr))
            .and(positive("the lowest learning rate", self.schedule.min))
            .and(positive("the weight decay", self.weight_decay))
            .and(positive("the largest gradient norm", self.clip.unwrap_or(0.0)))
            .and(self.schedule.check())
            .map_err(Diagnostic::new)
    }
}

/// What each parameter will get.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// One entry a parameter with a gradient, in the order of the state table.
    pub updates: Vec<Update>,
}

/// How one parameter moves.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The parameter.
    pub state: StateId,
    /// Its gradient, of its type.
    pub gradient: ValueId,
    /// Its weight decay.
    pub weight_decay: f64,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |update: &Update| {
            format!("{} by {}, decay {}", update.state, update.gradient, update.weight_decay)
        };
        f.write_str(&self.updates.iter().map(line).collect::<Vec<_>>().join("\n"))
    }
}

/// Pairs parameters with their gradients and decays.
pub fn decide(module: &Module, options: &Optimizer) -> Result<Decision, Diagnostic> {
    if module.level != Level::Training || module.state("step").is_some() {
        let error = Diagnostic::new("the optimizer needs a program with gradients and without an optimizer");
        return Err(error.note("run `autodiff` before it, once"));
    }
    let mut updates = Vec::new();
    for (state, row) in module.states.iter().filter(|(_, row)| row.role == Role::Parameter) {
        let Some(output) = module.output(&format!("grad.{}", row.name)) else { continue };
        // What is a matrix is told by the file: a slice or a reshape of a bias is still a bias.
        let ndim = row.initializer.data().map_or(row.ty.ndim(), |data| module.data[data].ty.ndim());
        let decays = options.decay == Decay::All || ndim >= 2;
        let weight_decay = if decays { options.weight_decay } else { 0.0 };
        updates.push(Update { state, gradient: output.value, weight_decay });
    }
    Ok(Decision { updates })
}

/// Builds the update.
pub fn apply(module: &mut Module, options: &Optimizer, decision: &Decision) -> Result<Changed, Diagnostic> {
    let mut b = Builder::new(module, Optimizer::NAME);
    b.at(At::End(Phase::Update)).origin("optimizer");
    let step = build_step(&mut b)?;
    let lr = options.schedule.build(&mut b, options.lr, step.before)?;
    b.tables().add_output("lr", lr);
    let gradients: Vec<ValueId> = decision.updates.iter().map(|update| update.gradient).collect();
    let norm = match b.module().output("grad_norm") {
        // Where the loss is scaled, the norm has told whether the gradients are finite.
        Some(output) => output.value,
        None => {
            let norm = build_norm(&mut b, &gradients)?;
            b.tables().add_output("grad_norm", norm);
            norm
        }
    };
    let scale = options.clip.map(|clip| build_clip_scale(&mut b, clip, norm)).transpose()?;
    for update in &decision.updates {
        let mut gradient = update.gradient;
        if let Some(scale) = scale {
            let scale = b.cast(scale, b.ty(gradient).dtype)?;
            gradient = b.mul(gradient, scale)?;
        }
        let weight_decay = b.scalar(DType::F64, update.weight_decay)?;
        let scalars = Scalars { lr, weight_decay, step: step.after };
        build_update(&mut b, options.algorithm, update.state, gradient, &scalars)?;
    }
    if let Some(skipped) = b.module().output(SKIPPED).map(|output| output.value) {
        build_skip(&mut b, skipped)?;
    }
    if !options.keep_gradients {
        b.tables().outputs.retain(|output| !output.name.starts_with("grad."));
    }
    Ok(b.finish())
}

/// The step counter as f64 scalars.
struct Step {
    /// Steps done before this one.
    before: ValueId,
    /// Steps done after it: at least 1.
    after: ValueId,
}

fn build_step(b: &mut Builder) -> Result<Step, TypeError> {
    let id = b.tables().add_state("step", Type::scalar(DType::I64), Role::Counter, Initializer::Zeros);
    let counter = b.module().states[id].input;
    let one = b.scalar(DType::I64, 1.0)?;
    let next = b.add(counter, one)?;
    b.tables().states[id].output = Some(next);
    Ok(Step { before: b.cast(counter, DType::F64)?, after: b.cast(next, DType::F64)? })
}

/// `√Σ g²` over all elements of all gradients.
pub(crate) fn build_norm(b: &mut Builder, gradients: &[ValueId]) -> Result<ValueId, TypeError> {
    let mut total = b.scalar(DType::F64, 0.0)?;
    for &gradient in gradients {
        let labels = Labels((0..b.ty(gradient).ndim()).map(|i| b'a' + i as u8).collect());
        let square = Contract { lhs: labels.clone(), rhs: labels, out: Labels::default() };
        let squares = b.one(square, &[gradient, gradient])?;
        let squares = b.cast(squares, DType::F64)?;
        total = b.add(total, squares)?;
    }
    b.one(Unary::Sqrt, &[total])
}

/// `min(1, clip / (norm + 1e-6))`, as PyTorch's `clip_grad_norm_` has it.
fn build_clip_scale(b: &mut Builder, clip: f64, norm: ValueId) -> Result<ValueId, TypeError> {
    let (clip, one) = (b.scalar(DType::F64, clip)?, b.scalar(DType::F64, 1.0)?);
    let small = b.scalar(DType::F64, 1e-6)?;
    let divisor = b.add(norm, small)?;
    let scale = b.one(Binary::Div, &[clip, divisor])?;
    b.one(Binary::Min, &[scale, one])
}

/// The f64 scalars that an update reads.
struct Scalars {
    lr: ValueId,
    weight_decay: ValueId,
    step: ValueId,
}

fn build_update(
    b: &mut Builder,
    algorithm: Algorithm,
    state: StateId,
    gradient: ValueId,
    scalars: &Scalars,
) -> Result<(), TypeError> {
    let parameter = b.module().states[state].input;
    let &Scalars { lr, weight_decay, step } = scalars;
    let new = match algorithm {
        // Without momentum there is no velocity to keep.
        Algorithm::Sgd { momentum: 0.0, .. } => build_descent(b, parameter, gradient, scalars)?,
        Algorithm::Sgd { momentum, nesterov } => {
            let velocity = add_state(b, "sgd.velocity", state);
            let op = Sgd { momentum: Float::new(momentum), nesterov };
            let operands = [parameter, gradient, velocity.1, lr, weight_decay];
            let results = b.push(op, &operands)?;
            b.tables().states[velocity.0].output = Some(results[1]);
            results[0]
        }
        Algorithm::Adam { beta1, beta2, eps, decoupled } => {
            let (m, v) = (add_state(b, "adam.m", state), add_state(b, "adam.v", state));
            let [beta1, beta2, eps] = [beta1, beta2, eps].map(Float::new);
            let operands = [parameter, gradient, m.1, v.1, lr, weight_decay, step];
            let results = b.push(Adam { beta1, beta2, eps, decoupled }, &operands)?;
            b.tables().states[m.0].output = Some(results[1]);
            b.tables().states[v.0].output = Some(results[2]);
            results[0]
        }
    };
    b.tables().states[state].output = Some(new);
    Ok(())
}

/// `p - lr·(g + weight_decay·p)`
fn build_descent(
    b: &mut Builder,
    parameter: ValueId,
    gradient: ValueId,
    scalars: &Scalars,
) -> Result<ValueId, TypeError> {
    let dtype = b.ty(parameter).dtype;
    let (lr, weight_decay) = (b.cast(scalars.lr, dtype)?, b.cast(scalars.weight_decay, dtype)?);
    let decay = b.mul(parameter, weight_decay)?;
    let direction = b.add(gradient, decay)?;
    let move_by = b.mul(direction, lr)?;
    b.one(Binary::Sub, &[parameter, move_by])
}

/// Keeps every state that the update changes as it was, where a step is skipped; the scaler's change all the same.
fn build_skip(b: &mut Builder, skipped: ValueId) -> Result<(), TypeError> {
    let states: Vec<StateId> = b.module().states.keys().collect();
    for id in states {
        let State { role, input, output, .. } = b.module().states[id];
        let Some(new) =
            output.filter(|&new| role != Role::Scaler && b.module().phase_of(new) == Phase::Update)
        else {
            continue;
        };
        let new = b.one(Select, &[skipped, input, new])?;
        b.tables().states[id].output = Some(new);
    }
    Ok(())
}

/// A state of zeros like a parameter, and its value.
fn add_state(b: &mut Builder, kind: &str, parameter: StateId) -> (StateId, ValueId) {
    let row = &b.module().states[parameter];
    let (name, ty) = (format!("{kind}({})", row.name), row.ty.clone());
    let id = b.tables().add_state(name, ty, Role::Optimizer, Initializer::Zeros);
    (id, b.module().states[id].input)
}
