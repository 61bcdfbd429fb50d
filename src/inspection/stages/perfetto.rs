//! A predicted timetable as Perfetto and chrome://tracing read it: a track for each pipeline rank, and an arrow for each transfer.

use super::{PipelineFacts, TaskFacts};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The process that predicted tasks belong to, so that they stand beside measured ones, whose process is 0.
const PROCESS: u32 = 1;
/// The microseconds by which an arrow starts before the end of its task. A viewer ties an arrow to the task that is running then.
const BEFORE_END: f64 = 1e-3;

impl PipelineFacts {
    /// The events of all ranks.
    pub fn timeline(&self) -> Value {
        let mut events = vec![named("process_name", 0, &format!("predicted, {}", self.device))];
        for (rank, facts) in self.ranks.iter().enumerate() {
            events.push(named("thread_name", rank, &format!("pipeline rank {rank}")));
            events.extend(facts.tasks.iter().map(|task| event(rank, task)));
        }
        for (number, arrow) in self.arrows().into_iter().enumerate() {
            events.extend(arrow.events(number));
        }
        json!({ "displayTimeUnit": "ms", "traceEvents": events })
    }

    /// The transfers of all microbatches between tasks of different ranks.
    pub(super) fn arrows(&self) -> Vec<Arrow<'_>> {
        let mut by_name: BTreeMap<String, (usize, &TaskFacts)> = BTreeMap::new();
        for (rank, facts) in self.ranks.iter().enumerate() {
            by_name.extend(facts.tasks.iter().map(|task| (task.name(), (rank, task))));
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

/// A transfer of one microbatch: the sending and the receiving task with their ranks.
pub(super) struct Arrow<'a> {
    pub(super) from: (usize, &'a TaskFacts),
    pub(super) to: (usize, &'a TaskFacts),
    pub(super) bytes: u64,
    /// Milliseconds until all bytes have arrived.
    pub(super) ms: f64,
}

impl Arrow<'_> {
    fn events(&self, number: usize) -> [Value; 2] {
        let ((from, sender), (to, receiver)) = (self.from, self.to);
        let length = (sender.end_ms - sender.begin_ms) * 1e3;
        let start = sender.end_ms * 1e3 - BEFORE_END.min(length / 2.0);
        [
            json!({
                "ph": "s", "name": "transfer", "cat": "transfer", "id": number, "pid": PROCESS, "tid": from,
                "ts": start, "args": { "bytes": self.bytes },
            }),
            json!({
                "ph": "f", "bp": "e", "name": "transfer", "cat": "transfer", "id": number, "pid": PROCESS,
                "tid": to, "ts": receiver.begin_ms * 1e3,
            }),
        ]
    }
}

fn named(what: &str, track: usize, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": PROCESS, "tid": track, "args": { "name": name } })
}

fn event(rank: usize, task: &TaskFacts) -> Value {
    json!({
        "ph": "X",
        "name": task.name(),
        "cat": task.phase,
        "pid": PROCESS,
        "tid": rank,
        "ts": task.begin_ms * 1e3,
        "dur": (task.end_ms - task.begin_ms) * 1e3,
        "args": { "phase": task.phase, "stage": task.stage, "microbatch": task.microbatch },
    })
}
