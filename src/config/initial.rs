//! The start of a run: the seed, and the weights of step 0.

use std::path::PathBuf;

use clap::Args;
use passes::initialize::Rule;
use serde::Serialize;

use super::value::{as_optional_text, seed};

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
    #[serde(serialize_with = "as_optional_text")]
    pub init: Option<Rule>,
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
