//! Runs that stop, are killed, and are resumed.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs all 20 steps, to compare with.
fn whole() -> Setup {
    let setup = setup();
    let outcome = setup.go().unwrap();
    assert_eq!((outcome.steps, outcome.stopped), (20, false));
    setup
}

/// Asserts that the last checkpoint and the metrics of two runs are equal, bit for bit.
fn assert_same(run: &Setup, whole: &Setup) {
    assert_eq!(numbers(&run.metrics()), numbers(&whole.metrics()));
    assert!(run.checkpoint(20) == whole.checkpoint(20), "the checkpoints differ");
}

#[test]
fn the_loss_falls_and_is_evaluated_before_step_0_and_at_the_end() {
    let run = setup();
    let outcome = run.go().unwrap();
    let metrics = run.metrics();
    assert_eq!(metrics.len(), 20);
    assert!(metrics[19].loss < 0.6 * metrics[0].loss, "{} then {}", metrics[0].loss, metrics[19].loss);
    assert_eq!(outcome.loss, Some(metrics[19].loss));
    let evaluated: Vec<u64> =
        metrics.iter().filter(|step| step.eval_loss.is_some()).map(|step| step.step).collect();
    assert_eq!(evaluated, [5, 10, 15, 20]);
    assert_eq!(outcome.eval_loss, metrics[19].eval_loss);
    assert!(outcome.initial_eval_loss.unwrap() > outcome.eval_loss.unwrap());
    assert_eq!(outcome.checkpoint, Some(run.checkpoints().path(20)));
}

#[test]
fn evaluation_changes_nothing_of_the_training() {
    let whole = whole();
    let mut run = setup();
    (run.schedule.eval_every, run.schedule.save_every) = (Some(1), None);
    run.go().unwrap();
    let losses = |setup: &Setup| setup.metrics().iter().map(|step| step.loss.to_bits()).collect::<Vec<_>>();
    assert_eq!(losses(&run), losses(&whole));
    assert!(run.checkpoint(20) == whole.checkpoint(20));
}

#[test]
fn a_run_that_was_stopped_goes_on_bit_for_bit() {
    let mut run = setup();
    run.on_line = OnLine::Stop("step 8/20");
    let outcome = run.go().unwrap();
    assert_eq!((outcome.steps, outcome.stopped), (8, true));
    assert_eq!(outcome.checkpoint, Some(run.checkpoints().path(8)));
    (run.resume, run.on_line) = (true, OnLine::Nothing);
    let outcome = run.go().unwrap();
    assert_eq!((outcome.steps, outcome.stopped, outcome.initial_eval_loss), (20, false, None));
    assert_same(&run, &whole());
}

#[test]
fn a_run_that_was_killed_between_two_saves_goes_on_bit_for_bit() {
    let mut run = setup();
    run.on_line = OnLine::Kill("step 13/20");
    assert!(catch_unwind(AssertUnwindSafe(|| run.go())).is_err());
    assert_eq!(run.metrics().len(), 13);
    // The run was also killed while it was saving, and while it was writing a line.
    let torn = run.checkpoints().folder().join("step-15.tmp");
    std::fs::create_dir(&torn).unwrap();
    std::fs::write(torn.join("state.safetensors"), "torn").unwrap();
    let mut lines = std::fs::read(run.metrics_file()).unwrap();
    lines.extend(b"{\"step\":13,\"lo");
    std::fs::write(run.metrics_file(), lines).unwrap();
    (run.resume, run.on_line) = (true, OnLine::Nothing);
    run.go().unwrap();
    assert_same(&run, &whole());
}

#[test]
fn a_run_goes_on_for_more_steps_than_were_asked_for_at_first() {
    let mut run = setup();
    run.schedule.steps = 7;
    run.go().unwrap();
    (run.resume, run.schedule.steps) = (true, 20);
    run.go().unwrap();
    let whole = whole();
    assert!(run.checkpoint(20) == whole.checkpoint(20));
    let losses = |setup: &Setup| setup.metrics().iter().map(|step| step.loss.to_bits()).collect::<Vec<_>>();
    assert_eq!(losses(&run), losses(&whole));
}

