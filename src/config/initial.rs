//! The start of a run: the seed, and the weights of step 0.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use passes::initialize::Rule;
use serde::Serialize;

use super::value::{Spec, ValueError, positive, seed, serialize_as_text, unknown_name};

/// The seed of all random numbers.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Run")]
#[serde(rename_all = "kebab-case")]
pub struct Seed {
    /// Seed of the order of the data, of new weights and of all other random numbers
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = seed)]
    pub seed: u64,
}

/// The flag of new weights.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Run")]
#[serde(rename_all = "kebab-case")]
pub struct Init {
    /// Draw new weights instead of the file's, by the rule gpt2, kaiming or normal:std=X
    #[arg(long, value_name = "RULE")]
    pub init: Option<InitRule>,
}

/// The flag of weights from another file.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Run")]
#[serde(rename_all = "kebab-case")]
pub struct Initial {
    /// Load weights by name from a .safetensors file, or from the folder of a checkpoint; tensors without a match are listed
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,
}

/// The rule of `--init`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InitRule(pub Rule);

impl FromStr for InitRule {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let spec = Spec::parse(text)?;
        match spec.name {
            "gpt2" => spec.allow(&[]).map(|_| Self(Rule::Gpt2)),
            "kaiming" => spec.allow(&[]).map(|_| Self(Rule::Kaiming)),
            "normal" => {
                let std = spec.allow(&["std"])?.take("std", None, |text| positive(text).map(Some))?;
                let std = std
                    .ok_or_else(|| ValueError::new("`normal` needs a standard deviation: normal:std=0.02"))?;
                Ok(Self(Rule::Normal { std }))
            }
            name => Err(unknown_name("rule for new weights", name, &["gpt2", "kaiming", "normal:std=X"])),
        }
    }
}

impl fmt::Display for InitRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Rule::Gpt2 => f.write_str("gpt2"),
            Rule::Kaiming => f.write_str("kaiming"),
            Rule::Normal { std } => write!(f, "normal:std={std:?}"),
        }
    }
}

serialize_as_text!(InitRule);
