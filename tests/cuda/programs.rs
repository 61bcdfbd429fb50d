//! What a GPU runs for a step of a large model in bf16: no slow kernel does much of the work. The work of a command is
//! that of the roofline.

use crate::models::bench::{self, Bench, Layers};
use crate::models::done;
use ir::{DType, Module};
use runtime::cuda::lower::lower;
use runtime::cuda::roofline::{Accelerator, CommandCost, Roofline, Unit};
use runtime::lower::{LowerOptions, Target};
use runtime::program::Section;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Floating-point operations that a kernel without tensor cores may do in one launch.
const MOST_FLOPS: u64 = 1_000_000_000;

/// Bytes that a copy may read and write.
const MOST_COPIED: u64 = 1 << 20;

/// Kernels that multiply, by the first word of their names. They may take tensor cores or not.
const MULTIPLYING: [&str; 3] = ["contract", "attention", "experts"];

/// Slow kernels that programs are known to have: the program, the kernel, a part of its node's name, the reason.
const EXCEPTIONS: &[[&str; 4]] = &[];

/// The commands of a step in bf16.
fn commands(module: &Module) -> Vec<CommandCost> {
    let options = LowerOptions { target: Target::Cuda, ..LowerOptions::default() };
    let cuda = done(lower(Arc::new(done(runtime::lower::lower(module, &options)))));
    let mut roofline = Roofline::of(&cuda, Accelerator::H100, 1);
    Section::ALL
        .into_iter()
        .flat_map(|(section, _)| std::mem::take(&mut roofline.sections[section as usize].commands))
        .collect()
}

/// Why a command is too slow, if it is.
fn slow(command: &CommandCost) -> Option<String> {
    let (work, kind) = (&command.work, command.kind.as_str());
    let multiplies = kind.split('_').next().is_some_and(|word| MULTIPLYING.contains(&word));
    if multiplies && matches!(work.unit, Unit::Elements(_)) && work.flops > MOST_FLOPS {
        return Some(format!("{:.1} GFLOP without tensor cores", work.flops as f64 / 1e9));
    }
    let bytes = work.bytes() / u64::from(command.layers);
    (kind == "copy" && bytes > MOST_COPIED).then(|| format!("copies {:.1} MB", bytes as f64 / 1e6))
}

/// The slow commands of a program that are no exceptions, and the exceptions that it does not need.
fn faults(file: &str, module: &Module) -> Vec<String> {
    let commands = commands(module);
    let slow: Vec<(&CommandCost, String)> =
        commands.iter().filter_map(|command| Some((command, slow(command)?))).collect();
    let exceptions: Vec<&[&str; 4]> = EXCEPTIONS.iter().filter(|exception| exception[0] == file).collect();
    let is_of = |[_, kind, node, _]: &[&str; 4], command: &CommandCost| {
        *kind == command.kind && command.origin.contains(node)
    };
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (command, problem) in &slow {
        if !exceptions.iter().any(|exception| is_of(exception, command)) {
            let CommandCost { kind, sizes, origin, .. } = command;
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

fn check(file: &str, module: &Module) {
    let faults = faults(file, module);
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

fn check_bench(bench: &Bench) {
    check(bench.file, &bench.training(DType::BF16));
}

fn check_layers(layers: Layers) {
    check(layers.0, &layers.training(DType::BF16));
}

#[test]
fn gpt2_124m_runs_on_tensor_cores() {
    check_bench(&bench::LARGE[0]);
}

#[test]
fn gpt2_350m_runs_on_tensor_cores() {
    check_bench(&bench::LARGE[1]);
}

#[test]
fn gpt2_1_5b_runs_on_tensor_cores() {
    check_bench(&bench::LARGE[2]);
}

#[test]
fn llama_1b_runs_on_tensor_cores() {
    check_bench(&bench::LARGE[3]);
}

#[test]
fn llama_8b_runs_on_tensor_cores() {
    check_layers(bench::LAYERS[0]);
}

#[test]
fn mixtral_runs_on_tensor_cores() {
    check_layers(bench::LAYERS[1]);
}

#[test]
fn masked_attention_runs_on_tensor_cores() {
    check_layers(bench::LAYERS[2]);
}

/// In f32 attention has no tensor cores.
#[test]
fn scalar_attention_is_found() {
    let faults = faults("planted", &bench::LAYERS[2].training(DType::F32));
    let is_found = |kind: &str| faults.iter().any(|fault| fault.contains(&format!("planted: {kind} [")));
    assert!(is_found("attention") && is_found("attention_by_keys"), "{faults:#?}");
}

/// A transposed copy of 8 MB, and a product of integers, which cuBLASLt does not take.
#[test]
fn a_large_copy_and_a_scalar_contraction_are_found() {
    let text = r#"trainyard-ir 1
        module @planted imported {
          func @forward(%0 "x" batched : i32[2048, 1024], %1 "y" batched : i32[2048, 1024]) {
            %2 = transpose %0 {permutation = [1, 0]} : i32[1024, 2048] !{fwd}
            %3 = contract %2, %1 {lhs = km, rhs = mn, out = kn} : i32[1024, 1024] !{fwd}
          }
          output "turned" = %2
          output "product" = %3
        }"#;
    let faults = faults("planted", &done(ir::text::parse(text)));
    let is_found = |kind: &str| faults.iter().any(|fault| fault.contains(&format!("planted: {kind} [")));
    assert!(is_found("copy") && is_found("contract"), "{faults:#?}");
}
