//! What kernels may take of a multiprocessor: nothing spills, and a thread has at most so many registers, by the file that its
//! kernel is an instance of. The kernels of single operators and those of models are held to the same.
//!
//! A multiprocessor has 65536 registers for at most 2048 threads: of 32 a thread all find a place, of 64 half of them, of
//! 128 a quarter; and a thread has 255 at most. Kernels that wait for memory need many threads, to do something meanwhile;
//! kernels that multiply what they hold need registers instead.

use runtime::cuda::nvrtc::{Nvrtc, Resources};
use runtime::cuda::program::Kernel;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;

/// Half of the threads find a place: what passes memory on.
const HALF: u32 = 64;

/// A quarter: what holds a row or a few sums in registers.
const QUARTER: u32 = 128;

/// All that a thread can have: what multiplies tiles in registers.
const ALL: u32 = 255;

/// The most registers of a thread, by file; docs/GPU.md has them too.
const BUDGETS: [(&str, u32); 23] = [
    ("batch_norm.cuh", HALF),
    ("contract.cuh", HALF),
    ("copy.cuh", HALF),
    ("dropout.cuh", HALF),
    ("elementwise.cuh", HALF),
    ("halt.cuh", HALF),
    ("indexing.cuh", HALF),
    ("loss.cuh", HALF),
    ("optimizer.cuh", HALF),
    ("pool.cuh", HALF),
    ("reduce.cuh", HALF),
    ("rotary.cuh", HALF),
    ("scatter.cuh", HALF),
    ("shape.cuh", HALF),
    ("attention.cuh", QUARTER),
    ("det.cuh", QUARTER),
    ("experts.cuh", QUARTER),
    ("experts_mma.cuh", QUARTER),
    ("norm.cuh", QUARTER),
    ("softmax.cuh", QUARTER),
    ("attention_grad.cuh", ALL),
    ("attention_mma.cuh", ALL),
    ("attention_mma_grad.cuh", ALL),
];

/// Kernels that are compiled together: what stands before them is read once.
const TOGETHER: usize = 12;

/// The kernels of a file, compiled for an architecture together.
struct Part<'a> {
    kernels: &'a [&'a Kernel],
    architecture: &'a str,
}

/// What is wrong with kernels for these architectures. Prints the most registers of each file.
pub(crate) fn faults(nvrtc: &Nvrtc, kernels: &[Kernel], architectures: &[&str]) -> Vec<String> {
    let mut by_files: BTreeMap<Vec<&str>, Vec<&Kernel>> = BTreeMap::new();
    for kernel in kernels {
        by_files.entry(kernel.files.iter().map(|file| file.name).collect()).or_default().push(kernel);
    }
    let parts = by_files.values().flat_map(|kernels| kernels.chunks(TOGETHER));
    let parts = parts
        .flat_map(|kernels| architectures.iter().map(move |&architecture| Part { kernels, architecture }));
    let parts = Mutex::new(parts);
    let next = || parts.lock().expect("no thread panics with it").next();
    let take = || std::iter::from_fn(next).flat_map(|part| part.compiled(nvrtc)).collect::<Vec<_>>();
    let compiled = thread::scope(|scope| {
        let other = scope.spawn(take);
        let mut compiled = take();
        compiled.extend(other.join().expect("it does not panic"));
        compiled
    });
    let mut most: BTreeMap<&str, u32> = BTreeMap::new();
    let mut faults = Vec::new();
    for (kernel, architecture, resources) in compiled {
        match resources {
            Ok(resources) => {
                let most = most.entry(own_file(kernel)).or_default();
                *most = resources.registers.max(*most);
                faults.extend(fault(kernel, architecture, resources));
            }
            Err(error) => faults.push(error),
        }
    }
    println!("{} kernels; most registers: {most:#?}", kernels.len());
    faults
}

impl<'a> Part<'a> {
    /// What each kernel takes, or why it does not compile.
    fn compiled(&self, nvrtc: &Nvrtc) -> Vec<(&'a Kernel, &'a str, Result<Resources, String>)> {
        let Ok(together) = nvrtc.compile(&joined(self.kernels), self.architecture) else {
            // Which of them it is.
            let alone = |kernel: &&'a Kernel| {
                let compiled = nvrtc.compile(kernel, self.architecture);
                let resources = compiled.map(|cubin| cubin.resources).map_err(|error| error.to_string());
                (*kernel, self.architecture, resources)
            };
            return self.kernels.iter().map(alone).collect();
        };
        let all = Resources::of_each(&together.log);
        let of = |kernel: &&'a Kernel| {
            let missing = || format!("the assembler says nothing of {}", kernel.name);
            (*kernel, self.architecture, all.get(&kernel.name).copied().ok_or_else(missing))
        };
        self.kernels.iter().map(of).collect()
    }
}

/// Kernels of a file as one.
fn joined(kernels: &[&Kernel]) -> Kernel {
    let texts = kernels.iter().map(|kernel| format!("#line 1 \"{}\"\n{}", kernel.name, kernel.text));
    Kernel { text: texts.collect(), ..kernels[0].clone() }
}

/// The file that a kernel is an instance of.
fn own_file(kernel: &Kernel) -> &'static str {
    kernel.files.last().map_or("", |file| file.name)
}

/// What is wrong with what a kernel takes.
fn fault(kernel: &Kernel, architecture: &str, resources: Resources) -> Option<String> {
    let own = own_file(kernel);
    let budget = BUDGETS.iter().find(|(file, _)| *file == own).map(|(_, budget)| *budget);
    let spills = resources.spill_stores + resources.spill_loads;
    let problem = match budget {
        None => format!("{own} has no budget of registers"),
        Some(_) if spills > 0 => format!("spills {spills} bytes"),
        // Of a kernel that was compiled, the assembler says how many registers it takes: some.
        Some(budget) if !(1..=budget).contains(&resources.registers) => {
            format!("takes {} registers, of {budget} that kernels of {own} may take", resources.registers)
        }
        Some(_) => return None,
    };
    Some(format!("{} for {architecture} {problem}\n{}", kernel.name, kernel.text))
}
