//! The values of `--mode`: the ways to run a program that is compared with the reference.

use crate::targets::{self, BACKENDS};
use clap::ValueEnum;
use clap::builder::PossibleValue;
use program::Target;
use std::sync::LazyLock;

/// The way in which `verify` runs the transformed program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The interpreter in f64.
    #[default]
    Exact,
    /// The interpreter, with each value rounded to its type.
    Typed,
    /// The program for a target, on ranks that the target's backend opens on the processor.
    On(Target),
}

impl Mode {
    /// The target whose kernels run the program; `None` for the interpreter.
    pub fn target(self) -> Option<Target> {
        match self {
            Self::Exact | Self::Typed => None,
            Self::On(target) => Some(target),
        }
    }

    /// The name of the flag's value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Typed => "typed",
            Self::On(target) => target.name(),
        }
    }
}

impl ValueEnum for Mode {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<Mode>> = LazyLock::new(|| {
            let backends = BACKENDS.iter().map(|backend| Mode::On(backend.target()));
            [Mode::Exact, Mode::Typed].into_iter().chain(backends).collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Exact => "The interpreter in f64",
            Self::Typed => "The interpreter, with each value rounded to its type",
            Self::On(target) => targets::backend(*target).rehearsal_help(),
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}
