//! ZB-H1 (Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2.1): 1F1B with weight tasks that are delayed
//! into the bubble.
//!
//! Bubble (p − 1)(F + Bi − W) for W ≤ F, memory p. Rank r always delays r weight tasks. It runs ahead by r forward tasks less
//! than rank 0, so every rank holds the activations of p microbatches.

use super::ScheduleSizes;
use super::tasks::TaskList;
use ir::timetable::Task;

pub(super) fn tasks(pipeline: ScheduleSizes, rank: u32) -> Vec<Task> {
    let ScheduleSizes { ranks, microbatches, .. } = pipeline;
    let warmup = (ranks - 1 - rank).min(microbatches);
    let mut list = TaskList::new(vec![rank]);
    (0..warmup).for_each(|_| list.forward(0));
    for position in 0..microbatches {
        if position < microbatches - warmup {
            list.forward(0);
        }
        list.backward(0);
        if list.delayed() > rank as usize {
            list.weight();
        }
    }
    list.finish()
}
