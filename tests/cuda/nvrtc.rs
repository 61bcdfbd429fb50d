//! The kernels of the models' programs and of single operators compile for devices, within their budgets, and each of their packs is one
//! access. The tests use NVRTC and nvdisasm, and need no GPU.
//!
//! `TRAINYARD_CUDA_LIBS=FOLDER cargo test --test cuda nvrtc -- --ignored`

mod accesses;
mod attention;
mod budget;
mod copies;
pub(crate) mod families;
mod occupancy;
pub(crate) mod operators;
mod packs;
pub(crate) mod steps;
mod units;

use crate::programs;
use budget::faults;
use cuda::program::Kernel;
use operators::{ARCHITECTURES, nvrtc};
use std::collections::BTreeMap;

/// The architectures that the kernels of small models are compiled for. Kernels of large models are compiled for sm_100a too.
const MOST_USED: [&str; 2] = ["sm_80", "sm_90a"];

/// Checks that kernels compile, each once. There must be at least `least` of them.
fn check(kernels: impl Iterator<Item = Kernel>, least: usize, architectures: &[&str]) {
    let by_name: BTreeMap<String, Kernel> = kernels.map(|kernel| (kernel.name.clone(), kernel)).collect();
    let all: Vec<Kernel> = by_name.into_values().collect();
    assert!(all.len() >= least, "{} kernels", all.len());
    let faults = faults(&nvrtc(), &all, architectures);
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n\n"));
}

#[test]
#[ignore = "night: kernels"]
fn the_kernels_of_every_model_compile_within_their_budgets() {
    check(steps::of_models(), 200, &MOST_USED);
}

#[test]
#[ignore = "night: kernels"]
fn the_kernels_of_a_rank_compile_within_their_budgets() {
    check(steps::of_ranks(), 100, &MOST_USED);
}

/// The kernels in the type in which they are timed. A multiprocessor holds the number of threads that their files promise.
#[test]
#[ignore = "night: budgets"]
fn the_kernels_of_large_models_compile_within_their_budgets() {
    check(programs::kernels(), 50, &ARCHITECTURES);
}
