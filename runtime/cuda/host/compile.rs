//! Compiles kernels for the processor: one shared library for each program, by the C++ compiler that `CXX` names, or `c++`. The code
//! that runs their threads (`host.cpp`) takes longer to compile than most kernels, so it is compiled once for each process. So is each
//! source: many devices of a process, such as those of its tests, run the same program.

use super::fault::{self, Fault};
use super::sectors::{Counts, Sectors};
use crate::driver::DriverError;
use crate::program::{File, Kernel};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::collections::BTreeMap;
use std::env;
use std::ffi::{CStr, c_char};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex};
use tempfile::TempDir;

/// A GPU's threads on the processor, as kernels see them.
const HEADER: &str = include_str!("host.h");
/// The object code that runs the threads.
static THREADS: LazyLock<Result<Vec<u8>, DriverError>> = LazyLock::new(compile_threads);
/// The libraries that this process compiled, by their sources.
static COMPILED: Mutex<BTreeMap<String, Arc<[u8]>>> = Mutex::new(BTreeMap::new());

/// The loaded kernels of a program.
pub(super) struct Compiled {
    functions: Vec<Entry>,
    kernels: Vec<Arc<Kernel>>,
    /// Returns the sectors of the last launch.
    sectors: SectorsOf,
    /// The counts of sectors that a launch adds to, if they are counted.
    counts: Option<Counts>,
    /// Ends the running block, from the stack of one of its fibers.
    abandon: Abandon,
    /// The library. Its state is for one launch at a time.
    library: Arc<Mutex<Library>>,
}

/// The kernels of programs. Each is loaded once for all that share this value.
#[derive(Clone, Default)]
pub(super) struct Libraries {
    known: Arc<Mutex<BTreeMap<String, Arc<Compiled>>>>,
    counts: Option<Counts>,
}

impl Libraries {
    /// Returns libraries whose kernels count the sectors that they touch.
    pub(super) fn counting(counts: Counts) -> Self {
        Self { counts: Some(counts), ..Self::default() }
    }

    /// Returns the loaded kernels.
    pub(super) fn of(&self, kernels: &[Kernel]) -> Result<Arc<Compiled>, DriverError> {
        let mut known = self.known.lock().unwrap_or_else(|broken| broken.into_inner());
        let source = source(kernels, self.counts.is_some());
        if let Some(compiled) = known.get(&source) {
            return Ok(compiled.clone());
        }
        let compiled = Arc::new(load(kernels, &source, self.counts.clone())?);
        known.insert(source, compiled.clone());
        Ok(compiled)
    }
}

type Entry = unsafe extern "C" fn(*const u32, *const u64, u32) -> *const c_char;
type Abandon = unsafe extern "C" fn();
type SectorsOf = unsafe extern "C" fn(*mut u64);

/// The reason why a kernel did not come to its end.
pub(super) enum Stop {
    /// A reason of the stand-in.
    Text(String),
    /// A fault of the processor.
    Fault(Fault),
}

/// A kernel that can be run.
#[derive(Clone)]
pub(super) struct Function {
    entry: Entry,
    abandon: Abandon,
    sectors: SectorsOf,
    counted: Option<(Counts, String)>,
    library: Arc<Mutex<Library>>,
}

impl Function {
    /// Runs the kernel, given the numbers of `host::run` and the arguments.
    ///
    /// # Errors
    /// Threads that do not meet where they wait; too much shared memory; an access to memory that may not be touched.
    #[allow(unsafe_code)]
    pub(super) fn run(&self, sizes: &[u32; 5], words: &[u64], order: u32) -> Result<(), Stop> {
        let _one_at_a_time = self.library.lock().unwrap_or_else(|broken| broken.into_inner());
        // SAFETY: the entry was written with the kernel, and takes these arguments. A kernel that touches memory which is not its own
        // is a fault of the tested code; guards find most of them.
        let run = || unsafe { (self.entry)(sizes.as_ptr(), words.as_ptr(), order) };
        let text = fault::caught(self.abandon, run).map_err(Stop::Fault)?;
        if let Some((counts, kernel)) = &self.counted {
            let mut numbers = [0; 2];
            // SAFETY: `host.cpp` has this function, which writes two numbers.
            unsafe { (self.sectors)(numbers.as_mut_ptr()) };
            counts.add(kernel, Sectors { touched: numbers[0], fewest: numbers[1] });
        }
        if text.is_null() {
            return Ok(());
        }
        // SAFETY: the text belongs to the library until its next launch, and the lock prevents a launch meanwhile.
        Err(Stop::Text(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()))
    }
}

impl Compiled {
    pub(super) fn function(&self, kernel: usize) -> Function {
        let counted = self.counts.clone().map(|counts| (counts, self.kernels[kernel].name.clone()));
        let Self { abandon, sectors, .. } = *self;
        let (entry, library) = (self.functions[kernel], self.library.clone());
        Function { entry, abandon, sectors, counted, library }
    }

    /// Returns the kernel of this number.
    pub(super) fn kernel(&self, kernel: usize) -> &Arc<Kernel> {
        &self.kernels[kernel]
    }
}

