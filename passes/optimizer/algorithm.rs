//! The rules that update a parameter, and their text in a pipeline.

use super::adafactor::Adafactor;
use crate::arguments::Arguments;
use ir::DType;
use ir::ops::optimizer::Adam;

/// The rule that updates a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Algorithm {
    /// Gradient descent, with momentum unless it is 0; see [`ir::ops::optimizer::Sgd`].
    Sgd {
        /// The decay of the velocity.
        momentum: f64,
        /// Whether the step looks ahead.
        nesterov: bool,
    },
    /// See [`ir::ops::optimizer::Adagrad`].
    Adagrad {
        /// The addend of the root of the sum of squares.
        eps: f64,
    },
    /// See [`Adafactor`].
    Adafactor(Adafactor),
    /// See [`ir::ops::optimizer::Lion`].
    Lion {
        /// The share of the momentum in the direction of a step.
        beta1: f64,
        /// The decay of the momentum.
        beta2: f64,
    },
    /// Adam, or AdamW if `decoupled`; see [`ir::ops::optimizer::Adam`].
    Adam {
        /// The decay of the first moment.
        beta1: f64,
        /// The decay of the second moment.
        beta2: f64,
        /// The addend of the root of the second moment.
        eps: f64,
        /// Whether the weight decay bypasses the moments.
        decoupled: bool,
        /// The form in which the moments are kept.
        moments: Moments,
    },
}

/// The form in which Adam keeps its moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moments {
    /// In the type of the parameter: f32, even if a model is trained in half precision.
    #[default]
    Full,
    /// In bf16, except those of f64 parameters.
    Bf16,
    /// In 8 bits, with a scale for each block, except those of small parameters; see [`ir::ops::optimizer::Adam8bit`].
    EightBit,
}

impl Moments {
    /// Every form with its name in text.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::Full, "f32"), (Self::Bf16, "bf16"), (Self::EightBit, "8bit")];
    /// The elements of a block of moments in 8 bits, as in bitsandbytes.
    pub const BLOCK: u64 = 256;
    /// The fewest elements of a parameter whose moments are kept in 8 bits, as in bitsandbytes.
    pub const LEAST: u64 = 4096;

    /// Returns the largest decay of a moment in this form. bf16 has 8 significant bits. Rounding to nearest undoes a change of less than
    /// half a unit, which is at most 2⁻⁸ of the number. With a decay above 1 - 2⁻⁸ a moment may change by less, and then never changes.
    pub fn largest_decay(self) -> f64 {
        match self {
            Self::Full | Self::EightBit => 1.0,
            Self::Bf16 => 1.0 - 1.0 / 256.0,
        }
    }

    /// Returns the element type of the moments of a parameter, if they are floats.
    pub fn dtype(self, parameter: DType) -> DType {
        match self {
            Self::Bf16 if Adam::moments_may_be(DType::BF16, parameter) => DType::BF16,
            Self::Full | Self::Bf16 | Self::EightBit => parameter,
        }
    }

    /// Refuses a decay that is so large that a moment in this form would never change.
    fn check(self, name: &str, decay: f64) -> Result<(), String> {
        if decay <= self.largest_decay() || decay >= 1.0 {
            return Ok(());
        }
        Err(format!(
            "{name} is {decay}; moments of {} are rounded to 8 bits, and stay as they are with a {name} above {}; give a \
             smaller {name}, such as {}, or moments=f32",
            name_of(&Self::ALL, &self),
            self.largest_decay(),
            self.default_beta2()
        ))
    }

    /// Returns the decay of the second moment if none is given: PyTorch's, or that of DeepSeek-V3 (arXiv 2412.19437, sections 3.3.3 and
    /// 4.2), which was trained with moments of bf16.
    fn default_beta2(self) -> f64 {
        match self {
            Self::Full | Self::EightBit => 0.999,
            Self::Bf16 => 0.95,
        }
    }
}

/// A setting of an algorithm that is a word, under its name in text.
#[derive(Debug, PartialEq)]
pub struct Word<'a> {
    /// The name of the setting.
    pub name: &'static str,
    /// The setting.
    pub choice: Choice<'a>,
}

/// A setting that a word changes.
#[derive(Debug, PartialEq)]
pub enum Choice<'a> {
    /// The form of Adam's moments.
    Moments(&'a mut Moments),
    /// Whether a step of Adafactor is relative: `on` or `off`.
    Switch(&'a mut bool),
}

impl Choice<'_> {
    /// Sets this word.
    ///
    /// # Errors
    /// The word is not in the setting's list.
    pub fn set(&mut self, word: &str) -> Result<(), String> {
        match self {
            Self::Moments(moments) => **moments = chosen(&Moments::ALL, word)?,
            Self::Switch(is_on) => **is_on = chosen(&SWITCH, word)?,
        }
        Ok(())
    }

    /// Returns the word of the setting.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Moments(moments) => name_of(&Moments::ALL, moments),
            Self::Switch(is_on) => name_of(&SWITCH, is_on),
        }
    }
}

