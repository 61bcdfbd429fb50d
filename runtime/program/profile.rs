//! Profiles: the time of each instruction of a step, and the rate of contractions compared with the machine's.

mod pipeline;
mod turns;

pub use pipeline::{MeasuredPipeline, PipelineRankTimes, PredictedIdle, StageTimes};
pub use turns::{MeasuredRank, MeasuredRuns, MeasuredTask, Window};

use crate::device::ProgramId;
use crate::simulator::schedule;
use crate::{Instruction, Kernel, Program, Section, View};
use ir::timetable::Task;
use ir::{Operator, Signature, Type};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use turns::Turns;

/// The profiles of some programs of a device.
pub type DeviceProfiles = BTreeMap<ProgramId, Profile>;

/// The profiles of the ranks of this process, for each measured program. Rank 0 has profiles; in a pipeline, every rank has them.
#[derive(Clone, Debug)]
pub struct Profiles {
    measured: Vec<ProgramId>,
    of_ranks: Arc<Mutex<BTreeMap<u64, DeviceProfiles>>>,
}

impl Profiles {
    /// Makes profiles of these programs.
    pub fn new(measured: Vec<ProgramId>) -> Self {
        Self { measured, of_ranks: Arc::default() }
    }

    /// Returns the profiles of a rank.
    pub fn of_rank(&self, rank: u64) -> DeviceProfiles {
        let mut of_ranks = self.of_ranks.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || self.measured.iter().map(|&program| (program, Profile::default())).collect();
        of_ranks.entry(rank).or_insert_with(new).clone()
    }

    /// Returns the profiles of a rank with these programs; none if the rank is not measured.
    pub fn for_programs(&self, rank: u64, programs: &[Arc<Program>]) -> DeviceProfiles {
        let is_pipeline = programs.first().is_some_and(|program| program.pipeline.is_some());
        if rank == 0 || is_pipeline { self.of_rank(rank) } else { DeviceProfiles::new() }
    }

    /// Returns the profiles of a measured program, with their ranks.
    pub fn of_program(&self, program: ProgramId) -> Vec<(u64, Profile)> {
        let of_ranks = self.of_ranks.lock().unwrap_or_else(PoisonError::into_inner);
        of_ranks.iter().filter_map(|(rank, own)| Some((*rank, own.get(&program)?.clone()))).collect()
    }
}

/// Times of a program's instructions, summed while it runs. The first step is left out, because its caches are cold and its pages were
/// never touched.
#[derive(Clone, Debug, Default)]
pub struct Profile(Arc<Mutex<Times>>);

#[derive(Debug, Default)]
struct Times {
    steps: u64,
    sections: [Vec<Duration>; 3],
    /// The seconds of each exchange in which nothing else ran, over all steps but the newest.
    not_hidden: BTreeMap<(Section, usize), f64>,
    began: Option<Instant>,
    /// The spans of the newest step.
    spans: Vec<Span>,
    turns: Turns,
}

/// The time span of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The section of the instruction.
    pub section: Section,
    /// The instruction's place in its section.
    pub instruction: usize,
    /// The name of the track, such as the processor or a queue. A track runs one instruction after the other.
    pub track: &'static str,
    /// The time from the start of the step to the start.
    pub start: Duration,
    /// The duration.
    pub time: Duration,
}

/// The time of the instructions of one kind in one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// The kernel's name; `elementwise` for chains.
    pub kernel: String,
    /// Time, in milliseconds.
    pub milliseconds: f64,
    /// Instructions of the program.
    pub instructions: usize,
    /// The milliseconds of exchanges in which nothing else ran; `None` for other kernels.
    pub not_hidden: Option<f64>,
    /// Floating-point operations of instructions that multiply matrices; 0 for others.
    pub flops: u64,
}

impl Share {
    /// Returns the rate in billions of floating-point operations a second.
    pub fn gflops(&self) -> f64 {
        self.flops as f64 / self.milliseconds / 1e6
    }
}

