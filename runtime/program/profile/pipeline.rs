//! The tasks of a pipeline as a run measured them, beside those of the timetable.

use super::{MeasuredRank, MeasuredRuns, MeasuredTask, Window};
use ir::timetable::Task;
use ir::{Module, Phase, StageTable, Timeline};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The measured ranks of a pipeline. The names of the fields are the keys of `profile.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredPipeline {
    /// The schedule.
    pub schedule: String,
    /// Steps that were measured: all but the first.
    pub steps: u64,
    /// The ranks, stage by stage.
    pub ranks: Vec<PipelineRankTimes>,
}

/// A rank. Times are milliseconds, and those of a step are means.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PipelineRankTimes {
    /// The rank.
    pub rank: u64,
    /// Its pipeline rank.
    pub pipeline_rank: u32,
    /// Its stages.
    pub stages: Vec<StageTimes>,
    /// The time of a step in which tasks waited for messages.
    pub waits_ms: f64,
    /// The section `prepare` of a step.
    pub prepare_ms: f64,
    /// The update of a step.
    pub update_ms: f64,
    /// The share of the time of the microbatches in which the rank computed nothing.
    pub idle: f64,
    /// This share by the timetable. `None` if the schedule has no flush between steps.
    pub predicted: Option<PredictedIdle>,
    /// The tasks of the newest step. Their times count from the first task of all ranks.
    pub tasks: Vec<MeasuredTask>,
}

/// The idle share of a rank by the timetable, if messages take no time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PredictedIdle {
    /// Each task of a phase and a stage takes the mean time of all of them.
    pub by_means: f64,
    /// Each task takes its own mean time over the steps: tasks take longer while other ranks of the machine compute, too.
    pub by_tasks: f64,
}

/// A stage on a rank: the time of its tasks in a step, without waiting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageTimes {
    /// The stage.
    pub stage: u32,
    /// The forward tasks.
    pub forward_ms: f64,
    /// The backward tasks.
    pub backward_ms: f64,
    /// The tasks for gradients of parameters, if the schedule has such tasks.
    pub weight_ms: Option<f64>,
}

impl MeasuredPipeline {
    /// Returns the facts of all ranks, in their order. Their times count from the same moment. `None` for a program without stages.
    pub fn of(module: &Module, ranks: &[MeasuredRank]) -> Option<Self> {
        let pipeline = module.pipeline.as_ref()?;
        let devices = (ranks.len() / (pipeline.ranks() as usize).max(1)).max(1);
        let predicted = predicted_idle(module, pipeline, ranks);
        let idle = measured_idle(pipeline, ranks);
        let begin = ranks.iter().flat_map(|rank| &rank.tasks).map(|task| task.begin_ms);
        let begin = begin.fold(f64::INFINITY, f64::min);
        let one = |(rank, measured): (usize, &MeasuredRank)| {
            let pipeline_rank = (rank / devices) as u32;
            let a_step = |ms: f64| ms / measured.steps.max(1) as f64;
            let task = |task: &MeasuredTask| MeasuredTask {
                begin_ms: task.begin_ms - begin,
                end_ms: task.end_ms - begin,
                ..task.clone()
            };
            PipelineRankTimes {
                rank: rank as u64,
                pipeline_rank,
                stages: pipeline.stages_of(pipeline_rank).map(|stage| stage_times(stage, measured)).collect(),
                waits_ms: a_step(measured.waits),
                prepare_ms: a_step(measured.prepare),
                update_ms: a_step(measured.update),
                idle: idle[rank],
                predicted: predicted.as_ref().map(|all| all[pipeline_rank as usize]),
                tasks: measured.tasks.iter().map(task).collect(),
            }
        };
        Some(Self {
            schedule: pipeline.schedule.clone(),
            steps: ranks.iter().map(|rank| rank.steps).max().unwrap_or_default(),
            ranks: ranks.iter().enumerate().map(one).collect(),
        })
    }
}

fn stage_times(stage: u32, measured: &MeasuredRank) -> StageTimes {
    let of = |phase: Phase| {
        let is_own = |runs: &&MeasuredRuns| runs.stage == stage && runs.phase == phase.long_name();
        let of_phase = measured.runs.iter().filter(is_own).map(|runs| runs.busy);
        of_phase.reduce(|sum, busy| sum + busy).map(|sum| sum / measured.steps.max(1) as f64)
    };
    StageTimes {
        stage,
        forward_ms: of(Phase::Forward).unwrap_or_default(),
        backward_ms: of(Phase::Backward).unwrap_or_default(),
        weight_ms: of(Phase::Weight),
    }
}

/// Returns, for each rank, the share of the time of its steps in which it computed nothing. A step lasts from the start of the first task to
/// the end of the last task of all ranks. Without a flush between steps, the first and the last task are those of the rank itself.
fn measured_idle(pipeline: &StageTable, ranks: &[MeasuredRank]) -> Vec<f64> {
    let steps = ranks.iter().map(|rank| rank.windows.len()).min().unwrap_or_default();
    let newest = |rank: &MeasuredRank| -> Vec<Window> { rank.windows[rank.windows.len() - steps..].to_vec() };
    let windows: Vec<Vec<Window>> = ranks.iter().map(newest).collect();
    let length = |step: usize, own: &[Window]| {
        if pipeline.is_asynchronous() {
            return own[step].end - own[step].begin;
        }
        let all = windows.iter().map(|windows| windows[step]);
        let (begin, end) = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(begin, end), window| {
            (begin.min(window.begin), end.max(window.end))
        });
        end - begin
    };
    let idle = |own: &Vec<Window>| {
        let whole: f64 = (0..steps).map(|step| length(step, own)).sum();
        let busy: f64 = own.iter().map(|window| window.busy).sum();
        if whole > 0.0 { (1.0 - busy / whole).clamp(0.0, 1.0) } else { 0.0 }
    };
    windows.iter().map(idle).collect()
}

/// Returns, for each pipeline rank, its idle share by the timetable, if tasks take the measured times.
fn predicted_idle(
    module: &Module,
    pipeline: &StageTable,
    ranks: &[MeasuredRank],
) -> Option<Vec<PredictedIdle>> {
    if pipeline.is_asynchronous() {
        return None;
    }
    // The time and the number of all runs.
    let mut by_task: BTreeMap<(&str, u32, u32), (f64, u64)> = BTreeMap::new();
    let mut by_part: BTreeMap<(&str, u32), (f64, u64)> = BTreeMap::new();
    for MeasuredRuns { phase, stage, microbatch, runs, busy } in ranks.iter().flat_map(|rank| &rank.runs) {
        let of_task = by_task.entry((phase, *stage, *microbatch)).or_default();
        *of_task = (of_task.0 + busy, of_task.1 + runs);
        let of_part = by_part.entry((phase, *stage)).or_default();
        *of_part = (of_part.0 + busy, of_part.1 + runs);
    }
    let mean = |(busy, runs): &(f64, u64)| busy / (*runs).max(1) as f64;
    let dependencies = module.dependencies();
    let shares = |cost: &dyn Fn(Task) -> Option<f64>| -> Option<Vec<f64>> {
        let StageTable { timetable, placement, microbatches, .. } = pipeline;
        let cost = |task: Task| cost(task).unwrap_or_default();
        let timeline =
            Timeline::of_tasks(timetable, placement, *microbatches, &dependencies, cost, |_| 0.0).ok()?;
        let whole = timeline.makespan;
        let share = |rank: usize| if whole > 0.0 { timeline.idle(rank) / whole } else { 0.0 };
        Some((0..timeline.ranks.len()).map(share).collect())
    };
    let name = |task: Task| (task.part.phase.long_name(), task.part.chunk);
    let by_means = shares(&|task| by_part.get(&name(task)).map(mean))?;
    let by_tasks = shares(&|task| {
        let (phase, stage) = name(task);
        by_task.get(&(phase, stage, task.microbatch)).map(mean)
    })?;
    let both = by_means.into_iter().zip(by_tasks);
    Some(both.map(|(by_means, by_tasks)| PredictedIdle { by_means, by_tasks }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two stages with two microbatches.
    const MODULE: &str = r#"trainyard-ir 1
        module @m placed {
          pipeline "gpipe" microbatches 2 stages [0, 1] {
            rank F0.0 F0.1 B0.0 B0.1
            rank F1.0 F1.1 B1.0 B1.1
          }
          state @w : f32[4] parameter = zeros
          func @train(%0 "x" batched : f32[6, 4], %1 = @w) {
            %2 = mul %0, %1 : f32[6, 4] !{fwd}
            %3 = transfer %2 : f32[6, 4] !{fwd, stage 1}
            %4 = exp %3 : f32[6, 4] !{fwd, stage 1}
            %5 = mul %4, %4 : f32[6, 4] !{bwd, stage 1}
            %6 = transfer %5 : f32[6, 4] !{bwd}
            %7 = mul %6, %0 : f32[6, 4] !{bwd}
            %8 = reduce %7 {kind = sum, dims = [0], keep = false} : f32[4] !{bwd}
            %9 = accumulate %8 : f32[4] !{update}
            %10 = sub %1, %9 : f32[4] !{update}
          }
          update @w = %10
        }"#;

    fn rank(stage: u32, begin: f64, end: f64) -> MeasuredRank {
        let runs = |phase: Phase, microbatch, busy| MeasuredRuns {
            phase: phase.long_name().to_owned(),
            stage,
            microbatch,
            runs: 2,
            busy,
        };
        let task = |phase: Phase, begin_ms| MeasuredTask {
            phase: phase.long_name().to_owned(),
            stage,
            microbatch: 1,
            begin_ms,
            end_ms: begin_ms + 1.0,
            waited_ms: 0.0,
        };
        MeasuredRank {
            steps: 2,
            runs: vec![
                runs(Phase::Forward, 0, 2.0),
                runs(Phase::Forward, 1, 2.0),
                runs(Phase::Backward, 0, 2.0),
                runs(Phase::Backward, 1, 6.0),
            ],
            update: 3.0,
            windows: vec![
                Window { begin: begin - 100.0, end: end - 100.0, busy: 6.0 },
                Window { begin, end, busy: 6.0 },
            ],
            tasks: vec![task(Phase::Forward, begin), task(Phase::Backward, end - 1.0)],
            ..MeasuredRank::default()
        }
    }

    #[test]
    fn idle_is_measured_over_all_ranks_and_predicted_from_the_mean_times() {
        let module = ir::text::parse(MODULE).unwrap_or_else(|error| panic!("{error}"));
        // Each rank computes for 6 ms. By the timetable a step takes 9 ms with the mean times, and 10 with the tasks' own: the forward tasks
        // end after 3, and the backward tasks of a rank take 1 and 3. The ranks took 12.
        let facts = MeasuredPipeline::of(&module, &[rank(0, -20.0, -8.0), rank(1, -18.0, -10.0)]).unwrap();
        for rank in &facts.ranks {
            assert!((rank.idle - 0.5).abs() < 1e-9, "{facts:?}");
            let PredictedIdle { by_means, by_tasks } = rank.predicted.unwrap();
            assert!((by_means - 1.0 / 3.0).abs() < 1e-9 && (by_tasks - 0.4).abs() < 1e-9, "{facts:?}");
            assert_eq!((rank.stages[0].forward_ms, rank.stages[0].backward_ms), (2.0, 4.0));
            assert_eq!((rank.stages[0].weight_ms, rank.update_ms), (None, 1.5));
        }
        let begins: Vec<(String, f64)> = facts
            .ranks
            .iter()
            .flat_map(|rank| &rank.tasks)
            .map(|task| (task.task().to_string(), task.begin_ms))
            .collect();
        let expected = [("F0.1", 0.0), ("B0.1", 11.0), ("F1.1", 2.0), ("B1.1", 9.0)];
        assert_eq!(begins, expected.map(|(name, begin)| (name.to_owned(), begin)));
        let read: MeasuredPipeline = serde_json::from_str(&serde_json::to_string(&facts).unwrap()).unwrap();
        assert_eq!(read, facts);
    }
}
