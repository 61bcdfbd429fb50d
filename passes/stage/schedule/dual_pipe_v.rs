//! DualPipeV: DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2.1) cut in half by Sea AI Lab (huggingface.co/blog/ufotalent/
//! cut-in-half). DualPipe runs microbatches from both ends of the pipeline, and so keeps every parameter twice. A pipeline that is folded
//! into a V gives the same order with half the ranks and each parameter once.
//!
//! A forward task of one chunk stands next to a backward task of the other chunk, so that the transfers of each can overlap
//! the computation of the other. The eight steps are those of `dualpipev.py` in github.com/deepseek-ai/DualPipe.

use super::ScheduleSizes;
use super::tasks::TaskList;
use ir::timetable::Task;

/// The chunk on the way from the first rank to the last.
const DOWN: usize = 0;
/// The chunk on the way back.
const UP: usize = 1;

pub(super) fn tasks(pipeline: ScheduleSizes, rank: u32) -> Vec<Task> {
    let ScheduleSizes { ranks, microbatches, .. } = pipeline;
    let mut list = TaskList::new(vec![rank, 2 * ranks - 1 - rank]);
    let after = ranks - 1 - rank;
    warm_up(&mut list, rank, after);
    for _ in 0..microbatches - 2 * ranks + rank + 1 {
        list.forward(DOWN);
        list.backward_and_weight(UP);
        list.forward(UP);
        list.backward_and_weight(DOWN);
    }
    cool_down(&mut list, rank, after);
    list.finish()
}

/// Steps 1 to 3.
fn warm_up(list: &mut TaskList, rank: u32, after: u32) {
    (0..2 * after).for_each(|_| list.forward(DOWN));
    for _ in 0..rank + 1 {
        list.forward(DOWN);
        list.forward(UP);
    }
    for _ in 0..after {
        list.backward_and_weight(UP);
        list.forward(UP);
    }
}

/// Steps 5 to 8.
fn cool_down(list: &mut TaskList, rank: u32, after: u32) {
    for _ in 0..after {
        list.backward_and_weight(UP);
        list.forward(UP);
        list.backward_and_weight(DOWN);
    }
    // The second half of these delays its weight tasks, so that gradients reach the other ranks earlier.
    for position in 0..2 * (rank + 1) {
        let chunk = if position % 2 == 0 { UP } else { DOWN };
        if position > rank { list.backward(chunk) } else { list.backward_and_weight(chunk) }
    }
    for _ in 0..after {
        list.weight();
        list.backward(DOWN);
    }
}
