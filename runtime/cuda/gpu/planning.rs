//! Plans multiplications before a program runs: cuBLASLt's algorithms are tried in separate memory.

use super::blas::Problem;
use super::matmul::{self, Choices, Multiplier, Scratch};
use super::reserve::KERNELS;
use super::{Gpu, Options};
use crate::driver::DriverError;
use crate::libraries::Folders;
use crate::program::{CudaProgram, Multiply, Task};
use cudarc::cublaslt::sys::cublasLtMatmulAlgo_t;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// The choices of a GPU, for other GPUs of its kind: ranks with the same computation shall get the same numbers.
#[derive(Clone)]
pub(super) struct Chosen {
    gpu: String,
    /// The version of cuBLASLt; 0 if it was not opened.
    version: usize,
    choices: Choices,
}

/// Choices in the form in which they are sent to another process. cuBLASLt lets its algorithms be stored as numbers, for the same
/// version.
#[derive(Serialize, Deserialize)]
struct SentChoices {
    gpu: String,
    version: usize,
    choices: Vec<(Problem, Vec<[u64; 8]>)>,
}

impl Chosen {
    /// Returns the choices as bytes, for another process.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let numbers =
            |algorithms: &Vec<cublasLtMatmulAlgo_t>| algorithms.iter().map(|one| one.data).collect();
        let choices = self.choices.iter().map(|(problem, algorithms)| (*problem, numbers(algorithms)));
        let sent = SentChoices { gpu: self.gpu.clone(), version: self.version, choices: choices.collect() };
        serde_json::to_vec(&sent).unwrap_or_default()
    }

    /// Returns the choices that another process sent.
    ///
    /// # Errors
    /// The bytes are those of another version of this program.
    pub(super) fn of_bytes(bytes: &[u8]) -> Result<Self, DriverError> {
        let told = |error: serde_json::Error| DriverError(format!("rank 0 sent no algorithms: {error}"));
        let SentChoices { gpu, version, choices } = serde_json::from_slice(bytes).map_err(told)?;
        let algorithms =
            |numbers: Vec<[u64; 8]>| numbers.into_iter().map(|data| cublasLtMatmulAlgo_t { data }).collect();
        let choices = choices.into_iter().map(|(problem, numbers)| (problem, algorithms(numbers)));
        Ok(Self { gpu, version, choices: choices.collect() })
    }
}

impl Gpu {
    /// Plans the multiplications of a program that are not planned yet.
    ///
    /// # Errors
    /// cuBLASLt is not installed, or has no algorithm for a multiplication.
    pub(super) fn plan_multiplications(&mut self, program: &CudaProgram) -> Result<(), DriverError> {
        let multiplications: Vec<&Multiply> = multiplications(program).collect();
        if multiplications.is_empty() {
            return Ok(());
        }
        self.began = Instant::now();
        self.plan_each(&multiplications)
    }

    /// Returns whether cuBLASLt takes a multiplication with its epilogue. If not, the reason becomes a warning.
    pub(super) fn takes_epilogue(&mut self, multiply: &Multiply) -> bool {
        let refused = match multiply.refused_epilogue() {
            Some(reason) => Err(DriverError(reason.into())),
            None => self.context.bind().and_then(|()| self.plan_each(&[multiply])),
        };
        // Without cuBLASLt no program with a multiplication can be loaded; that error gives the reason.
        let is_there = self.multiplier.is_some();
        match refused {
            Err(error) if is_there => {
                let reason = format!("{}: {error}", multiply.epilogue.to_string().trim_start());
                self.notes.add("kernels run epilogues that cuBLASLt refuses", reason);
                false
            }
            _ => true,
        }
    }

    fn plan_each(&mut self, multiplications: &[&Multiply]) -> Result<(), DriverError> {
        let multiplier = opened(&mut self.multiplier, &self.folders, self.options)?;
        let main = &self.queues[0];
        let (free, _) = self.context.memory()?;
        // A trial also loads its kernel.
        let room = free.saturating_sub(KERNELS);
        let tried = multiplications.iter().filter(|multiply| !multiplier.knows(multiply));
        let needed = tried.map(|multiply| matmul::bytes(multiply)).filter(|bytes| *bytes <= room).max();
        // Memory may be fragmented. Without scratch, the first proposals are taken.
        let scratch = needed.and_then(|bytes| Scratch::new(bytes, main).ok());
        for multiply in multiplications {
            multiplier.plan(multiply, scratch.as_ref(), main, self.began)?;
        }
        Ok(())
    }

    /// Returns the choices that this GPU made.
    pub(super) fn chosen(&self) -> Chosen {
        let choices = self.multiplier.as_ref().map(Multiplier::choices).unwrap_or_default();
        let version = self.multiplier.as_ref().map_or(0, Multiplier::version);
        Chosen { gpu: self.facts.name.clone(), version, choices }
    }

    /// Takes over the choices of another GPU, if it is of the same kind and has the same cuBLASLt.
    ///
    /// # Errors
    /// cuBLASLt is not installed.
    pub(super) fn follow(&mut self, chosen: &Chosen) -> Result<(), DriverError> {
        if chosen.choices.is_empty() || chosen.gpu != self.facts.name {
            return Ok(());
        }
        self.context.bind()?;
        let multiplier = opened(&mut self.multiplier, &self.folders, self.options)?;
        if multiplier.version() == chosen.version {
            multiplier.follow(chosen.choices.clone());
        }
        Ok(())
    }
}

/// Opens cuBLASLt for the device whose context is current, unless it is open.
fn opened<'m>(
    multiplier: &'m mut Option<Multiplier>,
    folders: &Folders,
    options: Options,
) -> Result<&'m mut Multiplier, DriverError> {
    let open = match multiplier.take() {
        Some(open) => open,
        None => Multiplier::new(folders, options.single)?,
    };
    Ok(multiplier.insert(open))
}

/// Returns the multiplications of a program.
fn multiplications(program: &CudaProgram) -> impl Iterator<Item = &Multiply> {
    program.sections.iter().flatten().filter_map(|command| match &command.task {
        Task::Multiply(multiply) => Some(&**multiply),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::blas::{Columns, Finish};
    use ir::DType;

    #[test]
    fn choices_reach_another_process_unchanged() {
        let columns = Columns { rows: 3, columns: 5, leading: 3, apart: 0 };
        let problem = Problem {
            matrices: [columns; 4],
            transposed: [true, false],
            batch: 1,
            types: [DType::BF16, DType::F32],
            finish: Finish::Gelu { bias: true, aux: Some(8) },
            alignments: [16, 16, 16, 16, 0, 256],
        };
        let algorithms = vec![cublasLtMatmulAlgo_t { data: [u64::MAX, 1, 2, 3, 4, 5, 6, 7] }];
        let choices = Choices::from([(problem, algorithms.clone())]);
        let chosen = Chosen { gpu: "a GPU".into(), version: 130_000, choices };
        let read = Chosen::of_bytes(&chosen.to_bytes()).unwrap();
        assert_eq!((read.gpu.as_str(), read.version), ("a GPU", 130_000));
        assert_eq!(read.choices[&problem][0].data, algorithms[0].data);
        assert!(Chosen::of_bytes(b"[]").is_err());
    }
}