impl Profile {
    /// Counts a step.
    pub fn begin_step(&self) {
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        times.steps += 1;
        match times.steps {
            2 => (times.sections, times.not_hidden, times.turns) = Default::default(),
            _ => times.not_hidden = times.all_not_hidden(),
        }
        times.spans.clear();
        times.turns.begin_step();
        times.began = Some(Instant::now());
    }

    /// Begins a turn of a pipeline rank.
    pub fn begin_turn(&self, task: Task) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).turns.begin(task);
    }

    /// Ends the turn that was begun.
    pub fn end_turn(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).turns.end();
    }

    /// Adds the time of a run of instructions of a section, from the first to the end of the last.
    pub fn add_run(&self, section: Section, time: Duration) {
        let turns = &mut self.0.lock().unwrap_or_else(PoisonError::into_inner).turns;
        match section {
            Section::Prepare => turns.prepare += time,
            Section::Update => turns.update += time,
            Section::Microbatch => {}
        }
    }

    /// Returns the tasks of a pipeline rank. Times count from `zero`.
    pub fn measured(&self, zero: Instant) -> MeasuredRank {
        let times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        times.turns.measured(times.steps.saturating_sub(1).max(1), zero)
    }

    /// Adds the time of an instruction that the processor has just run, or of an exchange that has just ended.
    pub fn add(&self, section: Section, index: usize, instruction: &Instruction, time: Duration) {
        let began = self.0.lock().unwrap_or_else(PoisonError::into_inner).began;
        let start = began.map_or(Duration::ZERO, |began| began.elapsed().saturating_sub(time));
        let track = if is_exchange(instruction) { EXCHANGE } else { "processor" };
        // Only the receiver of a message waits for it. The sender leaves a copy.
        if matches!(instruction.kernel, Kernel::Message(_)) && !instruction.results.is_empty() {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).turns.wait(time);
        }
        self.add_span(Span { section, instruction: index, track, start, time });
    }

    /// Adds the span of an instruction.
    pub fn add_span(&self, span: Span) {
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let section = &mut times.sections[span.section as usize];
        if section.len() <= span.instruction {
            section.resize(span.instruction + 1, Duration::ZERO);
        }
        section[span.instruction] += span.time;
        times.spans.push(span);
    }

    /// Returns the newest step of `program` in the format of Perfetto and chrome://tracing: JSON, with a track for each queue that runs
    /// instructions, and for each instruction its operator, its section, and its ONNX node.
    pub fn timeline(&self, program: &Program) -> Value {
        json!({ "displayTimeUnit": "ms", "traceEvents": self.events(program, 0, None) })
    }

    /// Returns the events of [`Self::timeline`] as those of one process. Times count from `zero`, or from the start of the step.
    pub fn events(&self, program: &Program, process: u64, zero: Option<Instant>) -> Vec<Value> {
        let times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let began = zero.zip(times.began).map_or(0.0, |(zero, began)| turns::moment(began, zero) * 1e3);
        let tracks: BTreeSet<&str> = times.spans.iter().map(|span| span.track).collect();
        let number = |track: &str| tracks.iter().position(|other| *other == track);
        let names = tracks.iter().map(|track| {
            let arguments = json!({ "name": track });
            json!({ "ph": "M", "name": "thread_name", "pid": process, "tid": number(track), "args": arguments })
        });
        let microseconds = |time: Duration| time.as_nanos() as f64 / 1e3;
        let spans = times.spans.iter().map(|span| {
            let instruction = &program.section(span.section)[span.instruction];
            json!({
                "ph": "X",
                "name": kind(instruction),
                "cat": Section::ALL[span.section as usize].1,
                "pid": process,
                "tid": number(span.track),
                "ts": began + microseconds(span.start),
                "dur": microseconds(span.time),
                "args": { "instruction": instruction.name(), "origin": instruction.origin.to_string() },
            })
        });
        names.chain(spans).collect()
    }

    /// Returns the time of each kind of kernel in a step of `microbatches`, longest first. `program` is the one whose steps were measured.
    pub fn shares(&self, program: &Program, microbatches: u64) -> Vec<Share> {
        let times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let steps = times.steps.saturating_sub(1).max(1) as f64;
        let not_hidden = times.all_not_hidden();
        let mut shares: BTreeMap<String, Share> = BTreeMap::new();
        for (section, _) in Section::ALL {
            let timed = program.section(section).iter().zip(&times.sections[section as usize]);
            for (index, (instruction, time)) in timed.enumerate() {
                let kernel = kind(instruction);
                let share = shares.entry(kernel.clone()).or_insert(Share {
                    kernel,
                    milliseconds: 0.0,
                    instructions: 0,
                    not_hidden: None,
                    flops: 0,
                });
                share.milliseconds += time.as_secs_f64() * 1e3 / steps;
                share.instructions += 1;
                let is_repeated = section == Section::Microbatch || instruction.of_microbatch;
                share.flops += matrix_flops(instruction) * if is_repeated { microbatches } else { 1 };
                if is_exchange(instruction) {
                    let own = not_hidden.get(&(section, index)).copied().unwrap_or_default();
                    *share.not_hidden.get_or_insert_default() += own * 1e3 / steps;
                }
            }
        }
        let mut shares: Vec<Share> = shares.into_values().collect();
        shares.sort_by(|a, b| b.milliseconds.total_cmp(&a.milliseconds));
        shares
    }
}

