//! Runs on several ranks: they have the same losses as one device, and their checkpoints can be resumed on any mesh.

use super::*;

/// Returns the bigram model with dp=2, tp=2 and split optimizer states.
fn on_ranks() -> Setup {
    Setup { program: include_str!("bigram.ranks.ir"), ..setup() }
}

const MESH: &str = "mesh [dp=2, tp=2]";

/// Asserts that the loss, the gradient's norm and the eval loss of every step equal those of another run, up to rounding.
fn assert_close(run: &Setup, other: &Setup) {
    let numbers = |setup: &Setup| {
        let step =
            |step: StepMetrics| [step.loss, step.grad_norm, step.eval_loss.unwrap_or_default(), step.lr];
        setup.metrics().into_iter().map(step).collect::<Vec<_>>()
    };
    let (given, expected) = (numbers(run), numbers(other));
    assert_eq!((given.len(), expected.len()), (20, 20));
    for (step, (given, expected)) in given.iter().flatten().zip(expected.iter().flatten()).enumerate() {
        assert!((given - expected).abs() <= 1e-4 * expected.abs(), "number {step}: {given}, not {expected}");
    }
}

fn whole() -> Setup {
    let setup = setup();
    setup.go().unwrap();
    setup
}

#[test]
fn ranks_train_as_one_device_does() {
    let whole = whole();
    for microbatches in [1, 2] {
        let run = Setup { microbatches, ..on_ranks() };
        let outcome = run.go().unwrap();
        assert_close(&run, &whole);
        let expected = whole.metrics()[19].eval_loss.unwrap();
        assert!((outcome.eval_loss.unwrap() - expected).abs() < 1e-4 * expected);
    }
    let four = Setup { edits: vec![(MESH, "mesh [dp=4, tp=1]")], ..on_ranks() };
    four.go().unwrap();
    assert_close(&four, &whole);
    let description = |run: &Setup| run.checkpoints().latest().unwrap().checkpoint.unwrap().description;
    assert_eq!(description(&four).states, description(&whole).states);
    assert_eq!(description(&four).position, description(&whole).position);
}

#[test]
fn a_run_goes_on_on_one_device_and_on_another_mesh() {
    let whole = whole();
    let mut run = on_ranks();
    run.on_line = OnLine::Stop("step 7/20");
    assert_eq!(run.go().unwrap().steps, 7);
    run.resume = true;
    // On one device, then on another mesh, then on the first with other microbatches.
    (run.program, run.on_line) = (include_str!("bigram.ir"), OnLine::Stop("step 11/20"));
    assert_eq!(run.go().unwrap().steps, 11);
    (run.program, run.on_line) = (include_str!("bigram.ranks.ir"), OnLine::Stop("step 15/20"));
    run.edits = vec![(MESH, "mesh [dp=1, tp=4]")];
    assert_eq!(run.go().unwrap().steps, 15);
    (run.edits, run.on_line, run.microbatches) = (vec![], OnLine::Nothing, 2);
    assert_eq!(run.go().unwrap().steps, 20);
    assert_close(&run, &whole);
}

#[test]
fn a_run_on_ranks_that_was_stopped_goes_on_bit_for_bit() {
    let whole = on_ranks();
    whole.go().unwrap();
    let mut run = on_ranks();
    run.on_line = OnLine::Stop("step 8/20");
    run.go().unwrap();
    (run.resume, run.on_line) = (true, OnLine::Nothing);
    run.go().unwrap();
    assert_eq!(numbers(&run.metrics()), numbers(&whole.metrics()));
    assert!(run.checkpoint(20) == whole.checkpoint(20), "the checkpoints differ");
}

#[test]
fn a_rank_that_fails_ends_the_run_and_leaves_the_last_checkpoint_whole() {
    let whole = on_ranks();
    whole.go().unwrap();
    for (panics, told) in [
        (true, "rank 1: it panicked: as the test asks for"),
        (false, "rank 1: rank 1 is not in the group []"),
    ] {
        let mut run = on_ranks();
        let module = run.train_module();
        let collectives = module.nodes().filter(|(_, node)| matches!(node.op, ir::Op::Collective(_))).count();
        // The fault is in the middle of a step between the saves after 10 and 15. The save after 10 waits until the one after 5 is on the
        // disk. Evaluations issue some collectives as well.
        run.fault = Some(Fault { at: 16 * collectives, panics });
        assert_eq!(run.go().unwrap_err().to_string(), told);
        let latest = run.checkpoints().latest().unwrap();
        assert!(latest.damaged.is_empty());
        let step = latest.checkpoint.unwrap().description.step();
        assert!(step == 5 || step == 10, "{step}");
        (run.resume, run.fault) = (true, None);
        run.go().unwrap();
        assert!(run.checkpoint(20) == whole.checkpoint(20), "the checkpoints differ");
    }
}

#[test]
fn a_loss_that_is_not_finite_is_told_with_its_rank() {
    let mut run = on_ranks();
    run.edits = vec![("value = 0.05}", "value = 1e30}")];
    run.schedule.save_every = Some(1);
    let text = run.go().unwrap_err().to_string();
    assert!(text.starts_with("the loss of step 2 is "), "{text}");
    assert!(text.contains("node \"/head\" (MatMul, opset 18) made") && text.contains(" on rank "), "{text}");
}
