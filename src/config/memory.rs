//! Memory: the bytes that a device may take, the activations that are made twice so that less is kept, and the time of updates.

use std::fmt;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use passes::offload::{Classes, Offload};
use passes::recompute::Recompute;
use runtime::program::UpdateTime;
use serde::Serialize;

use super::value::{ValueError, serialize_as_text};

/// Flags of memory.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Memory")]
#[serde(rename_all = "kebab-case")]
pub struct Memory {
    /// Activations that backward computes again instead of keeping them
    #[arg(long, value_enum, default_value_t)]
    #[serde(skip_serializing_if = "RecomputeChoice::is_none")]
    pub recompute: RecomputeChoice,
    /// Memory that the program may take on each device, such as 6GiB; as few activations as possible are computed again so
    /// that it fits
    #[arg(long, value_name = "BYTES", conflicts_with = "recompute")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Budget>,
    /// Values that rest on the host instead of the device, and come to it where they are read: optimizer (states of the optimizer, which
    /// the host updates, and the weights that are read only as halves), parameters (all weights), gradients (once they are
    /// complete), activations (results of forward, until backward reads them)
    #[arg(long, value_name = "WHAT,…", value_delimiter = ',', value_enum, conflicts_with = "memory")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub offload: Vec<OffloadClass>,
    /// When an update of a weight runs; `early` frees the memory of each gradient during backward if a step has one microbatch, but a
    /// gradient that is not finite then ends the run at its last checkpoint, since the weights have changed
    #[arg(long, value_enum, default_value_t)]
    #[serde(skip_serializing_if = "UpdateChoice::is_late")]
    pub update: UpdateChoice,
}

/// A class of values that may leave the device.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OffloadClass {
    /// States of the optimizer, and weights that are read only as halves
    Optimizer,
    /// Weights
    Parameters,
    /// Gradients that are complete
    Gradients,
    /// Results of forward that backward reads
    Activations,
}

impl From<OffloadClass> for Classes {
    fn from(class: OffloadClass) -> Self {
        let none = Self::NONE;
        match class {
            OffloadClass::Optimizer => Self { optimizer: true, ..none },
            OffloadClass::Parameters => Self { parameters: true, ..none },
            OffloadClass::Gradients => Self { gradients: true, ..none },
            OffloadClass::Activations => Self { activations: true, ..none },
        }
    }
}

/// The time of updates.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpdateChoice {
    /// After backward: weights stay as they are if a gradient is not finite
    #[default]
    Late,
    /// As soon as the gradient is complete: not with --clip or fp16
    Early,
}

impl UpdateChoice {
    fn is_late(&self) -> bool {
        *self == Self::Late
    }
}

impl From<UpdateChoice> for UpdateTime {
    fn from(choice: UpdateChoice) -> Self {
        match choice {
            UpdateChoice::Late => Self::Late,
            UpdateChoice::Early => Self::Early,
        }
    }
}

/// The activations that are computed again.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecomputeChoice {
    /// Keep all activations that backward reads
    #[default]
    None,
    /// Compute activations again that take little time for their bytes, such as those of norms and activation functions
    Selective,
    /// Keep only the values between blocks, such as the layers of a transformer
    Full,
}

impl RecomputeChoice {
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

impl Memory {
    /// The pass that `--recompute` asks for, with the prices of [`ir::machine::Device::assumed`].
    pub fn pass(&self) -> Option<Recompute> {
        match self.recompute {
            RecomputeChoice::None => None,
            RecomputeChoice::Selective => Some(Recompute::SELECTIVE),
            RecomputeChoice::Full => Some(Recompute::FULL),
        }
    }

    /// The pass that `--offload` asks for.
    pub fn offload(&self) -> Option<Offload> {
        let classes = self.offload.iter().fold(Classes::NONE, |all, &class| all.with(class.into()));
        (!self.offload.is_empty()).then(|| Offload { classes, ..Offload::default() })
    }
}

/// A number of bytes, above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget(pub u64);

/// The units, the largest first.
const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

impl Budget {
    /// The smallest budget of at least so many bytes that is short to write: at most 0.1 % larger.
    pub fn rounded_up(self) -> Self {
        let unit = UNITS.iter().map(|(_, unit)| *unit).filter(|unit| unit.is_power_of_two());
        let unit = unit.filter(|unit| self.0 / 1000 >= *unit).max().unwrap_or(1);
        Self(self.0.div_ceil(unit).saturating_mul(unit))
    }
}

impl FromStr for Budget {
    type Err = ValueError;

    /// `6GiB`, `1.5 GB`, `800MB`.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let split = text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len());
        let (number, unit) = (text[..split].trim(), &text[split..]);
        let unit = UNITS.iter().find(|(name, _)| *name == unit);
        let number = number.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
        let bytes = number.zip(unit).map(|(number, (_, unit))| number * *unit as f64);
        match bytes.filter(|bytes| (1.0..u64::MAX as f64).contains(bytes)) {
            Some(bytes) => Ok(Self(bytes as u64)),
            None => {
                let units: Vec<&str> = UNITS.iter().map(|(name, _)| *name).collect();
                let message = format!(
                    "`{text}` is not a number of bytes, such as 6GiB; units are {}",
                    units.join(", ")
                );
                Err(ValueError::new(message))
            }
        }
    }
}

impl fmt::Display for Budget {
    /// The largest unit that divides the number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, unit) = UNITS.iter().find(|(_, unit)| self.0.is_multiple_of(*unit)).unwrap_or(&("B", 1));
        write!(f, "{}{name}", self.0 / unit)
    }
}

serialize_as_text!(Budget);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_read_and_written() {
        let read = |text: &str| text.parse::<Budget>().map(|budget| budget.0);
        assert_eq!(read("6GiB"), Ok(6 << 30));
        assert_eq!(read("1.5 GB"), Ok(1_500_000_000));
        assert_eq!(Budget(6 << 30).to_string(), "6GiB");
        assert_eq!(Budget(6001).to_string(), "6001B");
        assert_eq!(Budget(3_930_000_001).rounded_up().to_string(), "3748MiB");
        assert_eq!(Budget(700_001).rounded_up().to_string(), "700001B");
        for text in ["6", "GiB", "-1GiB", "0GiB", "6gib", "nanGiB", "1e300GiB"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
