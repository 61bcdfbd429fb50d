//! A predicted step as Perfetto and chrome://tracing read it: a track for each stream, as a measured one has them.

use super::{CommandFacts, PredictionFacts};
use program::commands::Stream;
use serde_json::{Value, json};

/// The process that predicted commands belong to, so that they stand beside measured ones, whose process is 0.
const PROCESS: u32 = 1;

impl PredictionFacts {
    /// Each section once, one after the other.
    pub fn timeline(&self) -> Value {
        let mut events = vec![named("process_name", 0, &format!("predicted, {}", self.device))];
        for (number, track) in Stream::ALL.into_iter().enumerate() {
            events.push(named("thread_name", number, track.name()));
        }
        let mut begin = 0.0;
        for section in &self.sections {
            let own = self.commands.iter().filter(|command| command.section == section.section);
            events.extend(own.map(|command| event(command, begin)));
            begin += section.ms * 1e3;
        }
        json!({ "displayTimeUnit": "ms", "traceEvents": events })
    }
}

fn named(what: &str, track: usize, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": PROCESS, "tid": track, "args": { "name": name } })
}

fn event(command: &CommandFacts, section_begin: f64) -> Value {
    json!({
        "ph": "X",
        "name": command.kind,
        "cat": command.section,
        "pid": PROCESS,
        "tid": Stream::ALL.iter().position(|stream| stream.name() == command.stream),
        "ts": section_begin + command.begin_us,
        "dur": command.us,
        "args": {
            "origin": command.origin,
            "sizes": command.sizes,
            "bytes": command.read + command.written,
            "flops": command.flops,
            "bound": command.bound,
        },
    })
}
