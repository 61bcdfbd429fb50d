//! Every kernel compiles for devices: with NVRTC, which needs no GPU.
//!
//! `TRAINYARD_CUDA_LIBS=FOLDER cargo test -p runtime --test nvrtc -- --ignored`

use ir::ops::samples::{Sample, Through, samples};
use ir::{DType, Op};
use runtime::cuda::cache::Cache;
use runtime::cuda::cubins::Cubins;
use runtime::cuda::libraries::Folders;
use runtime::cuda::nvrtc::{Cubin, Nvrtc, NvrtcError};
use runtime::cuda::program::{File, Kernel};
use runtime::lower::{LowerOptions, Target, lower};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

/// The generations that are trained on: A100, H100 and H200, B200.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90a", "sm_100a"];

/// The most that a kernel of one elementwise operator takes: half of a multiprocessor's 2048 threads find a place. A
/// thread makes up to eight elements, and as many gradients of GELU take this many.
const REGISTERS_OF_ELEMENTWISE: u32 = 64;

/// The most that a thread can have.
const REGISTERS: u32 = 255;

fn nvrtc() -> Nvrtc {
    Nvrtc::open(&Folders::of_process()).unwrap_or_else(|error| panic!("this test needs NVRTC: {error}"))
}

/// The kernels of a sample; none if one is still to be written.
fn kernels_of(sample: &Sample) -> Vec<Kernel> {
    let (module, _) = sample.program(Through::Inputs);
    let options = LowerOptions { target: Target::Cuda, ..LowerOptions::default() };
    let program = lower(&module, &options).unwrap_or_else(|error| panic!("{error}"));
    runtime::cuda::lower::lower(Arc::new(program)).map_or_else(|_| vec![], |cuda| cuda.kernels)
}

/// The kernels of all samples, in single and half precision, each once.
fn kernels() -> Vec<Kernel> {
    let mut all = BTreeMap::new();
    for sample in samples().iter().filter(|sample| !matches!(sample.op, Op::Constant(_))) {
        let halves = [DType::F16, DType::BF16].into_iter().filter_map(|half| sample.in_type(half));
        let kernels = halves.chain([sample.clone()]).flat_map(|sample| kernels_of(&sample));
        all.extend(kernels.map(|kernel| (kernel.name.clone(), kernel)));
    }
    all.into_values().collect()
}

/// What `f` makes of each, on two threads.
fn on_two_threads<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (first, second) = items.split_at(items.len() / 2);
    thread::scope(|scope| {
        let second = scope.spawn(|| second.iter().map(&f).collect::<Vec<R>>());
        let mut all: Vec<R> = first.iter().map(&f).collect();
        all.extend(second.join().expect("it does not panic"));
        all
    })
}

/// The file that a kernel is an instance of.
fn own_file(kernel: &Kernel) -> &'static str {
    kernel.files.last().map_or("", |file| file.name)
}

/// A kernel of its own, behind the file that all begin with.
fn kernel(name: &str, text: impl Into<String>) -> Kernel {
    let any = samples().iter().find_map(|sample| kernels_of(sample).pop()).expect("there are kernels");
    Kernel { name: name.into(), files: any.files[..1].to_vec(), text: text.into() }
}

/// What is wrong with a kernel.
fn fault(kernel: &Kernel, architecture: &str, compiled: &Result<Cubin, NvrtcError>) -> Option<String> {
    let resources = match compiled {
        Ok(cubin) => cubin.resources,
        Err(error) => return Some(error.to_string()),
    };
    let elementwise = own_file(kernel) == "elementwise.cuh";
    let most = if elementwise { REGISTERS_OF_ELEMENTWISE } else { REGISTERS };
    let spills = resources.spill_stores + resources.spill_loads > 0;
    // Of a kernel that was compiled, the assembler says how many registers it takes: some.
    let fits = (1..=most).contains(&resources.registers);
    (spills || !fits).then(|| format!("{}\nfor {architecture}: {resources:?}\n{}", kernel.name, kernel.text))
}