#[test]
fn a_finished_run_that_goes_on_only_evaluates() {
    let mut run = whole();
    let before = run.checkpoint(20);
    run.resume = true;
    let outcome = run.go().unwrap();
    assert_eq!((outcome.steps, outcome.loss, outcome.stopped), (20, None, false));
    assert_eq!(outcome.eval_loss, run.metrics()[19].eval_loss);
    assert_eq!(outcome.checkpoint, Some(run.checkpoints().path(20)));
    assert!(run.checkpoint(20) == before);
}

#[test]
fn a_run_goes_on_from_another_runs_checkpoint_into_its_own_folder() {
    let mut first = setup();
    first.schedule.steps = 10;
    first.go().unwrap();
    let mut run = setup();
    (run.resume, run.resume_from, run.schedule.steps) = (true, Some(first.checkpoints()), 10);
    // The only work left is to save the resumed states.
    let outcome = run.go().unwrap();
    assert_eq!(outcome.checkpoint, Some(run.checkpoints().path(10)));
    assert!(run.checkpoint(10) == first.checkpoint(10));
    run.schedule.steps = 20;
    run.go().unwrap();
    assert!(run.checkpoint(20) == whole().checkpoint(20));
    assert_eq!(run.metrics()[0].step, 11);
}

#[test]
fn another_number_of_microbatches_goes_on_with_the_same_samples() {
    let mut run = setup();
    run.schedule.steps = 10;
    run.go().unwrap();
    (run.resume, run.schedule.steps, run.microbatches) = (true, 20, 2);
    run.go().unwrap();
    let (found, expected) = (run.metrics(), whole().metrics());
    assert_eq!(numbers(&found[..9]), numbers(&expected[..9]));
    assert_eq!(found.len(), 20);
    for (found, expected) in found.iter().zip(&expected) {
        let error = (found.loss - expected.loss).abs();
        assert!(error < 1e-5, "step {}: {} and {}", found.step, found.loss, expected.loss);
        assert_eq!(found.lr.to_bits(), expected.lr.to_bits());
    }
}

#[test]
fn a_run_that_is_stopped_before_its_first_step_saves_where_it_began() {
    let mut run = setup();
    run.on_line = OnLine::Stop("before step 0");
    let outcome = run.go().unwrap();
    assert_eq!((outcome.steps, outcome.stopped, outcome.loss), (0, true, None));
    assert_eq!(outcome.checkpoint, Some(run.checkpoints().path(0)));
    (run.resume, run.on_line) = (true, OnLine::Nothing);
    run.go().unwrap();
    assert_same(&run, &whole());
}

#[test]
fn a_run_goes_on_from_a_chosen_checkpoint_bit_for_bit() {
    let mut run = whole();
    let (checkpoint, metrics) = (run.checkpoint(20), run.metrics());
    (run.resume, run.resume_at, run.schedule.steps) = (true, Some(10), 12);
    let outcome = run.go().unwrap();
    assert_eq!((outcome.steps, run.metrics().len()), (12, 12));
    assert_eq!(run.checkpoints().steps().unwrap(), [5, 10, 12]);
    (run.resume_at, run.schedule.steps) = (None, 20);
    run.go().unwrap();
    assert!(run.checkpoint(20) == checkpoint, "the checkpoints differ");
    assert_eq!(numbers(&run.metrics()[12..]), numbers(&metrics[12..]));
    run.resume_at = Some(11);
    let error = run.go().unwrap_err().to_string();
    assert!(
        error.ends_with(
            "has no checkpoint of step 11; it has the checkpoints of the steps 5, 10, 12, 15 and 20"
        ),
        "{error}"
    );
}
