//! A pipeline as text: a line for each stage, a line for each rank, and the timetable.

use super::{PipelineFacts, PipelineStepFacts, RankFacts, StageFacts};
use crate::inspection::prediction::{milliseconds, price};
use crate::inspection::units::{bytes, count, grouped};
use ir::visible;
use std::fmt;

/// The longest name of a node.
const NAME_WIDTH: usize = 24;

impl fmt::Display for PipelineFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hint = if self.is_assumed { " (--target names another device)" } else { "" };
        writeln!(f, "\n{}{hint}", self.summary())?;
        self.step.iter().try_for_each(|step| self.write_step(f, step))?;
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

    fn write_step(&self, f: &mut fmt::Formatter<'_>, step: &PipelineStepFacts) -> fmt::Result {
        let unit = if step.tokens { "tokens" } else { "samples" };
        writeln!(
            f,
            "  {} per step (prepare {}, update {}), {} {unit} per second, MFU {:.1} %",
            milliseconds(step.step_ms),
            milliseconds(step.prepare_ms),
            milliseconds(step.update_ms),
            grouped(step.samples_per_s as u64),
            100.0 * step.mfu
        )?;
        writeln!(f, "  {}", price((step.samples, step.tokens), step.joules, step.dollars))
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
        let splits = self.splits_backward();
        let weight = if splits { format!("{:>11}", "weights") } else { String::new() };
        writeln!(
            f,
            "  stage  rank  {:>15}{:>11}{:>11}{weight}{:>6}{:>10}  nodes",
            "parameters", "forward", "backward", "load", "sends"
        )?;
        for (stage, facts) in self.stages.iter().enumerate() {
            let StageFacts { rank, parameters, forward_ms, backward_ms, sent_forward, .. } = facts;
            let weight = facts.weight_ms.map(|ms| format!("{:>11}", milliseconds(ms))).unwrap_or_default();
            writeln!(
                f,
                "  {stage:>5}  {rank:>4}  {:>15}{:>11}{:>11}{weight}{:>4.0} %{:>10}  {}",
                grouped(*parameters),
                milliseconds(*forward_ms),
                milliseconds(*backward_ms),
                100.0 * facts.share_of_slowest,
                bytes(*sent_forward),
                facts.nodes()
            )?;
        }
        Ok(())
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
    /// The first and the last node, by shortened names.
    pub(super) fn nodes(&self) -> String {
        let [first, last] = [&self.first, &self.last].map(|origin| shortened(origin));
        if first == last { first } else { format!("{first} to {last}") }
    }
}

impl fmt::Display for RankFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (planned, idle) = (bytes(self.planned), 100.0 * self.idle);
        write!(f, "idle {idle:.1} %, {}, {planned} ({})", self.kept(), self.memory)
    }
}

impl RankFacts {
    /// The activations that are kept at once.
    pub(super) fn kept(&self) -> String {
        let weight =
            self.kept_for_weight.map(|count| format!(" and {count} for weights")).unwrap_or_default();
        let sets = count(self.kept_for_backward as usize, "set");
        format!("keeps {sets} of activations for backward{weight}")
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
