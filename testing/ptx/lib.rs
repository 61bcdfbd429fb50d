//! Kernels by their PTX: NVRTC's own compilation of a kernel, run by an interpreter on the processor.
//!
//! The stand-in compiles kernels with a C++ compiler, so it proves nothing about NVRTC's code: the branches that do not compile for
//! the host, inline assembly, the places of matrices in registers. A launch that is checked runs here, too, in several orders of
//! warps and lanes, and has to leave the memory that the stand-in leaves. Every access is held to the operands, to its alignment and
//! to the rules for races (`memory`).
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
mod words;

use agreement::{Difference, Outcome, pointed_to};
pub use agreement::{Row, Table, family};
use cuda::host::{CheckedLaunch, LaunchCheck, Side};
use cuda::libraries::Folders;
use cuda::nvrtc::{self, Nvrtc, NvrtcError};
use cuda::program::Kernel;
use instruction::Code;
use ir::DType;
use machine::{Finished, Launch, Schedule, Stop};
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
        let source = nvrtc::source(kernel);
        if let Some(code) = locked(&self.0.codes).get(&source) {
            return Ok(code.clone());
        }
        let text = self.0.nvrtc.ptx(kernel, ARCHITECTURE).map_err(|error| error.to_string())?;
        let code = Arc::new(parse::parse(&text, &kernel.name)?);
        locked(&self.0.codes).insert(source, code.clone());
        Ok(code)
    }

    /// Runs a launch in two orders of threads, and compares the memory.
    fn compare(&self, launch: &CheckedLaunch, side: Side) -> Result<(), String> {
        // Each launch runs in all four orders, two of them at each side.
        let schedules = match side {
            Side::Behind => [Schedule::Forward, Schedule::Random(1)],
            Side::Before => [Schedule::Backward, Schedule::Turns],
        };
        let code = self.code(launch.kernel)?;
        for schedule in schedules {
            let (differences, _) =
                run(launch, &code, schedule, None).map_err(|stop| format!("{schedule:?}: {stop}"))?;
            if let Some(difference) = differences.iter().find(|difference| difference.is_beyond_bound()) {
                return Err(format!("{schedule:?}: {difference}"));
            }
            let mut table = locked(&self.0.table);
            differences.iter().for_each(|difference| table.add(&launch.kernel.name, difference));
        }
        if let Some(waits) = &self.0.waits {
            self.leave_out_waits(launch, &code, &schedules, waits);
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
                most = most.max(match run(launch, code, schedule, Some(place)) {
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

impl LaunchCheck for Ptx {
    /// Runs a launch on the operands that it had on the stand-in, in two orders of threads, and compares the memory. The error names a
    /// fault of a thread, or a result that differs.
    fn check(&self, launch: &CheckedLaunch, side: Side) -> Result<(), String> {
        self.compare(launch, side).map_err(|problem| format!("by its PTX: {problem}"))
    }
}

/// Runs the launch by its PTX. Returns the largest difference of each operand that was written, and whether a thread came to the
/// instruction that is left out.
fn run(
    launch: &CheckedLaunch,
    code: &Code,
    schedule: Schedule,
    left_out: Option<usize>,
) -> Result<(Vec<Difference>, bool), Stop> {
    let [x, y, z, threads] = launch.sizes;
    let grid = Launch { grid: [x, y, z], threads, parameters: launch.words, most_steps: MOST_STEPS };
    let before = launch.before;
    let regions = before.iter().map(|(address, bytes)| Region::new(*address, bytes.clone())).collect();
    let Finished { regions, reached_left_out } = machine::run(code, &grid, regions, schedule, left_out)?;
    let pointers = pointers(launch);
    let is_of_single =
        pointers.iter().any(|(_, dtype)| matches!(dtype, DType::F32 | DType::F16 | DType::BF16));
    let mut differences = Vec::new();
    for (((address, before), stand_in), region) in before.iter().zip(&launch.after).zip(&regions) {
        let outcome = Outcome { before, stand_in, ptx: &region.bytes, is_of_single };
        differences.extend(outcome.least_difference(*address, &pointers));
    }
    Ok((differences, reached_left_out))
}

/// Returns the addresses that the kernel is given, with the types of their elements. A combined launch has them in a table: `const
/// auto a0 = (const float*)own[0];`.
fn pointers(launch: &CheckedLaunch) -> Vec<(u64, DType)> {
    let Kernel { name, text, .. } = launch.kernel;
    let parameters = text.split_once(&format!("{name}(")).and_then(|(_, rest)| rest.split_once(')'));
    let of_parameter = |parameter: &str| pointed_to(parameter.rsplit_once(' ')?.0);
    let types = parameters.map_or("", |(list, _)| list).split(", ").map(of_parameter);
    let mut pointers: Vec<(u64, DType)> =
        launch.words.iter().zip(types).filter_map(|(word, dtype)| Some((*word, dtype?))).collect();
    let of_entry = |line: &str| {
        pointed_to(line.trim().strip_prefix("const auto ")?.split_once("= (")?.1.split_once(")own[")?.0)
    };
    let entries = text.lines().filter(|line| line.contains(")own[")).map(of_entry);
    let entries: Vec<Option<DType>> = entries.collect();
    let table = launch.before.iter().find(|(address, _)| launch.words.first() == Some(address));
    if let Some((_, table)) = table.filter(|_| !entries.is_empty()) {
        let words =
            table.chunks_exact(8).map(|bytes| u64::from_le_bytes(std::array::from_fn(|byte| bytes[byte])));
        // The table of the program goes on after the arguments of this launch.
        let own = words.take(launch.sizes[2] as usize * entries.len());
        pointers.extend(own.zip(entries.iter().cycle()).filter_map(|(word, dtype)| Some((word, (*dtype)?))));
    }
    pointers
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|broken| broken.into_inner())
}
