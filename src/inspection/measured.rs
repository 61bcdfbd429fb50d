//! The text for people of the tasks that a run with `--profile` measured.

use program::profile::{MeasuredPipeline, PipelineRankTimes, StageTimes};
use std::fmt::{self, Display};

/// Aligns the cells of a row to the right of columns with these widths.
pub(super) fn aligned(widths: &[usize], cells: Vec<impl Display>) -> String {
    widths.iter().zip(cells).map(|(width, cell)| format!("{cell:>width$}")).collect()
}

/// The table of the stages of each rank.
pub struct MeasuredText<'a>(pub &'a MeasuredPipeline);

impl fmt::Display for MeasuredText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MeasuredPipeline { steps, ranks, .. } = self.0;
        let splits = ranks.iter().flat_map(|rank| &rank.stages).any(|stage| stage.weight_ms.is_some());
        let columns = [("rank", 6), ("stage", 7), ("forward", 11), ("backward", 11)].into_iter();
        let of_rank = [("waits", 11), ("prepare", 11), ("update", 11), ("idle", 9)];
        let predicted = [("by means", 10), ("by tasks", 10)];
        let columns = columns.chain(splits.then_some(("weights", 11))).chain(of_rank).chain(predicted);
        let (heads, widths): (Vec<&str>, Vec<usize>) = columns.unzip();
        let steps = if *steps == 1 { "a step" } else { "the mean of all steps but the first" };
        writeln!(f, "stages, measured, milliseconds a step ({steps}):\n{}", aligned(&widths, heads))?;
        let ms = |ms: f64| format!("{ms:.3}");
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        for rank in ranks {
            for (index, stage) in rank.stages.iter().enumerate() {
                let StageTimes { stage, forward_ms, backward_ms, weight_ms } = stage;
                let mut cells = vec![rank.rank.to_string(), stage.to_string()];
                let weights = splits.then(|| weight_ms.unwrap_or_default());
                cells.extend([*forward_ms, *backward_ms].into_iter().chain(weights).map(ms));
                if index == 0 {
                    let PipelineRankTimes { waits_ms, prepare_ms, update_ms, idle, predicted, .. } = rank;
                    cells.extend([*waits_ms, *prepare_ms, *update_ms].map(ms));
                    cells.push(percent(*idle));
                    let predicted = predicted.map(|idle| [idle.by_means, idle.by_tasks].map(percent));
                    cells.extend(predicted.unwrap_or(["-", "-"].map(str::to_owned)));
                }
                writeln!(f, "{}", aligned(&widths, cells))?;
            }
        }
        let source = if ranks.iter().any(|rank| rank.predicted.is_some()) {
            "by the timetable, if messages take no time: by means, each task of a phase and a stage takes their mean time; by \
                 tasks, each takes its own"
        } else {
            "steps follow each other without a flush, so none is predicted"
        };
        writeln!(f, "  idle: the share of the microbatches' time in which a rank computes nothing; {source}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use program::profile::PredictedIdle;

    #[test]
    fn a_rank_has_a_line_for_each_stage() {
        let stage = |stage| StageTimes { stage, forward_ms: 2.0, backward_ms: 4.0, weight_ms: None };
        let rank = PipelineRankTimes {
            rank: 0,
            pipeline_rank: 0,
            stages: vec![stage(0), stage(1)],
            waits_ms: 0.0,
            prepare_ms: 0.0,
            update_ms: 1.5,
            idle: 0.5,
            predicted: Some(PredictedIdle { by_means: 1.0 / 3.0, by_tasks: 0.4 }),
            tasks: vec![],
        };
        let measured = MeasuredPipeline { schedule: "gpipe".into(), steps: 2, ranks: vec![rank] };
        let text = MeasuredText(&measured).to_string();
        assert!(
            text.contains(
                "     0      0      2.000      4.000      0.000      0.000      1.500   50.0 %    33.3 %    40.0 %\n     \
                 0      1      2.000      4.000\n"
            ),
            "{text}"
        );
    }
}
