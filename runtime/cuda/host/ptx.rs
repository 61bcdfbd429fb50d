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
mod conversion;
mod decode;
mod execute;
mod instruction;
mod machine;
mod memory;
mod parse;
#[cfg(test)]
mod tests;
mod types;
mod warp;

use super::guarded::Guards;
use crate::libraries::Folders;
use crate::nvrtc::{Nvrtc, NvrtcError};
use crate::program::Kernel;
use agreement::{Difference, Outcome, pointed_to};
pub use agreement::{Row, Table, family};
use instruction::Code;
use ir::DType;
pub(super) use machine::Schedule;
use machine::{Finished, Launch, Stop};
use memory::Region;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

/// The architecture that kernels are compiled for.
const ARCHITECTURE: &str = "compute_90a";

/// The limit of steps of a block.
const MOST_STEPS: u64 = 50_000_000;

/// The interpreter, with the kernels that were compiled and the results of their launches. Copies share both.
#[derive(Clone)]
pub struct Ptx(Arc<Shared>);

struct Shared {
    nvrtc: Nvrtc,
    /// The instructions of kernels, by their source.
    codes: Mutex<BTreeMap<String, Arc<Code>>>,
    table: Mutex<Table>,
    /// The waits that were left out in turn, by kernel and number. `None` if no faults are planted.
    waits: Option<Mutex<BTreeMap<(String, usize), LeftOut>>>,
}

/// The effect of a wait that is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftOut {
    /// No launch came to the wait.
    #[default]
    NeverReached,
    /// The results are right, and no fault is found.
    Unnoticed,
    /// A fault is found, or a result is wrong.
    Noticed,
}

impl fmt::Debug for Ptx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ptx").finish_non_exhaustive()
    }
}

/// A launch on the stand-in: the kernel, its blocks along x, y and z with their threads, and its arguments.
pub(super) struct CheckedLaunch<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) sizes: [u32; 4],
    pub(super) words: &'a [u64],
    /// The memory before it and after it.
    pub(super) before: &'a Snapshot,
    pub(super) after: Vec<&'a [u8]>,
}

impl Ptx {
    /// Opens NVRTC.
    ///
    /// # Errors
    /// NVRTC is not found.
    pub fn open() -> Result<Self, NvrtcError> {
        Self::with(None)
    }

    /// Opens an interpreter that plants faults: it runs each launch again without each of its waits.
    ///
    /// # Errors
    /// NVRTC is not found.
    pub fn leaving_out_waits() -> Result<Self, NvrtcError> {
        Self::with(Some(Mutex::default()))
    }

    fn with(waits: Option<Mutex<BTreeMap<(String, usize), LeftOut>>>) -> Result<Self, NvrtcError> {
        let nvrtc = Nvrtc::open(&Folders::of_process())?;
        Ok(Self(Arc::new(Shared { nvrtc, codes: Mutex::default(), table: Mutex::default(), waits })))
    }

    /// Returns the families of kernels whose launches agreed so far.
    pub fn table(&self) -> Table {
        locked(&self.0.table).clone()
    }

    /// Returns the waits that were left out so far, by kernel and number.
    pub fn waits(&self) -> BTreeMap<(String, usize), LeftOut> {
        self.0.waits.as_ref().map_or_else(BTreeMap::new, |waits| locked(waits).clone())
    }

    /// Returns the instructions of a kernel.
    fn code(&self, kernel: &Kernel) -> Result<Arc<Code>, String> {
        let source = crate::nvrtc::source(kernel);
        if let Some(code) = locked(&self.0.codes).get(&source) {
            return Ok(code.clone());
        }
        let text = self.0.nvrtc.ptx(kernel, ARCHITECTURE).map_err(|error| error.to_string())?;
        let code = Arc::new(parse::parse(&text, &kernel.name)?);
        locked(&self.0.codes).insert(source, code.clone());
        Ok(code)
    }

    /// Runs a launch on the operands that it had on the stand-in, in these orders, and compares the memory.
    ///
    /// # Errors
    /// A fault of a thread; a result that differs.
    pub(super) fn check(&self, launch: &CheckedLaunch, schedules: &[Schedule]) -> Result<(), String> {
        let code = self.code(launch.kernel)?;
        for &schedule in schedules {
            let (differences, _) =
                launch.run(&code, schedule, None).map_err(|stop| format!("{schedule:?}: {stop}"))?;
            if let Some(difference) = differences.iter().find(|difference| difference.is_beyond_bound()) {
                return Err(format!("{schedule:?}: {difference}"));
            }
            let mut table = locked(&self.0.table);
            differences.iter().for_each(|difference| table.add(&launch.kernel.name, difference));
        }
        if let Some(waits) = &self.0.waits {
            self.leave_out_waits(launch, &code, schedules, waits);
        }
        Ok(())
    }

