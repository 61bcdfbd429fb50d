//! The loss: which, and how labels enter it.

use clap::Args;
use passes::loss::LossKind;
use serde::Serialize;

use super::value::{below_one, one_of, serialize_name};

/// Flags of the loss.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Loss")]
#[serde(rename_all = "kebab-case")]
pub struct Loss {
    /// What is minimised: the model's own loss, cross-entropy with the next token or with given labels; auto is the
    /// model's own if it has one, else cross-entropy
    #[arg(long, value_name = "LOSS", default_value = "auto", value_parser = one_of(&LossKind::ALL))]
    #[serde(serialize_with = "serialize_kind")]
    pub loss: LossKind,
    /// Share of each target that is spread over all classes
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = below_one)]
    pub label_smoothing: f64,
    /// Labels equal to N do not count in the loss [default: the model's own, else -100]
    #[arg(long, value_name = "N")]
    pub ignore_index: Option<i64>,
}

impl Loss {
    /// The pass that these flags ask for.
    pub fn pass(&self) -> passes::loss::Loss {
        passes::loss::Loss {
            kind: self.loss,
            ignore_index: self.ignore_index,
            label_smoothing: self.label_smoothing,
        }
    }
}

fn serialize_kind<S: serde::Serializer>(kind: &LossKind, serializer: S) -> Result<S::Ok, S::Error> {
    serialize_name(&LossKind::ALL, kind, serializer)
}
