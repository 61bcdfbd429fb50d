//! The profile of a run, as text: a timeline, the times of kernels, and in a pipeline the times of the tasks of all ranks.

use super::compile::Ready;
use super::report::{self, tell};
use crate::failure::Failure;
use crate::inspection::{self, MeasuredText};
use crate::output::{Folder, PROFILE};
use crate::processes::Processes;
use crate::targets;
use crate::training::{self, Programs, RunJob};
use program::Target;
use program::device::ProgramId;
use program::profile::{MeasuredPipeline, MeasuredRank, Profile, Profiles, Share};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

/// The profile of a job of a run: of rank 0, or of all ranks of a pipeline.
pub(super) struct JobProfile {
    /// The number of steps completed before the job.
    first_step: u64,
    timeline: Value,
    shares: Vec<Share>,
    pipeline: Option<MeasuredPipeline>,
}

/// The profile of a rank of a pipeline, as a message to other processes.
#[derive(Serialize, Deserialize)]
struct RankProfile {
    measured: MeasuredRank,
    events: Vec<Value>,
    shares: Vec<Share>,
}

/// The profiles of the jobs that ran, of a run that has ended after `steps` steps.
pub(super) fn gather(
    processes: &Processes,
    profiles: &Profiles,
    ready: &Ready,
    steps: u64,
) -> Result<Vec<JobProfile>, Failure> {
    let ran = training::numbered(&ready.jobs).filter(|(id, job)| id.0 == 0 || job.first_step < steps);
    ran.map(|(id, job)| of_job(processes, profiles, id, job, ready.plan.microbatches)).collect()
}

/// The profile of a job. In a pipeline, all processes give the others the profiles of their ranks.
fn of_job(
    processes: &Processes,
    profiles: &Profiles,
    id: ProgramId,
    job: &RunJob,
    microbatches: u64,
) -> Result<JobProfile, Failure> {
    let RunJob { first_step, compilation, programs: Programs { training, .. }, .. } = job;
    let first_step = *first_step;
    if training.iter().len() == 1 {
        let (profile, program) = (&profiles.of_rank(0)[&id], training.first());
        let (timeline, shares) = (profile.timeline(program), profile.shares(program, microbatches));
        return Ok(JobProfile { first_step, timeline, shares, pipeline: None });
    }
    // All processes leave this call at the same moment. Their times are counted from it.
    processes.all(true)?;
    let zero = Instant::now();
    let of_rank = |(rank, profile): (u64, Profile)| {
        let program = training.of_rank(rank);
        RankProfile {
            measured: profile.measured(zero),
            events: profile.events(program, rank, Some(zero)),
            shares: profile.shares(program, microbatches),
        }
    };
    let own: Vec<RankProfile> = profiles.of_program(id).into_iter().map(of_rank).collect();
    let all: Vec<RankProfile> = processes.gather(own)?.into_iter().flatten().collect();
    let measured: Vec<MeasuredRank> = all.iter().map(|rank| rank.measured.clone()).collect();
    let shares = together(all.iter().flat_map(|rank| &rank.shares));
    let events = all.into_iter().map(|rank| rank.events).collect();
    let pipeline = MeasuredPipeline::of(&compilation.training, &measured);
    Ok(JobProfile { first_step, timeline: timeline(events), shares, pipeline })
}

/// The instructions of all ranks, each a process of the timeline, which begins at 0.
fn timeline(ranks: Vec<Vec<Value>>) -> Value {
    let starts = ranks.iter().flatten().filter_map(|event| event["ts"].as_f64());
    let begin = starts.fold(f64::INFINITY, f64::min);
    let mut events = vec![];
    for (rank, of_rank) in ranks.into_iter().enumerate() {
        let name = json!({ "name": format!("rank {rank}") });
        events.push(json!({ "ph": "M", "name": "process_name", "pid": rank, "args": name }));
        events.extend(of_rank.into_iter().map(|mut event| {
            if let Some(start) = event["ts"].as_f64() {
                event["ts"] = json!(start - begin);
            }
            event
        }));
    }
    inspection::timeline(events)
}

