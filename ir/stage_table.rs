//! The table of stages: the pipeline ranks that own them, and the order in which each rank works.
//!
//! Nodes and states name their stage. A program without a table of stages has a single stage, stage 0.

use crate::timetable::Timetable;

/// The stage of nodes and states of which every stage has its own copy: constants, and counters that all stages count alike.
pub const EVERY_STAGE: u32 = u32::MAX;

/// The table of stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageTable {
    /// The name of the schedule that made the timetable.
    pub schedule: String,
    /// The number of microbatches of a step.
    pub microbatches: u32,
    /// The pipeline rank of each stage. A rank may own several stages.
    pub placement: Vec<u32>,
    /// For each stage, the number of updates between the weights that it reads and the newest weights. Empty in a synchronous
    /// schedule.
    pub delays: Vec<u32>,
    /// The order in which each pipeline rank works.
    pub timetable: Timetable,
}

impl StageTable {
    /// Returns the number of pipeline ranks.
    pub fn ranks(&self) -> u32 {
        self.timetable.ranks.len() as u32
    }

    /// Returns the number of stages.
    pub fn stages(&self) -> u32 {
        self.placement.len() as u32
    }

    /// Whether steps follow each other without a flush, so that stages read the weights of earlier updates.
    pub fn is_asynchronous(&self) -> bool {
        !self.delays.is_empty()
    }

    /// Returns the number of updates between the weights that a stage reads and the newest weights.
    pub fn delay_of(&self, stage: u32) -> u32 {
        self.delays.get(stage as usize).copied().unwrap_or(0)
    }

    /// Returns the table with the timetable of so many steps as one long step.
    pub fn unrolled(&self, steps: u32) -> Self {
        let timetable = self.timetable.unrolled(self.microbatches, steps);
        Self { microbatches: self.microbatches * steps, timetable, ..self.clone() }
    }

    /// Returns the stages of a pipeline rank, in order.
    pub fn stages_of(&self, rank: u32) -> impl Iterator<Item = u32> + '_ {
        (0..self.stages()).filter(move |&stage| self.placement[stage as usize] == rank)
    }
}
