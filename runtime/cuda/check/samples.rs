//! Every operator's samples on a device, against the interpreter: many in one program, because compiling is what takes
//! long.

use super::Subject;
use crate::check::{Difference, Microbatch, Unchecked, differences, unit};
use crate::cuda::lower::lower as lower_for_cuda;
use crate::cuda::program::{CudaProgram, Task};
use crate::device::{Device, DeviceError};
use crate::lower::{LowerOptions, Target, lower};
use crate::program::Program;
use ir::interp::Mode;
use ir::ops::samples::{Sample, Through, partial, samples};
use ir::{DType, Module, Op};
use serde::Serialize;
use std::sync::Arc;

/// The types that are checked.
pub const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Samples that fail with an error before no more are run: after some errors a GPU refuses everything.
const MOST_ERRORS: usize = 10;

/// How samples are laid out and lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// How operands reach the operator.
    pub through: Through,
    /// Whether elementwise operators stay kernels of their own.
    pub unfused: bool,
}

impl Way {
    /// Dense, strided, and in the place of an operand.
    pub const ALL: [Self; 3] = [
        Self { through: Through::Inputs, unfused: false },
        Self { through: Through::Transposes, unfused: false },
        Self { through: Through::Negations, unfused: true },
    ];

    /// The way, for people.
    pub fn name(self) -> &'static str {
        match self.through {
            Through::Inputs => "from inputs",
            Through::Transposes => "from transposed inputs",
            Through::Negations => "in place",
        }
    }
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Samples that agree with the interpreter, each counted in every type and way.
    pub passed: usize,
    /// Samples that were not run: they need cuDNN where it is not, or too much had failed.
    pub skipped: usize,
    /// Those that do not agree, or could not be run.
    pub failures: Vec<Failure>,
}

/// A sample that does not agree, or could not be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The operator, with its attributes.
    pub operator: String,
    /// Types of the operands.
    pub operands: Vec<String>,
    /// How the operands reach it.
    pub way: &'static str,
    /// What is wrong.
    pub problem: String,
}

/// The samples of all operators that are run by a device, also those whose last block is partial. Constants are not run.
pub fn all() -> Vec<Sample> {
    samples().into_iter().chain(partial()).filter(|sample| !matches!(sample.op, Op::Constant(_))).collect()
}

/// Runs samples in every type that they take, in these ways. Without cuDNN those that need it are left out.
pub fn check(subject: &impl Subject, samples: &[Sample], ways: &[Way], cudnn: bool) -> Report {
    let mut checker = Checker { subject, report: Report::default(), errors: 0 };
    for &way in ways {
        for dtype in TYPES {
            let (by_cudnn, own): (Vec<_>, Vec<_>) =
                in_type(samples, dtype).into_iter().partition(|sample| needs_cudnn(sample, way));
            checker.run(&own, dtype, way);
            if cudnn {
                checker.run(&by_cudnn, dtype, way);
            } else {
                checker.report.skipped += by_cudnn.len();
            }
        }
    }
    checker.report
}

/// The samples in a type. In f32 all of them, also those that have nothing in it.
fn in_type(samples: &[Sample], dtype: DType) -> Vec<Sample> {
    match dtype {
        DType::F32 => samples.to_vec(),
        _ => samples.iter().filter_map(|sample| sample.in_type(dtype)).collect(),
    }
}

fn options(way: Way) -> LowerOptions<'static> {
    LowerOptions { target: Target::Cuda, unfused: way.unfused, ..LowerOptions::default() }
}

/// Whether something of it is cuDNN's. What does not lower fails when it is run.
fn needs_cudnn(sample: &Sample, way: Way) -> bool {
    let (module, _) = sample.program(way.through);
    let lowered = lower(&module, &options(way)).and_then(|program| lower_for_cuda(Arc::new(program)));
    let is_library = |cuda: CudaProgram| {
        cuda.sections.iter().flatten().any(|command| matches!(command.task, Task::Library))
    };
    lowered.is_ok_and(is_library)
}

/// Samples as one program.
fn together(samples: &[Sample], through: Through) -> (Module, Microbatch) {
    let (mut module, mut inputs) = (Module::new("samples"), Microbatch::new());
    for (index, sample) in samples.iter().enumerate() {
        sample.add_to(&mut module, &mut inputs, &prefix(index), through);
    }
    (module, inputs)
}

/// What the names of a sample's inputs and outputs begin with.
fn prefix(index: usize) -> String {
    format!("{index} ")
}

struct Checker<'a, S> {
    subject: &'a S,
    report: Report,
    /// Samples that could not be run.
    errors: usize,
}

impl<S: Subject> Checker<'_, S> {
    /// Runs samples together; if they cannot be run, each half alone, down to the one that cannot.
    fn run(&mut self, samples: &[Sample], dtype: DType, way: Way) {
        if samples.is_empty() || self.errors >= MOST_ERRORS {
            self.report.skipped += samples.len();
            return;
        }
        let error = match self.differences(samples, dtype, way) {
            Ok(found) => return self.sort(samples, way, &found),
            Err(error) => error.to_string(),
        };
        if let [sample] = samples {
            self.errors += 1;
            return self.report.failures.push(failure(sample, way, error));
        }
        let before = self.report.failures.len();
        let (first, second) = samples.split_at(samples.len() / 2);
        self.run(first, dtype, way);
        self.run(second, dtype, way);
        if self.report.failures.len() == before {
            let problem = format!("with {} other samples in one program: {error}", samples.len() - 1);
            self.report.passed -= 1;
            self.report.failures.push(failure(&samples[0], way, problem));
        }
    }

    fn differences(&self, samples: &[Sample], dtype: DType, way: Way) -> Result<Vec<Difference>, Unchecked> {
        let make = |program: Program| {
            let cuda = lower_for_cuda(Arc::new(program)).map_err(DeviceError::kernel)?;
            Ok(Box::new(self.subject.with(cuda)?) as Box<dyn Device>)
        };
        // The bound of f32 is for sums, against f64; halves are storage alone, and the interpreter rounds as they do.
        let mode = if dtype == DType::F32 { Mode::Exact } else { Mode::Typed };
        let (module, inputs) = together(samples, way.through);
        differences(&make, mode, &module, &options(way), &[vec![inputs]], unit)
    }

    /// Says of each sample whether something of it differs.
    fn sort(&mut self, samples: &[Sample], way: Way, found: &[Difference]) {
        for (index, sample) in samples.iter().enumerate() {
            let own = prefix(index);
            let of_it = found.iter().find_map(|difference| {
                Some(format!("{}: {}", difference.name.strip_prefix(&own)?, difference.what))
            });
            match of_it {
                Some(problem) => self.report.failures.push(failure(sample, way, problem)),
                None => self.report.passed += 1,
            }
        }
    }
}

fn failure(sample: &Sample, way: Way, problem: String) -> Failure {
    Failure {
        operator: format!("{:?}", sample.op),
        operands: sample.operands.iter().map(|operand| operand.ty.to_string()).collect(),
        way: way.name(),
        problem,
    }
}
