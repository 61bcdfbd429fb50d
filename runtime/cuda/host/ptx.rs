//! Kernels by their PTX: NVRTC's own compilation of a kernel, run by an interpreter on the processor.
//!
//! The stand-in compiles kernels with a C++ compiler, so it proves nothing about NVRTC's code: the branches that do not compile for
//! the host, inline assembly, the places of matrices in registers. A launch that is checked runs here, too, in several orders of
//! warps and lanes, and has to leave the memory that the stand-in leaves. Every access is held to the operands, to its alignment and
//! to the rules for races ([`memory`]).
//!
//! The interpreter does not model the assembler (`ptxas`), the rounding of approximations and of the sums of `mma`, and the order of
//! memory beyond barriers.

mod agreement;
mod arithmetic;
mod instruction;
mod machine;
mod memory;
mod parse;
mod types;

use super::guarded::Guards;
use crate::cuda::libraries::Folders;
use crate::cuda::nvrtc::{Nvrtc, NvrtcError};
use crate::cuda::program::Kernel;
use agreement::{Difference, Outcome, bound, pointed_to};
pub use agreement::{Row, Table};
use instruction::Code;
use ir::DType;
use machine::{Launch, Schedule};
use memory::Region;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

/// The architecture that kernels are compiled for.
const ARCHITECTURE: &str = "compute_90a";

/// The orders in which each launch runs.
const SCHEDULES: [Schedule; 4] =
    [Schedule::Forward, Schedule::Backward, Schedule::Turns, Schedule::Random(1)];

/// The interpreter, with the kernels that were compiled and the results of their launches. Copies share both.
#[derive(Clone)]
pub struct Ptx(Arc<Shared>);

struct Shared {
    nvrtc: Nvrtc,
    /// A change of the text of a kernel: a planted fault, or nothing.
    change: fn(String) -> String,
    /// By the source.
    codes: Mutex<BTreeMap<String, Arc<Code>>>,
    table: Mutex<Table>,
}

impl fmt::Debug for Ptx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ptx").finish_non_exhaustive()
    }
}

impl Ptx {
    /// With the NVRTC that this process finds.
    ///
    /// # Errors
    /// There is none.
    pub fn open() -> Result<Self, NvrtcError> {
        Self::changing(|text| text)
    }

    /// With a fault in the text of each kernel.
    ///
    /// # Errors
    /// There is no NVRTC.
    pub fn changing(change: fn(String) -> String) -> Result<Self, NvrtcError> {
        let nvrtc = Nvrtc::open(&Folders::of_process())?;
        Ok(Self(Arc::new(Shared { nvrtc, change, codes: Mutex::default(), table: Mutex::default() })))
    }

    /// The families of kernels whose launches agreed so far.
    pub fn table(&self) -> Table {
        locked(&self.0.table).clone()
    }

    /// The instructions of a kernel.
    fn code(&self, kernel: &Kernel) -> Result<Arc<Code>, String> {
        let source = crate::cuda::nvrtc::source(kernel);
        if let Some(code) = locked(&self.0.codes).get(&source) {
            return Ok(code.clone());
        }
        let text = self.0.nvrtc.ptx(kernel, ARCHITECTURE).map_err(|error| error.to_string())?;
        let code = Arc::new(parse::parse(&(self.0.change)(text), &kernel.name)?);
        locked(&self.0.codes).insert(source, code.clone());
        Ok(code)
    }

    /// Runs a launch on the operands that it had on the stand-in, in several orders, and compares the memory.
    ///
    /// # Errors
    /// A fault of a thread; a result that differs.
    pub(super) fn check(
        &self,
        kernel: &Kernel,
        sizes: [u32; 4],
        words: &[u64],
        memory: &Snapshot,
        after: &[&[u8]],
    ) -> Result<(), String> {
        let code = self.code(kernel)?;
        let [x, y, z, threads] = sizes;
        let launch = Launch { grid: [x, y, z], threads, parameters: words };
        let pointers = memory.pointers(kernel, words);
        for schedule in SCHEDULES {
            let regions =
                memory.0.iter().map(|(address, bytes)| Region::new(*address, bytes.clone())).collect();
            let regions = machine::run(&code, &launch, regions, schedule)
                .map_err(|stop| format!("{schedule:?}: {stop}"))?;
            for (((address, before), stand_in), region) in memory.0.iter().zip(after).zip(&regions) {
                let outcome = Outcome { before, stand_in, ptx: &region.bytes };
                self.compare(kernel, &outcome, *address, &pointers)
                    .map_err(|difference| format!("{schedule:?}: {difference}"))?;
            }
        }
        Ok(())
    }

