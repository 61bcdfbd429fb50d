//! Chooses the schedule, and the cut for each schedule.
//!
//! Schedules are compared by their timetables, run with the prices of the stages of a cut. The fastest schedule that fits into the memory
//! of a device is chosen. Among schedules that are equally fast, within the exactness of the cost model, the simplest one is chosen. If
//! none fits by the estimate, the schedule with the least bytes is chosen.

use super::cut::{MemoryBound, StageSizes, TIE, balanced, least_bytes};
use super::memory::{StageBytes, StageMemory};
use super::prices::Prices;
use super::schedule::{Plan, Schedule, ScheduleChoice};
use super::work::{Forward, Work};
use super::{Stage, by_hand, runs_from};
use crate::reports::{CandidateReport, StageReport};
use ir::machine::Link;
use ir::timetable::{Dependency, Timeline};
use ir::{Diagnostic, Module, Phase};
use std::collections::BTreeMap;
use std::ops::Range;

/// The schedules that are compared, the simplest first. A schedule with more chunks sends more, and a schedule with a separate phase for
/// gradients of parameters keeps more.
const CANDIDATES: [(Schedule, Option<u32>); 8] = [
    (Schedule::OneFOneB, None),
    (Schedule::Gpipe, None),
    (Schedule::ZbH1, None),
    (Schedule::Interleaved, Some(2)),
    (Schedule::Interleaved, Some(3)),
    (Schedule::Interleaved, Some(4)),
    (Schedule::ZbV, None),
    (Schedule::DualPipeV, None),
];

/// A schedule with its cut.
pub(super) struct ScheduledCut {
    pub(super) schedule: ScheduleChoice,
    pub(super) plan: Plan,
    /// The nodes of each stage.
    pub(super) runs: Vec<Range<usize>>,
    /// Whether memory excludes a cut that would be more balanced.
    is_limited: bool,
}

/// Returns the schedule and the cut of a program.
///
/// # Errors
/// As [`super::decide`].
pub(super) fn choose(
    module: &Module,
    forward: &Forward,
    options: &Stage,
) -> Result<(ScheduledCut, StageReport), Diagnostic> {
    let is_priced = options.schedule.is_none() || options.memory.is_some();
    let prices = is_priced.then(|| Prices::of(module, forward, options)).flatten();
    let work = forward.work(module, &options.rates());
    let mut cuts =
        Cuts { module, forward, options, work, prices: prices.as_ref(), balanced: BTreeMap::new() };
    let simplest = ScheduleChoice { schedule: Schedule::OneFOneB, chunks: None };
    let schedule = match (options.schedule, &prices) {
        (Some(schedule), _) => schedule,
        (None, Some(prices)) => {
            if let Some(chosen) = cuts.fastest(prices) {
                return Ok(chosen);
            }
            simplest
        }
        (None, None) => simplest,
    };
    let cut = cuts.cut(schedule)?;
    let estimated = cuts.estimated(&cut);
    let report = StageReport {
        schedule: cut.schedule.to_string(),
        limit: options.memory.as_ref().map(|memory| memory.limit),
        estimated,
        is_limited: cut.is_limited,
        ..StageReport::default()
    };
    Ok((cut, report))
}

/// Makes the cuts of a program.
struct Cuts<'a> {
    module: &'a Module,
    forward: &'a Forward,
    options: &'a Stage,
    work: Vec<Work>,
    prices: Option<&'a Prices>,
    /// The balanced cuts by the number of stages, without regard to memory.
    balanced: BTreeMap<usize, Option<Vec<Range<usize>>>>,
}

