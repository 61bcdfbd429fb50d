//! The schedules of a pipeline: the rank that owns each chunk, and the order in which a rank runs the tasks of its chunks.
//!
//! A schedule is a pure function of the numbers of ranks, chunks and microbatches. [`ir::timetable::check`] proves its
//! timetables. The bubbles and the memory in the comments hold for equal stages and free transfers, with p ranks, v chunks a rank and
//! m microbatches. F, B (the whole backward), Bi (gradients of activations) and W (gradients of parameters) are the costs of
//! a stage, that is of all chunks of a rank. Memory counts the activations of one microbatch in a stage.

mod asynchronous;
mod choice;
mod dual_pipe_v;
mod gpipe;
mod interleaved;
mod one_f_one_b;
mod tasks;
#[cfg(test)]
mod tests;
mod zb_h1;
mod zb_v;

pub use choice::ScheduleChoice;

use ir::timetable::{Task, Timetable};

/// The most tasks of a plan, so that a mistyped number cannot fill the memory.
const MAX_TASKS: u64 = 1 << 24;

/// A schedule of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Schedule {
    /// All forward tasks, then all backward tasks.
    Gpipe,
    /// Forward and backward tasks alternate; a stage keeps one microbatch more than the number of stages after it.
    OneFOneB,
    /// 1F1B with several chunks a rank, assigned in turn: a smaller bubble for more transfers.
    Interleaved,
    /// 1F1B with weight tasks delayed into the bubble, and no more memory.
    ZbH1,
    /// Two chunks a rank, placed as a V, with weight tasks in the bubble.
    ZbV,
    /// Two chunks a rank, placed as a V, with forward and backward tasks in pairs whose transfers overlap.
    DualPipeV,
    /// 1F1B without a flush, one microbatch for each update: each stage keeps the weights of its forward tasks until backward.
    PipeDream,
    /// 1F1B without a flush, at least p microbatches for each update: every stage reads the weights before the newest update.
    TwoBw,
}

/// A schedule for given numbers of ranks, chunks and microbatches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The pipeline rank of each chunk.
    pub placement: Vec<u32>,
    /// Whether the gradients of parameters are separate tasks.
    pub splits_backward: bool,
    /// For each chunk, the number of updates between the weights that it reads and the newest. Empty for a synchronous schedule.
    pub delays: Vec<u32>,
    /// The tasks of each rank; for an asynchronous schedule, those of one step of an unbroken stream.
    pub timetable: Timetable,
}

/// The numbers on which a schedule depends.
#[derive(Clone, Copy, Debug)]
struct ScheduleSizes {
    ranks: u32,
    chunks_per_rank: u32,
    microbatches: u32,
}

