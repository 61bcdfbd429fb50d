//! GPipe (Huang et al., arXiv 1811.06965, section 2.3): all forward tasks, then all backward tasks.
//!
//! Bubble (p − 1)(F + B), memory m. The paper runs backward in descending order of microbatches. Here the order is ascending, as in all
//! schedules, with the same bubble.

use super::ScheduleSizes;
use super::tasks::TaskList;
use ir::timetable::Task;

pub(super) fn tasks(pipeline: ScheduleSizes, rank: u32) -> Vec<Task> {
    let mut list = TaskList::new(vec![rank]);
    (0..pipeline.microbatches).for_each(|_| list.forward(0));
    (0..pipeline.microbatches).for_each(|_| list.whole_backward(0));
    list.finish()
}
