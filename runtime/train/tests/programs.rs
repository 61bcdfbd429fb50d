//! Runs of several programs: they equal runs that stop and are resumed with another program.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The step at which the second program begins.
const BORDER: u64 = 8;
/// The second program has another learning rate.
const RATE: (&str, &str) = ("value = 0.049}", "value = 0.02}");

/// Runs 20 steps with two programs.
fn two() -> Setup {
    Setup { then: Some((BORDER, vec![RATE])), ..setup() }
}

/// Runs the first program, stops at the border, and resumes with the second.
fn parted() -> Setup {
    let mut run = setup();
    run.on_line = OnLine::Stop("step 8/20");
    assert_eq!(run.go().unwrap().steps, BORDER);
    (run.resume, run.on_line, run.edits) = (true, OnLine::Nothing, vec![RATE]);
    run.go().unwrap();
    run
}

fn assert_same(run: &Setup, expected: &Setup) {
    assert_eq!(numbers(&run.metrics()), numbers(&expected.metrics()));
    assert!(run.checkpoint(20) == expected.checkpoint(20), "the checkpoints differ");
}

#[test]
fn a_program_takes_the_states_of_the_one_before() {
    let (run, expected) = (two(), parted());
    let outcome = run.go().unwrap();
    assert_eq!((outcome.steps, outcome.stopped), (20, false));
    assert!(outcome.initial_eval_loss.is_some(), "the outcome is that of the whole run");
    assert_same(&run, &expected);
    // The step between the programs has a checkpoint, and no evaluation that the run would not have otherwise.
    assert_eq!(run.checkpoints().steps().unwrap(), [5, BORDER, 10, 15, 20]);
    assert_eq!(run.metrics()[BORDER as usize - 1].eval_loss, None);
    let one = setup();
    one.go().unwrap();
    assert_ne!(numbers(&run.metrics()), numbers(&one.metrics()));
    assert_eq!(numbers(&run.metrics())[..BORDER as usize], numbers(&one.metrics())[..BORDER as usize]);
}

#[test]
fn a_program_may_divide_its_states_otherwise() {
    let program = include_str!("bigram.ranks.ir");
    let other = ("mesh [dp=2, tp=2]", "mesh [dp=4, tp=1]");
    let mut expected = Setup { program, ..setup() };
    expected.on_line = OnLine::Stop("step 8/20");
    expected.go().unwrap();
    (expected.resume, expected.on_line, expected.edits) = (true, OnLine::Nothing, vec![other]);
    expected.go().unwrap();
    let run = Setup { program, then: Some((BORDER, vec![other])), ..setup() };
    run.go().unwrap();
    assert_same(&run, &expected);
}

#[test]
fn a_run_that_stops_in_either_program_or_between_them_is_resumed_in_the_right_one() {
    let expected = two();
    expected.go().unwrap();
    let lines = [("step 6/20", 6), ("step 8/20", 8), ("the next program begins", 8), ("step 9/20", 9)];
    for (line, steps) in lines {
        let mut run = two();
        run.on_line = OnLine::Stop(line);
        let outcome = run.go().unwrap();
        assert_eq!((outcome.stopped, outcome.steps), (true, steps), "{line}");
        assert_eq!(outcome.checkpoint, Some(run.checkpoints().path(steps)));
        (run.resume, run.on_line) = (true, OnLine::Nothing);
        if steps >= BORDER {
            (run.edits, run.then) = (vec![RATE], None);
        }
        assert!(!run.go().unwrap().stopped);
        assert_same(&run, &expected);
    }
}

#[test]
fn a_run_that_is_killed_between_two_programs_loses_nothing() {
    let expected = two();
    expected.go().unwrap();
    let mut run = two();
    run.on_line = OnLine::Kill("the next program begins");
    assert!(catch_unwind(AssertUnwindSafe(|| run.go())).is_err());
    assert_eq!(run.checkpoints().steps().unwrap(), [5, BORDER]);
    (run.resume, run.on_line, run.edits, run.then) = (true, OnLine::Nothing, vec![RATE], None);
    run.go().unwrap();
    assert_same(&run, &expected);
}

/// Two equal programs are one.
#[test]
fn patience_and_the_best_checkpoint_count_over_all_programs() {
    let run = |then: Option<u64>| {
        let mut run = setup();
        // The rate becomes negative, so the eval loss rises after some steps.
        run.edits = vec![("value = 0.049}", "value = -0.2}")];
        run.then = then.map(|border| (border, run.edits.clone()));
        (run.schedule.eval_every, run.schedule.save_every) = (Some(2), None);
        (run.schedule.patience, run.schedule.save_best) = (Some(2), true);
        let outcome = run.go().unwrap();
        assert!(outcome.ended_early);
        (outcome.steps, outcome.lowest, outcome.best.unwrap().evaluation, numbers(&run.metrics()))
    };
    let one = run(None);
    // Before and after the lowest loss, at the end, and after it.
    for border in [1, one.0 - 2, one.0 - 1, one.0, one.0 + 1] {
        assert_eq!(run(Some(border)), one, "{border}");
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_gpu_goes_on_with_another_program() {
    for program in [setup().program, include_str!("bigram.ranks.ir")] {
        let gpu = || Setup { gpu: Some(on_gpu::SOUND), program, ..setup() };
        let run = Setup { then: Some((BORDER, vec![RATE])), ..gpu() };
        run.go().unwrap();
        let mut expected = gpu();
        expected.schedule.steps = BORDER;
        expected.go().unwrap();
        (expected.resume, expected.schedule.steps, expected.edits) = (true, 20, vec![RATE]);
        expected.go().unwrap();
        let losses = |run: &Setup| run.metrics().iter().map(|step| step.loss.to_bits()).collect::<Vec<_>>();
        assert_eq!(losses(&run), losses(&expected));
        assert!(run.checkpoint(20) == expected.checkpoint(20));
    }
}
