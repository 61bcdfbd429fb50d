//! The rules by which a parameter moves, and how they are written in a pipeline.

use crate::arguments::Arguments;

/// The rule by which a parameter moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Algorithm {
    /// Gradient descent, with momentum unless it is 0; see [`ir::ops::optimizer::Sgd`].
    Sgd {
        /// Decay of the velocity.
        momentum: f64,
        /// Whether the step looks ahead.
        nesterov: bool,
    },
    /// See [`ir::ops::optimizer::Adagrad`].
    Adagrad {
        /// Added to the root of the sum of squares.
        eps: f64,
    },
    /// Adam, or AdamW if `decoupled`; see [`ir::ops::optimizer::Adam`].
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

impl Algorithm {
    /// AdamW with PyTorch's defaults.
    pub const ADAMW: Self = Self::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, decoupled: true };
    /// Adagrad with PyTorch's defaults.
    pub const ADAGRAD: Self = Self::Adagrad { eps: 1e-10 };
    /// Every algorithm with its name, with default hyperparameters.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Sgd { momentum: 0.0, nesterov: false }, "sgd"),
        (Self::Sgd { momentum: 0.9, nesterov: false }, "momentum"),
        (Self::Sgd { momentum: 0.9, nesterov: true }, "nesterov"),
        (Self::ADAGRAD, "adagrad"),
        (Self::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, decoupled: false }, "adam"),
        (Self::ADAMW, "adamw"),
    ];

    pub(super) fn parse(arguments: &mut Arguments) -> Result<Self, String> {
        Ok(match arguments.word(&Self::ALL).unwrap_or(Self::ADAMW) {
            Self::Sgd { momentum, nesterov } => {
                Self::Sgd { momentum: arguments.value("momentum", momentum)?, nesterov }
            }
            Self::Adagrad { eps } => Self::Adagrad { eps: arguments.value("eps", eps)? },
            Self::Adam { beta1, beta2, eps, decoupled } => Self::Adam {
                beta1: arguments.value("beta1", beta1)?,
                beta2: arguments.value("beta2", beta2)?,
                eps: arguments.value("eps", eps)?,
                decoupled,
            },
        })
    }

    pub(super) fn print(&self, arguments: &mut Arguments) {
        arguments.push("", self.name());
        match *self {
            Self::Sgd { momentum, .. } => arguments.push("momentum", momentum),
            Self::Adagrad { eps } => arguments.push_unless(&1e-10, "eps", &eps),
            Self::Adam { beta1, beta2, eps, .. } => {
                arguments.push_unless(&0.9, "beta1", &beta1);
                arguments.push_unless(&0.999, "beta2", &beta2);
                arguments.push_unless(&1e-8, "eps", &eps);
            }
        }
    }

    /// The name under which it is chosen.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sgd { nesterov: true, .. } => "nesterov",
            Self::Sgd { momentum: 0.0, .. } => "sgd",
            Self::Sgd { .. } => "momentum",
            Self::Adagrad { .. } => "adagrad",
            Self::Adam { decoupled: true, .. } => "adamw",
            Self::Adam { .. } => "adam",
        }
    }

    /// Refuses numbers with which no step makes sense.
    pub(super) fn check(&self) -> Result<(), String> {
        let share = |name: &str, value: f64| match (0.0..1.0).contains(&value) {
            true => Ok(()),
            false => Err(format!("{name} is {value}; it must be at least 0 and below 1")),
        };
        match *self {
            Self::Sgd { momentum: 0.0, nesterov: true } => {
                Err("Nesterov's rule needs a momentum above 0".to_string())
            }
            Self::Sgd { momentum, .. } => share("momentum", momentum),
            Self::Adagrad { eps } => not_negative("eps", eps),
            Self::Adam { beta1, beta2, eps, .. } => {
                share("beta1", beta1).and(share("beta2", beta2)).and(not_negative("eps", eps))
            }
        }
    }
}

/// Refuses infinities, NaN and numbers below zero.
pub(super) fn not_negative(name: &str, value: f64) -> Result<(), String> {
    match value.is_finite() && value >= 0.0 {
        true => Ok(()),
        false => Err(format!("{name} is {value}; it must be a number that is not negative")),
    }
}
