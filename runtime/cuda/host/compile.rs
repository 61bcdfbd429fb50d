//! Kernels compiled for the processor: one shared library a program, by the C++ compiler that `CXX` names, or `c++`.

use super::fault::{self, Fault};
use super::sectors::{Counts, Sectors};
use crate::cuda::driver::DriverError;
use crate::cuda::program::{File, Kernel};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::collections::BTreeMap;
use std::env;
use std::ffi::{CStr, c_char};
use std::fmt::Write;
use std::fs;
use std::process::Command;
use std::sync::{Arc, Mutex};

const HOST: &str = include_str!("host.h");

/// The kernels of a program, loaded.
pub(super) struct Compiled {
    functions: Vec<Entry>,
    kernels: Vec<Arc<Kernel>>,
    /// The sectors of the last launch.
    sectors: SectorsOf,
    /// The counts of sectors that a launch adds to, if they are counted.
    counts: Option<Counts>,
    /// Ends the block that runs, from the stack of one of its fibers.
    abandon: Abandon,
    /// The threads that a library counts are its own: one launch at a time.
    library: Arc<Mutex<Library>>,
}

/// The kernels of programs, each compiled once for all that share this.
#[derive(Clone, Default)]
pub(super) struct Libraries {
    known: Arc<Mutex<BTreeMap<String, Arc<Compiled>>>>,
    counts: Option<Counts>,
}

impl Libraries {
    /// Libraries whose kernels count the sectors that they touch.
    pub(super) fn counting(counts: Counts) -> Self {
        Self { counts: Some(counts), ..Self::default() }
    }

    /// The kernels, loaded.
    pub(super) fn of(&self, kernels: &[Kernel]) -> Result<Arc<Compiled>, DriverError> {
        let mut known = self.known.lock().unwrap_or_else(|broken| broken.into_inner());
        let source = source(kernels, self.counts.is_some());
        if let Some(compiled) = known.get(&source) {
            return Ok(compiled.clone());
        }
        let compiled = Arc::new(compile(kernels, &source, self.counts.clone())?);
        known.insert(source, compiled.clone());
        Ok(compiled)
    }
}

type Entry = unsafe extern "C" fn(*const u32, *const u64, u32) -> *const c_char;
type Abandon = unsafe extern "C" fn();
type SectorsOf = unsafe extern "C" fn(*mut u64);

/// Why a kernel did not come to its end.
pub(super) enum Stop {
    /// The stand-in's reason.
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
        // SAFETY: the entry was written with the kernel, and takes these. A kernel that touches memory which is not its own
        // is a fault of what is tested; guards find most of them.
        let run = || unsafe { (self.entry)(sizes.as_ptr(), words.as_ptr(), order) };
        let text = fault::caught(self.abandon, run).map_err(Stop::Fault)?;
        if let Some((counts, kernel)) = &self.counted {
            let mut numbers = [0; 2];
            // SAFETY: `host.h` has this function, which writes two numbers.
            unsafe { (self.sectors)(numbers.as_mut_ptr()) };
            counts.add(kernel, Sectors { touched: numbers[0], fewest: numbers[1] });
        }
        if text.is_null() {
            return Ok(());
        }
        // SAFETY: the text is the library's until its next launch, which the lock keeps from beginning.
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

    /// The kernel of this number, as it was given.
    pub(super) fn kernel(&self, kernel: usize) -> &Arc<Kernel> {
        &self.kernels[kernel]
    }
}

/// All of a program's kernels as one source, which counts sectors or does not.
fn source(kernels: &[Kernel], counts: bool) -> String {
    let mut files: Vec<&File> = Vec::new();
    // Each once, and after those that stand before it wherever it does.
    for file in kernels.iter().flat_map(|kernel| &kernel.files) {
        if !files.iter().any(|known| known.name == file.name) {
            files.push(file);
        }
    }
    let counts = if counts { "#define COUNT_SECTORS\n" } else { "" };
    let mut text = format!("{counts}#line 1 \"host.h\"\n{HOST}\n");
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

#[allow(unsafe_code)]
fn compile(kernels: &[Kernel], source: &str, counts: Option<Counts>) -> Result<Compiled, DriverError> {
    let failed = |what: &str, error: &dyn std::fmt::Display| DriverError(format!("{what}: {error}"));
    let folder = tempfile::tempdir().map_err(|error| failed("a temporary folder", &error))?;
    let [from, to] = ["kernels.cpp", "kernels.so"].map(|name| folder.path().join(name));
    fs::write(&from, source).map_err(|error| failed("kernels.cpp", &error))?;
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".into());
    let flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-gnu-unique"];
    // Sums stay as they are written, one rounding a step, and pointers may be of any type.
    let flags = flags.into_iter().chain(["-ffp-contract=off", "-fno-strict-aliasing", "-w"]);
    // An access whose address is not a multiple of its type's alignment is a trap, which needs no library.
    let flags = flags.chain(["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]);
    // A wait is known by the calls that lead to it: frames have pointers, and no wait is copied into several paths.
    let flags = flags.chain(["-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-thread-jumps"]);
    let output = Command::new(&compiler).args(flags).arg("-o").arg(&to).arg(&from).output();
    let output = output.map_err(|error| failed(&compiler, &error))?;
    if !output.status.success() {
        return Err(failed(&compiler, &String::from_utf8_lossy(&output.stderr)));
    }
    // SAFETY: the library is what was just compiled; it runs nothing when it is opened.
    let library = unsafe { Library::open(Some(&to), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| failed("kernels.so", &error))?;
    let function = |kernel: &Kernel| {
        // SAFETY: `source` writes this function with this type.
        let entry = unsafe { library.get::<Entry>(format!("host_{}", kernel.name).as_bytes()) };
        entry.map(|entry| *entry).map_err(|error| failed(&kernel.name, &error))
    };
    let functions = kernels.iter().map(function).collect::<Result<_, _>>()?;
    // SAFETY: `host.h` has this function with this type.
    let abandon = unsafe { library.get::<Abandon>(b"host_abandon") };
    let abandon = *abandon.map_err(|error| failed("host_abandon", &error))?;
    // SAFETY: as above.
    let sectors = unsafe { library.get::<SectorsOf>(b"host_sectors") };
    let sectors = *sectors.map_err(|error| failed("host_sectors", &error))?;
    let kernels = kernels.iter().cloned().map(Arc::new).collect();
    let library = Arc::new(Mutex::new(library));
    Ok(Compiled { functions, kernels, sectors, counts, abandon, library })
}