impl Cuts<'_> {
    /// Returns the cut for a schedule.
    ///
    /// # Errors
    /// As [`super::decide`].
    fn cut(&mut self, schedule: ScheduleChoice) -> Result<ScheduledCut, Diagnostic> {
        let options = self.options;
        let plan = schedule.schedule.plan(options.ranks, schedule.chunks_per_rank(), options.microbatches);
        let plan = plan.map_err(|message| {
            Diagnostic::new(message).note("--global-batch and --microbatch set the microbatches of a step")
        })?;
        let (stages, nodes) = (plan.placement.len(), self.forward.divided.len());
        let mut is_limited = false;
        let runs = match (&options.at[..], &options.cuts[..]) {
            ([], []) => {
                let work = &self.work;
                let free = self.balanced.entry(stages).or_insert_with(|| balanced(work, stages, None));
                let free = free.clone().ok_or_else(|| too_few(stages, nodes, schedule))?;
                match self.within_memory(&plan, &free) {
                    Some(runs) => {
                        is_limited = true;
                        runs
                    }
                    None => free,
                }
            }
            ([], cuts) => by_hand(self.module, &self.forward.divided, cuts, stages)?,
            (at, _) => given(at, stages, nodes)?,
        };
        Ok(ScheduledCut { schedule, plan, runs, is_limited })
    }

    /// Returns the most balanced cut that fits into the memory, or else the one with the least bytes. `None` if the given cut fits, or if
    /// the memory is not known.
    fn within_memory(&self, plan: &Plan, free: &[Range<usize>]) -> Option<Vec<Range<usize>>> {
        let (memory, prices) = (self.options.memory.as_ref()?, self.prices?);
        let microbatches = self.options.microbatches;
        let estimated = memory.estimated(plan, microbatches, prices, free);
        if fits(memory, &estimated) {
            return None;
        }
        let of_stage = StageBytes::new(memory, plan, microbatches, prices, self.work.len());
        let bytes = |stage: usize, nodes: &Range<usize>| of_stage.of(stage, nodes);
        let limits = limits(memory, plan, free, &bytes);
        let within =
            |limits: &[u64]| balanced(&self.work, free.len(), Some(MemoryBound { bytes: &bytes, limits }));
        within(&limits).or_else(|| {
            let least = least_bytes(self.work.len(), free.len(), &bytes)?;
            within(&vec![least; free.len()])
        })
    }

    /// Returns the bytes on a device of each pipeline rank. Empty if the memory is not known.
    fn estimated(&self, cut: &ScheduledCut) -> Vec<u64> {
        let (Some(memory), Some(prices)) = (&self.options.memory, self.prices) else { return vec![] };
        memory.estimated(&cut.plan, self.options.microbatches, prices, &cut.runs)
    }

    /// Returns the fastest schedule that fits. `None` if no schedule can cut the program.
    fn fastest(&mut self, prices: &Prices) -> Option<(ScheduledCut, StageReport)> {
        let mut all = vec![];
        for (schedule, chunks) in CANDIDATES {
            let Ok(cut) = self.cut(ScheduleChoice { schedule, chunks }) else { continue };
            let Some(seconds) = self.seconds(prices, &cut) else { continue };
            let estimated = self.estimated(&cut);
            all.push((cut, seconds, estimated));
        }
        let memory = self.options.memory.as_ref();
        let least = |seconds: &mut dyn Iterator<Item = f64>| seconds.fold(f64::INFINITY, f64::min);
        let fastest = least(&mut all.iter().map(|(_, seconds, _)| *seconds));
        let candidate = |(cut, seconds, estimated): &(ScheduledCut, f64, Vec<u64>)| CandidateReport {
            schedule: cut.schedule.to_string(),
            time: if fastest > 0.0 { seconds / fastest } else { 1.0 },
            bytes: memory.map(|memory| largest(memory, estimated)),
            fits: memory.is_none_or(|memory| fits(memory, estimated)),
        };
        let mut candidates: Vec<CandidateReport> = all.iter().map(candidate).collect();
        let fitting = candidates.iter().filter(|candidate| candidate.fits);
        let bound = least(&mut fitting.map(|candidate| candidate.time)) * (1.0 + 1.0 / TIE as f64);
        let of_fitting = candidates.iter().position(|one| one.fits && one.time <= bound);
        let smallest = || (0..candidates.len()).min_by_key(|&at| candidates[at].bytes);
        let chosen = of_fitting.or_else(smallest)?;
        let time = candidates[chosen].time;
        let is_passed_over = candidates.iter().any(|one| !one.fits && one.time < time);
        candidates.iter_mut().for_each(|one| one.time /= time);
        let (cut, _, estimated) = all.swap_remove(chosen);
        let report = StageReport {
            schedule: cut.schedule.to_string(),
            candidates,
            limit: memory.map(|memory| memory.limit),
            estimated,
            is_limited: cut.is_limited || is_passed_over,
            ..StageReport::default()
        };
        Some((cut, report))
    }

    /// Returns the seconds that the microbatches of a step take. `None` if the timetable cannot run, which is a bug.
    fn seconds(&self, prices: &Prices, cut: &ScheduledCut) -> Option<f64> {
        let Plan { placement, splits_backward, timetable, .. } = &cut.plan;
        let link: Link = self.options.rates().device().link;
        let times: Vec<[f64; 3]> =
            cut.runs.iter().map(|nodes| prices.times(nodes).map(|time| time as f64 * 1e-12)).collect();
        let sent = |start: usize| link.transfer_time(prices.messages(start)) as f64 * 1e-12;
        let messages: Vec<f64> = cut.runs.iter().map(|nodes| sent(nodes.start)).collect();
        let task = |part: ir::ChunkPhase| {
            let [forward, backward, weight] = times[part.chunk as usize];
            match part.phase {
                Phase::Forward => forward,
                Phase::Backward if !splits_backward => backward + weight,
                Phase::Backward => backward,
                _ => weight,
            }
        };
        // The message between two stages is priced at the later one.
        let message = |Dependency { from, to }: Dependency| messages[from.chunk.max(to.chunk) as usize];
        let chain = Dependency::chain(placement.len() as u32, *splits_backward);
        let timeline = Timeline::new(timetable, placement, self.options.microbatches, &chain, task, message);
        timeline.ok().map(|timeline| timeline.makespan)
    }
}

