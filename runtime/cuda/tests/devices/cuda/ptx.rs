//! Every sample on the stand-in, against the interpreter of the IR; and each of its launches by its PTX, as NVRTC compiles it,
//! against the stand-in.
//!
//! `TRAINYARD_CUDA_LIBS=FOLDER cargo test -p cuda --test devices -- --ignored cuda::ptx`

use super::{batch_norm, by_ptx, check_on, experts};
use cuda::check::StandIn;
use cuda::check::samples::{self, SampleVariant};
use cuda::host::Order;
use cuda::lower::lower as lower_for_cuda;
use ir::DType;
use ir::samples::{Sample, Through};
use program::lower::{LowerOptions, lower};
use ptx::{LeftOut, Ptx, Row, Table, family};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A stand-in that runs its launches by their PTX, too.
fn stand_in(ptx: &Ptx, threads: u32) -> StandIn {
    StandIn { second_way: Some(Arc::new(ptx.clone())), ..StandIn::sound(Order { threads, first: None }) }
}

fn open() -> Ptx {
    Ptx::open().unwrap_or_else(|error| panic!("this test needs NVRTC: {error}"))
}

/// The families of the kernels of a sample, in all types that it takes: some kernels are for half precision alone.
fn families(sample: &Sample) -> BTreeSet<String> {
    let halves = [DType::F16, DType::BF16].into_iter().filter_map(|half| sample.in_type(half));
    let kernels = halves.chain([sample.clone()]).flat_map(|sample| {
        let (module, _) = sample.program(Through::Inputs);
        let options = LowerOptions::of(cuda::TARGET);
        let program = lower(&module, &options).unwrap_or_else(|error| panic!("{error}"));
        lower_for_cuda(Arc::new(program)).unwrap_or_else(|error| panic!("{error}")).kernels
    });
    kernels.map(|kernel| family(&kernel.name).to_owned()).collect()
}

/// The first sample of each family of kernels.
fn first_of_each_family() -> Vec<Sample> {
    let mut known = BTreeSet::new();
    let mut samples = samples::all();
    samples.retain(|sample| {
        let own = families(sample);
        let is_new = !own.is_subset(&known);
        known.extend(own);
        is_new
    });
    samples
}

const AS_THEY_LIE: SampleVariant = SampleVariant { through: Through::Inputs, unfused: false };

/// The launches of each family also run by their PTX.
#[test]
#[ignore = "night: ptx"]
fn the_first_sample_of_each_family_agrees_with_its_ptx() {
    let ptx = open();
    let chosen = first_of_each_family();
    check_on(&stand_in(&ptx, 0), &chosen, AS_THEY_LIE);
    assert_ran(&ptx, &chosen);
    assert_eq!(differing(&ptx.table()), APPROXIMATE);
}

/// Families with `exp`, `log` and `tanh`, which the GPU and the processor approximate each in its way. All others have the same bits.
const APPROXIMATE: [&str; 12] = [
    "attention",
    "attention_by_keys",
    "attention_by_queries",
    "attention_by_queries_mma",
    "attention_mma",
    "attention_normalize",
    "cross_entropy",
    "cross_entropy_grad",
    "log_softmax",
    "recurrent_step",
    "recurrent_step_gradient",
    "softmax",
];

/// Families that have other bits in samples beside the first: of `exp` and `tanh`, and of the sums of tensor cores.
const APPROXIMATE_ELSEWHERE: [&str; 3] = ["attention_by_keys_mma", "chain", "experts_grad_mma"];

#[test]
#[ignore = "needs a C++ compiler"]
fn every_sample_agrees_with_the_interpreter() {
    check_on(&StandIn::sound(Order::default()), &samples::all(), AS_THEY_LIE);
}

#[test]
#[ignore = "night: ptx"]
fn every_sample_agrees_with_its_ptx() {
    let ptx = open();
    check_on(&stand_in(&ptx, 0), &samples::all(), AS_THEY_LIE);
    assert_ran(&ptx, &samples::all());
    let table = ptx.table();
    let known = |family: &&str| APPROXIMATE.contains(family) || APPROXIMATE_ELSEWHERE.contains(family);
    let others = differing(&table).into_iter().filter(|family| !known(family));
    assert_eq!(others.collect::<Vec<_>>(), Vec::<&str>::new());
}

/// A launch of each family of these samples ran by its PTX.
fn assert_ran(ptx: &Ptx, samples: &[Sample]) {
    let table = ptx.table();
    println!("{table}");
    let ran: BTreeSet<String> = table.0.into_keys().collect();
    let all: BTreeSet<String> = samples.iter().flat_map(families).collect();
    assert!(all.len() > 60, "{} families", all.len());
    assert_eq!(all.difference(&ran).collect::<Vec<_>>(), Vec::<&String>::new(), "these ran no launch");
}

/// The families that had other numbers by their PTX, in any type.
fn differing(table: &Table) -> Vec<&str> {
    let differs = |rows: &BTreeMap<&str, Row>| rows.values().any(|row| row.error > 0.0);
    table.0.iter().filter(|(_, rows)| differs(rows)).map(|(family, _)| family.as_str()).collect()
}

