//! Every sample on the stand-in, against the interpreter of the IR; and each of its launches by its PTX, as NVRTC compiles it,
//! against the stand-in.
//!
//! `TRAINYARD_CUDA_LIBS=FOLDER cargo test -p runtime --test devices -- --ignored cuda::ptx`

use super::check_on;
use ir::ops::samples::{Sample, Through};
use runtime::cuda::check::StandIn;
use runtime::cuda::check::samples::{self, SampleVariant};
use runtime::cuda::host::{LeftOut, Order, Ptx, family};
use runtime::cuda::lower::lower as lower_for_cuda;
use runtime::lower::{LowerOptions, Target, lower};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A stand-in that runs its launches by their PTX, too.
fn stand_in(ptx: &Ptx, threads: u32) -> StandIn {
    StandIn { ptx: Some(ptx.clone()), ..StandIn::sound(Order { threads, first: None }) }
}

fn open() -> Ptx {
    Ptx::open().unwrap_or_else(|error| panic!("this test needs NVRTC: {error}"))
}

/// The families of the kernels that the samples have.
fn families() -> BTreeSet<String> {
    let of_sample = |sample: &Sample| {
        let (module, _) = sample.program(Through::Inputs);
        let options = LowerOptions { target: Target::Cuda, ..LowerOptions::default() };
        let program = lower(&module, &options).unwrap_or_else(|error| panic!("{error}"));
        let cuda = lower_for_cuda(Arc::new(program)).unwrap_or_else(|error| panic!("{error}"));
        cuda.kernels.into_iter().map(|kernel| family(&kernel.name).to_owned()).collect::<Vec<_>>()
    };
    samples::all().iter().flat_map(of_sample).collect()
}

#[test]
#[ignore = "needs NVRTC and a C++ compiler"]
fn kernels_agree_with_the_interpreter_and_with_their_ptx() {
    let ptx = open();
    check_on(&stand_in(&ptx, 0), SampleVariant { through: Through::Inputs, unfused: false });
    let table = ptx.table();
    println!("{table}");
    let ran: BTreeSet<String> = table.0.into_keys().collect();
    assert_eq!(families().difference(&ran).collect::<Vec<_>>(), Vec::<&String>::new(), "these ran no launch");
}

/// At night.
#[test]
#[ignore = "needs NVRTC and a C++ compiler"]
fn kernels_read_transposed_operands_in_any_order_of_threads() {
    check_on(&stand_in(&open(), 1), SampleVariant { through: Through::Transposes, unfused: false });
}

/// At night.
#[test]
#[ignore = "needs NVRTC and a C++ compiler"]
fn kernels_stand_beside_operands_that_are_read_later() {
    check_on(&stand_in(&open(), 3), SampleVariant { through: Through::Negations, unfused: false });
}

/// Whether a wait that is left out may go unnoticed, by the family and the number of the wait.
fn is_redundant(_family: &str, _number: usize) -> bool {
    false
}

/// At night. Each wait of each kernel is left out in turn.
#[test]
#[ignore = "needs NVRTC and a C++ compiler"]
fn waits_that_are_left_out_of_any_kernel_are_noticed() {
    let ptx = Ptx::leaving_out_waits().unwrap_or_else(|error| panic!("this test needs NVRTC: {error}"));
    check_on(&stand_in(&ptx, 0), SampleVariant { through: Through::Inputs, unfused: false });
    let mut counts: BTreeMap<(String, usize), [usize; 3]> = BTreeMap::new();
    for ((kernel, number), left_out) in ptx.waits() {
        counts.entry((family(&kernel).to_owned(), number)).or_default()[left_out as usize] += 1;
    }
    let mut unnoticed = Vec::new();
    for ((family, number), [never_reached, missed, noticed]) in &counts {
        println!(
            "{family} wait {number}: {noticed} noticed, {missed} unnoticed, {never_reached} never reached"
        );
        if *missed + *never_reached > 0 && !is_redundant(family, *number) {
            unnoticed.push(format!("{family} {number}"));
        }
    }
    assert!(counts.len() > 20, "{} waits", counts.len());
    assert!(counts.values().map(|count| count[LeftOut::Noticed as usize]).sum::<usize>() > 100);
    assert_eq!(unnoticed, Vec::<String>::new());
}
