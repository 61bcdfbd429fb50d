//! The transfers of a pipeline between the tasks that send and receive them, as drawings show them.

use super::{PipelineFacts, TaskFacts};
use std::collections::BTreeMap;

/// A transfer of one microbatch: the sending and the receiving task with their ranks.
pub(in crate::inspection) struct Arrow<'a> {
    pub(in crate::inspection) from: (usize, &'a TaskFacts),
    pub(in crate::inspection) to: (usize, &'a TaskFacts),
    pub(in crate::inspection) bytes: u64,
    /// Milliseconds until all bytes have arrived.
    pub(super) ms: f64,
}

impl PipelineFacts {
    /// The transfers of all microbatches between tasks of different ranks.
    pub(in crate::inspection) fn arrows(&self) -> Vec<Arrow<'_>> {
        let mut by_name: BTreeMap<String, (usize, &TaskFacts)> = BTreeMap::new();
        for (rank, facts) in self.ranks.iter().enumerate() {
            by_name.extend(facts.tasks.iter().map(|task| (task.task.to_string(), (rank, task))));
        }
        let mut arrows = vec![];
        for transfer in &self.transfers {
            for microbatch in 0..self.microbatches {
                let task = |part: &str| by_name.get(&format!("{part}.{microbatch}")).copied();
                if let (Some(from), Some(to)) = (task(&transfer.from), task(&transfer.to)) {
                    arrows.push(Arrow { from, to, bytes: transfer.bytes, ms: transfer.ms });
                }
            }
        }
        arrows
    }
}
