//! Stages that fit into memory. A step is compiled, its memory plans are measured, and its stages are made again if that helps.
//!
//! The pass `stage` estimates the memory of each pipeline rank before there is a lowered program. The plan of a lowered rank is exact. The
//! ratio of the two corrects the next estimate.

use crate::failure::Failure;
use crate::lowering::Lowering;
use crate::pipeline::{CompilationPlan, MemoryLimit};
use crate::training::lower_step;
use ir::Module;
use passes::recompute::{self, Recompute};
use passes::reports::StageReport;
use passes::stage::{AS_ESTIMATED, Stage};
use passes::{Manager, PassContext, Timing};

/// The most times that the stages of a program are made again.
const AGAIN: usize = 3;

/// Plans are measured if the estimate is above this part of the limit: one in `NEAR`.
const NEAR: u64 = 2;

/// A step with its stages.
pub(crate) struct Attempt {
    /// The plan, with the stages that were chosen.
    pub(crate) plan: CompilationPlan,
    /// The reasons for the stages; `None` for a program without stages.
    pub(crate) stages: Option<StageReport>,
    /// The step.
    pub(crate) module: Module,
    /// The reports of its passes.
    pub(crate) cx: PassContext,
    /// The time of each pass.
    pub(crate) timings: Vec<Timing>,
}

/// Compiles a step by `attempt`. Trials of `manager` lower it. Other stages are tried if the plan of a pipeline rank is larger than the
/// limit, or if the estimate was so high that it excluded faster stages. If no program fits, the smallest one is returned, and the callers
/// say what else would help.
///
/// # Errors
/// The errors of `attempt`; stages that cannot be made.
pub(crate) fn fit(
    plan: &CompilationPlan,
    forward: &Module,
    manager: &Manager,
    mut attempt: impl FnMut(CompilationPlan, Option<StageReport>) -> Result<Attempt, Failure>,
) -> Result<Attempt, Failure> {
    let trial = &manager.for_trials();
    let (first, report) = plan.clone().for_batch(forward, &[])?;
    let mut best = attempt(first, report)?;
    let Some(limit) = plan.limit else { return Ok(best) };
    let Some(mut planned) = plans(&best, trial, limit, &[]) else { return Ok(best) };
    let mut last = best.plan.stage.clone();
    let own = ratios(&best, &planned);
    // A plan that fits may allow a faster choice. It must not lead to a slower one, so each ratio only falls.
    let mut measured = if largest(&planned) <= limit.bytes { lower(&own, &[]) } else { own };
    for _ in 0..AGAIN {
        let fits = largest(&planned) <= limit.bytes;
        if fits && !best.is_limited() {
            break;
        }
        let (next, report) = plan.clone().for_batch(forward, &measured)?;
        if next.stage == last {
            break;
        }
        last.clone_from(&next.stage);
        let made = attempt(next, report)?;
        let Some(of_made) = plans(&made, trial, limit, &measured) else { return Ok(made) };
        let own = ratios(&made, &of_made);
        let now_fits = largest(&of_made) <= limit.bytes;
        measured = if now_fits { lower(&own, &measured) } else { own };
        if now_fits || (!fits && largest(&of_made) < largest(&planned)) {
            (best, planned) = (made, of_made);
        } else if fits {
            break;
        }
    }
    if largest(&planned) > limit.bytes && limit.recomputes {
        return or_balanced(plan, forward, trial, limit, best, attempt);
    }
    Ok(best)
}

