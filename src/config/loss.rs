//! The loss: its kind, its smoothing, and the label that it ignores.

use clap::Args;
use passes::loss::LossKind;
use serde::Serialize;

use super::value::{as_text, below_one};

/// Flags of the loss.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Loss")]
#[serde(rename_all = "kebab-case")]
pub struct Loss {
    /// Loss to minimise: auto (the model's own loss if it has one, otherwise cross-entropy), next-token, cross-entropy
    /// (labels are classes), mse or bce (labels have the shape of an output; bce takes logits), model (the model's own
    /// loss), output:NAME
    #[arg(long, value_name = "LOSS", default_value = "auto")]
    #[serde(serialize_with = "as_text")]
    pub loss: LossKind,
    /// Fraction of each target that is spread over all classes
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = below_one)]
    pub label_smoothing: f64,
    /// Labels equal to N do not count in the loss [default: the model's own ignored label, otherwise -100]
    #[arg(long, value_name = "N")]
    pub ignore_index: Option<i64>,
}

impl Loss {
    /// The pass that these flags ask for.
    pub fn pass(&self) -> passes::loss::Loss {
        passes::loss::Loss {
            kind: self.loss.clone(),
            ignore_index: self.ignore_index,
            label_smoothing: self.label_smoothing,
        }
    }
}
