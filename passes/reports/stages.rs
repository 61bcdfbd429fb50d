//! The report of the stages of a program.

use serde::Serialize;

/// The schedule and the cut of a program, and the alternatives.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StageReport {
    /// The name of the schedule.
    pub schedule: String,
    /// The name of the device whose rates the times follow from. The pass knows only the rates; the driver fills in the name.
    pub device: String,
    /// The bytes that the program may take on each device, if they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The schedules that were compared, the simplest first. Empty if the schedule was given.
    pub candidates: Vec<CandidateReport>,
    /// The estimated bytes on a device of each pipeline rank. Empty without a limit.
    #[serde(skip)]
    pub estimated: Vec<u64>,
    /// Whether another schedule or cut would be faster without the limit.
    #[serde(skip)]
    pub is_limited: bool,
}

/// A schedule that was compared with others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CandidateReport {
    /// The name of the schedule, with its chunks.
    pub schedule: String,
    /// The time of a step's microbatches, as a multiple of the chosen schedule's.
    pub time: f64,
    /// The bytes on a device of the largest pipeline rank: an estimate, corrected if plans were measured. `None` without a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Whether these bytes fit within the limit.
    pub fits: bool,
}

impl StageReport {
    /// Whether the pass chose the schedule: no flag named it.
    pub fn is_choice(&self) -> bool {
        !self.candidates.is_empty()
    }
}
