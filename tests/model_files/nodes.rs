//! ONNX's own node tests (1884 of version 1.23.2). Each has one operator, with inputs and the expected outputs.
//!
//! A test is imported and interpreted in f64, and its outputs are compared as ONNX's own runner compares them. A test is left out only by a
//! rule that has a name (`rules`). `docs/onnx-coverage.md` has the results for every operator. This test checks the page: `BLESS=1 cargo
//! test --test model_files nodes` rewrites it, and the diff is for review.

mod case;
mod compare;
mod gradients;
mod rules;
mod runtime;
mod table;

use crate::archive;
use case::{Case, Outcome};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of tests in the archive.
const TESTS: usize = 1884;
/// The most tests that rules may leave out.
const MOST_EXCLUDED: usize = 286;
/// The least share of the other tests that passes.
const LEAST_PASSED: f64 = 1.0;
/// The least number of tests whose gradients are compared.
const LEAST_GRADIENTS: usize = 1226;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn coverage() -> PathBuf {
    root().join("docs/onnx-coverage.md")
}

fn cases() -> Vec<Case> {
    let archive =
        std::fs::read(root().join("testdata/onnx-node-tests.tar.gz")).expect("the tests can be read");
    let tests = archive::unpack(&archive).expect("the archive of the tests is whole");
    let cases = tests.into_iter().map(|(name, files)| Case::new(name, &files));
    cases.collect::<Result<_, _>>().expect("every test has a model and its data")
}

/// A test's outcome; the program must not panic on any.
fn outcome(case: &Case) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| case.run())).unwrap_or_else(|_| Outcome::Failed(PANICS.into()))
}

/// The outcome of a test's gradients.
fn gradient(case: &Case) -> gradients::Outcome {
    let check = AssertUnwindSafe(|| gradients::check(case));
    catch_unwind(check).unwrap_or_else(|_| gradients::Outcome::Wrong(PANICS.into()))
}

const PANICS: &str = "panics";

/// The outcomes of all tests, in their order, run on all processors.
fn outcomes<T: Clone + Send>(cases: &[Case], run: impl Fn(&Case) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(vec![None; cases.len()]);
    let work = || {
        while let Some((i, case)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, cases.get(i)?)))
        {
            let outcome = run(case);
            outcomes.lock().expect("no holder panics")[i] = Some(outcome);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let outcomes = outcomes.into_inner().expect("no holder panics");
    outcomes.into_iter().map(|outcome| outcome.expect("every test was run")).collect()
}

#[test]
fn every_operator_does_on_onnx_node_tests_what_the_table_says() {
    let cases = cases();
    assert_eq!(cases.len(), TESTS);
    let gradients = outcomes(&cases, gradient);
    let outcomes = outcomes(&cases, outcome);
    let table = table::render(&cases, &outcomes, &gradients);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(coverage(), &table).expect("the table can be written");
    }
    check_bounds(&outcomes, &gradients);
    let written = std::fs::read_to_string(coverage()).expect("there is a table");
    let only_in = |one: &str, other: &str| -> Vec<String> {
        one.lines().filter(|line| !other.lines().any(|o| o == *line)).map(str::to_owned).collect()
    };
    assert!(
        written == table,
        "docs/onnx-coverage.md is not what the tests give: BLESS=1 cargo test --test model_files nodes\nnow: {:#?}\n\
         before: {:#?}",
        only_in(&table, &written),
        only_in(&written, &table)
    );
}

/// Checks the bounds that do not depend on the table: the share that passes, the number that rules leave out, the number of right
/// gradients.
fn check_bounds(outcomes: &[Outcome], gradients: &[gradients::Outcome]) {
    let count = |is: &dyn Fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| is(outcome)).count();
    let (passed, excluded) =
        (count(&|o| *o == Outcome::Passed), count(&|o| matches!(o, Outcome::Excluded(_))));
    assert_eq!(count(&|o| *o == Outcome::Failed(PANICS.into())), 0, "a test panics");
    assert!(excluded <= MOST_EXCLUDED, "{excluded} tests are left out");
    let share = passed as f64 / (outcomes.len() - excluded) as f64;
    assert!(share >= LEAST_PASSED, "{:.1} % of the others pass", 100.0 * share);
    let right = |outcome: &&gradients::Outcome| matches!(outcome, gradients::Outcome::Right { .. });
    let right = gradients.iter().filter(right).count();
    assert!(right >= LEAST_GRADIENTS, "{right} gradients are right");
    let wrong = |outcome: &&gradients::Outcome| matches!(outcome, gradients::Outcome::Wrong(_));
    let wrong: Vec<_> = gradients.iter().filter(wrong).collect();
    assert!(wrong.is_empty(), "docs/onnx-coverage.md names what is wrong: {wrong:#?}");
}
