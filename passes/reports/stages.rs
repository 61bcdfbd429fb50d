//! The report of the stages of a program.

/// The schedule and the cut of a program, and the alternatives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageReport {
    /// The name of the schedule.
    pub schedule: String,
    /// The schedules that were compared, the simplest first. Empty if the schedule was given.
    pub candidates: Vec<CandidateReport>,
    /// The bytes that the program may take on each device, if they are known.
    pub limit: Option<u64>,
    /// The estimated bytes on a device of each pipeline rank. Empty without a limit.
    pub estimated: Vec<u64>,
    /// Whether another schedule or cut would be faster without the limit.
    pub is_limited: bool,
}

/// A schedule that was compared with others.
#[derive(Clone, Debug, PartialEq)]
pub struct CandidateReport {
    /// The name of the schedule, with its chunks.
    pub schedule: String,
    /// The time of a step's microbatches, as a multiple of the fastest schedule's.
    pub time: f64,
    /// The bytes on a device of the largest pipeline rank: an estimate, corrected if plans were measured.
    pub bytes: u64,
    /// Whether these bytes fit within the limit.
    pub fits: bool,
}

impl StageReport {
    /// Returns the chosen schedule's row in the list of candidates.
    pub fn chosen(&self) -> Option<&CandidateReport> {
        self.candidates.iter().find(|candidate| candidate.schedule == self.schedule)
    }
}