/// Returns all of a program's kernels as one source, which counts sectors or does not.
fn source(kernels: &[Kernel], counts: bool) -> String {
    let mut files: Vec<&File> = Vec::new();
    // Each file once, after the files that precede it.
    for file in kernels.iter().flat_map(|kernel| &kernel.files) {
        if !files.iter().any(|known| known.name == file.name) {
            files.push(file);
        }
    }
    let counts = if counts { "#define COUNT_SECTORS\n" } else { "" };
    let mut text = format!("{counts}#line 1 \"host.h\"\n{HEADER}\n");
    for file in files {
        let _ = writeln!(text, "#line 1 \"{}\"\n{}", file.name, file.text);
    }
    for kernel in kernels {
        let name = &kernel.name;
        let _ = write!(
            text,
            "#line 1 \"{name}\"\n{}extern \"C\" __attribute__((visibility(\"default\"))) const char* host_{name}(const u32* sizes, const uint64_t* words, u32 order) {{\n    \
             return host::run(&{name}, sizes, words, order);\n}}\n",
            kernel.text
        );
    }
    text
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> DriverError {
    DriverError(format!("{what}: {error}"))
}

/// Runs the C++ compiler in a folder.
fn run_compiler(folder: &Path, arguments: &[&str]) -> Result<(), DriverError> {
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".into());
    let flags = ["-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique"];
    // Sums stay as they are written, with one rounding for each step, and pointers may be of any type.
    let flags = flags.into_iter().chain(["-ffp-contract=off", "-fno-strict-aliasing", "-w"]);
    // `fma` is one instruction if the processor has it, and otherwise a function that makes the same bits.
    #[cfg(target_arch = "x86_64")]
    let flags = flags.chain(std::arch::is_x86_feature_detected!("fma").then_some("-mfma"));
    // An access whose address is not a multiple of its type's alignment is a trap, which needs no library.
    let flags = flags.chain(["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]);
    // A wait is identified by the calls that lead to it: frames have pointers, and no wait is copied into several paths.
    let flags = flags.chain(["-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-thread-jumps"]);
    let output = Command::new(&compiler).args(flags).args(arguments).current_dir(folder).output();
    let output = output.map_err(|error| failed(&compiler, &error))?;
    if !output.status.success() {
        return Err(failed(&compiler, &String::from_utf8_lossy(&output.stderr)));
    }
    Ok(())
}

/// Compiles the code that runs threads.
fn compile_threads() -> Result<Vec<u8>, DriverError> {
    let folder = temporary_folder()?;
    write(&folder.path().join("host.h"), HEADER.as_bytes())?;
    write(&folder.path().join("host.cpp"), include_bytes!("host.cpp"))?;
    run_compiler(folder.path(), &["-c", "-o", "host.o", "host.cpp"])?;
    fs::read(folder.path().join("host.o")).map_err(|error| failed("host.o", &error))
}

fn temporary_folder() -> Result<TempDir, DriverError> {
    tempfile::tempdir().map_err(|error| failed("a temporary folder", &error))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), DriverError> {
    fs::write(path, bytes).map_err(|error| failed(&path.display().to_string(), &error))
}

/// Returns the library of a source, which is compiled the first time.
fn compiled(source: &str) -> Result<Arc<[u8]>, DriverError> {
    let known = || COMPILED.lock().unwrap_or_else(|broken| broken.into_inner());
    if let Some(library) = known().get(source) {
        return Ok(library.clone());
    }
    let folder = temporary_folder()?;
    write(&folder.path().join("kernels.cpp"), source.as_bytes())?;
    write(&folder.path().join("host.o"), THREADS.as_ref().map_err(Clone::clone)?)?;
    run_compiler(folder.path(), &["-shared", "-o", "kernels.so", "host.o", "kernels.cpp"])?;
    let library = fs::read(folder.path().join("kernels.so")).map_err(|error| failed("kernels.so", &error))?;
    let library: Arc<[u8]> = library.into();
    known().insert(source.into(), library.clone());
    Ok(library)
}

/// Compiles and loads kernels. The library has a file of its own, because libraries of one file share their state.
#[allow(unsafe_code)]
fn load(kernels: &[Kernel], source: &str, counts: Option<Counts>) -> Result<Compiled, DriverError> {
    let folder = temporary_folder()?;
    let to = folder.path().join("kernels.so");
    write(&to, &compiled(source)?)?;
    // SAFETY: the library is that of these kernels; it runs nothing when it is opened.
    let library = unsafe { Library::open(Some(&to), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| failed("kernels.so", &error))?;
    let function = |kernel: &Kernel| {
        // SAFETY: `source` writes this function with this type.
        let entry = unsafe { library.get::<Entry>(format!("host_{}", kernel.name).as_bytes()) };
        entry.map(|entry| *entry).map_err(|error| failed(&kernel.name, &error))
    };
    let functions = kernels.iter().map(function).collect::<Result<_, _>>()?;
    // SAFETY: `host.cpp` has this function with this type.
    let abandon = unsafe { library.get::<Abandon>(b"host_abandon") };
    let abandon = *abandon.map_err(|error| failed("host_abandon", &error))?;
    // SAFETY: as above.
    let sectors = unsafe { library.get::<SectorsOf>(b"host_sectors") };
    let sectors = *sectors.map_err(|error| failed("host_sectors", &error))?;
    let kernels = kernels.iter().cloned().map(Arc::new).collect();
    let library = Arc::new(Mutex::new(library));
    Ok(Compiled { functions, kernels, sectors, counts, abandon, library })
}