const SWITCH: [(bool, &str); 2] = [(true, "on"), (false, "off")];

fn chosen<T: Copy>(words: &[(T, &'static str)], word: &str) -> Result<T, String> {
    let found = words.iter().find(|(_, name)| *name == word);
    let names: Vec<&str> = words.iter().map(|(_, name)| *name).collect();
    found.map(|(choice, _)| *choice).ok_or_else(|| format!("`{word}` is not one of {}", names.join(", ")))
}

fn name_of<T: PartialEq>(words: &[(T, &'static str)], choice: &T) -> &'static str {
    words.iter().find(|(other, _)| other == choice).map_or("", |(_, name)| name)
}

/// A setting of an algorithm that is a number, under its name in text.
#[derive(Debug, PartialEq)]
pub struct Hyperparameter<'a> {
    /// The name of the setting.
    pub name: &'static str,
    /// The number.
    pub value: &'a mut f64,
    /// The numbers that are allowed.
    pub range: Range,
}

/// The numbers that a hyperparameter may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// At least 0 and below 1.
    Share,
    /// Above 0.
    Positive,
    /// At least 0: a small number that keeps a divisor from 0. An optimizer of a file may have the epsilon 0.
    Epsilon,
}

impl Algorithm {
    /// Adam with PyTorch's defaults.
    pub const ADAM: Self =
        Self::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, decoupled: false, moments: Moments::Full };
    /// AdamW with PyTorch's defaults.
    pub const ADAMW: Self =
        Self::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, decoupled: true, moments: Moments::Full };
    /// Adagrad with PyTorch's defaults.
    pub const ADAGRAD: Self = Self::Adagrad { eps: 1e-10 };
    /// Adafactor with the paper's defaults.
    pub const ADAFACTOR: Self = Self::Adafactor(Adafactor::DEFAULT);
    /// Lion with the paper's defaults.
    pub const LION: Self = Self::Lion { beta1: 0.9, beta2: 0.99 };
    /// Every algorithm with its name, with default hyperparameters.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Sgd { momentum: 0.0, nesterov: false }, "sgd"),
        (Self::Sgd { momentum: 0.9, nesterov: false }, "momentum"),
        (Self::Sgd { momentum: 0.9, nesterov: true }, "nesterov"),
        (Self::ADAGRAD, "adagrad"),
        (Self::ADAFACTOR, "adafactor"),
        (Self::LION, "lion"),
        (Self::ADAM, "adam"),
        (Self::ADAMW, "adamw"),
    ];

    /// Returns the algorithm with this name, with default hyperparameters.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, other)| *other == name).map(|(algorithm, _)| algorithm)
    }

    /// Returns the hyperparameters that its text gives, for reading and setting.
    pub fn hyperparameters(&mut self) -> Vec<Hyperparameter<'_>> {
        let share = |name, value| Hyperparameter { name, value, range: Range::Share };
        let epsilon = |value| Hyperparameter { name: "eps", value, range: Range::Epsilon };
        match self {
            Self::Sgd { momentum, nesterov: _ } => vec![share("momentum", momentum)],
            Self::Adagrad { eps } => vec![epsilon(eps)],
            Self::Adafactor(Adafactor { relative: _, beta1, decay_rate, clip_threshold, eps1, eps2 }) => {
                let positive = |name, value| Hyperparameter { name, value, range: Range::Positive };
                let small = |name, value| Hyperparameter { name, value, range: Range::Epsilon };
                vec![
                    share("beta1", beta1),
                    positive("decay-rate", decay_rate),
                    positive("clip-threshold", clip_threshold),
                    small("eps1", eps1),
                    small("eps2", eps2),
                ]
            }
            Self::Lion { beta1, beta2 } => vec![share("beta1", beta1), share("beta2", beta2)],
            Self::Adam { beta1, beta2, eps, decoupled: _, moments: _ } => {
                vec![share("beta1", beta1), share("beta2", beta2), epsilon(eps)]
            }
        }
    }

    /// Returns the bytes of its states for each element of an f32 parameter of two dims or more, without terms that vanish in a large one.
    pub fn state_bytes(&self) -> u64 {
        match self {
            Self::Sgd { momentum: 0.0, .. } => 0,
            Self::Sgd { .. } | Self::Adagrad { .. } | Self::Lion { .. } => 4,
            Self::Adafactor(rule) => {
                if rule.beta1 > 0.0 {
                    4
                } else {
                    0
                }
            }
            Self::Adam { moments: Moments::Full, .. } => 8,
            Self::Adam { moments: Moments::Bf16, .. } => 4,
            Self::Adam { moments: Moments::EightBit, .. } => 2,
        }
    }

    /// Whether the update of an element depends on other elements of its parameter. If so, a tensor of the file is updated in another way
    /// when it is cut into several states.
    pub fn depends_on_cuts(&self) -> bool {
        match self {
            Self::Sgd { .. } | Self::Adagrad { .. } | Self::Lion { .. } => false,
            Self::Adafactor(_) => true,
            Self::Adam { moments, .. } => *moments == Moments::EightBit,
        }
    }

    /// Returns the words that its text gives, for reading and setting before the hyperparameters.
    pub fn words(&mut self) -> Vec<Word<'_>> {
        match self {
            Self::Sgd { .. } | Self::Adagrad { .. } | Self::Lion { .. } => vec![],
            Self::Adafactor(rule) => {
                vec![Word { name: "relative", choice: Choice::Switch(&mut rule.relative) }]
            }
            Self::Adam { moments, .. } => vec![Word { name: "moments", choice: Choice::Moments(moments) }],
        }
    }

    /// Returns the same algorithm with the words that `word_of` gives by their names, and with the default hyperparameters for these words.
    ///
    /// # Errors
    /// A word is not in its setting's list.
    pub fn with_words(
        mut self,
        mut word_of: impl FnMut(&'static str) -> Option<String>,
    ) -> Result<Self, String> {
        for Word { name, mut choice } in self.words() {
            if let Some(word) = word_of(name) {
                choice.set(&word).map_err(|error| format!("{name}: {error}"))?;
            }
        }
        if let Self::Adam { beta2, moments, .. } = &mut self {
            *beta2 = moments.default_beta2();
        }
        Ok(self)
    }

    /// Returns the words that differ from the defaults of the algorithm's name, each with the name of its setting.
    pub fn own_words(&self) -> Vec<(&'static str, &'static str)> {
        let (mut given, mut default) = (*self, Self::named(self.name()).unwrap_or(*self));
        let words = given.words().into_iter().zip(default.words());
        let own = words.filter(|(given, default)| given.choice != default.choice);
        own.map(|(given, _)| (given.name, given.choice.word())).collect()
    }

    /// Returns the algorithm with the same name and words, and with default hyperparameters.
    pub fn default_of(self) -> Self {
        let words = self.own_words();
        let word_of =
            |name: &str| words.iter().find(|(other, _)| *other == name).map(|(_, word)| (*word).into());
        Self::named(self.name()).and_then(|default| default.with_words(word_of).ok()).unwrap_or(self)
    }

    pub(super) fn parse(arguments: &mut Arguments) -> Result<Self, String> {
        let algorithm = arguments.word(&Self::ALL).unwrap_or(Self::ADAMW);
        let mut algorithm = algorithm.with_words(|name| arguments.take(name))?;
        for Hyperparameter { name, value, .. } in algorithm.hyperparameters() {
            *value = arguments.value(name, *value)?;
        }
        Ok(algorithm)
    }

    pub(super) fn print(&self, arguments: &mut Arguments) {
        arguments.push("", self.name());
        // Gradient descent has two names, with and without a momentum, so the momentum is always written.
        let always = matches!(self, Self::Sgd { .. });
        let (mut given, mut default) = (*self, self.default_of());
        self.own_words().into_iter().for_each(|(name, word)| arguments.push(name, word));
        for (given, default) in given.hyperparameters().into_iter().zip(default.hyperparameters()) {
            if always || given.value != default.value {
                arguments.push(given.name, *given.value);
            }
        }
    }

    /// Returns the name by which the algorithm is chosen.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sgd { nesterov: true, .. } => "nesterov",
            Self::Sgd { momentum: 0.0, .. } => "sgd",
            Self::Sgd { .. } => "momentum",
            Self::Adagrad { .. } => "adagrad",
            Self::Adafactor(_) => "adafactor",
            Self::Lion { .. } => "lion",
            Self::Adam { decoupled: true, .. } => "adamw",
            Self::Adam { .. } => "adam",
        }
    }

    /// Refuses numbers that make no sense in any step.
    pub fn check(&self) -> Result<(), String> {
        if let Self::Sgd { momentum: 0.0, nesterov: true } = self {
            return Err("nesterov's rule needs a momentum above 0".to_string());
        }
        if let Self::Adam { beta1, beta2, moments, .. } = self {
            moments.check("beta1", *beta1).and(moments.check("beta2", *beta2))?;
        }
        let mut given = *self;
        given.hyperparameters().into_iter().try_for_each(
            |Hyperparameter { name, value, range }| match range {
                Range::Share if !(0.0..1.0).contains(value) => {
                    Err(format!("{name} is {value}; it must be at least 0 and below 1"))
                }
                Range::Share => Ok(()),
                Range::Positive if *value == 0.0 => Err(format!("{name} is 0; it must be above 0")),
                Range::Positive | Range::Epsilon => not_negative(name, *value),
            },
        )
    }
}

/// Refuses infinities, NaN and numbers below zero.
pub(super) fn not_negative(name: &str, value: f64) -> Result<(), String> {
    if value.is_finite() && value >= 0.0 {
        Ok(())
    } else {
        Err(format!("{name} is {value}; it must be a number that is not negative"))
    }
}
