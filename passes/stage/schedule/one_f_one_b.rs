//! 1F1B, also called PipeDream-Flush (Narayanan et al., arXiv 2006.09503, section 3.2; arXiv 2104.04473, section 2.2.1).
//!
//! Bubble (p − 1)(F + B), memory p: a rank runs ahead by one forward task for each rank after it, and then alternates forward and
//! backward tasks.

use super::ScheduleSizes;
use super::tasks::TaskList;
use ir::timetable::Task;

pub(super) fn tasks(pipeline: ScheduleSizes, rank: u32) -> Vec<Task> {
    let ScheduleSizes { ranks, microbatches, .. } = pipeline;
    let warmup = (ranks - 1 - rank).min(microbatches);
    let mut list = TaskList::new(vec![rank]);
    (0..warmup).for_each(|_| list.forward(0));
    for _ in warmup..microbatches {
        list.forward(0);
        list.whole_backward(0);
    }
    (0..warmup).for_each(|_| list.whole_backward(0));
    list.finish()
}
