//! Timelines in the format of Perfetto and chrome://tracing: a predicted step with a track for each stream, and a pipeline with a track for
//! each rank and an arrow for each transfer. The measured tasks of a run stand above the predicted ones.

use super::prediction::{CommandFacts, PredictionFacts};
use super::stages::{Arrow, PipelineFacts};
use ir::Task;
use program::commands::Stream;
use program::profile::{MeasuredPipeline, PipelineRankTimes};
use serde_json::{Value, json};

/// The process of measured events.
const MEASURED: u32 = 0;
/// The process of predicted events.
const PREDICTED: u32 = 1;
/// The microseconds by which an arrow starts before the end of its task. A viewer ties an arrow to the task that is running then.
const BEFORE_END: f64 = 1e-3;

/// The timeline with these events.
pub(crate) fn timeline(events: Vec<Value>) -> Value {
    json!({ "displayTimeUnit": "ms", "traceEvents": events })
}

/// The event that names a process, or a track of it.
fn named(process: u32, what: &str, track: usize, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": process, "tid": track, "args": { "name": name } })
}

/// The event of a track that begins at a microsecond and lasts some microseconds.
fn span(
    (process, track): (u32, usize),
    (name, category): (&str, &str),
    (begin, length): (f64, f64),
    arguments: Value,
) -> Value {
    json!({
        "ph": "X", "name": name, "cat": category, "pid": process, "tid": track, "ts": begin, "dur": length, "args": arguments,
    })
}

/// The event of a task, from one millisecond to another.
fn task_event(
    track: (u32, usize),
    (task, phase): (Task, &str),
    [begin_ms, end_ms]: [f64; 2],
    waited_ms: Option<f64>,
) -> Value {
    let mut arguments = json!({ "phase": phase, "stage": task.part.chunk, "microbatch": task.microbatch });
    if let Some(waited) = waited_ms {
        arguments["waited for messages, ms"] = json!(waited);
    }
    span(track, (&task.to_string(), phase), (begin_ms * 1e3, (end_ms - begin_ms) * 1e3), arguments)
}

impl PredictionFacts {
    /// The timeline of a step: each section once, one after the other.
    pub fn timeline(&self) -> Value {
        let mut events = vec![named(PREDICTED, "process_name", 0, &format!("predicted, {}", self.device))];
        let tracks = Stream::ALL.into_iter().enumerate();
        events.extend(tracks.map(|(track, stream)| named(PREDICTED, "thread_name", track, stream.name())));
        let mut begin = 0.0;
        for section in &self.sections {
            let own = self.commands.iter().filter(|command| command.section == section.section);
            events.extend(own.map(|command| command.event(begin)));
            begin += section.ms * 1e3;
        }
        timeline(events)
    }
}

impl CommandFacts {
    /// The event of a command in a section that begins at a microsecond.
    fn event(&self, section_begin: f64) -> Value {
        let Self { kind, section, stream, origin, sizes, flops, bound, .. } = self;
        let track = Stream::ALL.iter().position(|own| own.name() == *stream).unwrap_or_default();
        let arguments = json!({
            "origin": origin, "sizes": sizes, "bytes": self.read + self.written, "flops": flops, "bound": bound,
        });
        span((PREDICTED, track), (kind, section), (section_begin + self.begin_us, self.us), arguments)
    }
}

impl PipelineFacts {
    /// The timeline of the predicted tasks of all ranks, beside the tasks that a run has measured.
    pub fn timeline(&self, measured: Option<&MeasuredPipeline>) -> Value {
        let mut events: Vec<Value> = measured.map(measured_events).unwrap_or_default();
        events.push(named(PREDICTED, "process_name", 0, &format!("predicted, {}", self.device)));
        for (rank, facts) in self.ranks.iter().enumerate() {
            events.push(named(PREDICTED, "thread_name", rank, &format!("pipeline rank {rank}")));
            let times = facts.tasks.iter().map(|task| (task.task, [task.begin_ms, task.end_ms]));
            let event = |(task, times): (Task, _)| {
                task_event((PREDICTED, rank), (task, task.part.phase.long_name()), times, None)
            };
            events.extend(times.map(event));
        }
        events.extend(self.arrows().iter().enumerate().flat_map(|(number, arrow)| arrow.events(number)));
        timeline(events)
    }
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

/// The events of the tasks of the newest step. A task begins when its rank turns to it, and so with the wait for its messages.
fn measured_events(measured: &MeasuredPipeline) -> Vec<Value> {
    let mut events = vec![named(MEASURED, "process_name", 0, "measured, the last step")];
    for PipelineRankTimes { rank, pipeline_rank, tasks, .. } in &measured.ranks {
        let track = *rank as usize;
        let name = format!("rank {rank}, pipeline rank {pipeline_rank}");
        events.push(named(MEASURED, "thread_name", track, &name));
        events.extend(tasks.iter().map(|task| {
            let times = [task.begin_ms, task.end_ms];
            task_event((MEASURED, track), (task.task(), &task.phase), times, Some(task.waited_ms))
        }));
    }
    events
}
