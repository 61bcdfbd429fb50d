//! Tests of the checkpoint with the lowest eval loss, of the removal of checkpoints, and of runs that end early.

use super::*;
use files::fault::{Fault, inject};

/// Makes the rate negative after three steps, so that the eval loss rises.
const ASCENT: (&str, &str) = ("value = 0.049}", "value = -0.2}");

/// Returns a run that is evaluated after every step and becomes worse after some.
fn rising() -> Setup {
    let mut run = setup();
    run.edits = vec![ASCENT];
    (run.schedule.eval_every, run.schedule.save_every) = (Some(1), None);
    run
}

/// Returns the number of steps after which a run has its lowest eval loss. It is neither the first nor the last.
fn lowest(run: &Setup) -> u64 {
    let losses: Vec<f64> = run.metrics().iter().map(|step| step.eval_loss.unwrap()).collect();
    let lowest = (0..losses.len()).min_by(|&a, &b| losses[a].total_cmp(&losses[b])).unwrap() + 1;
    assert!(
        (2..6).contains(&lowest) && losses[lowest..].windows(2).all(|pair| pair[0] < pair[1]),
        "{losses:?}"
    );
    lowest as u64
}

#[test]
fn a_run_without_patience_left_ends_as_done_and_stays_so() {
    let mut run = rising();
    run.schedule.patience = Some(3);
    let outcome = run.go().unwrap();
    let end = lowest(&run) + 3;
    assert_eq!((outcome.ended_early, outcome.stopped, outcome.steps), (true, false, end));
    assert_eq!(outcome.checkpoint, Some(run.checkpoints().path(end)));
    assert_eq!(outcome.eval_loss, run.metrics().last().unwrap().eval_loss);
    let whole = run.metrics();

    run.resume = true;
    let outcome = run.go().unwrap();
    assert_eq!((outcome.ended_early, outcome.steps, outcome.loss), (true, end, None));
    assert_eq!(outcome.eval_loss, whole.last().unwrap().eval_loss);
    assert_eq!(run.metrics(), whole);
    run.schedule.patience = Some(5);
    assert_eq!(run.go().unwrap().steps, end + 2);

    // A run that was stopped in between counts the earlier evaluations.
    let mut parts = rising();
    (parts.schedule.patience, parts.on_line) = (Some(3), OnLine::Stop("step 5/20"));
    assert_eq!(end, 6, "the run is to be stopped between the lowest loss and the end");
    assert!(parts.go().unwrap().stopped);
    (parts.resume, parts.on_line) = (true, OnLine::Nothing);
    let outcome = parts.go().unwrap();
    assert_eq!((outcome.ended_early, outcome.steps), (true, end));
    assert_eq!(numbers(&parts.metrics()), numbers(&whole));
}

#[test]
fn the_newest_checkpoints_are_kept_and_the_best_besides() {
    let mut run = rising();
    (run.schedule.save_every, run.schedule.keep) = (Some(1), Some(2));
    let outcome = run.go().unwrap();
    let best = lowest(&run);
    let expected = outcome.best.clone().unwrap();
    assert_eq!((expected.path, expected.evaluation.steps), (run.checkpoints().path(best), best));
    assert_eq!(run.checkpoints().steps().unwrap(), [best, 19, 20]);

    let mut parts = rising();
    (parts.schedule.save_every, parts.schedule.keep) = (Some(1), Some(2));
    parts.on_line = OnLine::Stop("step 12/20");
    parts.go().unwrap();
    assert_eq!(parts.checkpoints().steps().unwrap(), [best, 11, 12]);
    (parts.resume, parts.on_line) = (true, OnLine::Nothing);
    assert_eq!(
        parts.go().unwrap().best.map(|best| best.evaluation),
        outcome.best.map(|best| best.evaluation)
    );
    assert_eq!(parts.checkpoints().steps().unwrap(), [best, 19, 20]);
}

#[test]
fn a_checkpoint_that_is_not_evaluated_is_not_the_best() {
    let mut run = rising();
    (run.schedule.save_every, run.schedule.eval_every, run.schedule.keep) = (Some(5), Some(4), Some(1));
    let outcome = run.go().unwrap();
    // Only the checkpoint of step 20 was evaluated.
    assert_eq!(outcome.best.unwrap().evaluation.steps, 20);
    assert_eq!(run.checkpoints().steps().unwrap(), [20]);
    assert_ne!(outcome.lowest.unwrap().steps, 20);
}

