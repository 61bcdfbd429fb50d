//! Runs that must end with an error, and the files that they leave.

use super::*;
use crate::Cause;
use checkpoint::CheckpointError;
use cpu::Cpu;
use files::fault::{Fault, inject};
use ranks::Rank;

/// The rate in the first three steps.
const RATE: &str = "value = 0.05}";

#[test]
fn a_loss_that_is_not_finite_is_told_with_its_step_and_node_and_keeps_the_checkpoint() {
    let mut run = setup();
    run.edits = vec![(RATE, "value = 1e30}")];
    run.schedule.save_every = Some(1);
    let error = run.go().unwrap_err();
    let text = told(error);
    assert!(text.starts_with("the loss of step 2 is "), "{text}");
    assert!(text.contains("node \"/head\" (MatMul, opset 18) made"), "{text}");
    assert!(text.contains("step-1` was saved before that"), "{text}");
    assert_eq!(run.metrics().len(), 1);
    let latest = run.checkpoints().latest().unwrap().checkpoint.unwrap();
    assert_eq!(latest.description.step(), 1);
    latest.load(&run.train_module()).unwrap();
    assert!(!run.checkpoints().path(2).exists());
}

#[test]
fn a_gradient_that_is_not_finite_is_told_with_its_node_though_the_loss_is() {
    let mut run = setup();
    (run.program, run.microbatches) = (include_str!("root_of_square.ir"), 2);
    let text = told(run.go().unwrap_err());
    assert!(text.starts_with("the gradient's norm of step 1 is NaN: "), "{text}");
    // The message names the step of the fused chain, and the origin of the infinity before it.
    assert!(text.contains("`mul` of node \"/square\" (Mul, opset 18) made NaN"), "{text}");
    assert!(text.contains("`div` of node \"/root\" (Sqrt, opset 18) made inf"), "{text}");
    assert!(run.metrics().is_empty());
}

#[test]
fn a_gradient_that_is_not_finite_ends_a_run_with_early_updates_at_its_last_checkpoint() {
    let mut run = setup();
    (run.program, run.update) = (include_str!("root_of_square.ir"), UpdateTime::Early);
    let text = told(run.go().unwrap_err());
    assert!(text.starts_with("the gradient's norm of step 1 is NaN"), "{text}");
    assert!(text.contains("weights had changed by then, because of --update early"), "{text}");
    assert!(text.contains("no checkpoint was saved before that"), "{text}");
    assert!(run.metrics().is_empty() && run.checkpoints().latest().unwrap().checkpoint.is_none());
}

/// The gradient of step 1 is not finite. The run can be resumed from the checkpoint that the message names.
#[test]
fn the_checkpoint_before_a_gradient_that_is_not_finite_is_whole_though_updates_are_early() {
    let mut run = setup();
    (run.program, run.update, run.schedule.steps) = (include_str!("root_of_square.ir"), UpdateTime::Early, 1);
    run.edits =
        vec![("head.bias : f32[256] parameter = zeros", "head.bias : f32[256] parameter = normal 0.5")];
    run.go().unwrap();
    // Now the program takes the square root of zero.
    run.edits.push(("%8 = mul %4, %4", "%8 = sub %4, %4"));
    (run.resume, run.schedule.steps) = (true, 20);
    let error = run.go().unwrap_err();
    let is_of_gradient = matches!(&error, TrainError::NotFinite { updated: Some(_), kept: Some(_), .. });
    let text = told(error);
    assert!(is_of_gradient, "{text}");
    assert!(text.contains("the run ends at the checkpoint `"), "{text}");
    let latest = run.checkpoints().latest().unwrap().checkpoint.unwrap();
    assert!(text.contains(&latest.path.display().to_string()), "{text}");
    latest.load(&run.train_module()).unwrap();
}

