//! Kernels compiled for the processor: one shared library a program, by the C++ compiler that `CXX` names, or `c++`.

use super::fault::{self, Fault};
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
    names: Vec<String>,
    /// Ends the block that runs, from the stack of one of its fibers.
    abandon: Abandon,
    /// The threads that a library counts are its own: one launch at a time.
    library: Arc<Mutex<Library>>,
}

/// The kernels of programs, each compiled once for all that share this.
#[derive(Clone, Default)]
pub(super) struct Libraries(Arc<Mutex<BTreeMap<String, Arc<Compiled>>>>);

impl Libraries {
    /// The kernels, loaded.
    pub(super) fn of(&self, kernels: &[Kernel]) -> Result<Arc<Compiled>, DriverError> {
        let mut known = self.0.lock().unwrap_or_else(|broken| broken.into_inner());
        let source = source(kernels);
        if let Some(compiled) = known.get(&source) {
            return Ok(compiled.clone());
        }
        let compiled = Arc::new(compile(kernels, &source)?);
        known.insert(source, compiled.clone());
        Ok(compiled)
    }
}

type Entry = unsafe extern "C" fn(*const u32, *const u64, u32) -> *const c_char;
type Abandon = unsafe extern "C" fn();

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
        if text.is_null() {
            return Ok(());
        }
        // SAFETY: the text is the library's until its next launch, which the lock keeps from beginning.
        Err(Stop::Text(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()))
    }
}

impl Compiled {
    pub(super) fn function(&self, kernel: usize) -> Function {
        Function { entry: self.functions[kernel], abandon: self.abandon, library: self.library.clone() }
    }

    pub(super) fn name(&self, kernel: usize) -> &str {
        &self.names[kernel]
    }
}

/// All of a program's kernels as one source.
fn source(kernels: &[Kernel]) -> String {
    let mut files: Vec<&File> = Vec::new();
    // Each once, and after those that stand before it wherever it does.
    for file in kernels.iter().flat_map(|kernel| &kernel.files) {
        if !files.iter().any(|known| known.name == file.name) {
            files.push(file);
        }
    }
    let mut text = format!("#line 1 \"host.h\"\n{HOST}\n");
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
fn compile(kernels: &[Kernel], source: &str) -> Result<Compiled, DriverError> {
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
    let names = kernels.iter().map(|kernel| kernel.name.clone()).collect();
    Ok(Compiled { functions, names, abandon, library: Arc::new(Mutex::new(library)) })
}
