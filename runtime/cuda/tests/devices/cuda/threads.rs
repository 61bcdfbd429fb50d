//! Faults planted in how a kernel's threads wait, how its blocks depend on each other and how it is launched, each with
//! the error of the stand-in or the wrong numbers that show it.

use cuda::device::Cuda;
use cuda::host::{Host, Order};
use cuda::lower::lower as to_commands;
use cuda::program::{CudaProgram, File, Launch, Task};
use ir::ops::attention::Attention;
use ir::ops::elementwise::Unary;
use ir::{Builder, DType, Module, Op, Type};
use program::device::{ProgramId, step};
use program::lower::{LowerOptions, lower};
use std::sync::Arc;

/// A program of one operator on inputs of these types.
fn of(op: impl Into<Op>, types: &[Type]) -> Result<CudaProgram, String> {
    let mut module = Module::new("test");
    let inputs = types.iter().enumerate();
    let inputs: Vec<_> =
        inputs.map(|(index, ty)| module.add_input(format!("x{index}"), ty.clone(), false)).collect();
    let mut b = Builder::new(&mut module, "test");
    let made = b.push(op, &inputs).expect("the types fit");
    b.tables().add_output("y", made[0]);
    b.finish();
    let options = LowerOptions::of(cuda::TARGET);
    let program = lower(&module, &options).unwrap_or_else(|error| panic!("{error}"));
    to_commands(Arc::new(program)).map_err(|error| error.to_string())
}

/// An elementwise kernel of two blocks of 256 threads, from `a0` to `a1`, two elements a thread; with another body.
fn with_body(body: &str) -> CudaProgram {
    let mut cuda = of(Unary::Exp, &[Type::of(DType::F32, &[2048])]).expect("it lowers");
    let [kernel] = &mut cuda.kernels[..] else { panic!("one kernel") };
    let start = kernel.text.find("{\n").expect("a body") + 2;
    kernel.text.replace_range(start.., &format!("{body}\n}}\n"));
    cuda
}

fn launch(cuda: &mut CudaProgram) -> &mut Launch {
    let mut tasks = cuda.sections.iter_mut().flatten().map(|command| &mut command.task);
    match tasks.next() {
        Some(Task::Launch(launch)) => launch,
        other => panic!("{other:?}"),
    }
}