/// Returns the bytes that each stage may take. The stages of a rank share the device in proportion to their bytes in a cut.
fn limits(memory: &StageMemory, plan: &Plan, cut: &[Range<usize>], bytes: &StageSizes) -> Vec<u64> {
    let own: Vec<u64> = cut.iter().enumerate().map(|(stage, nodes)| bytes(stage, nodes).1).collect();
    let mut of_rank: BTreeMap<u32, u128> = BTreeMap::new();
    for (&rank, &own) in plan.placement.iter().zip(&own) {
        *of_rank.entry(rank).or_default() += u128::from(own);
    }
    let limit = |(rank, &own): (&u32, &u64)| {
        let share = u128::from(memory.limit) * u128::from(own) / of_rank[rank].max(1);
        u64::try_from(share).unwrap_or(u64::MAX)
    };
    plan.placement.iter().zip(&own).map(limit).collect()
}

/// Returns the bytes of the largest rank's plan, by the corrected estimate.
fn largest(memory: &StageMemory, estimated: &[u64]) -> u64 {
    let planned = (0..).zip(estimated).map(|(rank, &bytes)| memory.planned(rank, bytes));
    planned.max().unwrap_or(0)
}

fn fits(memory: &StageMemory, estimated: &[u64]) -> bool {
    largest(memory, estimated) <= memory.limit
}

fn too_few(stages: usize, nodes: usize, schedule: ScheduleChoice) -> Diagnostic {
    let error =
        Diagnostic::new(format!("the model cannot be cut into {stages} stages: it has {nodes} nodes"));
    let ranks = nodes / schedule.chunks_per_rank().max(1) as usize;
    error.note(format!("--mesh pp={ranks} or less would work"))
}