/// The track of exchanges.
const EXCHANGE: &str = "exchange";

impl Times {
    /// Returns the seconds of each exchange in which nothing else ran, including the newest step.
    fn all_not_hidden(&self) -> BTreeMap<(Section, usize), f64> {
        let seconds = |span: &Span| {
            let begin = span.start.as_secs_f64();
            schedule::Span { begin, end: begin + span.time.as_secs_f64() }
        };
        let is_exchange = |span: &&Span| span.track.starts_with(EXCHANGE);
        let mut all = self.not_hidden.clone();
        for span in self.spans.iter().filter(is_exchange) {
            let own = seconds(span);
            let computing = self.spans.iter().filter(|other| !is_exchange(other));
            *all.entry((span.section, span.instruction)).or_default() +=
                own.uncovered(computing.map(seconds));
        }
        all
    }
}

fn is_exchange(instruction: &Instruction) -> bool {
    matches!(instruction.kernel, Kernel::Collective(_))
}

/// Returns the operator's name, or one name for all chains.
fn kind(instruction: &Instruction) -> String {
    match &instruction.kernel {
        Kernel::Elementwise(_) => "elementwise".into(),
        _ => instruction.name(),
    }
}

/// Returns the floating-point operations of an instruction that multiplies matrices of more than one row and column.
fn matrix_flops(instruction: &Instruction) -> u64 {
    use ir::Op;
    let fused;
    let op = match &instruction.kernel {
        Kernel::Op(op) => op,
        Kernel::Contract(with_epilogue) => {
            fused = Op::Contract(with_epilogue.contract.clone());
            &fused
        }
        _ => return 0,
    };
    match op {
        Op::Contract(contract) => {
            let roles = contract.roles();
            if roles.rows.is_empty() || roles.columns.is_empty() {
                return 0;
            }
        }
        Op::Conv(_) | Op::ConvGradInput(_) | Op::ConvGradWeight(_) => {}
        Op::Attention(_) | Op::AttentionGrad(_) => {}
        _ => return 0,
    }
    let types = |views: &[View]| {
        let ty = |view: &View| {
            let sizes: Vec<u64> = view.layout.sizes.iter().map(|&size| size as u64).collect();
            Type::of(view.dtype, &sizes)
        };
        views.iter().map(ty).collect()
    };
    let (operands, results) = match &instruction.kernel {
        Kernel::Contract(_) => (&instruction.operands[..2], &instruction.results[..1]),
        _ => (&instruction.operands[..], &instruction.results[..]),
    };
    let signature = Signature { operands: types(operands), results: types(results) };
    op.cost(&signature).flops
}
