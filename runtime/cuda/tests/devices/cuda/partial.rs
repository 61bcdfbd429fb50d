//! Blocks that do not divide: the samples have a launch of every kernel whose last block is partial.

use cuda::check::samples::{TYPES, all};
use cuda::lower::lower as lower_for_cuda;
use cuda::program::{CudaProgram, Task};
use ir::samples::{Sample, Through};
use program::Section;
use program::lower::{LowerOptions, lower};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Kernels without a sample whose last block is partial, each with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("cross_entropy_total", "one block adds up all rows"),
    ("dot_total", "one block adds up all parts"),
    ("det", "a block has a matrix"),
    ("orthogonalize", "a block has a matrix"),
    ("statistics", "a block has the slices of a channel"),
    ("gradient", "a block has the slices of a channel"),
];

/// Every kernel that the samples launch, and whether a launch of it has a partial last block.
fn launches() -> BTreeMap<String, bool> {
    let mut found = BTreeMap::new();
    let in_types = |sample: Sample| TYPES.map(|dtype| sample.in_type(dtype)).into_iter().flatten();
    for sample in all().into_iter().flat_map(in_types) {
        let cuda = lowered(&sample);
        for (section, _) in Section::ALL {
            for command in cuda.section(section) {
                let Task::Launch(launch) = &command.task else { continue };
                let name = kernel(&cuda.kernels[launch.kernel].name);
                let instruction = &cuda.program.section(section)[command.instructions.start];
                let views = instruction.operands.iter().chain(&instruction.results);
                let largest = views.max_by_key(|view| view.layout.len()).expect("it has a result");
                // The tiles of attention are of whole rows.
                let width = if name.starts_with("attention") { largest.layout.sizes.last() } else { None };
                let elements = largest.layout.len() / width.copied().unwrap_or(1);
                // Blocks that are all full have equal shares of the largest tensor.
                let blocks = launch.grid[0] as usize * launch.grid[1] as usize;
                let is_partial = blocks > 1 && !elements.is_multiple_of(blocks);
                *found.entry(name).or_default() |= is_partial;
            }
        }
    }
    found
}

/// The kernel's name without the hash of its text.
fn kernel(name: &str) -> String {
    name.rsplit_once('_').map_or(name, |(kernel, _)| kernel).trim_end_matches("_many").to_owned()
}

fn lowered(sample: &Sample) -> CudaProgram {
    let (module, _) = sample.program(Through::Inputs);
    let options = LowerOptions::of(cuda::TARGET);
    let program = lower(&module, &options).unwrap_or_else(|error| panic!("{error}"));
    lower_for_cuda(Arc::new(program)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_kernel_has_a_sample_whose_last_block_is_partial() {
    let found = launches();
    let is_exception = |name: &str| EXCEPTIONS.iter().any(|(exception, _)| *exception == name);
    let missing: Vec<&str> = { found.iter() }
        .filter(|(name, is_partial)| !**is_partial && !is_exception(name))
        .map(|(name, _)| name.as_str())
        .collect();
    assert!(missing.is_empty(), "no sample has a partial last block of {}", missing.join(", "));
    for (exception, _) in EXCEPTIONS {
        assert_eq!(found.get(*exception), Some(&false), "{exception} is no exception any more");
    }
}
