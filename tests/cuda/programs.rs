//! The kernels of a step of a large model in bf16: no slow kernel does much of the work. The work of a command is the simulator's.

use cuda::commands::commands as simulated_commands;
use cuda::lower::lower;
use cuda::program::{CudaProgram, Kernel};
use ir::machine::Unit;
use ir::{DType, Module};
use program::commands::Command;
use program::lower::LowerOptions;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use testing::models::{bench, done};
use trainyard::lowering;

/// Floating-point operations that a kernel without tensor cores may do in one launch.
const MOST_FLOPS: u64 = 1_000_000_000;

/// Bytes that a copy may read and write.
const MOST_COPIED: u64 = 1 << 20;

/// Kernels that multiply, by the first word of their names. They may use tensor cores or not.
const MULTIPLYING: [&str; 3] = ["contract", "attention", "experts"];

/// Slow kernels that programs are known to have: the program, the kernel, a part of its node's name, the reason.
const EXCEPTIONS: &[[&str; 4]] = &[
    ["mixtral-8x7b-layer", "copy", "layers.0.experts.rows", "each row is copied for each of its two experts"],
    [
        "mixtral-8x7b-layer",
        "copy",
        "layers.0.experts.out",
        "each row's gradient is copied for its two experts",
    ],
    ["masked-layers", "copy", "position_bias", "attention reads a bias in rows, and a lookup has heads last"],
];

/// The programs, in the order of `bench::LARGE` and then of `bench::LAYERS`, lowered once for all tests.
static LOWERED: [OnceLock<CudaProgram>; COUNT] = [const { OnceLock::new() }; COUNT];

const COUNT: usize = bench::LARGE.len() + bench::LAYERS.len();

/// The program of a step in bf16.
fn lowered(index: usize) -> &'static CudaProgram {
    let module = || match bench::LARGE.get(index) {
        Some(bench) => bench.training(DType::BF16),
        None => bench::LAYERS[index - bench::LARGE.len()].training(DType::BF16),
    };
    LOWERED[index].get_or_init(|| lowered_of(&module()))
}

fn lowered_of(module: &Module) -> CudaProgram {
    let options = LowerOptions::of(cuda::TARGET);
    done(lower(Arc::new(done(lowering::lower(module, &options)))))
}

/// The kernels of all of these programs.
pub(crate) fn kernels() -> impl Iterator<Item = Kernel> {
    (0..COUNT).flat_map(|index| lowered(index).kernels.iter().cloned())
}

/// The commands of a step.
fn commands(cuda: &CudaProgram) -> Vec<Command> {
    simulated_commands(cuda, 1).parts.into_iter().flatten().collect()
}

/// The reason why a command is too slow; `None` if it is not.
fn slow(command: &Command) -> Option<String> {
    let (work, kind) = (&command.work, command.kind.as_str());
    let multiplies = kind.split('_').next().is_some_and(|word| MULTIPLYING.contains(&word));
    if multiplies && matches!(work.unit, Unit::Elements(_)) && work.flops > MOST_FLOPS {
        return Some(format!("{:.1} GFLOP without tensor cores", work.flops as f64 / 1e9));
    }
    let bytes = work.bytes() / u64::from(command.layers);
    (kind == "copy" && bytes > MOST_COPIED).then(|| format!("copies {:.1} MB", bytes as f64 / 1e6))
}

/// The slow commands of a program that are not exceptions, and the exceptions that the program does not need.
fn faults(file: &str, cuda: &CudaProgram) -> Vec<String> {
    let commands = commands(cuda);
    let slow: Vec<(&Command, String)> =
        commands.iter().filter_map(|command| Some((command, slow(command)?))).collect();
    let exceptions: Vec<&[&str; 4]> = EXCEPTIONS.iter().filter(|exception| exception[0] == file).collect();
    let is_of = |[_, kind, node, _]: &[&str; 4], command: &Command| {
        *kind == command.kind && command.origin.contains(node)
    };
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (command, problem) in &slow {
        if !exceptions.iter().any(|exception| is_of(exception, command)) {
            let Command { kind, sizes, origin, .. } = command;
            *counts.entry(format!("{file}: {kind} {sizes:?} of {origin}: {problem}")).or_default() += 1;
        }
    }
    let idle =
        exceptions.iter().filter(|exception| !slow.iter().any(|(command, _)| is_of(exception, command)));
    let idle = idle.map(|[_, kind, node, reason]| {
        format!("{file}: `{kind}` of {node} is not slow: the exception must go ({reason})")
    });
    counts.into_iter().map(|(fault, count)| format!("{fault} ({count} times)")).chain(idle).collect()
}

fn check(index: usize) {
    let names =
        bench::LARGE.iter().map(|bench| bench.file).chain(bench::LAYERS.iter().map(|layers| layers.0));
    let faults = faults({ names }.nth(index).expect("it is one of them"), lowered(index));
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn gpt2_124m_runs_on_tensor_cores() {
    check(0);
}

#[test]
fn gpt2_350m_runs_on_tensor_cores() {
    check(1);
}

#[test]
#[ignore = "longer"]
fn gpt2_1_5b_runs_on_tensor_cores() {
    check(2);
}

#[test]
fn llama_1b_runs_on_tensor_cores() {
    check(3);
}

#[test]
fn llama_8b_runs_on_tensor_cores() {
    check(4);
}

#[test]
fn mixtral_runs_on_tensor_cores() {
    check(5);
}

#[test]
fn masked_attention_runs_on_tensor_cores() {
    check(6);
}

/// Whether the faults name a kernel.
fn are_of(faults: &[String], kind: &str) -> bool {
    faults.iter().any(|fault| fault.starts_with(&format!("planted: {kind} [")))
}

/// Attention in f32 uses no tensor cores. A scalar contraction and scalar experts of the same work are as slow.
#[test]
fn scalar_kernels_are_found() {
    let cuda = lowered_of(&bench::LAYERS[2].training(DType::F32));
    let faults = faults("planted", &cuda);
    assert!(are_of(&faults, "attention") && are_of(&faults, "attention_by_keys"), "{faults:#?}");
    let commands = commands(&cuda);
    let attention = commands.iter().find(|command| command.kind == "attention").expect("there is one");
    for kind in ["contract", "experts", "experts_grad"] {
        assert!(slow(&Command { kind: kind.into(), ..attention.clone() }).is_some(), "{kind}");
    }
    assert_eq!(slow(&Command { kind: "chain".into(), ..attention.clone() }), None);
}

/// A transposed copy of 8 MB, and a product with two summed runs of dims that do not merge: it runs without tensor cores, or after a copy.
#[test]
fn a_large_copy_and_a_contraction_of_two_runs_are_found() {
    let text = r#"trainyard-ir 1
        module @planted imported {
          func @forward(%0 "x" batched : bf16[64, 1024, 64], %1 "y" batched : bf16[64, 64, 1024]) {
            %2 = transpose %0 {permutation = [1, 0, 2]} : bf16[1024, 64, 64] !{fwd}
            %3 = reshape %2 : bf16[65536, 64] !{fwd}
            %4 = contract %0, %1 {lhs = amb, rhs = abn, out = mn} : bf16[1024, 1024] !{fwd}
          }
          output "turned" = %3
          output "product" = %4
        }"#;
    let faults = faults("planted", &lowered_of(&done(ir::text::parse(text))));
    assert!(are_of(&faults, "copy") && faults.len() >= 2, "{faults:#?}");
}
