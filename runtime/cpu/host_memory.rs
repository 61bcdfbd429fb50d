//! The memories beside a GPU's: the host's memory, and a file. The processor's kernels run the instructions that compute on the host, on
//! the threads of rayon's global pool, which the ranks of a process share. Copies between the host and the file run there too.
//!
//! They run while the GPU works, and nothing waits for a single one of them. So the first error of the disk is kept: no instruction runs on
//! the host after it, and [`HostMemory::check`] returns it to the code that waits for the GPU.

use super::arena::{Arena, Constants, Sizes};
use super::bf16::Bf16Products;
use super::call::OnDevice;
use super::kernels;
use program::device::DeviceError;
use program::{Instruction, Program, Region, Section, View};
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Memory of the host and a file, which programs of a GPU share. Clones share both.
#[derive(Clone)]
pub struct HostMemory {
    arena: Arena,
    /// The first error of the disk in an instruction.
    failure: Arc<OnceLock<io::Error>>,
}

/// A program with the constants that its instructions on the host read.
#[derive(Clone)]
pub struct HostProgram {
    program: Arc<Program>,
    constants: Arc<Constants>,
    rank: u64,
}

/// An instruction that runs on the host.
pub struct HostTask {
    /// The memory in which it works.
    pub memory: HostMemory,
    /// The program that has it.
    pub program: HostProgram,
    /// Its section.
    pub section: Section,
    /// The instruction's place in the section.
    pub index: usize,
    /// The start of each block of the present microbatch.
    pub blocks: Arc<[u64]>,
    /// Whether the instruction adds to its results.
    pub adds: bool,
}

impl HostMemory {
    /// Makes zeroed memory and a file for these programs. The file is in `folder`, or in the system's folder of temporary files without
    /// one.
    ///
    /// # Errors
    /// The system does not grant the memory; no file of this size can be made in the folder.
    pub fn new<'p>(
        programs: impl Iterator<Item = &'p Program> + Clone,
        folder: Option<&Path>,
    ) -> Result<Self, DeviceError> {
        let largest = |bytes: fn(&Program) -> u64| programs.clone().map(bytes).max().unwrap_or(0);
        let (host, disk) =
            (largest(|program| program.memory.host.total), largest(|program| program.memory.disk.total));
        let arena = Arena::new(Sizes { device: 0, host, disk }, folder)?;
        Ok(Self { arena, failure: Arc::default() })
    }

    /// Returns the address and the length of the host's memory; `None` for no bytes.
    pub fn place(&self) -> Option<(*mut u8, usize)> {
        self.arena.host()
    }

    /// Writes a dense view. No instruction uses it meanwhile.
    ///
    /// # Errors
    /// Errors of the disk.
    pub fn write_dense(&mut self, view: &View, bytes: &[u8]) -> Result<(), DeviceError> {
        self.arena.write_dense(view, bytes)
    }

    /// Returns the elements of a view in row-major order. No instruction writes them meanwhile.
    ///
    /// # Errors
    /// Errors of the disk.
    pub fn read(&self, view: &View, blocks: &[u64]) -> Result<Vec<u8>, DeviceError> {
        self.arena.read_changing(view, blocks)
    }

    /// Returns the first error of the disk in an instruction, if there was one.
    ///
    /// # Errors
    /// That error. All results that were computed after it are invalid.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.failure.get().map_or(Ok(()), |cause| Err(DeviceError::Disk(again(cause))))
    }
}

/// Returns a copy of an error.
fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

impl HostProgram {
    /// Prepares a program to run on the host as a rank.
    ///
    /// # Errors
    /// There is no memory for the constants.
    pub fn new(program: &Arc<Program>, rank: u64) -> Result<Self, DeviceError> {
        let program = program.on_rank(rank);
        let reads_constants = |instruction: &Instruction| {
            let mut operands = instruction.operands.iter();
            instruction.is_on_host() && operands.any(|view| view.region == Region::Constants)
        };
        let constants = if program.sections.iter().flatten().any(reads_constants) {
            Constants::new(&program)
        } else {
            Constants::none()
        };
        let bytes = program.memory.constants;
        let constants = constants.map_err(|source| DeviceError::Memory { bytes, source })?;
        Ok(Self { program, constants: Arc::new(constants), rank })
    }
}

impl HostTask {
    /// Runs the instruction, unless an earlier one had an error of the disk. No other command writes its operands or touches its results
    /// meanwhile.
    pub fn run(&self) {
        let Self { memory, program: HostProgram { program, constants, rank }, blocks, adds, .. } = self;
        if memory.failure.get().is_some() {
            return;
        }
        let instruction = &program.section(self.section)[self.index];
        let mut touched = instruction.operands.iter().chain(&instruction.results);
        if touched.any(|view| view.region == Region::Disk) {
            // SAFETY: as below.
            #[allow(unsafe_code)]
            let copied = unsafe { memory.arena.copy_with_file(constants, instruction, blocks) };
            if let Err(cause) = copied {
                // The first of several errors is kept.
                let _ = memory.failure.set(cause);
            }
            return;
        }
        let products = Bf16Products::Widened;
        let device = OnDevice { mesh: &program.mesh, rank: *rank, products, bases: blocks };
        // SAFETY: `cuda::lower` orders the commands of all streams that touch the same memory, including the host's and the file.
        #[allow(unsafe_code)]
        let call = unsafe { memory.arena.borrow(constants, instruction, !adds, device) };
        let done = kernels::run(call, None);
        debug_assert!(done.is_ok(), "only collectives fail, and none runs on the host");
    }
}
