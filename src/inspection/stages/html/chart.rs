//! The picture of a timetable: a row for each pipeline rank, with a lane for each of its stages, and time from left to right.

use super::{class_of, escaped};
use crate::inspection::stages::arrows::Arrow;
use crate::inspection::stages::{PipelineFacts, RankFacts, TaskFacts};
use ir::units::{bytes, milliseconds};

/// Pixels of the labels of the rows.
const LABELS: f64 = 112.0;
/// Pixels of the axis above the rows.
const AXIS: f64 = 26.0;
/// Pixels of a lane.
const LANE: f64 = 26.0;
/// Pixels between rows.
const GAP: f64 = 14.0;
/// Pixels of the shortest task, if the picture may be so wide.
const SHORTEST_TASK: f64 = 10.0;
/// The fewest and the most pixels of the time.
const WIDTHS: [f64; 2] = [1000.0, 12000.0];
/// Pixels between two marks of the axis, at least.
const TICK: f64 = 110.0;
/// Pixels of a digit in a task, and beside the number.
const DIGIT: [f64; 2] = [7.0, 3.0];
/// Pixels to the right of the last task.
const MARGIN: f64 = 40.0;
/// Tasks that are drawn. A browser becomes slow with more.
const MOST_TASKS: usize = 20_000;

/// The scale of a picture.
pub(super) struct Chart<'f> {
    facts: &'f PipelineFacts,
    /// Pixels of all microbatches.
    width: f64,
    /// Lanes of a row.
    lanes: usize,
    /// Milliseconds that are drawn.
    until: f64,
}

impl<'f> Chart<'f> {
    pub(super) fn of(facts: &'f PipelineFacts) -> Self {
        let tasks = || facts.ranks.iter().flat_map(|rank| &rank.tasks);
        let shortest = tasks().map(TaskFacts::ms).filter(|ms| *ms > 0.0).fold(f64::INFINITY, f64::min);
        let mut ends: Vec<f64> = tasks().map(|task| task.end_ms).collect();
        ends.sort_by(f64::total_cmp);
        let until = ends.get(MOST_TASKS).copied().unwrap_or(facts.microbatches_ms).max(f64::MIN_POSITIVE);
        let [least, most] = WIDTHS;
        let width = (until / shortest * SHORTEST_TASK).clamp(least, most);
        let lanes = facts.ranks.iter().map(|rank| rank.stages.len()).max().unwrap_or(1).max(1);
        Self { facts, width, lanes, until }
    }

    /// The picture: labels beside a part that scrolls.
    pub(super) fn svg(&self) -> String {
        let ranks = || self.facts.ranks.iter().enumerate();
        let height = AXIS + self.facts.ranks.len() as f64 * (self.row_height() + GAP);
        let width = (self.width + MARGIN).ceil();
        let left_out = (self.until < self.facts.microbatches_ms).then(|| {
            let [until, whole] = [self.until, self.facts.microbatches_ms].map(milliseconds);
            format!("<p>Only the first {until} of {whole} are drawn: there are too many tasks.</p>\n")
        });
        let left_out = left_out.unwrap_or_default();
        let labels: String = ranks().map(|(rank, facts)| self.labels(rank, facts)).collect();
        let waits: String = ranks().map(|(rank, facts)| self.waits(rank, facts)).collect();
        let transfers: String = self.facts.arrows().iter().map(|arrow| self.transfer(arrow)).collect();
        let tasks = ranks().map(|(rank, facts)| {
            let tasks: String = facts.tasks.iter().map(|task| self.task(rank, facts, task)).collect();
            format!("<g data-rank=\"{rank}\">\n{tasks}</g>\n")
        });
        // Tasks cover the lines of transfers that pass their row.
        format!(
            "{left_out}<div class=\"chart\">\n\
             <svg class=\"labels\" width=\"{LABELS}\" height=\"{height}\" aria-hidden=\"true\">\n{labels}</svg>\n\
             <div class=\"time\" tabindex=\"0\">\n<svg width=\"{width}\" height=\"{height}\" role=\"img\" \
             aria-label=\"The timetable of all pipeline ranks\">\n\
             <defs><pattern id=\"hatched\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><path class=\"hatch\" d=\"M1 0V7\"/></pattern></defs>\n\
             {}{waits}{transfers}{}</svg>\n</div>\n</div>\n",
            self.axis(height),
            tasks.collect::<String>()
        )
    }

    fn row_height(&self) -> f64 {
        self.lanes as f64 * LANE
    }

    /// The top of a row.
    fn top(&self, rank: usize) -> f64 {
        AXIS + rank as f64 * (self.row_height() + GAP)
    }

    /// The top of the lane of a stage.
    fn lane(&self, rank: usize, stage: u32) -> f64 {
        let stages = self.facts.ranks.get(rank).map_or(&[][..], |facts| &facts.stages[..]);
        let lane = stages.iter().position(|own| *own == stage).unwrap_or_default();
        self.top(rank) + lane as f64 * LANE
    }

    fn x(&self, ms: f64) -> f64 {
        ms / self.until * self.width
    }

    fn is_drawn(&self, task: &TaskFacts) -> bool {
        task.end_ms <= self.until
    }

