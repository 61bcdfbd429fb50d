//! The budget of a kernel on a multiprocessor. No register is spilled, a launch fits a device, a thread has at most a given number of
//! registers, and a multiprocessor holds at least a given number of threads at once. The numbers depend on the file of the kernel. The
//! kernels of single operators and of models have the same budgets.
//!
//! A multiprocessor has 65536 registers for at most 2048 threads. With 32 registers a thread, all threads fit; with 64, half of them; with
//! 128, a quarter. A thread has at most 255. Kernels that wait for memory need many threads, so that others run meanwhile. Kernels that
//! multiply numbers in registers need registers instead. Shared memory and the size of a block may allow fewer threads than registers do,
//! but not fewer than the file's share.

use super::occupancy::{Table, resident};
use super::units::{CompilationUnit, for_each_unit};
use cuda::limits::REGISTERS;
use cuda::nvrtc::{Nvrtc, Resources};
use cuda::program::Kernel;

/// Half of the threads fit: for kernels that move data.
const HALF: u32 = 64;

/// A quarter of the threads fit: for kernels that hold a row or a few sums in registers.
const QUARTER: u32 = 128;

/// The most registers of a thread: for kernels that multiply tiles in registers.
const ALL: u32 = 255;

/// The most registers of a thread, by file; docs/GPU.md has them too.
pub(super) const BUDGETS: [(&str, u32); 28] = [
    ("batch_norm.cuh", HALF),
    ("compression.cuh", HALF),
    ("contract.cuh", HALF),
    ("copy.cuh", HALF),
    ("dropout.cuh", HALF),
    ("elementwise.cuh", HALF),
    ("halt.cuh", HALF),
    ("indexing.cuh", HALF),
    ("loss.cuh", HALF),
    ("optimizer.cuh", HALF),
    ("optimizer_8bit.cuh", HALF),
    ("packing.cuh", HALF),
    ("pool.cuh", HALF),
    ("ranking.cuh", HALF),
    ("recurrent.cuh", HALF),
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

/// The faults of kernels for these architectures. Prints the most registers of each file.
pub(super) fn faults<'a>(nvrtc: &Nvrtc, kernels: &'a [Kernel], architectures: &[&'a str]) -> Vec<String> {
    let compiled = for_each_unit(kernels, architectures, |unit| resources(nvrtc, unit));
    let mut table = Table::default();
    let mut faults = Vec::new();
    for (kernel, architecture, resources) in compiled {
        match resources {
            Ok(resources) => {
                table.add(own_file(kernel), architecture, resources, threads(kernel).unwrap_or_default());
                faults.extend(fault(kernel, architecture, resources));
            }
            Err(error) => faults.push(error),
        }
    }
    println!("{} kernels\n{table}", kernels.len());
    faults
}

/// The resources of each kernel of a unit, or the reason why it does not compile.
fn resources<'a>(
    nvrtc: &Nvrtc,
    unit: &CompilationUnit<'a>,
) -> Vec<(&'a Kernel, &'a str, Result<Resources, String>)> {
    let all = match unit.compile(nvrtc) {
        Ok(cubin) => Resources::of_each(&cubin.log),
        Err(error) if unit.kernels.len() == 1 => {
            return vec![(unit.kernels[0], unit.architecture, Err(error.to_string()))];
        }
        Err(_) => return unit.of_each().iter().flat_map(|unit| resources(nvrtc, unit)).collect(),
    };
    let of = |kernel: &&'a Kernel| {
        let missing = || format!("the assembler says nothing of {}", kernel.name);
        (*kernel, unit.architecture, all.get(&kernel.name).copied().ok_or_else(missing))
    };
    unit.kernels.iter().map(of).collect()
}

/// The file with the template of a kernel.
pub(super) fn own_file(kernel: &Kernel) -> &'static str {
    kernel.files.last().map_or("", |file| file.name)
}

/// The threads of a block, which a kernel's bounds have.
fn threads(kernel: &Kernel) -> Option<u32> {
    let (_, bounds) = kernel.text.split_once("KERNEL(")?;
    bounds.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The fault of a kernel, if it exceeds its budget.
pub(super) fn fault(kernel: &Kernel, architecture: &str, resources: Resources) -> Option<String> {
    let problem = problem(kernel, architecture, resources)?;
    Some(format!("{} for {architecture} {problem}\n{}", kernel.name, kernel.text))
}

fn problem(kernel: &Kernel, architecture: &str, resources: Resources) -> Option<String> {
    let own = own_file(kernel);
    let Some((_, budget)) = BUDGETS.iter().find(|(file, _)| *file == own) else {
        return Some(format!("{own} has no budget of registers"));
    };
    let Some(threads) = threads(kernel) else {
        return Some("does not say how many threads its blocks have".into());
    };
    let Resources { registers, stack, .. } = resources;
    let spills = resources.spill_stores + resources.spill_loads;
    if spills > 0 {
        return Some(format!("spills {spills} bytes"));
    }
    if stack > local(kernel) {
        return Some(format!("has {stack} bytes of local memory"));
    }
    if let Some(refusal) = resources.refusal(threads) {
        return Some(format!("cannot be launched: {refusal}"));
    }
    // The assembler reports at least one register for every compiled kernel.
    if !(1..=*budget).contains(&registers) {
        return Some(format!("takes {registers} registers, of {budget} that kernels of {own} may take"));
    }
    let (resident, least) = (resident(architecture, resources, threads), least(*budget));
    (resident < least).then(|| {
        format!("leaves {resident} threads on a multiprocessor, of {least} that kernels of {own} must leave")
    })
}

/// The bytes of local memory that a kernel may have. CUDA's own sine, cosine and tangent keep the parts of a large angle in
/// an array of 32 bytes.
fn local(kernel: &Kernel) -> u32 {
    let is_called = |function: &&str| kernel.text.contains(*function);
    if ["sin(", "cos(", "tan("].iter().any(is_called) { 32 } else { 0 }
}

/// The threads that a multiprocessor holds at least, for kernels with this budget of registers.
fn least(budget: u32) -> u32 {
    REGISTERS / budget.next_power_of_two()
}