/// The kernels of all ranks, by falling time.
fn together<'s>(shares: impl Iterator<Item = &'s Share>) -> Vec<Share> {
    let mut by_kernel: BTreeMap<&str, Share> = BTreeMap::new();
    for share in shares {
        match by_kernel.get_mut(share.kernel.as_str()) {
            None => drop(by_kernel.insert(&share.kernel, share.clone())),
            Some(sum) => {
                sum.milliseconds += share.milliseconds;
                sum.instructions += share.instructions;
                sum.flops += share.flops;
                let of_both = sum.not_hidden.unwrap_or_default() + share.not_hidden.unwrap_or_default();
                sum.not_hidden = sum.not_hidden.or(share.not_hidden).map(|_| of_both);
            }
        }
    }
    let mut shares: Vec<Share> = by_kernel.into_values().collect();
    shares.sort_by(|a, b| b.milliseconds.total_cmp(&a.milliseconds));
    shares
}

/// Tells the times of the kernels of each job that ran. Writes the timeline of the last one into the folder of the run, and in a pipeline
/// the times of its tasks. The run had so many threads, or one for each core.
pub(super) fn write(
    jobs: &[JobProfile],
    target: Target,
    threads: Option<usize>,
    folder: &Folder,
) -> Result<(), Failure> {
    let peak = targets::backend(target).peak_gflops(threads);
    for JobProfile { first_step, timeline, shares, pipeline } in jobs {
        if jobs.len() > 1 {
            tell!("the steps after step {first_step}:");
        }
        folder.write(&[("timeline.json", timeline.to_string().as_bytes())])?;
        report::tell_lines(&table(shares, peak, pipeline.is_some()));
        if let Some(pipeline) = pipeline {
            folder.write(&[(PROFILE, report::json(pipeline)?.as_bytes())])?;
            report::tell_lines(&MeasuredText(pipeline).to_string());
        }
    }
    Ok(())
}

/// The time of a step by kind of kernel, and the speed of the kernels that multiply matrices. `peak` is the speed of a large matrix
/// product, in billions of floating-point operations a second, if it is known. `is_pipeline`: the times are sums over all ranks.
fn table(shares: &[Share], peak: Option<f64>, is_pipeline: bool) -> String {
    // Exchanges take the time of a step only where nothing else runs.
    let counted = |share: &Share| share.not_hidden.unwrap_or(share.milliseconds);
    let total: f64 = shares.iter().map(counted).sum();
    let percent = |part: f64| 100.0 * part / total.max(f64::MIN_POSITIVE);
    let mut table =
        format!("{:>10}  {:>6}  {:>6}  {:>8}  kernel\n", "ms a step", "share", "calls", "GFLOP/s");
    for share in shares {
        let speed = if share.flops > 0 { format!("{:.1}", share.gflops()) } else { String::new() };
        let Share { kernel, milliseconds, instructions, .. } = share;
        let hidden = share.not_hidden.map(|own| format!(", of which {own:.3} ms are not hidden"));
        table += &format!(
            "{milliseconds:>10.3}  {:>5.1}%  {instructions:>6}  {speed:>8}  {kernel}{}\n",
            percent(counted(share)),
            hidden.unwrap_or_default()
        );
    }
    let products = shares.iter().filter(|share| share.flops > 0);
    let (time, flops) =
        products.fold((0.0, 0), |(time, flops), share| (time + share.milliseconds, flops + share.flops));
    let speed = flops as f64 / time.max(f64::MIN_POSITIVE) / 1e6;
    let reached =
        peak.map_or_else(String::new, |peak| format!(" of the {peak:.1} GFLOP/s of a large multiplication"));
    let ranks = if is_pipeline { " of all ranks together" } else { "" };
    table
        + &format!(
            "{total:.3} ms per step{ranks}; matrix multiplications take {:.1}% of it, at {speed:.1} \
             GFLOP/s{reached}\n",
            percent(time)
        )
}