/// Returns a step that does not fit, or a step with the balanced cut for the same schedule. The balanced cut is tried if the step does not
/// fit even with all activations except those between blocks computed again. It is returned if its step is then smaller.
fn or_balanced(
    plan: &CompilationPlan,
    forward: &Module,
    trial: &Manager,
    limit: MemoryLimit,
    best: Attempt,
    mut attempt: impl FnMut(CompilationPlan, Option<StageReport>) -> Result<Attempt, Failure>,
) -> Result<Attempt, Failure> {
    let schedule = best.plan.stage.as_ref().and_then(|stage| stage.schedule);
    let stage = plan.stage.clone().map(|stage| Stage { schedule, ..stage });
    let (balanced, _) = CompilationPlan { stage, limit: None, ..plan.clone() }.for_batch(forward, &[])?;
    let peak = peak_again(&best, trial, limit).filter(|peak| *peak > limit.bytes);
    let Some(peak) = peak.filter(|_| balanced.stage != best.plan.stage) else { return Ok(best) };
    let other = attempt(balanced, best.stages.clone())?;
    let is_smaller = peak_again(&other, trial, limit).is_some_and(|other| other < peak);
    Ok(if is_smaller { other } else { best })
}

/// Bytes of the largest rank if all activations except those between blocks are computed again.
fn peak_again(made: &Attempt, trial: &Manager, limit: MemoryLimit) -> Option<u64> {
    let mut module = made.module.clone();
    let decision = recompute::decide(&module, &Recompute::FULL);
    recompute::apply(&mut module, &decision).ok()?;
    lowered(made, module, trial, limit).map(|planned| largest(&planned))
}

impl Attempt {
    /// Whether other stages would be faster without the limit.
    fn is_limited(&self) -> bool {
        self.stages.as_ref().is_some_and(|report| report.is_limited)
    }
}

/// The lower of two ratios for each rank. A rank without an earlier ratio counts as estimated.
fn lower(own: &[u64], earlier: &[u64]) -> Vec<u64> {
    let earlier = earlier.iter().copied().chain(std::iter::repeat(AS_ESTIMATED));
    own.iter().zip(earlier).map(|(&own, earlier)| own.min(earlier)).collect()
}

fn largest(planned: &[u64]) -> u64 {
    planned.iter().copied().max().unwrap_or(0)
}

/// Bytes of the plan of each pipeline rank. `None` if the estimate is far below the limit, or if the program cannot be lowered. The
/// lowering for the run reports the reason.
fn plans(made: &Attempt, trial: &Manager, limit: MemoryLimit, measured: &[u64]) -> Option<Vec<u64>> {
    let report = made.stages.as_ref().filter(|report| !report.estimated.is_empty())?;
    let expected = report.estimated.iter().enumerate().map(|(rank, &bytes)| {
        let ratio = measured.get(rank).copied().unwrap_or(AS_ESTIMATED);
        scaled(bytes, ratio, AS_ESTIMATED)
    });
    if expected.max().unwrap_or(0) <= limit.bytes / NEAR && !report.is_limited {
        return None;
    }
    lowered(made, made.module.clone(), trial, limit)
}

/// Bytes of the plan of each pipeline rank for another step with the same options. `None` if it cannot be lowered.
fn lowered(made: &Attempt, step: Module, trial: &Manager, limit: MemoryLimit) -> Option<Vec<u64>> {
    let microbatches = made.plan.stage.as_ref().map_or(1, |stage| u64::from(stage.microbatches));
    let lowering = &mut Lowering::new(trial, made.cx.passes_run);
    let (target, multiprocessors) = (limit.target, limit.multiprocessors);
    let update = made.plan.update;
    let programs = lower_step(lowering, step, microbatches, update, target, multiprocessors).ok()?;
    Some(programs.iter().map(|program| program.memory.peak()).collect())
}

/// For each pipeline rank, the bytes of its plan for [`AS_ESTIMATED`] bytes of the estimate.
fn ratios(made: &Attempt, planned: &[u64]) -> Vec<u64> {
    let estimated = made.stages.iter().flat_map(|report| &report.estimated);
    planned.iter().zip(estimated).map(|(&planned, &bytes)| scaled(planned, AS_ESTIMATED, bytes)).collect()
}

/// `number · ratio / whole`, and at least 1.
fn scaled(number: u64, ratio: u64, whole: u64) -> u64 {
    let scaled = u128::from(number) * u128::from(ratio) / u128::from(whole.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX).max(1)
}
