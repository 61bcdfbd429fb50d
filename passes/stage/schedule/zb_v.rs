//! ZB-V (Qi et al., arXiv 2401.10241, section 6; V-ZB in Qi et al., Pipeline Parallelism with Controllable Memory, arXiv
//! 2405.15362): two chunks a rank, the second on the way back, so that the first rank computes the loss.
//!
//! Memory p. With F = Bi = W no rank waits between its first and its last task, if there are at least 2p − 1 microbatches.
//! The order is the one for these costs, which PyTorch's `ScheduleZBVZeroBubble` has too
//! (torch/distributed/pipelining/schedules.py).

use super::Pipeline;
use super::tasks::TaskList;
use ir::timetable::Task;

/// The chunk that comes first in forward.
const DOWN: usize = 0;
/// The chunk that comes back.
const UP: usize = 1;

pub(super) fn tasks(pipeline: Pipeline, rank: u32) -> Vec<Task> {
    // A shorter step is the start of one that fills the pipeline, without the microbatches that it does not have.
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

/// The first activation takes 2 · `after` tasks to come back; then the rank alternates until the first gradient comes.
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

/// Backward tasks on which other ranks wait come first; weight tasks fill the time until the next gradient comes.
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