impl Schedule {
    /// Every schedule with its name in text.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Gpipe, "gpipe"),
        (Self::OneFOneB, "1f1b"),
        (Self::Interleaved, "interleaved"),
        (Self::ZbH1, "zb-h1"),
        (Self::ZbV, "zb-v"),
        (Self::DualPipeV, "dualpipev"),
        (Self::PipeDream, "pipedream"),
        (Self::TwoBw, "2bw"),
    ];

    /// Returns the name in text.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Whether the gradients of parameters are separate tasks.
    pub fn splits_backward(self) -> bool {
        matches!(self, Self::ZbH1 | Self::ZbV | Self::DualPipeV)
    }

    /// Whether steps follow each other without a flush, so that stages read weights of earlier updates.
    pub fn is_asynchronous(self) -> bool {
        matches!(self, Self::PipeDream | Self::TwoBw)
    }

    /// Returns the chunks of a rank if the user gives no number.
    pub fn default_chunks(self) -> u32 {
        match self {
            Self::Gpipe | Self::OneFOneB | Self::ZbH1 | Self::PipeDream | Self::TwoBw => 1,
            Self::Interleaved | Self::ZbV | Self::DualPipeV => 2,
        }
    }

    /// Returns the pipeline rank of each chunk.
    pub fn placement(self, ranks: u32, chunks_per_rank: u32) -> Vec<u32> {
        let round = 0..ranks;
        match self {
            Self::ZbV | Self::DualPipeV => round.clone().chain(round.rev()).collect(),
            _ => (0..chunks_per_rank).flat_map(|_| round.clone()).collect(),
        }
    }

    /// Returns the placement and the timetable. An error names numbers that would work.
    pub fn plan(self, ranks: u32, chunks_per_rank: u32, microbatches: u32) -> Result<Plan, String> {
        let pipeline = ScheduleSizes { ranks, chunks_per_rank, microbatches };
        self.check_size(pipeline)?;
        self.check_chunks(chunks_per_rank)?;
        self.check_microbatches(pipeline)?;
        let timetable = Timetable { ranks: (0..ranks).map(|rank| self.tasks(pipeline, rank)).collect() };
        let placement = self.placement(ranks, chunks_per_rank);
        let delays = asynchronous::delays(self, ranks);
        Ok(Plan { placement, splits_backward: self.splits_backward(), delays, timetable })
    }

    /// Returns the tasks of one rank.
    fn tasks(self, pipeline: ScheduleSizes, rank: u32) -> Vec<Task> {
        match self {
            Self::Gpipe => gpipe::tasks(pipeline, rank),
            Self::OneFOneB => one_f_one_b::tasks(pipeline, rank),
            Self::Interleaved => interleaved::tasks(pipeline, rank),
            Self::ZbH1 => zb_h1::tasks(pipeline, rank),
            Self::ZbV => zb_v::tasks(pipeline, rank),
            Self::DualPipeV => dual_pipe_v::tasks(pipeline, rank),
            Self::PipeDream | Self::TwoBw => asynchronous::tasks(pipeline, rank),
        }
    }

    /// Refuses empty pipelines, and pipelines whose timetable would be too long.
    fn check_size(self, pipeline: ScheduleSizes) -> Result<(), String> {
        let ScheduleSizes { ranks, chunks_per_rank, microbatches } = pipeline;
        if ranks == 0 || microbatches == 0 {
            let name = self.name();
            return Err(format!(
                "`{name}` needs at least 1 rank and 1 microbatch, not {ranks} and {microbatches}"
            ));
        }
        let phases = if self.splits_backward() { 3 } else { 2 };
        let chunks = u64::from(ranks) * u64::from(chunks_per_rank).max(1);
        let most = MAX_TASKS / phases / chunks;
        // ZB-V makes a short step from the list of a step that fills the pipeline.
        let least = if self == Self::ZbV { 2 * u64::from(ranks) - 1 } else { 1 };
        if least.max(u64::from(microbatches)) <= most {
            return Ok(());
        }
        let remedy =
            if least <= most { format!("at most {most} microbatches") } else { "fewer ranks".to_string() };
        Err(format!(
            "{chunks} stages and {microbatches} microbatches make more than {MAX_TASKS} tasks; {remedy} would work"
        ))
    }

    /// Refuses a number of chunks per rank that the schedule cannot place.
    fn check_chunks(self, chunks: u32) -> Result<(), String> {
        let name = self.name();
        match self {
            Self::Interleaved if chunks >= 2 => Ok(()),
            Self::Interleaved => Err(format!(
                "`{name}` needs at least 2 chunks per rank, not {chunks}; with 1 chunk per rank, `1f1b` is the same schedule"
            )),
            _ if chunks == self.default_chunks() => Ok(()),
            Self::ZbV | Self::DualPipeV => {
                Err(format!("`{name}` needs exactly 2 chunks per rank, not {chunks}"))
            }
            _ => Err(format!(
                "`{name}` needs exactly 1 chunk per rank, not {chunks}; `interleaved` takes 2 or more"
            )),
        }
    }

    /// Refuses a number of microbatches that the schedule cannot order.
    fn check_microbatches(self, pipeline: ScheduleSizes) -> Result<(), String> {
        let ScheduleSizes { ranks, microbatches, .. } = pipeline;
        let name = self.name();
        match self {
            Self::Interleaved if !microbatches.is_multiple_of(ranks) => {
                let below = microbatches / ranks * ranks;
                let above = below + ranks;
                let work = if below == 0 { above.to_string() } else { format!("{below} or {above}") };
                Err(format!(
                    "`{name}` on {ranks} ranks needs a multiple of {ranks} microbatches, not {microbatches}; {work} would work"
                ))
            }
            Self::DualPipeV if microbatches < 2 * ranks => Err(format!(
                "`{name}` on {ranks} ranks needs at least {} microbatches, not {microbatches}; `zb-v` takes any number",
                2 * ranks
            )),
            Self::PipeDream if microbatches != 1 => Err(format!(
                "`{name}` updates the weights after each microbatch, and a step has {microbatches}; `2bw` takes {ranks} microbatches or more"
            )),
            Self::TwoBw if microbatches < ranks => Err(format!(
                "`{name}` on {ranks} ranks needs at least {ranks} microbatches, not {microbatches}; `pipedream` takes 1, `1f1b` any number"
            )),
            _ => Ok(()),
        }
    }
}