#[test]
#[ignore = "night: orders"]
fn kernels_read_transposed_operands_in_any_order_of_threads() {
    let ptx = open();
    check_on(
        &stand_in(&ptx, 1),
        &samples::all(),
        SampleVariant { through: Through::Transposes, unfused: false },
    );
    assert!(ptx.table().0.len() > 60, "{}", ptx.table());
}

#[test]
#[ignore = "night: orders"]
fn kernels_stand_beside_operands_that_are_read_later() {
    let ptx = open();
    check_on(
        &stand_in(&ptx, 3),
        &samples::all(),
        SampleVariant { through: Through::Negations, unfused: false },
    );
    assert!(ptx.table().0.len() > 60, "{}", ptx.table());
}

/// The family of kernels, the number of their waits, and the number of a wait in their text.
type Wait<Text> = (Text, usize, usize);

/// Waits that no launch of the test needs, by family, number of waits and number of the wait, with the reason.
const UNNEEDED: [(&str, &[Wait<&str>]); 8] = [
    (
        "the first wait of a reduction over the block keeps it from the numbers of a reduction before, and there is none in \
         the same shared memory",
        &[
            ("adam_8bit", 5, 1),
            ("adam_8bit", 6, 2),
            ("cross_entropy_total", 4, 0),
            ("cross_entropy_total", 4, 2),
            ("cumulative_run", 4, 0),
            ("cumulative_sums", 2, 0),
            ("dot", 2, 0),
            ("dot_total", 2, 0),
            ("gradient_of_slices", 4, 0),
            ("layer_norm_grad", 4, 0),
            ("log_softmax", 4, 0),
            ("log_softmax", 4, 2),
            ("rms_norm_grad", 2, 0),
            ("softmax", 4, 0),
            ("softmax", 4, 2),
            ("softmax_grad", 2, 0),
            ("statistics_of_slices", 4, 0),
        ],
    ),
    (
        "a block has one warp for up to 32 slices of a channel, and its first lane alone reads",
        &[
            ("gradient", 4, 0),
            ("gradient", 4, 1),
            ("gradient", 4, 2),
            ("gradient", 4, 3),
            ("statistics", 4, 0),
            ("statistics", 4, 1),
            ("statistics", 4, 2),
            ("statistics", 4, 3),
        ],
    ),
    ("up to four slices are summed by the thread that has read them", &[("reduce_slices", 1, 0)]),
    (
        "states that lie in inputs are not written in place; where they are, the tests of orders notice it",
        &[("adam_8bit", 6, 1)],
    ),
    ("the gradient does not lie where the logits are", &[("cross_entropy_grad", 2, 0)]),
    ("the wait before it has ended the last reads of the panels", &[("attention_by_keys", 9, 7)]),
    ("no copy is under way behind the loop, which has run", &[("attention_by_keys_mma", 7, 2)]),
    (
        "the block has waited just before the first of the warp's waits",
        &[("experts_grad_mma", 11, 3), ("experts_mma", 11, 3)],
    ),
];

/// Each wait of each kernel is left out in turn, and a launch of one of the kernels that have it notices that. The other
/// kernels may have too few rows or threads to need it.
#[test]
#[ignore = "night: ptx"]
fn waits_that_are_left_out_of_any_kernel_are_noticed() {
    let ptx = Ptx::leaving_out_waits().unwrap_or_else(|error| panic!("this test needs NVRTC: {error}"));
    check_on(&stand_in(&ptx, 0), &samples::all(), AS_THEY_LIE);
    // Of these the samples have too few rows.
    for larger in [experts::on_tensor_cores(DType::BF16), batch_norm::of_shapes(DType::F32)] {
        larger.check_on(&|program| by_ptx(program, Order::default(), Some(&ptx)));
    }
    let of_kernels = ptx.waits();
    let count = |kernel: &str| of_kernels.keys().filter(|(other, _)| other == kernel).count();
    let mut waits: BTreeMap<Wait<String>, LeftOut> = BTreeMap::new();
    for ((kernel, number), left_out) in &of_kernels {
        let most = waits.entry((family(kernel).to_owned(), count(kernel), *number)).or_default();
        *most = (*most).max(*left_out);
    }
    let noticed = waits.values().filter(|left_out| **left_out == LeftOut::Noticed).count();
    println!("{noticed} of {} waits are noticed if they are left out", waits.len());
    let others = waits.iter().filter(|(_, left_out)| **left_out != LeftOut::Noticed);
    let others: Vec<Wait<&str>> =
        others.map(|((family, count, number), _)| (family.as_str(), *count, *number)).collect();
    let unneeded: BTreeSet<Wait<&str>> = UNNEEDED.iter().flat_map(|(_, waits)| *waits).copied().collect();
    assert_eq!(others, unneeded.into_iter().collect::<Vec<_>>());
}
