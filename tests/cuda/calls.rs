//! The calls of NCCL. Each rank compiles the model for itself, as a process does, and all ranks make the same calls in the same order.

use comm::local::Local;
use cuda::nccl::sequence::{Sequence, check};
use std::sync::Arc;
use std::thread;
use testing::models::calls::{program, run};
use testing::models::{self, Fixture};

/// The meshes, with the stages of ZeRO.
const MESHES: [&str; 5] =
    ["mesh=dp:2", "mesh=tp:2", "mesh=dp:2, zero=1", "mesh=dp:2, zero=2", "mesh=dp:2, zero=3"];

/// The meshes of a model with experts.
const MESHES_OF_EXPERTS: [&str; 2] = ["mesh=ep:2", "mesh=ep:2, zero=3"];

/// The calls of a rank that compiles by itself.
fn calls(fixture: &Fixture, spmd: &str) -> Sequence {
    let lowered = cuda::lower::lower(program(fixture, spmd));
    let lowered = lowered.unwrap_or_else(|error| panic!("{spmd}: {error}"));
    Sequence::of(&[lowered]).unwrap_or_else(|error| panic!("{spmd}: {error}"))
}

/// Two ranks make the same calls. Two calls that are swapped on one rank are refused.
fn check_calls(fixture: &Fixture, meshes: &[&str]) {
    for spmd in meshes {
        let ranks = [calls(fixture, spmd), calls(fixture, spmd)];
        assert!(ranks[0].0.len() > 2, "{}, {spmd}: {:?}", fixture.file, ranks[0]);
        check(&ranks).unwrap_or_else(|error| panic!("{}, {spmd}: {error}", fixture.file));
        let [first, mut swapped] = ranks;
        let place = (1..first.0.len()).find(|&place| first.0[place] != first.0[place - 1]);
        let place = place.unwrap_or_else(|| panic!("{spmd}: all calls are alike"));
        swapped.0.swap(place - 1, place);
        let error = check(&[first, swapped]).expect_err("a swapped pair");
        let told = format!("rank 1 and rank 0 make different calls of NCCL, from call {} on", place - 1);
        assert_eq!(error.message, told, "{}, {spmd}", fixture.file);
    }
}

#[test]
fn ranks_of_gpt2_make_equal_calls_and_a_swapped_pair_is_refused() {
    check_calls(&models::GPT2_DYNAMO, &MESHES);
}

#[test]
#[ignore = "longer"]
fn ranks_of_llama_make_equal_calls_and_a_swapped_pair_is_refused() {
    check_calls(&models::LLAMA_DYNAMO, &MESHES);
}

#[test]
#[ignore = "longer"]
fn ranks_of_mixtral_make_equal_calls_and_a_swapped_pair_is_refused() {
    check_calls(&models::MIXTRAL_DYNAMO, &MESHES);
    check_calls(&models::MIXTRAL_DYNAMO, &MESHES_OF_EXPERTS);
}

/// Two ranks, each with its own device, program and notes, share only their communicators.
fn check_runs(fixture: &Fixture, meshes: &[&str]) {
    for spmd in meshes {
        let local = Local::new(2);
        let notes: Vec<Vec<String>> = thread::scope(|scope| {
            let one = |at_work: comm::local::AtWork| {
                let communicator = Arc::new(local.communicator(at_work.rank()));
                scope.spawn(move || {
                    let _at_work = at_work;
                    run(program(fixture, spmd), communicator)
                })
            };
            let threads: Vec<_> = local.begin().into_iter().map(one).collect();
            let notes = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("no rank panics");
            threads.into_iter().map(|thread| notes(thread).expect("it runs")).collect()
        });
        assert_eq!(notes[0], notes[1], "{}, {spmd}", fixture.file);
        // The first step makes each call, and the second step captures it.
        let planned = calls(fixture, spmd).0.len();
        assert_eq!(notes[0].len(), 2 * planned, "{}, {spmd}", fixture.file);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn ranks_of_gpt2_make_their_calls_in_the_same_order_when_they_run() {
    check_runs(&models::GPT2_DYNAMO, &["mesh=dp:2, zero=3", "mesh=tp:2"]);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn ranks_of_mixtral_make_their_calls_in_the_same_order_when_they_run() {
    check_runs(&models::MIXTRAL_DYNAMO, &["mesh=dp:2, zero=3", "mesh=tp:2", "mesh=ep:2"]);
}
