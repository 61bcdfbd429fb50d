//! 1F1B with v chunks a rank (Megatron-LM; Narayanan et al., arXiv 2104.04473, section 2.2.2).
//!
//! Bubble (p − 1)(F + B) / v, memory p(1 + (p − 1) / (pv)): a smaller bubble for v times the transfers. A rank runs p
//! microbatches through one chunk, then the same microbatches through its next chunk; backward goes through its chunks in
//! descending order.

use super::ScheduleSizes;
use super::tasks::TaskList;
use ir::timetable::Task;

pub(super) fn tasks(pipeline: ScheduleSizes, rank: u32) -> Vec<Task> {
    let ScheduleSizes { ranks, chunks_per_rank, microbatches } = pipeline;
    let total = chunks_per_rank * microbatches;
    // The first backward task of the rank is that of its last chunk. Before it, the rank runs p forward tasks of each earlier chunk, and
    // two for each rank after it: one while the activation goes there, and one while the gradient comes back.
    let warmup = ((chunks_per_rank - 1) * ranks + 2 * (ranks - 1 - rank)).min(total);
    let mut list = TaskList::new((0..chunks_per_rank).map(|chunk| chunk * ranks + rank).collect());
    let chunk = |position: u32| position / ranks % chunks_per_rank;
    let forward = |list: &mut TaskList, position| list.forward(chunk(position) as usize);
    let backward = |list: &mut TaskList, position| {
        list.whole_backward((chunks_per_rank - 1 - chunk(position)) as usize);
    };
    (0..warmup).for_each(|position| forward(&mut list, position));
    for position in warmup..total {
        forward(&mut list, position);
        backward(&mut list, position - warmup);
    }
    (total - warmup..total).for_each(|position| backward(&mut list, position));
    list.finish()
}