/// The numbers that a program makes of ones, in an order, or its error.
fn run(cuda: CudaProgram, threads: u32) -> Result<Vec<f32>, String> {
    let inputs = cuda.program.inputs.iter();
    let ones = |bytes: u64| (0..bytes / 4).flat_map(|_| 1f32.to_le_bytes()).collect::<Vec<u8>>();
    let inputs: Vec<Vec<u8>> = inputs
        .map(|input| ones(input.view.as_ref().map_or(0, |view| view.bytes().end - view.bytes().start)))
        .collect();
    let host = Host::new(Order { threads, first: None });
    let mut device = Cuda::with(host, vec![cuda]).map_err(|error| error.to_string())?;
    let outputs = step(&mut device, ProgramId(0), &[inputs]).map_err(|error| error.to_string())?;
    let bytes = &outputs["y"][0];
    Ok(bytes.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes"))).collect())
}

/// A program fails, and its error has these parts.
fn assert_fails(cuda: CudaProgram, parts: &[&str]) {
    let error = run(cuda, 0).expect_err("it is wrong");
    assert!(parts.iter().all(|part| error.contains(part)), "{parts:?} are not in {error}");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn threads_that_meet_at_one_site_go_on() {
    let body = "float x = a0[threadIdx.x];\nx = sum_over_block(x);\n__syncwarp();\na1[thread_index()] = x;";
    for threads in 0..4 {
        assert_eq!(run(with_body(body), threads).expect("it is right")[..2], [256.0, 256.0]);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_shuffle_in_a_branch_is_found() {
    let body = "float x = a0[threadIdx.x];\nif (threadIdx.x % 32 < 16) x = __shfl_xor_sync(~0u, x, 1);\na1[threadIdx.x] = x;";
    assert_fails(
        with_body(body),
        &["chain_", "threads of a warp wait at chain_", ":3, but thread ", " has ended"],
    );
}

/// The other threads wait as well, somewhere else.
#[test]
#[ignore = "needs a C++ compiler"]
fn shuffles_in_two_branches_are_found() {
    let body = "float x = a0[threadIdx.x];\nif (threadIdx.x % 2 == 0)\nx = __shfl_xor_sync(~0u, x, 1);\nelse\nx = __shfl_sync(~0u, x, 1);\na1[threadIdx.x] = x;";
    assert_fails(with_body(body), &["threads of a warp wait at chain_", ":4 and at chain_", ":6"]);
    let calls = "float x = a0[threadIdx.x];\nif (threadIdx.x % 2 == 0) x = over_warp<Sum>(x);\nelse x = 2 * over_warp<Sum>(x);\na1[threadIdx.x] = x;";
    assert_fails(
        with_body(calls),
        &["wait at prelude.cuh:", " and at prelude.cuh:", ", called from two places"],
    );
}

/// Two instances of one template are two sites.
#[test]
#[ignore = "needs a C++ compiler"]
fn shuffles_of_two_instances_are_found() {
    let body = "float x = a0[threadIdx.x];\nx = threadIdx.x % 2 ? over_warp<Sum>(x) : over_warp<Largest>(x);\na1[threadIdx.x] = x;";
    assert_fails(with_body(body), &["wait at prelude.cuh:", ", called from two places"]);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_mask_that_leaves_out_threads_is_found() {
    assert_fails(
        with_body("__syncwarp(0xffff);\na1[threadIdx.x] = 1;"),
        &["the mask of a wait at chain_", ":2 leaves out"],
    );
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_barrier_in_a_branch_is_found() {
    let body = "if (threadIdx.x < 64)\n__syncthreads();\na1[threadIdx.x] = 1;";
    assert_fails(with_body(body), &["threads of a block wait at chain_", ":3, but thread ", " has ended"]);
    let body = "if (threadIdx.x < 64)\n__syncthreads();\nelse\n__syncthreads();\na1[threadIdx.x] = 1;";
    assert_fails(with_body(body), &["threads of a block wait at chain_", ":3 and at chain_", ":5"]);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn waits_for_a_warp_and_for_a_block_do_not_meet() {
    let body = "if (threadIdx.x % 32 < 16)\n__syncthreads();\nelse\n__syncwarp();\na1[threadIdx.x] = 1;";
    assert_fails(
        with_body(body),
        &["threads of a warp wait at chain_", ":5, but thread ", ":3 for its block"],
    );
}

/// The tensor cores' load of matrices takes the whole warp.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_load_of_matrices_in_a_branch_is_found() {
    let body = "SHARED(mma::Room, room, 8);\nu32 to[4] = {};\nif (threadIdx.x % 32 < 24)\nmma::load(to, mma::place_of(room));\na1[threadIdx.x] = to[0];";
    let mut cuda = with_body(body);
    cuda.kernels[0].files.push(mma());
    assert_fails(cuda, &["threads of a warp wait at mma.cuh:", " has ended"]);
}

/// The file of tensor cores.
fn mma() -> &'static File {
    let heads = Type::of(DType::BF16, &[1, 1, 64, 64]);
    let op = Attention { scale: 0.125.into(), causal: true };
    let cuda = of(op, &[heads.clone(), heads.clone(), heads]).expect("it lowers");
    let mut files = cuda.kernels.iter().flat_map(|kernel| kernel.files.iter().copied());
    files.find(|file| file.name == "mma.cuh").expect("attention in bf16 takes tensor cores")
}

/// Each warp shows a number in both of two rounds, without a barrier between its reads in the first and its write in the
/// second. The threads of a warp wait for each other there, and warps that take turns have all read by then. A warp that
/// runs ahead writes too early.
#[test]
#[ignore = "needs a C++ compiler"]
fn shared_memory_that_is_written_again_too_early_is_found() {
    let body = |wait: &str| {
        format!(
            "SHARED(float, of_warps, 8);\nfloat sum = 0;\nfor (int round = 1; round <= 2; round++) {{\n\
             if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = round;\n__syncthreads();\n\
             for (int i = 0; i < 8; i++) sum += of_warps[i];\n{wait}();\n}}\na1[thread_index()] = sum;"
        )
    };
    let sums = |wait, threads| run(with_body(&body(wait)), threads).expect("it runs")[..512].to_vec();
    for threads in 0..4 {
        assert_eq!(sums("__syncthreads", threads), [24.0; 512]);
        let is_ahead = threads % 2 == 1;
        assert_eq!(sums("__syncwarp", threads) != [24.0; 512], is_ahead, "order {threads}");
    }
}

/// On a device copies arrive at any time.
#[test]
#[ignore = "needs a C++ compiler"]
fn copies_that_no_thread_waits_for_are_found() {
    let body = |wait: &str| {
        format!("SHARED(mma::Room, room, 8);\nmma::copy(room, a0, true);\n{wait}\na1[threadIdx.x] = 1;")
    };
    let cuda = |wait| {
        let mut cuda = with_body(&body(wait));
        cuda.kernels[0].files.push(mma());
        cuda
    };
    run(cuda("mma::wait_for_copies();"), 0).expect("it waits");
    assert_fails(cuda(""), &["chain_", "thread 0 ends without a wait for its copies"]);
}

/// A device stores a pack by an instruction that takes an address in global memory only.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_pack_that_is_stored_in_shared_memory_as_in_global_memory_is_found() {
    let body = |store: &str| {
        format!(
            "SHARED(float, held, 1024);\n{store}(held + 4 * threadIdx.x, load<4>(a0));\na1[0] = held[4 * threadIdx.x];"
        )
    };
    run(with_body(&body("store_shared")), 0).expect("it is stored in shared memory");
    assert_fails(with_body(&body("store")), &["chain_", "its place is in shared memory"]);
}

/// Blocks that add to one number after another are right as long as one ends before the next begins.
#[test]
#[ignore = "needs a C++ compiler"]
fn blocks_that_count_on_coming_one_by_one_are_found() {
    let body = "const float x = a1[0];\n__syncthreads();\nif (threadIdx.x == 0) a1[0] = x + 1;";
    let sums: Vec<f32> = (0..4).map(|threads| run(with_body(body), threads).expect("it runs")[0]).collect();
    assert_eq!(sums[..2], [2.0, 2.0]);
    assert_eq!(sums[2..], [1.0, 1.0]);
}

/// A block reads what the block before it wrote: in the order of blocks it is there, unless both are alive at once.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_block_that_reads_what_another_wrote_is_found() {
    let body = "const i64 at = thread_index();\n__syncthreads();\nif (threadIdx.x == 0) a1[at] = blockIdx.x ? a1[0] + 1 : 0;\n\
        __syncthreads();\nif (threadIdx.x == 0 && blockIdx.x == 0) a1[0] = 5;";
    let last = |threads| run(with_body(body), threads).expect("it runs")[256];
    assert_eq!(last(0), 6.0);
    assert!(last(1) != 6.0 && last(2) != 6.0, "{} {}", last(1), last(2));
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_launch_beyond_a_limit_is_refused() {
    let mut cuda = with_body("a1[threadIdx.x] = 1;");
    launch(&mut cuda).grid[1] = 65_536;
    assert_fails(cuda, &["chain_", "it has 65536 blocks along y, and CUDA allows 1 to 65535"]);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn too_much_shared_memory_is_refused() {
    let body = |count: u32| {
        format!("SHARED(double, x, 4096);\nSHARED(float, y, {count});\ny[0] = x[0] = 1;\na1[0] = y[0];")
    };
    run(with_body(&body(4096)), 0).expect("it is as much as there is");
    let error = run(with_body(&body(4097)), 0).expect_err("it is too much");
    assert!(error.contains("declares 49156 bytes of shared memory: a block has 49152"), "{error}");
}

/// 2^41 elements take more blocks than a grid has along x.
#[test]
fn lowering_refuses_more_blocks_than_a_grid_has() {
    let error = of(Unary::Exp, &[Type::of(DType::F32, &[1 << 41])]).expect_err("it is too large");
    assert!(
        error.contains("the kernel `chain` cannot be launched: it has 2147483648 blocks along x"),
        "{error}"
    );
}
