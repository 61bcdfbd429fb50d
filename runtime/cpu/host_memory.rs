//! Memory of the host beside that of a GPU. Instructions that compute there are run by the processor's kernels, on the threads of
//! rayon's global pool, which the ranks of a process share.

use super::arena::{Arena, Constants, Sizes};
use super::call::Place;
use super::kernels;
use crate::device::DeviceError;
use crate::program::{Instruction, Program, Region, Section, View};
use std::sync::Arc;

/// Memory of the host, which programs of a GPU share. Clones are the same memory.
#[derive(Clone)]
pub(crate) struct HostMemory(Arena);

/// A program with the constants that its instructions on the host read.
#[derive(Clone)]
pub(crate) struct HostProgram {
    program: Arc<Program>,
    constants: Arc<Constants>,
    rank: u64,
}

/// An instruction that runs on the host.
pub(crate) struct HostTask {
    pub(crate) memory: HostMemory,
    pub(crate) program: HostProgram,
    pub(crate) section: Section,
    /// Its place in the section.
    pub(crate) index: usize,
    /// Where the blocks of the present microbatch begin.
    pub(crate) blocks: Arc<[u64]>,
    /// Whether it adds to its results.
    pub(crate) adds: bool,
}

impl HostMemory {
    /// Zeroed memory of so many bytes.
    ///
    /// # Errors
    /// The system does not grant them.
    pub(crate) fn new(bytes: u64) -> Result<Self, DeviceError> {
        Arena::new(Sizes { device: 0, host: bytes, disk: 0 }, None).map(Self)
    }

    /// Returns the first address and the length; `None` for no bytes.
    pub(crate) fn place(&self) -> Option<(*mut u8, usize)> {
        self.0.host()
    }

    /// Sets a dense view. No instruction uses it meanwhile.
    pub(crate) fn write_dense(&mut self, view: &View, bytes: &[u8]) -> Result<(), DeviceError> {
        self.0.write_dense(view, bytes)
    }

    /// The elements of a view in row-major order. No instruction writes them meanwhile.
    pub(crate) fn read(&self, view: &View, blocks: &[u64]) -> Vec<u8> {
        self.0.read_changing(view, blocks)
    }
}

impl HostProgram {
    /// A program, as a rank runs it on the host.
    ///
    /// # Errors
    /// No memory for the constants.
    pub(crate) fn new(program: &Arc<Program>, rank: u64) -> Result<Self, DeviceError> {
        let program = program.on_rank(rank);
        let reads_constants = |instruction: &Instruction| {
            let mut operands = instruction.operands.iter();
            instruction.is_on_host() && operands.any(|view| view.region == Region::Constants)
        };
        let constants = match program.sections.iter().flatten().any(reads_constants) {
            true => Constants::new(&program),
            false => Constants::none(),
        };
        let bytes = program.memory.constants;
        let constants = constants.map_err(|source| DeviceError::Memory { bytes, source })?;
        Ok(Self { program, constants: Arc::new(constants), rank })
    }
}

impl HostTask {
    /// Runs it. No other command writes its operands or touches its results meanwhile.
    pub(crate) fn run(&self) {
        let Self { memory, program: HostProgram { program, constants, rank }, blocks, adds, .. } = self;
        let instruction = &program.section(self.section)[self.index];
        let place = Place { mesh: &program.mesh, rank: *rank, bases: blocks };
        // SAFETY: `cuda::lower` orders the commands of all streams that touch the same memory, that of the host too.
        #[allow(unsafe_code)]
        let call = unsafe { memory.0.borrow(constants, instruction, !adds, place) };
        // Only collectives fail, and none runs on the host.
        let _ = kernels::run(call, None);
    }
}