#[test]
fn a_loss_that_is_not_finite_keeps_early_updates_from_changing_weights() {
    let mut run = setup();
    (run.update, run.edits) = (UpdateTime::Early, vec![(RATE, "value = 1e30}")]);
    run.schedule.save_every = Some(1);
    let text = told(run.go().unwrap_err());
    assert!(text.starts_with("the loss of step 2 is "), "{text}");
    assert!(text.contains("node \"/head\" (MatMul, opset 18) made"), "{text}");
}

#[test]
fn a_weight_that_an_update_spoilt_is_named() {
    let mut run = setup();
    run.edits = vec![(RATE, "value = 1e39}")];
    run.schedule.save_every = None;
    let error = run.go().unwrap_err();
    let TrainError::NotFinite { step: 1, cause: Some(Cause::State(name)), kept: None, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(name, "embedding.weight");
    let text = told(error);
    assert!(text.contains("no checkpoint was saved before that"), "{text}");
}

/// Adds a state that no loss reads and that every step multiplies by 1000.
const DRIFT: [(&str, &str); 4] = [
    ("  func @train(", "  state @drift : f32[3] buffer = splat 1e30\n  func @train("),
    ("(head.bias)\",\n  ) {", "(head.bias)\",\n    %200 = @drift,\n  ) {"),
    (
        "  }\n  output \"loss.sum\"",
        "    %201 = splat {value = 1000.0} : f32[] !{update, origin \"drift\"}\n    \
         %202 = mul %200, %201 : f32[3] !{update, origin \"drift\"}\n  }\n  output \"loss.sum\"",
    ),
    ("  update @step", "  update @drift = %202\n  update @step"),
];

/// Returns the steps and the state in the message of a run that ends because a state is not finite.
fn spoilt(run: &Setup) -> (u64, u64, String) {
    let error = run.go().unwrap_err();
    let TrainError::StateNotFinite { step, since, state, .. } = &error else { panic!("{error}") };
    (*since, *step, state.name.clone())
}

#[test]
fn a_state_that_an_update_made_infinite_is_saved_in_no_checkpoint() {
    let mut run = setup();
    run.edits = DRIFT.to_vec();
    run.schedule.save_every = Some(2);
    let text = told(run.go().unwrap_err());
    assert!(text.starts_with("an update of the steps 3 to 4 made the buffer `drift` inf\n"), "{text}");
    assert!(text.contains("step-2` was saved before that"), "{text}");
    let names: Vec<_> = std::fs::read_dir(run.checkpoints().folder()).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert_eq!(run.checkpoints().latest().unwrap().checkpoint.unwrap().description.step(), 2);
    run.schedule.save_every = Some(1);
    let text = told(run.go().unwrap_err());
    assert!(text.starts_with("the update of step 3 made the buffer `drift` inf\n"), "{text}");

    // A weight that the next step would read is reported in the same way, also without an earlier checkpoint.
    let mut run = setup();
    (run.edits, run.schedule.save_every) = (vec![(RATE, "value = 1e39}")], Some(1));
    let text = told(run.go().unwrap_err());
    assert!(text.starts_with("the update of step 1 made the parameter `embedding.weight` "), "{text}");
    assert!(text.contains("no checkpoint was saved before that"), "{text}");
    assert!(!run.checkpoints().folder().exists());
}

#[test]
fn a_run_that_is_stopped_with_a_state_that_is_not_finite_saves_nothing() {
    let mut run = setup();
    run.edits = DRIFT.to_vec();
    (run.schedule.save_every, run.on_line) = (None, OnLine::Stop("step 5/20"));
    assert_eq!(spoilt(&run), (0, 4, "drift".to_owned()));
    assert!(run.checkpoints().latest().unwrap().checkpoint.is_none());
}

#[test]
fn an_eval_loss_that_is_not_finite_names_the_state_that_an_update_spoilt() {
    let mut run = setup();
    run.edits = vec![(RATE, "value = 1e39}")];
    (run.schedule.save_every, run.schedule.eval_every) = (None, Some(1));
    assert_eq!(spoilt(&run), (0, 0, "embedding.weight".to_owned()));
}

#[test]
fn half_weights_that_an_update_made_infinite_are_saved_in_no_checkpoint() {
    let mut run = setup();
    run.program = include_str!("bigram.fp16.ir");
    run.edits = vec![("value = 8388608.0}", "value = 1.0}"), (RATE, "value = 1e39}")];
    run.schedule.save_every = Some(1);
    let (since, step, _) = spoilt(&run);
    // The scale is too large at first, but no skipped step changes a weight.
    assert!(since == step && step > 2, "{since} to {step}");
    assert_eq!(run.checkpoints().latest().unwrap().checkpoint.unwrap().description.step(), step);
}

#[test]
fn numbers_that_are_not_finite_in_the_file_are_legal_where_training_leaves_them() {
    // A mask that no step changes.
    let mut run = setup();
    run.edits = DRIFT[..2].to_vec();
    let mask = [0.0, f32::NEG_INFINITY, f32::NAN].map(f32::to_le_bytes).concat();
    run.given = StateBytes::from([("drift".to_owned(), mask.into())]);
    assert_eq!(run.go().unwrap().steps, 20);
}

#[test]
fn a_mask_of_the_file_is_not_the_cause_of_a_loss_that_is_not_finite() {
    let mut run = setup();
    run.edits = DRIFT[..2].to_vec();
    run.edits.push((RATE, "value = 1e30}"));
    let mask = [0.0, f32::NEG_INFINITY, 0.0].map(f32::to_le_bytes).concat();
    run.given = StateBytes::from([("drift".to_owned(), mask.into())]);
    let text = told(run.go().unwrap_err());
    assert!(text.contains("node \"/head\" (MatMul, opset 18) made"), "{text}");
}

#[test]
fn a_save_that_fails_ends_the_run_and_leaves_the_one_before() {
    // The disk is full at the first operation of that save.
    let is_of_step_10 =
        |error: &TrainError| matches!(error, TrainError::Checkpoint(CheckpointError::Write { step: 10, .. }));
    let failed = (0..200).find_map(|at| {
        let mut run = setup();
        // Faults are injected on the thread of the test.
        run.schedule.saves_beside = false;
        let error = inject(at, Fault::Full, || run.go()).err().filter(is_of_step_10)?;
        Some((run, error))
    });
    let (mut run, error) = failed.expect("the save is one of the first operations");
    let text = told(error);
    assert!(text.contains("step-5` is whole"), "{text}");
    run.resume = true;
    assert_eq!(run.go().unwrap().steps, 20);
    assert_eq!(run.metrics().len(), 20);
}

#[test]
fn a_save_beside_the_steps_that_fails_ends_the_run() {
    for run in [setup(), Setup { program: include_str!("bigram.ranks.ir"), ..setup() }] {
        let folder = run.checkpoints().folder().to_owned();
        std::fs::write(&folder, "a file in the place of the folder").unwrap();
        let error = run.go().unwrap_err();
        assert!(matches!(error, TrainError::Checkpoint(CheckpointError::Write { step: 5, .. })), "{error}");
        assert!((5..20).contains(&run.metrics().len()), "the run ends before its last step");
        std::fs::remove_file(&folder).unwrap();
    }
}

#[test]
fn a_checkpoint_that_is_written_while_a_loss_becomes_infinite_is_kept_and_named() {
    let mut run = setup();
    // The weights after step 1 are finite, but too large for the loss of step 2.
    (run.edits, run.schedule.save_every) = (vec![(RATE, "value = 1e30}")], Some(1));
    run.schedule.eval_every = None;
    let text = told(run.go().unwrap_err());
    let latest = run.checkpoints().latest().unwrap().checkpoint.unwrap().description.step();
    assert!(text.contains(&format!("step-{latest}` was saved before that")), "{text}");
    let names: Vec<_> = std::fs::read_dir(run.checkpoints().folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(names.iter().all(|name| name.to_string_lossy().starts_with("step-")), "{names:?}");
}

#[test]
fn a_checkpoint_of_another_model_is_refused_and_nothing_is_cut_off() {
    let mut run = setup();
    run.schedule.steps = 3;
    run.go().unwrap();
    (run.resume, run.schedule.steps) = (true, 6);
    run.edits =
        vec![("head.bias", "lm_head.bias"), ("state @step : i64[] counter", "state @step : i64[] rng")];
    let error = told(run.go().unwrap_err());
    assert!(error.contains("missing in the checkpoint: `adam.m(lm_head.bias)` f32[256]"), "{error}");
    assert!(error.contains("not in this program: `adam.m(head.bias)` f32[256]"), "{error}");
    assert!(
        error.contains("`step` is i64[] rng in this program and i64[] counter in the checkpoint"),
        "{error}"
    );
    assert_eq!(run.metrics().len(), 3);
}

#[test]
fn other_data_and_another_global_batch_are_refused() {
    let mut run = setup();
    run.schedule.steps = 3;
    run.go().unwrap();
    run.resume = true;
    let text = std::fs::read_to_string(run.corpus()).unwrap();
    std::fs::write(run.corpus(), text.replace("heaven", "heavens")).unwrap();
    let error = told(run.go().unwrap_err());
    assert!(error.contains("belongs to a run with other data"), "{error}");
    std::fs::write(run.corpus(), text).unwrap();
    let (module, loader) = (run.train_module(), run.loader());
    let data = run.data_files();
    let resume_with =
        |loader: &Loader| resume(&run.checkpoints(), None, &module, loader, &data, &run.evaluation, None);
    assert_eq!(resume_with(&loader).unwrap().step, 3);
    let doubled = run.loader_of(run.microbatches * 2);
    let error = resume_with(&doubled).unwrap_err().to_string();
    assert!(error.contains("the global batch was 4 when the checkpoint was saved and is 8 now"), "{error}");
    // The settings are compared before the data is read, so other data of the same size is reported later.
    let corpus = std::fs::read_to_string(run.corpus()).unwrap();
    std::fs::write(run.corpus(), corpus.replace("heaven", "Heaven")).unwrap();
    let error = resume_with(&doubled).unwrap_err().to_string();
    assert!(error.contains("the global batch was 4 when the checkpoint was saved and is 8 now"), "{error}");
    // A loader maps the data with their contents at that time.
    drop((loader, doubled));
    let error = resume_with(&run.loader()).unwrap_err().to_string();
    assert!(error.contains("belongs to a run with other data"), "{error}");
}

#[test]
fn a_folder_without_a_checkpoint_cannot_be_gone_on_from() {
    let mut run = setup();
    run.resume = true;
    let error = told(run.go().unwrap_err());
    assert!(error.starts_with("there is no checkpoint to resume from in"), "{error}");
}

#[test]
fn a_program_without_what_the_loop_reads_is_refused() {
    let run = setup();
    let mut device = Cpu::new(run.programs(&run.train_module()), Some(1)).unwrap();
    let error = Session::new(Rank::alone(&mut device), ProgramId(1), None).err().unwrap().to_string();
    assert_eq!(error, "program `bigram` has no output `loss`, which training needs");
}

#[test]
fn an_evaluation_of_other_weights_than_the_trained_ones_is_refused() {
    let run = setup();
    let forward = run.module(include_str!("bigram.forward.ir"), &[("head.bias", "a.bias")]);
    let programs = [run.train_module(), forward]
        .map(|module| Arc::new(lower(&module, &LowerOptions::of(cpu::TARGET)).unwrap()));
    let mut device = Cpu::new(programs.to_vec(), Some(1)).unwrap();
    let rank = Rank::alone(&mut device);
    let error = Session::new(rank, ProgramId(0), Some(ProgramId(1))).err().unwrap().to_string();
    assert!(error.contains("no state at the place of `a.bias`"), "{error}");
}