    /// Leaves out each wait that no launch has noticed so far.
    fn leave_out_waits(
        &self,
        launch: &CheckedLaunch,
        code: &Code,
        schedules: &[Schedule],
        waits: &Mutex<BTreeMap<(String, usize), LeftOut>>,
    ) {
        for (number, place) in code.waits().into_iter().enumerate() {
            let key = (launch.kernel.name.clone(), number);
            let mut most = locked(waits).get(&key).copied().unwrap_or_default();
            for &schedule in schedules {
                if most == LeftOut::Noticed {
                    break;
                }
                most = most.max(match launch.run(code, schedule, Some(place)) {
                    Ok((_, false)) => LeftOut::NeverReached,
                    Ok((differences, true)) if !differences.iter().any(Difference::is_beyond_bound) => {
                        LeftOut::Unnoticed
                    }
                    _ => LeftOut::Noticed,
                });
            }
            locked(waits).insert(key, most);
        }
    }
}

impl CheckedLaunch<'_> {
    /// Runs the launch by its PTX. Returns the largest difference of each operand that was written, and whether a thread came to the
    /// instruction that is left out.
    fn run(
        &self,
        code: &Code,
        schedule: Schedule,
        left_out: Option<usize>,
    ) -> Result<(Vec<Difference>, bool), Stop> {
        let [x, y, z, threads] = self.sizes;
        let launch = Launch { grid: [x, y, z], threads, parameters: self.words, most_steps: MOST_STEPS };
        let Snapshot(before) = self.before;
        let regions = before.iter().map(|(address, bytes)| Region::new(*address, bytes.clone())).collect();
        let Finished { regions, reached_left_out } =
            machine::run(code, &launch, regions, schedule, left_out)?;
        let pointers = self.pointers();
        let is_of_single =
            pointers.iter().any(|(_, dtype)| matches!(dtype, DType::F32 | DType::F16 | DType::BF16));
        let mut differences = Vec::new();
        for (((address, before), stand_in), region) in before.iter().zip(&self.after).zip(&regions) {
            let outcome = Outcome { before, stand_in, ptx: &region.bytes, is_of_single };
            differences.extend(outcome.least_difference(*address, &pointers));
        }
        Ok((differences, reached_left_out))
    }

    /// Returns the addresses that the kernel is given, with the types of their elements. A combined launch has them in a table: `const
    /// auto a0 = (const float*)own[0];`.
    fn pointers(&self) -> Vec<(u64, DType)> {
        let Kernel { name, text, .. } = self.kernel;
        let parameters = text.split_once(&format!("{name}(")).and_then(|(_, rest)| rest.split_once(')'));
        let of_parameter = |parameter: &str| pointed_to(parameter.rsplit_once(' ')?.0);
        let types = parameters.map_or("", |(list, _)| list).split(", ").map(of_parameter);
        let mut pointers: Vec<(u64, DType)> =
            self.words.iter().zip(types).filter_map(|(word, dtype)| Some((*word, dtype?))).collect();
        let of_entry = |line: &str| {
            pointed_to(line.trim().strip_prefix("const auto ")?.split_once("= (")?.1.split_once(")own[")?.0)
        };
        let entries = text.lines().filter(|line| line.contains(")own[")).map(of_entry);
        let entries: Vec<Option<DType>> = entries.collect();
        let Snapshot(memory) = self.before;
        let table = memory.iter().find(|(address, _)| self.words.first() == Some(address));
        if let Some((_, table)) = table.filter(|_| !entries.is_empty()) {
            let words = table
                .chunks_exact(8)
                .map(|bytes| u64::from_le_bytes(std::array::from_fn(|byte| bytes[byte])));
            // The table of the program goes on after the arguments of this launch.
            let own = words.take(self.sizes[2] as usize * entries.len());
            pointers
                .extend(own.zip(entries.iter().cycle()).filter_map(|(word, dtype)| Some((word, (*dtype)?))));
        }
        pointers
    }
}

/// The memory that a launch may touch, before the launch: the addresses of operands and tables, and their bytes.
pub(super) struct Snapshot(Vec<(u64, Vec<u8>)>);

impl Snapshot {
    /// Returns the operands between guards, the tables, and other memory.
    pub(super) fn of(guards: &Guards, others: impl Iterator<Item = (u64, Vec<u8>)>) -> Self {
        let operands = guards.memories().map(|(address, bytes)| (address.0, bytes.to_vec()));
        Self(operands.chain(others).collect())
    }

    /// Returns the address and the number of bytes of each part.
    pub(super) fn places(&self) -> impl Iterator<Item = (u64, usize)> {
        self.0.iter().map(|(address, bytes)| (*address, bytes.len()))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|broken| broken.into_inner())
}
