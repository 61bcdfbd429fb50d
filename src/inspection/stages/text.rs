//! A pipeline as text: a line for each stage, a line for each rank, and the timetable.

use super::{PipelineFacts, PipelineStepFacts, RankFacts, StageFacts};
use crate::inspection::measured::aligned;
use ir::units::{bytes, count, grouped, milliseconds};
use ir::visible;
use std::fmt;

/// The longest name of a node.
const NAME_WIDTH: usize = 24;

impl fmt::Display for PipelineFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hint = if self.is_assumed { " (--target names another device)" } else { "" };
        writeln!(f, "\n{}{hint}", self.summary())?;
        if let Some(PipelineStepFacts { step_ms, prepare_ms, update_ms, throughput }) = &self.step {
            let [whole, prepare, update] = [step_ms, prepare_ms, update_ms].map(|ms| milliseconds(*ms));
            let rate = throughput.rate(throughput.samples_per_s);
            writeln!(f, "  {whole} per step (prepare {prepare}, update {update}), {rate}")?;
            writeln!(f, "  {}", throughput.price())?;
        }
        self.write_stages(f)?;
        self.write_delays(f)?;
        for (rank, facts) in self.ranks.iter().enumerate() {
            writeln!(f, "  rank {rank}: {facts}")?;
        }
        writeln!(f)?;
        self.write_timetable(f)
    }
}

impl PipelineFacts {
    /// The schedule, and the predicted time.
    pub(super) fn summary(&self) -> String {
        let microbatches = count(self.microbatches as usize, "microbatch").replace("hs", "hes");
        let source = if self.step.is_some() { "" } else { " by the cost model" };
        format!(
            "pipeline of {} on {}, schedule {}: {microbatches} take {}{source}, on {}",
            count(self.stages.len(), "stage"),
            count(self.ranks.len(), "pipeline rank"),
            visible(&self.schedule),
            milliseconds(self.microbatches_ms),
            visible(&self.device)
        )
    }

    /// The staleness of an asynchronous schedule.
    fn write_delays(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let delays: Vec<u32> = self.stages.iter().filter_map(|stage| stage.delay).collect();
        if delays.is_empty() {
            return Ok(());
        }
        writeln!(f, "  staleness: {}", staleness(&delays))?;
        writeln!(
            f,
            "  the timetable has {} steps of an unbroken stream, from its start until it has drained",
            self.steps
        )
    }

    fn write_stages(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weights = self.splits_backward().then_some(("weights", 11));
        let columns = [("stage", 7), ("rank", 6), ("parameters", 17), ("forward", 11), ("backward", 11)];
        let columns = columns.into_iter().chain(weights).chain([("load", 6), ("sends", 10)]);
        let (heads, widths): (Vec<&str>, Vec<usize>) = columns.unzip();
        writeln!(f, "{}  nodes", aligned(&widths, heads))?;
        self.stages.iter().enumerate().try_for_each(|(stage, facts)| {
            writeln!(f, "{}  {}", aligned(&widths, facts.numbers(stage)), facts.nodes())
        })
    }
}

/// The age of the weights that each stage reads: `stage 0 reads the weights of 1 update ago, stage 1 the newest`.
pub(crate) fn staleness(delays: &[u32]) -> String {
    if delays.len() > 1 && delays.iter().all(|delay| *delay == delays[0] && *delay > 0) {
        return format!("every stage reads the weights of {} ago", count(delays[0] as usize, "update"));
    }
    let stage = |(stage, &delay): (usize, &u32)| match delay {
        0 => format!("stage {stage} reads the newest weights"),
        _ => format!("stage {stage} those of {} ago", count(delay as usize, "update")),
    };
    delays.iter().enumerate().rev().map(stage).collect::<Vec<_>>().join(", ")
}

impl StageFacts {
    /// The numbers of a row in the table of stages, from the stage to the bytes that it sends to later stages.
    pub(super) fn numbers(&self, stage: usize) -> Vec<String> {
        let mut cells = vec![stage.to_string(), self.rank.to_string(), grouped(self.parameters)];
        let times = [self.forward_ms, self.backward_ms].into_iter().chain(self.weight_ms);
        cells.extend(times.map(milliseconds));
        cells.extend([format!("{:.0} %", 100.0 * self.share_of_slowest), bytes(self.sent_forward)]);
        cells
    }

    /// The first and the last node, by shortened names.
    fn nodes(&self) -> String {
        let [first, last] = [&self.first, &self.last].map(|origin| shortened(origin));
        if first == last { first } else { format!("{first} to {last}") }
    }
}

impl fmt::Display for RankFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (planned, idle) = (bytes(self.planned), 100.0 * self.idle);
        let weight = self.kept_for_weight.map(|count| format!(" and {count} for weights"));
        let (sets, weight) = (count(self.kept_for_backward as usize, "set"), weight.unwrap_or_default());
        let kept = format!("keeps {sets} of activations for backward{weight}");
        write!(f, "idle {idle:.1} %, {kept}, {planned} ({})", self.memory)
    }
}

/// The name of a node without its operator: of `node "h.0/add" (Add, opset 20)` the part `h.0/add`, its middle left out if it is long.
pub(super) fn shortened(origin: &str) -> String {
    let quoted = origin.strip_prefix("node \"").and_then(|rest| rest.rsplit_once('"'));
    let name = visible(quoted.map_or(origin, |(name, _)| name));
    let letters: Vec<char> = name.chars().collect();
    if letters.is_empty() {
        return "no node of the file".into();
    }
    if letters.len() <= NAME_WIDTH {
        return name.into_owned();
    }
    let (head, tail) = (NAME_WIDTH / 2, NAME_WIDTH / 2 - 1);
    letters[..head].iter().chain(&['…']).chain(&letters[letters.len() - tail..]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_keeps_its_ends_and_shows_hidden_characters() {
        assert_eq!(shortened("node \"a \"b\"\" (Add, opset 20)"), "a \"b\"");
        assert_eq!(shortened("node \"a\u{1b}\" (Add, opset 20)"), "a\\u{1b}");
        let long = shortened("node \"/transformer/h.0/attn/c_attn/Gemm\" (Gemm, opset 20)");
        assert_eq!(long, "/transformer…c_attn/Gemm");
        assert_eq!(long.chars().count(), NAME_WIDTH);
        assert_eq!(shortened(""), "no node of the file");
    }
}
