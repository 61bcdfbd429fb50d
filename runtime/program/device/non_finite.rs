//! The report of an instruction that made a NaN or an infinity.

use ir::timetable::Task;
use ir::{Phase, visible};
use serde::{Deserialize, Serialize};
use std::fmt;

/// An instruction that made a number that is not finite from finite ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NonFinite {
    /// The instruction's place in the microbatch ([`Program::microbatch`](crate::Program::microbatch)).
    pub instruction: usize,
    /// The operator.
    pub operator: String,
    /// The ONNX node of the instruction.
    pub origin: String,
    /// The first number that is not finite.
    #[serde(with = "number_bits")]
    pub value: f64,
    /// The rank that found it, if there are several.
    pub rank: Option<u64>,
    /// The turn in which it was found, in a pipeline.
    pub turn: Option<FoundIn>,
    /// For a NaN, the instruction that made the first infinity before it, if there is one: often the cause.
    pub infinity: Option<Box<NonFinite>>,
}

impl NonFinite {
    /// Returns the first finding of all ranks, given in their order: a NaN comes before an infinity. The finding of a single rank does not
    /// name the rank.
    pub fn first(mut of_ranks: Vec<Option<Self>>) -> Option<Self> {
        if of_ranks.len() == 1 {
            return of_ranks.pop()?;
        }
        let found = (0..).zip(of_ranks).filter_map(|(rank, found)| Some((rank, found?)));
        let place = |found: &Self| found.turn.map(|turn| (turn.microbatch, turn.is_backward, turn.order()));
        let key =
            |(rank, found): &(u64, Self)| (!found.value.is_nan(), place(found), found.instruction, *rank);
        let first = found.min_by_key(key);
        first.map(|(rank, found)| Self { rank: Some(rank), ..found })
    }
}

/// The turn of a pipeline in which a number was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundIn {
    /// The stage.
    pub stage: u32,
    /// The microbatch, counted from 0.
    pub microbatch: u32,
    /// Whether the turn is a backward turn or one of weight gradients.
    pub is_backward: bool,
}

impl FoundIn {
    /// Returns the place of the stage in the order in which a microbatch passes the stages.
    fn order(self) -> i64 {
        if self.is_backward { -i64::from(self.stage) } else { i64::from(self.stage) }
    }
}

impl From<Task> for FoundIn {
    fn from(Task { part, microbatch }: Task) -> Self {
        Self { stage: part.chunk, microbatch, is_backward: part.phase != Phase::Forward }
    }
}

/// A float by its bits: JSON has no NaN.
pub(crate) mod number_bits {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(number.to_bits())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(f64::from_bits(u64::deserialize(deserializer)?))
    }
}

/// `` `softmax` of node "/h.0/attn/Softmax" made NaN ``
impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.operator)?;
        if !self.origin.is_empty() {
            write!(f, " of {}", visible(&self.origin))?;
        }
        write!(f, " made {}", self.value)?;
        self.rank.map_or(Ok(()), |rank| write!(f, " on rank {rank}"))?;
        if let Some(FoundIn { stage, microbatch, .. }) = self.turn {
            write!(f, ", in stage {stage} of the pipeline and microbatch {microbatch}")?;
        }
        self.infinity.as_ref().map_or(Ok(()), |earlier| write!(f, "; before it, {earlier}"))
    }
}
