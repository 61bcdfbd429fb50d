//! The measured times of a pipeline rank's tasks, and the time that they waited for messages of other ranks.

use ir::Phase;
use ir::timetable::{TASK_PHASES, Task};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// The number of steps whose windows are kept.
const WINDOWS: usize = 1000;

/// The tasks of a rank, measured over all steps but the first. Times are in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredRank {
    /// The number of measured steps.
    pub steps: u64,
    /// The tasks, summed over all steps.
    pub runs: Vec<MeasuredRuns>,
    /// The time of the section `prepare` in all steps.
    pub prepare: f64,
    /// The time of the section `update` in all steps.
    pub update: f64,
    /// The time in which tasks waited for messages, in all steps.
    pub waits: f64,
    /// The windows of the newest steps.
    pub windows: Vec<Window>,
    /// The tasks of the newest step.
    pub tasks: Vec<MeasuredTask>,
}

/// A task, summed over steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredRuns {
    /// `forward`, `backward` or `weight gradients`.
    pub phase: String,
    /// The stage.
    pub stage: u32,
    /// The microbatch, counted from 0.
    pub microbatch: u32,
    /// The number of times that it ran.
    pub runs: u64,
    /// The time of all runs, without waiting.
    pub busy: f64,
}

/// The microbatches of a step on a rank. Times count from a reference time after the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// The start of the first task.
    pub begin: f64,
    /// The end of the last task.
    pub end: f64,
    /// The time of tasks, without waiting.
    pub busy: f64,
}

/// A task. Times count from a reference time after the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredTask {
    /// `forward`, `backward` or `weight gradients`.
    pub phase: String,
    /// The stage.
    pub stage: u32,
    /// The microbatch, counted from 0.
    pub microbatch: u32,
    /// The start of the task.
    pub begin_ms: f64,
    /// The end of the task.
    pub end_ms: f64,
    /// The part of this time in which the task waited for messages.
    pub waited_ms: f64,
}

impl MeasuredTask {
    /// Returns the task of the timetable.
    pub fn task(&self) -> Task {
        let phase = TASK_PHASES.iter().find(|(phase, _)| phase.long_name() == self.phase);
        let phase = phase.map_or(Phase::Forward, |(phase, _)| *phase);
        Task::new(phase, self.stage, self.microbatch)
    }
}

/// The measured turns.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The turn that runs now.
    open: Option<Turn>,
    /// The turns of the newest step that have ended, with their ends.
    ended: Vec<(Turn, Instant)>,
    runs: BTreeMap<Task, (u64, Duration)>,
    waits: Duration,
    /// The begin and end of each of the newest steps, and the time of its tasks without waiting.
    windows: VecDeque<(Instant, Instant, Duration)>,
    pub(super) prepare: Duration,
    pub(super) update: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    task: Task,
    begin: Instant,
    waited: Duration,
}

impl Turns {
    pub(super) fn begin_step(&mut self) {
        self.ended.clear();
    }

    pub(super) fn begin(&mut self, task: Task) {
        self.open = Some(Turn { task, begin: Instant::now(), waited: Duration::ZERO });
    }

    /// Adds a time in which the present turn, if there is one, waited for a message.
    pub(super) fn wait(&mut self, time: Duration) {
        if let Some(turn) = &mut self.open {
            turn.waited += time;
        }
    }

    pub(super) fn end(&mut self) {
        let Some(turn) = self.open.take() else { return };
        let end = Instant::now();
        let busy = end.saturating_duration_since(turn.begin).saturating_sub(turn.waited);
        if self.ended.is_empty() {
            if self.windows.len() == WINDOWS {
                self.windows.pop_front();
            }
            self.windows.push_back((turn.begin, end, Duration::ZERO));
        }
        if let Some((_, last, all)) = self.windows.back_mut() {
            *last = end;
            *all += busy;
        }
        let (runs, time) = self.runs.entry(turn.task).or_default();
        (*runs, *time) = (*runs + 1, *time + busy);
        self.waits += turn.waited;
        self.ended.push((turn, end));
    }

    /// Returns the times of this number of steps. Times count from `zero`.
    pub(super) fn measured(&self, steps: u64, zero: Instant) -> MeasuredRank {
        let runs = |(task, (runs, busy)): (&Task, &(u64, Duration))| MeasuredRuns {
            phase: task.part.phase.long_name().to_owned(),
            stage: task.part.chunk,
            microbatch: task.microbatch,
            runs: *runs,
            busy: milliseconds(*busy),
        };
        let window = |(begin, end, busy): &(Instant, Instant, Duration)| Window {
            begin: moment(*begin, zero),
            end: moment(*end, zero),
            busy: milliseconds(*busy),
        };
        let task = |(turn, end): &(Turn, Instant)| MeasuredTask {
            phase: turn.task.part.phase.long_name().to_owned(),
            stage: turn.task.part.chunk,
            microbatch: turn.task.microbatch,
            begin_ms: moment(turn.begin, zero),
            end_ms: moment(*end, zero),
            waited_ms: milliseconds(turn.waited),
        };
        MeasuredRank {
            steps,
            runs: self.runs.iter().map(runs).collect(),
            prepare: milliseconds(self.prepare),
            update: milliseconds(self.update),
            waits: milliseconds(self.waits),
            windows: self.windows.iter().map(window).collect(),
            tasks: self.ended.iter().map(task).collect(),
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns the milliseconds from `zero` to a time, negative for an earlier time.
pub(super) fn moment(moment: Instant, zero: Instant) -> f64 {
    milliseconds(moment.saturating_duration_since(zero))
        - milliseconds(zero.saturating_duration_since(moment))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::Phase;
    use std::thread;

    #[test]
    fn waiting_counts_apart_from_the_work_of_a_task() {
        let mut turns = Turns::default();
        let pause = Duration::from_millis(2);
        for microbatch in 0..3 {
            turns.begin_step();
            for phase in [Phase::Forward, Phase::Backward] {
                turns.begin(Task::new(phase, 1, microbatch));
                thread::sleep(2 * pause);
                turns.wait(pause);
                turns.end();
            }
        }
        let MeasuredRank { steps, runs, waits, windows, tasks, .. } = turns.measured(3, Instant::now());
        assert_eq!((steps, runs.len(), windows.len(), tasks.len()), (3, 6, 3, 2));
        assert_eq!(waits, 6.0 * milliseconds(pause));
        let of_runs: f64 = runs.iter().map(|runs| runs.busy).sum();
        let of_windows: f64 = windows.iter().map(|window| window.busy).sum();
        assert!((of_runs - of_windows).abs() < 1e-6, "{of_runs} and {of_windows}");
        let whole: f64 = windows.iter().map(|window| window.end - window.begin).sum();
        assert!(of_runs >= 6.0 * milliseconds(pause) && of_runs + waits <= whole + 1e-6, "{windows:?}");
        assert!(tasks[0].end_ms <= tasks[1].begin_ms && tasks[1].end_ms <= 0.0, "{tasks:?}");
        assert_eq!((tasks[1].phase.as_str(), tasks[1].stage, tasks[1].microbatch), ("backward", 1, 2));
    }
}
