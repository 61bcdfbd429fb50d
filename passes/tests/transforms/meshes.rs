//! Random programs on random meshes with random shardings. After `spmd`, and in some cases further passes, a program passes the verifier
//! and computes the same numbers on simulated ranks as on one device.

mod case;
mod choices;
mod generator;

use case::{Case, Counts, counts};
use choices::Choices;
use generator::{Recipe, program};
use ir::samples::{Sample, samples};
use ir::{At, Builder, Module, Node, Op, ValueId};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

/// The number of groups of cases. Each group has a seed of its own, so that the cases are the same on any number of cores.
const GROUPS: u8 = 16;
/// The number of cases in a group.
const CASES: u32 = 128;

/// The axes of the batch, outermost first.
const DATA: [&[(&str, u64)]; 8] = [
    &[],
    &[],
    &[("dp", 2)],
    &[("dp", 2)],
    &[("dp", 3)],
    &[("dp.outer", 2), ("dp.inner", 2)],
    &[("ep", 2)],
    &[("ep", 2), ("dp", 2)],
];

/// The numbers from which a case is made. Small numbers make small cases.
type Numbers = (u64, usize, usize, usize, bool, usize);

fn numbers() -> impl Strategy<Value = Numbers> {
    (any::<u64>(), 1usize..12, 0usize..8, 0usize..3, any::<bool>(), 0..DATA.len())
}

fn case((seed, core, calls, blocks, trained, data): Numbers, samples: &[Sample]) -> Case {
    let data = DATA[data];
    let data_ranks = data.iter().map(|(_, size)| size).product();
    let experts = data.iter().any(|(name, _)| *name == "ep");
    let recipe = Recipe { seed, core, calls, blocks, trained, data_ranks, experts };
    Case::new(program(recipe, samples), data, Choices::new(seed ^ 0x3e5))
}

/// Runs the cases of a group, and counts their operators and properties.
fn group(number: u8, samples: &[Sample]) -> Counts {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[number; 32]);
    // `PROPTEST_CASES` in the environment can ask for more cases.
    let asked = std::env::var_os("PROPTEST_CASES").map(|_| Config::default().cases);
    let config = Config { cases: asked.unwrap_or(CASES), failure_persistence: None, ..Config::default() };
    let found = RefCell::new(Counts::new());
    let checked = TestRunner::new_with_rng(config, rng).run(&numbers(), |numbers| {
        let case = case(numbers, samples);
        let split = match case.split() {
            Ok(split) => split,
            // The sample of an operator may have three experts, which the mesh cannot divide.
            Err(error) if error.contains("experts of `") => {
                *found.borrow_mut().entry("refused for their experts").or_default() += 1;
                return Ok(());
            }
            Err(error) => return Err(TestCaseError::fail(error)),
        };
        let numbers = case.compare(&split).map_err(TestCaseError::fail)?;
        let mut found = found.borrow_mut();
        *found.entry("cases").or_default() += 1;
        *found.entry("cases without NaN").or_default() += usize::from(numbers);
        counts(&split).into_iter().for_each(|(what, count)| *found.entry(what).or_default() += count);
        Ok(())
    });
    checked.unwrap_or_else(|error| panic!("group {number}: {error}"));
    found.into_inner()
}

/// Returns samples of the operators of a model, without those that passes add: sums over microbatches, collectives, and copies.
fn callable() -> Vec<Sample> {
    let is_called =
        |sample: &Sample| !matches!(sample.op, Op::Collective(_) | Op::Accumulate(_) | Op::Copy(_));
    samples().into_iter().filter(is_called).collect()
}

#[test]
fn random_programs_compute_on_random_meshes_what_they_do_on_one_device() {
    let samples = callable();
    let (next, found) = (AtomicU8::new(0), Mutex::new(Counts::new()));
    std::thread::scope(|scope| {
        let work = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= GROUPS {
                    return;
                }
                let counts = group(number, &samples);
                let mut found = found.lock().expect("no thread panicked");
                counts.into_iter().for_each(|(what, count)| *found.entry(what).or_default() += count);
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        (0..cores).for_each(|_| drop(scope.spawn(work)));
    });
    let found = found.into_inner().expect("no thread panicked");
    println!("{found:?}");
    let absent = |name: &&str| found.get(name).is_none_or(|&count| count == 0);
    let kinds = [
        "reduced to the largest",
        "reduced to the smallest",
        "over several axes",
        "padded states",
        "split experts",
    ];
    let missing: Vec<&str> = Op::names().into_iter().chain(kinds).filter(absent).collect();
    assert!(missing.is_empty(), "in no case: {missing:?}");
    assert!(found["cases without NaN"] * 20 >= found["cases"] * 19, "{found:?}");
    assert!(
        found.get("refused for their experts").is_none_or(|refused| refused * 20 <= found["cases"]),
        "{found:?}"
    );
}

/// Replaces the result of the first reduction or gather that outputs or states depend on by `fault(value)`.
fn plant(module: &mut Module, fault: impl Fn(&mut Builder, ValueId) -> ValueId) -> bool {
    let talks = |node: &Node| {
        let float = module.ty(node.results[0]).dtype.is_float();
        float && node.results.len() == 1 && matches!(node.op, Op::Collective(kind) if kind.communicates())
    };
    let Some((id, result)) =
        module.nodes().find(|(_, node)| talks(node)).map(|(id, node)| (id, node.results[0]))
    else {
        return false;
    };
    let mut b = Builder::new(module, "fault");
    b.at(At::After(id));
    let again = b.module().node(id).clone();
    let ty = b.ty(result).clone();
    let made = b.one_typed(again.op, &again.operands, ty).expect("as before");
    let wrong = fault(&mut b, made);
    b.replace(result, wrong);
    b.remove(id);
    b.finish();
    true
}

#[test]
fn a_fault_in_a_split_program_is_seen() {
    let samples = callable();
    let (mut planted, mut seen) = (0, 0);
    for seed in 0..100 {
        let case = case((seed, 4, 2, 1, true, 2), &samples);
        let mut split = case.split().unwrap_or_else(|error| panic!("{seed}: {error}"));
        case.compare(&split).unwrap_or_else(|error| panic!("{seed}: {error}"));
        let wrong = |b: &mut Builder, value: ValueId| {
            let sharding = b.ty(value).sharding.clone();
            let scaled = b.build(value * (1.0 + 1e-6)).expect("a float");
            b.shard(scaled, sharding);
            scaled
        };
        if plant(&mut split, wrong) {
            ir::verify::verify(&split).unwrap_or_else(|faults| panic!("{seed}: {}", faults[0]));
            planted += 1;
            seen += usize::from(case.compare(&split).is_err());
        }
    }
    assert!(planted >= 80 && seen * 20 >= planted * 19, "{seen} of {planted}");
}
