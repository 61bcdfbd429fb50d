//! Runs that must end with an error, and what they leave.

use super::*;
use crate::checkpoint::CheckpointError;
use crate::cpu::Cpu;
use crate::train::Cause;

/// The rate of the first three steps.
const RATE: &str = "value = 0.05}";

#[test]
fn a_loss_that_is_not_finite_is_told_with_its_step_and_node_and_keeps_the_checkpoint() {
    let mut run = setup();
    run.edits = vec![(RATE, "value = 1e30}")];
    run.schedule.save_every = Some(1);
    let error = run.go().unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("the loss of step 1 is "), "{text}");
    assert!(text.contains("node \"/head\" (MatMul, opset 18) made"), "{text}");
    assert!(text.contains("step-1` is from before that"), "{text}");
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
    let text = run.go().unwrap_err().to_string();
    assert!(text.starts_with("the gradient's norm of step 0 is NaN: "), "{text}");
    // The step of the fused chain is named, and what made the infinity before it.
    assert!(text.contains("`mul` of node \"/square\" (Mul, opset 18) made NaN"), "{text}");
    assert!(text.contains("`div` of node \"/root\" (Sqrt, opset 18) made inf"), "{text}");
    assert!(run.metrics().is_empty());
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
    assert!(error.to_string().contains("no checkpoint was made before that"), "{error}");
}

#[test]
fn a_save_that_fails_ends_the_run_and_leaves_the_one_before() {
    let mut run = setup();
    let folder = run.checkpoints().folder().to_owned();
    std::fs::create_dir(&folder).unwrap();
    // A file where the temporary folder is to be: as a full disk does, it fails in the middle of the save.
    std::fs::write(folder.join("step-10.tmp"), "in the way").unwrap();
    let error = run.go().unwrap_err();
    assert!(matches!(error, TrainError::Checkpoint(CheckpointError::Write { step: 10, .. })), "{error}");
    assert!(error.to_string().contains("step-5` is whole"), "{error}");
    std::fs::remove_file(folder.join("step-10.tmp")).unwrap();
    run.resume = true;
    assert_eq!(run.go().unwrap().steps, 20);
    assert_eq!(run.metrics().len(), 20);
}

#[test]
fn a_checkpoint_of_another_model_is_refused_and_nothing_is_cut_off() {
    let mut run = setup();
    run.schedule.steps = 3;
    run.go().unwrap();
    (run.resume, run.schedule.steps) = (true, 6);
    run.edits =
        vec![("head.bias", "lm_head.bias"), ("state @step : i64[] counter", "state @step : i64[] rng")];
    let error = run.go().unwrap_err().to_string();
    assert!(error.contains("missing in the checkpoint: `adam.m(lm_head.bias)` f32[256]"), "{error}");
    assert!(error.contains("not in this program: `adam.m(head.bias)` f32[256]"), "{error}");
    assert!(error.contains("`step` is i64[] rng here and i64[] counter there"), "{error}");
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
    let error = run.go().unwrap_err().to_string();
    assert!(error.contains("was made with other data"), "{error}");
    std::fs::write(run.corpus(), text).unwrap();
    let (module, loader) = (run.train_module(), run.loader());
    let data = run.data_files();
    let resume_with =
        |loader: &Loader| resume(&run.checkpoints(), &run.metrics_file(), &module, loader, &data);
    assert_eq!(resume_with(&loader).unwrap().step, 3);
    let doubled = run.loader_of(run.microbatches * 2);
    let error = resume_with(&doubled).unwrap_err().to_string();
    assert!(error.contains("the global batch was 4 then and is 8 now"), "{error}");
}

#[test]
fn a_folder_without_a_checkpoint_cannot_be_gone_on_from() {
    let mut run = setup();
    run.resume = true;
    let error = run.go().unwrap_err().to_string();
    assert!(error.starts_with("there is no checkpoint to go on from in"), "{error}");
}

#[test]
fn a_program_without_what_the_loop_reads_is_refused() {
    let run = setup();
    let mut device = run.device(&run.train_module());
    let error = Session::new(&mut *device, ProgramId(1), None).err().unwrap().to_string();
    assert_eq!(error, "program `bigram` has no output `loss`, which training needs");
}

#[test]
fn an_evaluation_of_other_weights_than_the_trained_ones_is_refused() {
    let run = setup();
    let forward = run.module(include_str!("bigram.forward.ir"), &[("head.bias", "a.bias")]);
    let programs = [run.train_module(), forward]
        .map(|module| Arc::new(lower(&module, &LowerOptions::default()).unwrap()));
    let mut device = Cpu::new(programs.to_vec(), Some(1)).unwrap();
    let error = Session::new(&mut device, ProgramId(0), Some(ProgramId(1))).err().unwrap().to_string();
    assert!(error.contains("no state at the place of `a.bias`"), "{error}");
}
