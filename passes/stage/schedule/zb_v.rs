//! ZB-V (Qi et al., arXiv 2401.10241, section 6; V-ZB in Qi et al., Pipeline Parallelism with Controllable Memory, arXiv
//! 2405.15362): two chunks a rank, the second on the way back, so that the first rank computes the loss.
//!
//! Memory p. With F = Bi = W no rank waits between its first and its last task, if there are at least 2p − 1 microbatches. The order is
//! that for these costs, as in PyTorch's `ScheduleZBVZeroBubble` (torch/distributed/pipelining/schedules.py).

use super::ScheduleSizes;
use super::tasks::TaskList;
use ir::timetable::Task;

/// The chunk on the way from the first rank to the last.
const DOWN: usize = 0;
/// The chunk on the way back.
const UP: usize = 1;

pub(super) fn tasks(pipeline: ScheduleSizes, rank: u32) -> Vec<Task> {
    // A short step is the beginning of a step that fills the pipeline, without the missing microbatches.
    let microbatches = pipeline.microbatches.max(2 * pipeline.ranks - 1);
    let mut list = TaskList::new(vec![rank, 2 * pipeline.ranks - 1 - rank]);
    let after = pipeline.ranks - rank;
    warm_up(&mut list, rank, after);
    while list.forwards(UP) < microbatches {
        if list.forwards(DOWN) < microbatches {
            list.forward(DOWN);
        }
        list.backward_and_weight(DOWN);
        list.forward(UP);
        list.backward_and_weight(UP);
    }
    cool_down(&mut list, rank, after);
    let mut tasks = list.finish();
    tasks.retain(|task| task.microbatch < pipeline.microbatches);
    tasks
}

/// Adds the tasks until the first gradient comes. The first activation takes 2 · `after` tasks to come back; then the chunks alternate.
fn warm_up(list: &mut TaskList, rank: u32, after: u32) {
    (0..2 * after - 1).for_each(|_| list.forward(DOWN));
    for _ in 0..rank {
        list.forward(UP);
        list.forward(DOWN);
    }
    for _ in 0..after {
        list.forward(UP);
        list.backward_and_weight(UP);
    }
}

/// Adds the tasks after the last forward. Backward tasks that other ranks wait for come first; weight tasks fill the time until the next
/// gradient.
fn cool_down(list: &mut TaskList, rank: u32, after: u32) {
    for _ in 0..rank {
        list.backward(DOWN);
        list.backward(UP);
    }
    for _ in 0..after {
        list.backward(DOWN);
        list.weight_of(DOWN);
    }
    while list.weight_of(UP) {}
}
