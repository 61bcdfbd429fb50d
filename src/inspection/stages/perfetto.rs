//! A predicted timetable as Perfetto and chrome://tracing read it: a track for each pipeline rank, and an arrow for each transfer. The
//! measured tasks of a run stand above it.

use super::{PipelineFacts, TaskFacts};
use crate::inspection::measured::{MeasuredPipeline, MeasuredRankFacts, short_name};
use program::profile::MeasuredTask;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The process that measured tasks belong to.
const MEASURED: u32 = 0;
/// The process that predicted tasks belong to.
const PREDICTED: u32 = 1;
/// The microseconds by which an arrow starts before the end of its task. A viewer ties an arrow to the task that is running then.
const BEFORE_END: f64 = 1e-3;

impl PipelineFacts {
    /// The events of all ranks, with those that a run has measured.
    pub fn timeline(&self, measured: Option<&MeasuredPipeline>) -> Value {
        let mut events: Vec<Value> = measured.map(measured_events).unwrap_or_default();
        let named = |what, track, name: &str| named(PREDICTED, what, track, name);
        events.push(named("process_name", 0, &format!("predicted, {}", self.device)));
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
                "ph": "s", "name": "transfer", "cat": "transfer", "id": number, "pid": PREDICTED, "tid": from,
                "ts": start, "args": { "bytes": self.bytes },
            }),
            json!({
                "ph": "f", "bp": "e", "name": "transfer", "cat": "transfer", "id": number, "pid": PREDICTED,
                "tid": to, "ts": receiver.begin_ms * 1e3,
            }),
        ]
    }
}

/// The tasks of the newest step that a run has measured. A task begins when its rank turns to it, and so with the wait for its messages.
fn measured_events(measured: &MeasuredPipeline) -> Vec<Value> {
    let mut events = vec![named(MEASURED, "process_name", 0, "measured, the last step")];
    for rank in &measured.ranks {
        let MeasuredRankFacts { rank, pipeline_rank, tasks, .. } = rank;
        let track = *rank as usize;
        events.push(named(
            MEASURED,
            "thread_name",
            track,
            &format!("rank {rank}, pipeline rank {pipeline_rank}"),
        ));
        events.extend(tasks.iter().map(|task| measured_event(track, task)));
    }
    events
}

fn measured_event(track: usize, task: &MeasuredTask) -> Value {
    json!({
        "ph": "X",
        "name": short_name(task),
        "cat": task.phase,
        "pid": MEASURED,
        "tid": track,
        "ts": task.begin_ms * 1e3,
        "dur": (task.end_ms - task.begin_ms) * 1e3,
        "args": {
            "phase": task.phase, "stage": task.stage, "microbatch": task.microbatch,
            "waited for messages, ms": task.waited_ms,
        },
    })
}

fn named(process: u32, what: &str, track: usize, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": process, "tid": track, "args": { "name": name } })
}

fn event(rank: usize, task: &TaskFacts) -> Value {
    json!({
        "ph": "X",
        "name": task.name(),
        "cat": task.phase,
        "pid": PREDICTED,
        "tid": rank,
        "ts": task.begin_ms * 1e3,
        "dur": (task.end_ms - task.begin_ms) * 1e3,
        "args": { "phase": task.phase, "stage": task.stage, "microbatch": task.microbatch },
    })
}