#[test]
fn every_evaluation_that_improves_is_saved_if_the_best_is_wanted() {
    let mut run = rising();
    (run.schedule.save_best, run.schedule.eval_every) = (true, Some(2));
    let outcome = run.go().unwrap();
    let best = outcome.best.unwrap().evaluation;
    assert_eq!(Some(best), outcome.lowest);
    let improving: Vec<u64> = (1..=best.steps / 2).map(|index| 2 * index).chain([20]).collect();
    assert_eq!(run.checkpoints().steps().unwrap(), improving);

    // The best checkpoint stays the same if the run is resumed.
    (run.resume, run.schedule.steps) = (true, 22);
    assert_eq!(run.go().unwrap().best.map(|best| best.evaluation), Some(best));
}

#[test]
fn a_checkpoint_that_cannot_be_removed_ends_no_run() {
    // The disk fails at the removal of a checkpoint, which the next save removes. At other operations the run ends. Only the last
    // checkpoint that was to be removed still exists at the end.
    let steps = (0..200).find_map(|at| {
        let mut run = setup();
        run.schedule.keep = Some(1);
        let outcome = inject(at, Fault::Failed, || run.go()).ok()?;
        assert_eq!(outcome.steps, 20);
        Some(run.checkpoints().steps().unwrap()).filter(|steps| steps != &[20])
    });
    assert_eq!(steps.unwrap(), [15, 20]);
}

#[test]
fn evaluations_of_other_data_or_another_loss_do_not_count_for_patience_and_the_best() {
    let mut run = rising();
    (run.schedule.steps, run.schedule.save_best) = (10, true);
    run.go().unwrap();
    let best = lowest(&run);
    let eval = run.folder.path().join("eval.txt");
    std::fs::write(&eval, "other text").unwrap();
    let other_data = EvalConditions {
        files: DataFiles { train: Some(eval), ..DataFiles::default() },
        ..EvalConditions::default()
    };
    let other_loss = EvalConditions { measure: "another loss".to_owned(), ..EvalConditions::default() };
    (run.resume, run.resume_at, run.schedule.steps) = (true, Some(10), 13);
    for evaluation in [other_data, other_loss] {
        (run.evaluation, run.schedule.patience) = (evaluation, Some(2));
        let outcome = run.go().unwrap();
        // The loss rises from step to step, so the first evaluation under the new conditions is the lowest.
        assert_eq!((outcome.lowest.unwrap().steps, outcome.ended_early, outcome.steps), (11, false, 13));
        assert_eq!(outcome.best.unwrap().evaluation.steps, 11);
    }
    (run.evaluation, run.schedule.patience) = (EvalConditions::default(), None);
    assert_eq!(run.go().unwrap().best.unwrap().evaluation.steps, best);
}

#[test]
fn the_best_checkpoint_is_found_by_losses_that_have_a_checksum() {
    let mut run = rising();
    (run.schedule.steps, run.schedule.save_best) = (10, true);
    run.go().unwrap();
    let best = lowest(&run);
    let digits = format!("\"eval_loss\":{}", run.metrics()[9].eval_loss.unwrap());
    let text = std::fs::read_to_string(run.metrics_file()).unwrap();
    assert!(text.contains(&digits));
    std::fs::write(run.metrics_file(), text.replace(&digits, "\"eval_loss\":0.001")).unwrap();
    (run.resume, run.schedule.steps) = (true, 11);
    assert_eq!(run.go().unwrap().best.unwrap().evaluation.steps, best);
}

#[test]
fn a_best_checkpoint_that_is_damaged_is_passed_over() {
    let mut run = rising();
    (run.schedule.steps, run.schedule.save_best) = (10, true);
    run.go().unwrap();
    let best = lowest(&run);
    let path = run.checkpoints().path(best).join("state.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    (run.resume, run.schedule.steps) = (true, 11);
    let next = run.go().unwrap().best.unwrap().evaluation.steps;
    assert!(next != best && run.checkpoints().path(next).exists(), "step {next}");
    // Without --export best, nothing reads the checkpoint.
    (run.schedule.save_best, run.schedule.steps) = (false, 12);
    assert_eq!(run.go().unwrap().best.unwrap().evaluation.steps, best);
}
