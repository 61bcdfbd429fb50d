//! Multiplications are planned before a program runs: cuBLASLt's algorithms are tried in memory of their own.

use super::matmul::{self, Choices, Multiplier, Scratch};
use super::reserve::KERNELS;
use super::{Gpu, Options};
use crate::cuda::driver::DriverError;
use crate::cuda::libraries::Folders;
use crate::cuda::program::{CudaProgram, Multiply, Task};
use std::time::Instant;

/// The choices of a GPU, for other GPUs of its kind: ranks that compute the same shall get the same numbers.
#[derive(Clone)]
pub(super) struct Chosen {
    gpu: String,
    choices: Choices,
}

impl Gpu {
    /// Plans the multiplications of a program that are not planned yet.
    ///
    /// # Errors
    /// cuBLASLt is not there, or has no algorithm for one.
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
        // Without cuBLASLt no program with a multiplication can be loaded, which says why.
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
        // A trial loads its kernel.
        let room = free.saturating_sub(KERNELS);
        let tried = multiplications.iter().filter(|multiply| !multiplier.knows(multiply));
        let needed = tried.map(|multiply| matmul::bytes(multiply)).filter(|bytes| *bytes <= room).max();
        // Memory may be in pieces. Without it the first proposals are taken.
        let scratch = needed.and_then(|bytes| Scratch::new(bytes, main).ok());
        for multiply in multiplications {
            multiplier.plan(multiply, scratch.as_ref(), main, self.began)?;
        }
        Ok(())
    }

    /// Returns the choices that this GPU made.
    pub(super) fn chosen(&self) -> Chosen {
        let choices = self.multiplier.as_ref().map(Multiplier::choices).unwrap_or_default();
        Chosen { gpu: self.facts.name.clone(), choices }
    }

    /// Takes over the choices of another GPU, if it is of the same kind.
    ///
    /// # Errors
    /// cuBLASLt is not there.
    pub(super) fn follow(&mut self, chosen: &Chosen) -> Result<(), DriverError> {
        if chosen.choices.is_empty() || chosen.gpu != self.facts.name {
            return Ok(());
        }
        self.context.bind()?;
        opened(&mut self.multiplier, &self.folders, self.options)?.follow(chosen.choices.clone());
        Ok(())
    }
}

/// Opens cuBLASLt where it is not open, on the device whose context is current.
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

/// The multiplications of a program.
fn multiplications(program: &CudaProgram) -> impl Iterator<Item = &Multiply> {
    program.sections.iter().flatten().filter_map(|command| match &command.task {
        Task::Multiply(multiply) => Some(&**multiply),
        _ => None,
    })
}
