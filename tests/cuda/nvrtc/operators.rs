//! The kernels of single operators, and planted faults that the check of budgets must find.

use super::budget::faults;
use cuda::cache::Cache;
use cuda::cubins::Cubins;
use cuda::libraries::Folders;
use cuda::nvrtc::Nvrtc;
use cuda::program::{File, Kernel};
use ir::samples::{Sample, Through, samples};
use ir::{DType, Op};
use program::lower::{LowerOptions, lower};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The GPU generations that are used for training: A100, H100 and H200, B200.
pub(super) const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90a", "sm_100a"];

pub(super) fn nvrtc() -> Nvrtc {
    Nvrtc::open(&Folders::of_process()).unwrap_or_else(|error| panic!("this test needs NVRTC: {error}"))
}

/// The kernels of a sample; none if a kernel is still to be written.
pub(crate) fn kernels_of(sample: &Sample) -> Vec<Kernel> {
    let (module, _) = sample.program(Through::Inputs);
    let options = LowerOptions::of(cuda::TARGET);
    let program = lower(&module, &options).unwrap_or_else(|error| panic!("{error}"));
    cuda::lower::lower(Arc::new(program)).map_or_else(|_| vec![], |cuda| cuda.kernels)
}

/// The kernels of all samples, in single and half precision, each once.
pub(crate) fn kernels() -> Vec<Kernel> {
    let mut all = BTreeMap::new();
    for sample in samples().iter().filter(|sample| !matches!(sample.op, Op::Constant(_))) {
        let halves = [DType::F16, DType::BF16].into_iter().filter_map(|half| sample.in_type(half));
        let kernels = halves.chain([sample.clone()]).flat_map(|sample| kernels_of(&sample));
        all.extend(kernels.map(|kernel| (kernel.name.clone(), kernel)));
    }
    all.into_values().collect()
}

/// A kernel for a test, with the file that all kernels begin with.
fn kernel(name: &str, text: impl Into<String>) -> Kernel {
    let any = samples().iter().find_map(|sample| kernels_of(sample).pop()).expect("there are kernels");
    Kernel { name: name.into(), files: any.files[..1].to_vec(), text: text.into() }
}

#[test]
#[ignore = "night: kernels"]
fn every_kernel_compiles_within_its_budget() {
    let kernels = kernels();
    assert!(kernels.len() > 100, "{} kernels", kernels.len());
    let faults = faults(&nvrtc(), &kernels, &ARCHITECTURES);
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

/// An elementwise kernel that holds `numbers` numbers in registers at once.
fn holding(name: &str, threads: u32, numbers: u32) -> Kernel {
    let text = format!(
        "KERNEL({threads}) {name}(float* x) {{\n    float held[{numbers}];\n    \
         for (int i = 0; i < {numbers}; ++i) held[i] = x[i * {threads} + threadIdx.x];\n    __syncthreads();\n    \
         for (int i = 0; i < {numbers}; ++i) x[({numbers} - 1 - i) * {threads} + threadIdx.x] = held[i] * held[(i * 7) % {numbers}];\n}}\n"
    );
    let elementwise = |kernel: &Kernel| kernel.name.starts_with("chain_");
    let chain = kernels().into_iter().find(elementwise).expect("there are chains");
    Kernel { name: name.into(), text, ..chain }
}

/// A kernel whose registers run out, or are above its budget, is a fault; other kernels are not.
#[test]
#[ignore = "needs NVRTC"]
fn spills_and_too_many_registers_are_found() {
    let kernels = [holding("spills", 1024, 128), holding("takes_many", 256, 90), holding("is_small", 256, 8)];
    let faults = faults(&nvrtc(), &kernels, &["sm_90a"]);
    let [spills, many] = &faults[..] else { panic!("{faults:#?}") };
    assert!(spills.starts_with("spills for sm_90a spills "), "{spills}");
    assert!(many.starts_with("takes_many for sm_90a takes "), "{many}");
    assert!(many.contains("kernels of elementwise.cuh may take"), "{many}");
}

/// A kernel of the same file with this text.
fn with_text(name: &str, text: impl Into<String>) -> Kernel {
    Kernel { name: name.into(), text: text.into(), ..holding("", 256, 8) }
}

/// Asserts that exactly one fault is found in a kernel, with this text.
fn assert_found(kernel: Kernel, part: &str) {
    let faults = faults(&nvrtc(), &[kernel], &["sm_90a"]);
    let [fault] = &faults[..] else { panic!("{part}: {faults:#?}") };
    assert!(fault.contains(part), "{part} is not in {fault}");
}

/// An array with an index that is unknown at compile time cannot be in registers.
#[test]
#[ignore = "needs NVRTC"]
fn local_memory_is_found() {
    let text = "KERNEL(256) is_local(float* x) {\n    float held[64] = {};\n    \
         for (int i = 0; i < 64; ++i) held[(int)x[i] & 63] += x[i * 256 + threadIdx.x];\n    \
         x[threadIdx.x] = held[(int)x[64] & 63];\n}\n";
    assert_found(with_text("is_local", text), "bytes of local memory");
}

/// A multiprocessor holds few blocks of one warp with much shared memory.
#[test]
#[ignore = "needs NVRTC"]
fn too_few_threads_at_once_are_found() {
    let text = "KERNEL(32) is_alone(float* x) {\n    SHARED(float, held, 8192);\n    held[threadIdx.x] = x[threadIdx.x];\n    \
         __syncthreads();\n    x[threadIdx.x] = held[(int)x[0] & 31];\n}\n";
    assert_found(
        with_text("is_alone", text),
        "leaves 192 threads on a multiprocessor, of 1024 that kernels of elementwise",
    );
}

#[test]
#[ignore = "needs NVRTC"]
fn too_much_shared_memory_is_found() {
    let text = "KERNEL(256) is_large(float* x) {\n    SHARED(float, held, 12289);\n    held[threadIdx.x] = x[threadIdx.x];\n    \
         __syncthreads();\n    x[threadIdx.x] = held[(int)x[0] & 255];\n}\n";
    assert_found(with_text("is_large", text), "49156 bytes of shared memory, and CUDA allows 49152");
}

/// The compiler obeys the launch bounds that it is told. A launch with more threads than the bounds may need too many registers.
#[test]
#[ignore = "needs NVRTC"]
fn too_many_registers_of_a_block_are_found() {
    let kernel = holding("takes_all", 256, 90);
    let text = kernel.text.replace("KERNEL(256)", "// KERNEL(1024)\nextern \"C\" __global__ void");
    assert_found(with_text("takes_all", text), "registers, and CUDA allows 65536");
}

#[test]
#[ignore = "needs NVRTC"]
fn a_kernel_without_bounds_is_found() {
    let text = "extern \"C\" __global__ void is_unbound(float* x) { x[threadIdx.x] = 1; }\n";
    assert_found(with_text("is_unbound", text), "does not say how many threads");
}

/// If kernels are compiled together, the error names the kernel that does not compile.
#[test]
#[ignore = "needs NVRTC"]
fn a_kernel_that_does_not_compile_is_found_among_others() {
    let sound = holding("is_small", 256, 8);
    let broken = Kernel {
        name: "is_broken".into(),
        text: "KERNEL(32) is_broken() { unknown(); }\n".into(),
        ..sound.clone()
    };
    let faults = faults(&nvrtc(), &[sound, broken], &["sm_90a"]);
    let [fault] = &faults[..] else { panic!("{faults:#?}") };
    assert!(fault.contains("`is_broken` does not compile for sm_90a"), "{fault}");
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
