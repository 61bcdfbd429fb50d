//! Checks every operator's samples on a device against the interpreter. Many samples share a program, because compilation takes most of
//! the time.

use super::Subject;
use super::search::{Fault, Report, Runner, check as search};
use crate::lower::lower as lower_for_cuda;
use crate::program::{CudaProgram, Task};
use ir::interp::Mode;
use ir::samples::{Sample, Through, partial, samples};
use ir::{DType, Module, Op};
use program::Program;
use program::check::{Difference, Microbatch, Unchecked, differences, unit};
use program::device::{Device, DeviceError};
use program::lower::{LowerOptions, lower};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

pub use super::batch::Batch;

/// The types in which samples are checked.
pub const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// The layout and the lowering options of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleVariant {
    /// The way in which operands reach the operator.
    pub through: Through,
    /// Whether elementwise operators stay kernels of their own.
    pub unfused: bool,
}

impl SampleVariant {
    /// Dense operands, strided operands, and results in the place of an operand.
    pub const ALL: [Self; 3] = [
        Self { through: Through::Inputs, unfused: false },
        Self { through: Through::Transposes, unfused: false },
        Self { through: Through::Negations, unfused: true },
    ];

    /// Returns the variant's name for messages.
    pub fn name(self) -> &'static str {
        match self.through {
            Through::Inputs => "from inputs",
            Through::Transposes => "from transposed inputs",
            Through::Negations => "in place",
        }
    }
}

/// Whether a sample agrees with the interpreter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The sample's index in the list of samples.
    pub sample: usize,
    /// The first difference. `None` if the sample agrees.
    pub problem: Option<String>,
}

/// Returns the samples of all operators that a device runs, also the samples whose last block is partial. Constants do not run, and
/// copies are between memories.
pub fn all() -> Vec<Sample> {
    let runs = |sample: &Sample| !matches!(sample.op, Op::Constant(_) | Op::Copy(_));
    samples().into_iter().chain(partial()).filter(runs).collect()
}

/// Runs samples in this process, in every type that they take, in these variants. Without cuDNN, samples that need it are skipped. On a
/// GPU a fault spoils all later samples of the process; see [`super::process`].
pub fn check(subject: &impl Subject, samples: &[Sample], ways: &[SampleVariant], cudnn: bool) -> Report {
    let (batches, skipped) = batches(samples, ways, cudnn);
    let mut report = search(&mut InProcess { subject, samples }, samples, &batches, "", &mut |_| ());
    report.skipped += skipped;
    report
}

/// Returns the batches of these samples, and the number of samples that are skipped because cuDNN is not installed. Samples that need
/// cuDNN have batches of their own.
pub fn batches(samples: &[Sample], ways: &[SampleVariant], cudnn: bool) -> (Vec<Batch>, usize) {
    let (mut batches, mut skipped) = (Vec::new(), 0);
    for &way in ways {
        for dtype in TYPES {
            let typed =
                (0..samples.len()).filter_map(|index| Some((index, in_type(&samples[index], dtype)?)));
            let (by_cudnn, own): (Vec<_>, Vec<_>) = typed.partition(|(_, sample)| needs_cudnn(sample, way));
            let mut add = |chosen: Vec<(usize, Sample)>| {
                let samples: Vec<usize> = chosen.into_iter().map(|(index, _)| index).collect();
                batches.extend((!samples.is_empty()).then_some(Batch { way, dtype, samples }));
            };
            add(own);
            if cudnn {
                add(by_cudnn);
            } else {
                skipped += by_cudnn.len();
            }
        }
    }
    (batches, skipped)
}

/// Runs a batch as one program. `loaded` is called after the kernels are compiled, before anything runs.
///
/// # Errors
/// A sample cannot be lowered or compiled, or the device refuses it.
pub fn run(
    subject: &impl Subject,
    samples: &[Sample],
    batch: &Batch,
    loaded: &dyn Fn(),
) -> Result<Vec<Verdict>, Unchecked> {
    let chosen: Vec<Sample> =
        batch.samples.iter().filter_map(|&index| in_type(&samples[index], batch.dtype)).collect();
    let make = |program: Program| {
        let cuda = lower_for_cuda(Arc::new(program)).map_err(DeviceError::kernel)?;
        let device = Box::new(subject.with(cuda)?) as Box<dyn Device>;
        loaded();
        Ok(device)
    };
    // The bound of f32 is for sums, compared with f64. Halves are only stored, and the interpreter rounds as they do.
    let mode = if batch.dtype == DType::F32 { Mode::Exact } else { Mode::Typed };
    let (module, inputs) = together(&chosen, batch.way.through);
    let found = differences(&make, mode, &module, &options(batch.way), &[vec![inputs]], unit)?;
    let verdict = |(place, &sample): (usize, &usize)| Verdict { sample, problem: problem(place, &found) };
    Ok(batch.samples.iter().enumerate().map(verdict).collect())
}

/// Returns the first difference of the sample at a place in its batch.
fn problem(place: usize, found: &[Difference]) -> Option<String> {
    let own = prefix(place);
    found
        .iter()
        .find_map(|difference| Some(format!("{}: {}", difference.name.strip_prefix(&own)?, difference.what)))
}

/// Runs batches in this process.
struct InProcess<'a, S> {
    subject: &'a S,
    samples: &'a [Sample],
}

impl<S: Subject> Runner for InProcess<'_, S> {
    fn run(&mut self, batch: &Batch) -> Result<Vec<Verdict>, Fault> {
        let verdicts = run(self.subject, self.samples, batch, &|| ());
        verdicts.map_err(|error| Fault { problem: error.to_string(), hung: false })
    }
}

/// Returns the sample in a type. In f32 every sample is returned, also one that has no f32 tensor.
pub(super) fn in_type(sample: &Sample, dtype: DType) -> Option<Sample> {
    if dtype == DType::F32 { Some(sample.clone()) } else { sample.in_type(dtype) }
}

fn options(way: SampleVariant) -> LowerOptions<'static> {
    LowerOptions { unfused: way.unfused, ..LowerOptions::of(crate::TARGET) }
}

/// Whether cuDNN runs a part of the sample. A sample that cannot be lowered fails when it is run.
fn needs_cudnn(sample: &Sample, way: SampleVariant) -> bool {
    let (module, _) = sample.program(way.through);
    let lowered = lower(&module, &options(way)).and_then(|program| lower_for_cuda(Arc::new(program)));
    let is_library = |cuda: CudaProgram| {
        cuda.sections.iter().flatten().any(|command| matches!(command.task, Task::Library))
    };
    lowered.is_ok_and(is_library)
}

/// Returns samples as one program.
fn together(samples: &[Sample], through: Through) -> (Module, Microbatch) {
    let (mut module, mut inputs) = (Module::new("samples"), Microbatch::new());
    for (index, sample) in samples.iter().enumerate() {
        sample.add_to(&mut module, &mut inputs, &prefix(index), through);
    }
    (module, inputs)
}

/// Returns the text with which the names of a sample's inputs and outputs begin.
fn prefix(index: usize) -> String {
    format!("{index} ")
}
