//! PipeDream (Narayanan et al., arXiv 1806.03377, section 3) and PipeDream-2BW (Narayanan et al., arXiv 2006.09503, section 3.1):
//! 1F1B over an unbroken stream of microbatches.
//!
//! Rank r runs ahead by p − 1 − r forward tasks, and then alternates forward and backward tasks, over all steps. There is no
//! bubble except at the beginning and the end of the stream; memory is p − r. A list has the tasks of one step of the stream.

use super::{Schedule, ScheduleSizes};
use ir::Phase;
use ir::timetable::Task;

pub(super) fn tasks(pipeline: ScheduleSizes, rank: u32) -> Vec<Task> {
    let ScheduleSizes { ranks, microbatches, .. } = pipeline;
    let ahead = ranks - 1 - rank;
    let pair =
        |index| [Task::new(Phase::Forward, rank, index + ahead), Task::new(Phase::Backward, rank, index)];
    (0..microbatches).flat_map(pair).collect()
}

/// Returns for each stage the number of updates between the weights that it reads and the newest. Empty for a synchronous schedule.
pub(super) fn delays(schedule: Schedule, ranks: u32) -> Vec<u32> {
    match schedule {
        // Weight stashing: backward uses the weights of its forward, and p − 1 − s updates come between (1806.03377, section 3.3).
        Schedule::PipeDream => (0..ranks).map(|stage| ranks - 1 - stage).collect(),
        // W(t+1) = W(t) − ν · ∇f(W(t−1)) (2006.09503, section 3.1).
        Schedule::TwoBw => vec![1; ranks as usize],
        _ => vec![],
    }
}