    /// Compares an operand, in the type of a pointer into it.
    fn compare(
        &self,
        kernel: &Kernel,
        outcome: &Outcome,
        address: u64,
        pointers: &[(u64, DType)],
    ) -> Result<(), Difference> {
        if outcome.before == outcome.stand_in && outcome.before == outcome.ptx {
            return Ok(());
        }
        let own = |(pointer, dtype): &(u64, DType)| {
            let offset =
                pointer.checked_sub(address).filter(|offset| *offset < outcome.before.len() as u64)?;
            Some(outcome.difference(*dtype, offset as usize))
        };
        let over = |difference: &Difference| {
            if difference.error == 0.0 { 0.0 } else { difference.error / bound(difference.dtype) }
        };
        let found = pointers.iter().filter_map(own).min_by(|one, other| over(one).total_cmp(&over(other)));
        let found = found.unwrap_or_else(|| outcome.difference(DType::U8, 0));
        if over(&found) > 1.0 {
            return Err(found);
        }
        locked(&self.0.table).add(&kernel.name, found.dtype, found.error);
        Ok(())
    }
}

/// The memory that a launch may touch, before it: the addresses of operands and tables, and their bytes.
pub(super) struct Snapshot(Vec<(u64, Vec<u8>)>);

impl Snapshot {
    /// The operands between guards with the tables, and other memory.
    pub(super) fn of(guards: &Guards, others: impl Iterator<Item = (u64, Vec<u8>)>) -> Self {
        let operands = guards.memories().map(|(address, bytes)| (address.0, bytes.to_vec()));
        Self(operands.chain(others).collect())
    }

    /// The address and the bytes of each of its parts.
    pub(super) fn places(&self) -> impl Iterator<Item = (u64, usize)> {
        self.0.iter().map(|(address, bytes)| (*address, bytes.len()))
    }

    /// The addresses that a kernel is given, with the types of their elements. A launch that is several in one has them in a table:
    /// `const auto a0 = (const float*)own[0];`.
    fn pointers(&self, kernel: &Kernel, words: &[u64]) -> Vec<(u64, DType)> {
        let parameters =
            kernel.text.split_once(&format!("{}(", kernel.name)).and_then(|(_, rest)| rest.split_once(')'));
        let of_parameter = |parameter: &str| pointed_to(parameter.rsplit_once(' ')?.0);
        let types: Vec<Option<DType>> =
            parameters.map_or(vec![], |(list, _)| list.split(", ").map(of_parameter).collect());
        let mut pointers: Vec<(u64, DType)> =
            words.iter().zip(types).filter_map(|(word, dtype)| Some((*word, dtype?))).collect();
        let of_entry = |line: &str| {
            pointed_to(line.trim().strip_prefix("const auto ")?.split_once("= (")?.1.split_once(")own[")?.0)
        };
        let entries = kernel.text.lines().filter(|line| line.contains(")own["));
        let entries: Vec<Option<DType>> = entries.map(of_entry).collect();
        let table = self.0.iter().find(|(address, _)| words.first() == Some(address));
        if let (Some((_, table)), false) = (table, entries.is_empty()) {
            let words = table
                .chunks_exact(8)
                .map(|bytes| u64::from_le_bytes(std::array::from_fn(|byte| bytes[byte])));
            pointers.extend(
                words.zip(entries.into_iter().cycle()).filter_map(|(word, dtype)| Some((word, dtype?))),
            );
        }
        pointers
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|broken| broken.into_inner())
}