/// Returns the cut at given indices.
fn given(at: &[usize], stages: usize, nodes: usize) -> Result<Vec<Range<usize>>, Diagnostic> {
    let starts: Vec<usize> = [0].into_iter().chain(at.iter().copied()).collect();
    let ascend = starts.windows(2).all(|pair| pair[0] < pair[1]) && starts.last() < Some(&nodes);
    if starts.len() == stages && ascend {
        return Ok(runs_from(&starts, nodes));
    }
    let error = Diagnostic::new(format!("the places of `at` do not cut {nodes} nodes into {stages} stages"));
    Err(error.note(format!("give {} ascending places between the nodes", stages - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::decide;

    /// Twelve layers of equal size, after an embedding that is larger than any of them, and before a loss.
    fn model() -> Module {
        let mut states = String::from("state @e : f32[512, 32] parameter = zeros\n");
        let mut nodes = String::from("%14 = gather %1, %0 {dim = 0} : f32[64, 32] !{fwd}\n");
        let mut parameters = String::from("%0 \"tokens\" batched : i64[64], %1 = @e");
        for layer in 0..12 {
            let (weight, before) = (layer + 2, 2 * layer + 14);
            states += &format!("state @w{layer} : f32[32, 32] parameter = zeros\n");
            parameters += &format!(", %{weight} = @w{layer}");
            let attributes = "{lhs = bk, rhs = kc, out = bc}";
            nodes += &format!(
                "%{} = contract %{before}, %{weight} {attributes} : f32[64, 32] !{{fwd}}\n",
                before + 1
            );
            nodes += &format!("%{} = tanh %{} : f32[64, 32] !{{fwd}}\n", before + 2, before + 1);
        }
        nodes += "%39 = reduce %38 {kind = sum, dims = [0, 1], keep = false} : f32[] !{fwd}\n";
        nodes += "%40 = splat {value = 1.0} : f32[] !{fwd}\n";
        let outputs = "output \"loss.sum\" = %39\noutput \"loss.weight\" = %40\n";
        let text = format!(
            "trainyard-ir 1\nmodule @deep imported {{\n{states}func @forward({parameters}) {{\n{nodes}}}\n{outputs}}}\n"
        );
        ir::text::parse(&text).expect("a program")
    }

    fn options(schedule: Option<&str>, limit: Option<u64>) -> Stage {
        let memory = limit.map(|limit| StageMemory {
            limit,
            weight: 4096,
            gradient: 4096,
            optimizer: 8192,
            activations: 1 << 20,
            measured: vec![],
        });
        let schedule = schedule.map(|schedule| schedule.parse().expect("a schedule"));
        Stage { microbatches: 8, memory, ..Stage::new(2, schedule) }
    }

    fn report(schedule: Option<&str>, limit: Option<u64>) -> StageReport {
        decide(&model(), &options(schedule, limit)).expect("a cut").report
    }

    /// The choice can be checked by hand from the estimate and the time of every schedule.
    #[test]
    fn of_the_schedules_that_fit_the_fastest_is_chosen_and_of_ties_the_simplest() {
        let mut limited = 0;
        for limit in (100..600).step_by(20).map(|kib| kib << 10) {
            let StageReport { schedule, candidates, estimated, .. } = report(None, Some(limit));
            assert_eq!(candidates.len(), CANDIDATES.len());
            let chosen = candidates.iter().position(|one| one.schedule == schedule).expect("it is there");
            let fitting: Vec<&CandidateReport> = candidates.iter().filter(|one| one.fits).collect();
            assert!(candidates.iter().all(|one| one.fits == (one.bytes <= Some(limit))));
            assert_eq!(estimated.iter().max(), candidates[chosen].bytes.as_ref());
            if fitting.is_empty() {
                assert!(candidates.iter().all(|one| one.bytes >= candidates[chosen].bytes));
                continue;
            }
            limited += usize::from(fitting.len() < candidates.len());
            let fastest = fitting.iter().map(|one| one.time).fold(f64::INFINITY, f64::min);
            let is_tie = |one: &CandidateReport| one.fits && one.time <= fastest * (1.0 + 1.0 / TIE as f64);
            assert_eq!(candidates.iter().position(is_tie), Some(chosen), "{limit}");
        }
        assert!(limited > 5, "few limits made a difference: {limited}");
    }

    /// A cut is only as unbalanced as it must be, and fits unless even the cut of the least bytes does not: also if the stages of a rank
    /// share it.
    #[test]
    fn a_tighter_limit_makes_cuts_that_fit_until_none_does() {
        for schedule in
            ["1f1b", "zb-h1", "interleaved:chunks=2", "interleaved:chunks=3", "zb-v", "dualpipev", "2bw"]
        {
            let free = report(Some(schedule), Some(u64::MAX - 1));
            assert!(!free.is_limited, "{schedule}");
            let most = free.estimated.iter().copied().max().expect("there are ranks");
            let (mut smallest, mut fitted) = (most, 0);
            for percent in (40..100).rev() {
                let limit = most * percent / 100;
                let found = report(Some(schedule), Some(limit));
                let bytes = found.estimated.iter().copied().max().expect("there are ranks");
                assert!(found.is_limited, "{schedule} {percent}");
                fitted += usize::from(bytes <= limit);
                smallest = smallest.min(bytes);
            }
            assert!(fitted > 0 && smallest < most, "{schedule}: {most} bytes, at least {smallest}");
        }
    }

    #[test]
    fn a_measured_plan_corrects_the_estimate() {
        let free = report(Some("1f1b"), Some(u64::MAX - 1));
        let most = free.estimated.iter().copied().max().expect("there are ranks");
        let with = |ratio: u64| {
            let mut options = options(Some("1f1b"), Some(most));
            options.memory.iter_mut().for_each(|memory| memory.measured = vec![ratio; 2]);
            decide(&model(), &options).expect("a cut").report
        };
        assert!(!with(1024).is_limited);
        let larger = with(1100);
        assert!(larger.is_limited && larger.estimated.iter().all(|&bytes| bytes * 1100 / 1024 <= most));
    }
}
