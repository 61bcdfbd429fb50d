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

/// A number that belongs to an algorithm, under its name in text.
#[derive(Debug, PartialEq)]
pub struct Hyperparameter<'a> {
    /// Its name.
    pub name: &'static str,
    /// The number.
    pub value: &'a mut f64,
    /// The numbers that it may be.
    pub range: Range,
}

/// The numbers that a hyperparameter may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// At least 0 and below 1.
    Share,
    /// A small number that keeps a divisor from 0; an optimizer of a file may have the epsilon 0.
    Epsilon,
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

    /// The algorithm of that name, with default hyperparameters.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, other)| *other == name).map(|(algorithm, _)| algorithm)
    }

    /// The hyperparameters that its text gives, to be read and set.
    pub fn hyperparameters(&mut self) -> Vec<Hyperparameter<'_>> {
        let share = |name, value| Hyperparameter { name, value, range: Range::Share };
        let epsilon = |value| Hyperparameter { name: "eps", value, range: Range::Epsilon };
        match self {
            Self::Sgd { momentum, nesterov: _ } => vec![share("momentum", momentum)],
            Self::Adagrad { eps } => vec![epsilon(eps)],
            Self::Adam { beta1, beta2, eps, decoupled: _ } => {
                vec![share("beta1", beta1), share("beta2", beta2), epsilon(eps)]
            }
        }
    }

    pub(super) fn parse(arguments: &mut Arguments) -> Result<Self, String> {
        let mut algorithm = arguments.word(&Self::ALL).unwrap_or(Self::ADAMW);
        for Hyperparameter { name, value, .. } in algorithm.hyperparameters() {
            *value = arguments.value(name, *value)?;
        }
        Ok(algorithm)
    }

    pub(super) fn print(&self, arguments: &mut Arguments) {
        arguments.push("", self.name());
        // The rule with a momentum goes by two names, so its momentum is always written.
        let always = matches!(self, Self::Sgd { .. });
        let (mut given, mut default) = (*self, Self::named(self.name()).unwrap_or(*self));
        for (given, default) in given.hyperparameters().into_iter().zip(default.hyperparameters()) {
            if always || given.value != default.value {
                arguments.push(given.name, *given.value);
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
    pub fn check(&self) -> Result<(), String> {
        if let Self::Sgd { momentum: 0.0, nesterov: true } = self {
            return Err("nesterov's rule needs a momentum above 0".to_string());
        }
        let mut given = *self;
        given.hyperparameters().into_iter().try_for_each(
            |Hyperparameter { name, value, range }| match range {
                Range::Share if !(0.0..1.0).contains(value) => {
                    Err(format!("{name} is {value}; it must be at least 0 and below 1"))
                }
                Range::Share => Ok(()),
                Range::Epsilon => not_negative(name, *value),
            },
        )
    }
}

/// Refuses infinities, NaN and numbers below zero.
pub(super) fn not_negative(name: &str, value: f64) -> Result<(), String> {
    match value.is_finite() && value >= 0.0 {
        true => Ok(()),
        false => Err(format!("{name} is {value}; it must be a number that is not negative")),
    }
}
