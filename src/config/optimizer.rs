//! The optimizer: its rule, its learning rate over the steps, and the parameters that it applies to.

pub(super) mod algorithm;
pub(super) mod group;
mod schedule;

use std::str::FromStr;

use clap::Args;
use passes::optimizer::schedule::Schedule;
use passes::optimizer::{Algorithm, DEFAULT_LEARNING_RATE, Decay, Group};
use serde::Serialize;

use super::value::{ValueError, as_texts, below_one, not_negative, one_of, positive, serialize_name};

/// Flags of the update rule.
#[derive(Args, Clone, Debug, PartialEq, Serialize)]
#[command(next_help_heading = "Optimizer")]
#[serde(rename_all = "kebab-case")]
pub struct Optimizer {
    /// Update rule: sgd, momentum or nesterov, each with [:momentum=X]; adagrad with [:eps=X]; adafactor with
    /// [:relative=on|off,beta1=X,decay-rate=X,clip-threshold=X,eps1=X,eps2=X]; lion with [:beta1=X,beta2=X]; adam or adamw,
    /// each with [:beta1=X,beta2=X,eps=X,moments=f32|bf16|8bit]
    #[arg(long, value_name = "NAME[:KEY=X,…]", default_value = "adamw", value_parser = algorithm::parse)]
    #[serde(serialize_with = "algorithm::serialize")]
    pub optimizer: Algorithm,
    /// Highest learning rate of the schedule
    #[arg(long, value_name = "X", default_value_t = DEFAULT_LEARNING_RATE, value_parser = not_negative)]
    pub lr: f64,
    /// Learning-rate schedule: constant[:warmup=STEPS]; linear or cosine, each with [:warmup=STEPS,min=RATE,steps=N], where
    /// N is the run's number of steps by default; wsd (warmup-stable-decay), which also takes decay=STEPS, a tenth of N by
    /// default
    #[arg(long, value_name = "NAME[:KEY=X,…]", default_value = "constant", value_parser = schedule::parse)]
    #[serde(serialize_with = "schedule::serialize")]
    pub lr_schedule: Schedule,
    /// Weight decay [default: 0.01 for adamw, otherwise 0]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub weight_decay: Option<f64>,
    /// Parameters with weight decay: all, or only matrices (parameters of two dims or more, so neither biases nor norms)
    #[arg(long, value_name = "WHICH", default_value = "matrices", value_parser = one_of(&DECAYS))]
    #[serde(serialize_with = "serialize_decay")]
    pub decay: Decay,
    /// Set the learning rate to FACTOR times --lr, or the weight decay to X, for parameters whose name matches the glob; the
    /// last matching group applies; may be repeated; a config file may have group tables with the keys pattern, lr,
    /// weight-decay instead
    #[arg(long, value_name = "PATTERN:lr=FACTOR,weight-decay=X")]
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_texts")]
    pub group: Vec<Group>,
    /// Scale the gradient down to the global norm X if its norm is larger
    #[arg(long, value_name = "X", value_parser = positive)]
    pub clip: Option<f64>,
    /// Dropout ratio instead of the model's own: off, or a number from 0 to below 1; the model must be exported in training
    /// mode
    #[arg(long, value_name = "off|X")]
    pub dropout: Option<Share>,
    /// Do not train parameters whose name matches the glob; may be repeated
    #[arg(long, value_name = "PATTERN")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub freeze: Vec<String>,
    /// Train only parameters whose name matches the glob; may be repeated
    #[arg(long, value_name = "PATTERN")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub train_only: Vec<String>,
    /// Train tensors whose name matches the glob although they look like constants; may be repeated
    #[arg(long, value_name = "PATTERN")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub train_also: Vec<String>,
    /// Keep tensors of equal bytes apart instead of training them as one parameter
    #[arg(long)]
    pub untied: bool,
}

const DECAYS: [(Decay, &str); 2] = [(Decay::All, "all"), (Decay::Matrices, "matrices")];

impl Optimizer {
    /// The weight decay, by default that of PyTorch's optimizer of the same name.
    pub fn weight_decay(&self) -> f64 {
        let decoupled = matches!(self.optimizer, Algorithm::Adam { decoupled: true, .. });
        self.weight_decay.unwrap_or(if decoupled { 0.01 } else { 0.0 })
    }

    /// The pass that sets dropout, with this seed for its random numbers.
    pub fn dropout(&self, seed: u64) -> passes::dropout::Dropout {
        passes::dropout::Dropout { seed, ratio: self.dropout.map(|Share(share)| share) }
    }

    /// The pass that these flags ask for; a schedule without a length of its own ends with the run's `steps`.
    pub fn pass(&self, steps: u64) -> passes::optimizer::Optimizer {
        let mut schedule = self.lr_schedule.clone();
        if schedule.steps == 0 {
            schedule.steps = steps;
        }
        passes::optimizer::Optimizer {
            algorithm: self.optimizer,
            lr: self.lr,
            schedule,
            weight_decay: self.weight_decay(),
            decay: self.decay,
            groups: self.group.clone(),
            clip: self.clip,
            keep_gradients: false,
            reads_gradients: false,
        }
    }
}

/// A share from 0 to below 1; `off` is 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

impl FromStr for Share {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text == "off" { Ok(Self(0.0)) } else { below_one(text).map(Self) }
    }
}

impl Serialize for Share {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 == 0.0 { serializer.serialize_str("off") } else { serializer.serialize_f64(self.0) }
    }
}

fn serialize_decay<S: serde::Serializer>(decay: &Decay, serializer: S) -> Result<S::Ok, S::Error> {
    serialize_name(&DECAYS, decay, serializer)
}