#[test]
#[ignore = "needs NVRTC"]
fn every_kernel_compiles_within_its_registers() {
    let (nvrtc, kernels) = (nvrtc(), kernels());
    assert!(kernels.len() > 100, "{} kernels", kernels.len());
    let mut most: BTreeMap<&str, (u32, &str)> = BTreeMap::new();
    let mut faults = Vec::new();
    for architecture in ARCHITECTURES {
        let compiled = on_two_threads(&kernels, |kernel| nvrtc.compile(kernel, architecture));
        for (kernel, compiled) in kernels.iter().zip(&compiled) {
            faults.extend(fault(kernel, architecture, compiled));
            let registers = compiled.as_ref().map_or(0, |cubin| cubin.resources.registers);
            let most = most.entry(own_file(kernel)).or_default();
            *most = (*most).max((registers, &kernel.name));
        }
    }
    println!("{} kernels; most registers: {most:#?}", kernels.len());
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n\n"));
}

static BROKEN: File = File {
    name: "broken.cuh",
    after: &[],
    text: "// A template.\ntemplate <class T> DEVICE T twice(T x) { return x + unknown(x); }\n",
};

#[test]
#[ignore = "needs NVRTC"]
fn an_error_names_the_kernel_and_shows_the_line() {
    let mut kernel = kernel("wrong", "KERNEL(32) wrong(float* x) {\n    x[0] = twice(x[0]);\n}\n");
    kernel.files.push(&BROKEN);
    let error = nvrtc().compile(&kernel, "sm_90a").expect_err("nothing is unknown").to_string();
    for part in [
        "the kernel `wrong` does not compile for sm_90a",
        "broken.cuh(2): error",
        "return x + unknown(x);",
        "line 2 of wrong",
    ] {
        assert!(error.contains(part), "{part} is not in:\n{error}");
    }
}

#[test]
#[ignore = "needs NVRTC"]
fn an_architecture_that_nobody_makes_is_refused() {
    let kernel = kernel("empty", "KERNEL(32) empty() {}\n");
    let error = nvrtc().compile(&kernel, "sm_12").expect_err("it is too old").to_string();
    assert!(error.contains("`empty`") && error.contains("sm_12"), "{error}");
}

/// A thread's registers run out: what the parsed numbers are for.
#[test]
#[ignore = "needs NVRTC"]
fn spills_are_seen() {
    let text = "KERNEL(1024) spills(float* x) {\n    float held[128];\n    \
        for (int i = 0; i < 128; ++i) held[i] = x[i * 1024 + threadIdx.x];\n    __syncthreads();\n    \
        for (int i = 0; i < 128; ++i) x[(127 - i) * 1024 + threadIdx.x] = held[i] * held[(i * 7) % 128];\n}\n";
    let kernel = kernel("spills", text);
    let resources = nvrtc().compile(&kernel, "sm_90a").unwrap_or_else(|error| panic!("{error}")).resources;
    assert!(resources.spill_stores > 0 && resources.spill_loads > 0, "{resources:?}");
    assert!(fault(&kernel, "sm_90a", &nvrtc().compile(&kernel, "sm_90a")).is_some());
}

#[test]
#[ignore = "needs NVRTC"]
fn cubins_are_compiled_once_and_come_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let storing =
        |i: u32| kernel(&format!("kernel_{i}"), format!("KERNEL(32) kernel_{i}(u32* x) {{ x[0] = {i}; }}\n"));
    let kernels: Vec<Kernel> = (0..5).map(storing).collect();
    let kernels: Vec<&Kernel> = kernels.iter().collect();
    let all = |architecture: &str| {
        let cubins = Cubins::new(nvrtc(), Cache::at(folder.path()), architecture);
        let all = cubins.of_all(&kernels).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(cubins.trouble(), None);
        all
    };
    let first = all("sm_90a");
    for (kernel, cubin) in kernels.iter().zip(&first) {
        assert!(cubin.starts_with(b"\x7fELF"));
        let name = kernel.name.as_bytes();
        assert!(cubin.windows(name.len()).any(|window| window == name), "{} is in its cubin", kernel.name);
    }
    assert_eq!(first, all("sm_90a"));
    let kept = || std::fs::read_dir(folder.path()).expect("it is there").count();
    assert_eq!(kept(), 5);
    all("sm_80");
    assert_eq!(kept(), 10, "another architecture's are others");
}
