//! Shapes: the batch, and the sizes of symbolic dims.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use clap::Args;
use serde::Serialize;

use super::value::{ValueError, count_from, serialize_as_text};

/// Flags that fix shapes.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Shapes")]
#[serde(rename_all = "kebab-case")]
pub struct Shapes {
    /// Size of each symbolic dim, by the dim's name in the file
    #[arg(long, value_name = "DIM=SIZE,…")]
    pub bind: Option<Bindings>,
    /// Samples per microbatch on each data rank [default: the file's batch]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub microbatch: Option<u64>,
    /// Tokens per sample of a token stream [default: the model's sequence length]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub seq: Option<u64>,
    /// Samples per step, a multiple of the microbatch [default: one microbatch]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub global_batch: Option<u64>,
}

impl Shapes {
    /// The sizes that `--bind` gives, by dim name; empty without the flag.
    pub fn bindings(&self) -> BTreeMap<String, u64> {
        self.bind.clone().map(|bindings| bindings.0).unwrap_or_default()
    }
}

/// A size or count of one or more.
pub fn positive_count(text: &str) -> Result<u64, ValueError> {
    count_from(1, text)
}

/// `batch=8,seq=128`: a size for each named dim. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bindings(BTreeMap<String, u64>);

impl Bindings {
    /// The sizes by dim name.
    pub fn sizes(&self) -> &BTreeMap<String, u64> {
        &self.0
    }
}

impl FromStr for Bindings {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let mut sizes = BTreeMap::new();
        for item in text.split(',') {
            let Some((dim, size)) = item.split_once('=').filter(|(dim, _)| !dim.is_empty()) else {
                return Err(ValueError::new(format!(
                    "`{item}` is not of the form dim=size, such as batch=8"
                )));
            };
            let size =
                positive_count(size).map_err(|error| ValueError::new(format!("dim `{dim}`: {error}")))?;
            if let Some(other) = sizes.insert(dim.to_owned(), size) {
                return Err(ValueError::new(format!("dim `{dim}` is bound twice: to {other} and to {size}")));
            }
        }
        Ok(Self(sizes))
    }
}

impl fmt::Display for Bindings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (dim, size)) in self.0.iter().enumerate() {
            write!(f, "{}{dim}={size}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

serialize_as_text!(Bindings);
