//! The timetable of a pipeline as text: a line for each rank, time from left to right.
//!
//! A task takes whole columns, at least one, so the drawing rounds the times. It is as wide as the line allows.

use super::PipelineFacts;
use ir::timetable::{Task, TaskTime};
use ir::units::milliseconds;
use ir::{Phase, Timeline};
use std::fmt;

/// Columns of a line.
const WIDTH: usize = 100;
/// Columns before the time: `rank 12  `.
const LABEL: usize = 9;
/// Ranks that are drawn.
const MOST_RANKS: usize = 16;
/// The most columns of the longest task.
const WIDEST_TASK: u64 = 12;

/// A timetable whose times are whole columns.
struct Columns {
    /// Columns of the longest task.
    widest: u64,
    /// Milliseconds of a column.
    column_ms: f64,
    /// Whether transfers take columns.
    has_transfers: bool,
    timeline: Timeline<u64>,
}

impl Columns {
    /// The meaning of a column. If the longest task has one column, columns say nothing about times.
    fn scale(&self) -> String {
        match self.widest {
            1 => "a column for each task".into(),
            _ => format!("a column is {}", milliseconds(self.column_ms)),
        }
    }

    fn fit(&self) -> bool {
        self.timeline.makespan <= (WIDTH - LABEL) as u64
    }
}

impl PipelineFacts {
    /// Draws the tasks of the ranks, and names the parts that are left out.
    pub(super) fn write_timetable(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(columns) = self.widest_columns() else { return Ok(()) };
        let timeline = &columns.timeline;
        let weight = if self.splits_backward() { ", a b c weight gradients" } else { "" };
        let marks = format!("0 1 2 forward, A B C backward{weight} of microbatches 0 1 2, . idle");
        writeln!(f, "timetable, {}: {marks}", columns.scale())?;
        let tasks = &self.plan.0.timetable.ranks;
        for (rank, tasks) in tasks.iter().enumerate().take(MOST_RANKS) {
            let times = || tasks.iter().zip(&timeline.ranks[rank]);
            let mark = |task: &Task| mark(task.part.phase, task.microbatch);
            writeln!(f, "rank {rank:<4}{}", line(times(), '.', timeline.makespan, mark))?;
            if self.interleaves() {
                let stages = &self.ranks[rank].stages;
                let mark = |task: &Task| ordinal(stages, task.part.chunk);
                writeln!(f, "   stage {}", line(times(), ' ', timeline.makespan, mark).trim_end())?;
            }
        }
        self.write_left_out(f, &columns)
    }

    /// The timetable with the finest columns for which a line has room. Transfers are left out if a line has room for the tasks alone. `None`
    /// if the timetable cannot run.
    fn widest_columns(&self) -> Option<Columns> {
        let with = (2..=WIDEST_TASK).rev().map(|widest| (widest, true));
        let without = (1..=WIDEST_TASK).rev().map(|widest| (widest, false));
        let fitting = with.chain(without).filter_map(|(widest, transfers)| self.columns(widest, transfers));
        fitting.into_iter().find(Columns::fit).or_else(|| self.columns(1, false))
    }

    /// The timetable in which the longest task has `widest` columns.
    fn columns(&self, widest: u64, has_transfers: bool) -> Option<Columns> {
        let (pipeline, dependencies) = &self.plan;
        let column_ms = self.times.longest() / widest as f64;
        let columns = |ms: f64| if column_ms > 0.0 { (ms / column_ms).round() as u64 } else { 0 };
        let transfer = |dependency| if has_transfers { columns(self.times.transfer(dependency)) } else { 0 };
        let timeline = Timeline::new(
            &pipeline.timetable,
            &pipeline.placement,
            pipeline.microbatches,
            dependencies,
            |part| columns(self.times.task(part)).max(1),
            transfer,
        );
        timeline.ok().map(|timeline| Columns { widest, column_ms, has_transfers, timeline })
    }

    fn write_left_out(&self, f: &mut fmt::Formatter<'_>, columns: &Columns) -> fmt::Result {
        if self.interleaves() {
            writeln!(f, "stage: 1 for the first stage of the rank, 2 for the second, and so on")?;
        }
        if self.microbatches > 10 {
            writeln!(f, "microbatches: after 9 the digits start again at 0, and after Z the letters at A")?;
        }
        if !columns.has_transfers && !self.transfers.is_empty() {
            writeln!(f, "the time of transfers is not drawn; --format html draws it")?;
        }
        let (ranks, all) = (self.ranks.len(), columns.timeline.makespan);
        if !columns.fit() {
            writeln!(f, "only the first {} of {all} columns fit; --format html draws all", WIDTH - LABEL)?;
        }
        if ranks > MOST_RANKS {
            writeln!(f, "only the first {MOST_RANKS} of {ranks} ranks are drawn; --format html draws all")?;
        }
        Ok(())
    }
}

/// The line of a rank, up to the end of the timetable or of the line.
fn line<'t>(
    tasks: impl Iterator<Item = (&'t Task, &'t TaskTime<u64>)>,
    idle: char,
    columns: u64,
    mark: impl Fn(&Task) -> char,
) -> String {
    let columns = usize::try_from(columns).unwrap_or(WIDTH).min(WIDTH - LABEL);
    let mut line = vec![idle; columns];
    for (task, time) in tasks {
        let [start, end] =
            [time.start, time.end].map(|at| usize::try_from(at).unwrap_or(columns).min(columns));
        line[start..end].fill(mark(task));
    }
    line.into_iter().collect()
}

/// The mark of a task: a digit for forward, a large letter for backward, a small letter for weight gradients. Marks start again after 9, Z and z.
fn mark(phase: Phase, microbatch: u32) -> char {
    let (first, count) = match phase {
        Phase::Forward => (b'0', 10),
        Phase::Weight => (b'a', 26),
        _ => (b'A', 26),
    };
    char::from(first + (microbatch % count) as u8)
}

/// The place of a stage among those of its rank, counted from 1.
fn ordinal(stages: &[u32], stage: u32) -> char {
    let place = stages.iter().position(|own| *own == stage).unwrap_or_default() + 1;
    char::from_digit(place as u32, 36).unwrap_or('+')
}
