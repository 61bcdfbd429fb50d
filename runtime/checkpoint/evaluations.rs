//! The evaluations of a run in its checkpoints.

use super::fingerprint::DataFingerprint;
use serde::{Deserialize, Serialize};

/// The evaluations of a run up to a checkpoint. Losses under other conditions are not included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluations {
    /// The evaluation data, if they are files of their own.
    pub data: DataFingerprint,
    /// The loss function and everything else on which eval losses depend, as text.
    pub measure: String,
    /// The losses, in the order of steps.
    pub losses: Vec<EvalLoss>,
}

/// The loss of an evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalLoss {
    /// The number of steps completed before it.
    pub steps: u64,
    /// The loss.
    #[serde(with = "exact")]
    pub loss: f64,
}

/// Serializes numbers as text, which is read back bit for bit. A JSON number may be read as its neighbour.
mod exact {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| D::Error::custom(format!("{text:?} is not a number")))
    }
}