    /// The labels of a rank and of its stages.
    fn labels(&self, rank: usize, facts: &RankFacts) -> String {
        let y = self.top(rank) + LANE / 2.0 + 4.0;
        let stages = facts.stages.iter().map(|&stage| {
            let y = self.lane(rank, stage) + LANE / 2.0 + 4.0;
            format!("<text class=\"axis\" x=\"52\" y=\"{y}\">stage {stage}</text>\n")
        });
        let stages: String = stages.collect();
        format!("<text class=\"rank\" x=\"0\" y=\"{y}\">rank {rank}</text>\n{stages}")
    }

    fn axis(&self, height: f64) -> String {
        let step = round_step(self.until / (self.width / TICK));
        let tick = |tick: u32| {
            let ms = f64::from(tick) * step;
            let (x, bottom, label) = (self.x(ms), height - GAP, tick_label(ms, step));
            format!(
                "<path class=\"grid\" d=\"M{x:.1} 18V{bottom}\"/><text class=\"axis\" x=\"{x:.1}\" y=\"12\">{label}</text>\n"
            )
        };
        (0..=(self.until / step).floor() as u32).map(tick).collect()
    }

    /// The times in which a rank computes nothing.
    fn waits(&self, rank: usize, facts: &RankFacts) -> String {
        let starts = facts.tasks.iter().map(|task| task.begin_ms).chain([self.facts.microbatches_ms]);
        let ends = [0.0].into_iter().chain(facts.tasks.iter().map(|task| task.end_ms));
        let wait = |(from, to): (f64, f64)| {
            let (x, to_x) = (self.x(from), self.x(to.min(self.until)));
            let (y, width, height) = (self.top(rank), to_x - x, self.row_height());
            let place = format!("x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{height}\"");
            (width >= 0.05).then(|| {
                format!(
                    "<g class=\"wait\"><title>rank {rank} is idle: {}</title><rect class=\"ground\" {place}/><rect \
                     class=\"idle\" {place}/></g>\n",
                    span(from, to)
                )
            })
        };
        ends.zip(starts).filter_map(wait).collect()
    }

    fn task(&self, rank: usize, facts: &RankFacts, task: &TaskFacts) -> String {
        if !self.is_drawn(task) {
            return String::new();
        }
        let class = class_of(task.phase);
        let (x, y) = (self.x(task.begin_ms), self.lane(rank, task.stage));
        let width = self.x(task.end_ms) - x;
        let height = if facts.stages.len() == 1 { self.row_height() } else { LANE };
        let (name, span) = (escaped(&task.task.in_words()), span(task.begin_ms, task.end_ms));
        let rect = format!(
            "<rect class=\"task {class}\" x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{height}\"><title>{name}: \
             {span}</title></rect>\n"
        );
        let label = task.microbatch.to_string();
        let [digit, beside] = DIGIT;
        if width < label.len() as f64 * digit + beside {
            return rect;
        }
        let (x, y) = (x + width / 2.0, y + height / 2.0 + 4.0);
        format!("{rect}<text class=\"on {class}\" x=\"{x:.2}\" y=\"{y}\">{label}</text>\n")
    }

    /// A line from the end of the sending task to the arrival at the row of the receiving task.
    fn transfer(&self, arrow: &Arrow) -> String {
        let ((from, sender), (to, receiver)) = (arrow.from, arrow.to);
        if !self.is_drawn(sender) || !self.is_drawn(receiver) {
            return String::new();
        }
        let is_down = to > from;
        let edge = |rank, stage, is_bottom: bool| self.lane(rank, stage) + if is_bottom { LANE } else { 0.0 };
        let (y, to_y) = (edge(from, sender.stage, is_down), edge(to, receiver.stage, !is_down));
        let arrives = sender.end_ms + arrow.ms;
        let (x, to_x) = (self.x(sender.end_ms), self.x(arrives));
        let back = if is_down { -5.0 } else { 5.0 };
        let [from, to] = [sender, receiver].map(|task| escaped(&task.task.in_words()));
        let (bytes, span) = (bytes(arrow.bytes), span(sender.end_ms, arrives));
        format!(
            "<g><title>transfer from {from} to {to}: {bytes}, {span}</title><path class=\"transfer\" d=\"M{x:.2} \
             {y}L{to_x:.2} {to_y}\"/><path class=\"head\" d=\"M{to_x:.2} {to_y}l-3 {back}h6z\"/></g>\n"
        )
    }
}

impl TaskFacts {
    fn ms(&self) -> f64 {
        self.end_ms - self.begin_ms
    }
}

/// `0.120 ms to 0.250 ms`.
fn span(from: f64, to: f64) -> String {
    format!("{from:.4} ms to {to:.4} ms")
}

/// The smallest of 1, 2 and 5 times a power of ten that is not smaller.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let round = [1.0, 2.0, 5.0].map(|factor| factor * power);
    round.into_iter().find(|step| *step >= least).unwrap_or(10.0 * power)
}

/// A time with the digits that tell it from the marks beside it.
fn tick_label(ms: f64, step: f64) -> String {
    let (time, step, unit) = if step < 0.1 { (ms * 1e3, step * 1e3, "µs") } else { (ms, step, "ms") };
    let digits = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{time:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_the_axis_are_round_numbers() {
        assert_eq!([0.7, 1.0, 1.1, 3.0, 6.0].map(round_step), [1.0, 1.0, 2.0, 5.0, 10.0]);
        let labels = [(0.3, 0.1), (0.02, 0.005), (40.0, 20.0)].map(|(ms, step)| tick_label(ms, step));
        assert_eq!(labels, ["0.3 ms", "20 µs", "40 ms"]);
    }
}
