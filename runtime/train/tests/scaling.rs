//! Runs in fp16: the effect of an overflow, and the end of a run whose scale is exhausted.

use super::*;
use crate::Cause;
use checkpoint::Checkpoint;

/// Lets the scale get as small as 1. It begins at 2^24, which overflows.
const SMALLEST: (&str, &str) = ("value = 8388608.0}", "value = 1.0}");

/// The same model on one device, and on dp=2, tp=2.
const PROGRAMS: [&str; 2] = [include_str!("bigram.fp16.ir"), include_str!("bigram.fp16.ranks.ir")];

fn fp16(program: &'static str) -> Setup {
    let mut run = setup();
    run.program = program;
    run.schedule.save_every = Some(1);
    run
}

fn skipped(run: &Setup) -> Vec<bool> {
    run.metrics().iter().map(|step| step.skipped).collect()
}

#[test]
fn an_overflow_skips_steps_until_the_scale_is_small_enough() {
    for (program, microbatches) in [(0, 1), (0, 2), (1, 1), (1, 2)] {
        let mut run = fp16(PROGRAMS[program]);
        run.microbatches = microbatches;
        run.edits = vec![SMALLEST];
        let outcome = run.go().unwrap();
        let metrics = run.metrics();
        let skipped = metrics.iter().take_while(|step| step.skipped).count();
        assert!((3..10).contains(&skipped), "{skipped} steps skipped");
        // The first scale that fits may be too large for a later step.
        assert!(metrics[skipped..10].iter().filter(|step| step.skipped).count() < 3, "{metrics:?}");
        assert!(metrics[10..].iter().all(|step| !step.skipped && step.grad_norm.is_finite()), "{metrics:?}");
        // A skipped step changes only the scaler.
        let states = |step: u64| {
            let mut states = Checkpoint::open(&run.checkpoints().path(step))
                .and_then(|checkpoint| checkpoint.load(&run.train_module()))
                .unwrap();
            states.retain(|name, _| !name.starts_with("loss_scale"));
            states
        };
        assert_eq!(states(1), states(skipped as u64));
        assert_ne!(states(1), states(skipped as u64 + 1));
        assert!(outcome.eval_loss.unwrap() < 0.9 * outcome.initial_eval_loss.unwrap(), "{outcome:?}");
    }
}

#[test]
fn a_run_that_goes_on_has_the_scale_it_stopped_with() {
    for program in PROGRAMS {
        let mut whole = fp16(program);
        whole.edits = vec![SMALLEST];
        whole.go().unwrap();
        let mut parts = fp16(program);
        (parts.edits, parts.schedule.steps) = (vec![SMALLEST], 3);
        parts.go().unwrap();
        (parts.resume, parts.schedule.steps) = (true, whole.schedule.steps);
        parts.go().unwrap();
        assert!(parts.checkpoint(20)[0] == whole.checkpoint(20)[0], "the checkpoints differ");
        assert_eq!(skipped(&parts), skipped(&whole));
    }
}

/// The loss scale is a state like any other: it is the same on every mesh.
#[test]
fn a_scaled_run_goes_on_on_ranks_as_on_one_device() {
    let mut whole = fp16(PROGRAMS[0]);
    whole.edits = vec![SMALLEST];
    whole.go().unwrap();
    let mut parts = fp16(PROGRAMS[0]);
    (parts.edits, parts.schedule.steps) = (vec![SMALLEST], 4);
    parts.go().unwrap();
    (parts.program, parts.resume, parts.schedule.steps) = (PROGRAMS[1], true, 20);
    parts.go().unwrap();
    assert_eq!(skipped(&parts), skipped(&whole));
    for (given, expected) in parts.metrics().iter().zip(whole.metrics()) {
        // A half-precision sum over tp is rounded once more.
        assert!((given.loss - expected.loss).abs() < 5e-3 * expected.loss, "{given:?}, not {expected:?}");
    }
}

#[test]
fn an_overflow_at_the_smallest_scale_ends_the_run_with_what_overflowed() {
    for program in PROGRAMS {
        let run = fp16(program);
        let error = run.go().unwrap_err();
        let TrainError::ScaleExhausted { step: 2, scale: 8_388_608.0, cause: Some(cause), .. } = &error
        else {
            panic!("{error}");
        };
        let Cause::Instruction(found) = cause else { panic!("{cause:?}") };
        assert_eq!(found.rank.is_some(), run.train_module().mesh.devices() > 1);
        let text = told(error);
        assert!(text.contains("the loss scale 8388608 is already the smallest"), "{text}");
        assert!(text.contains("step-2` was saved before that; --bf16 has the range of fp32"), "{text}");
        assert_eq!(skipped(&run), [true, true]);
        let latest = run.checkpoints().latest().unwrap();
        assert!(latest.damaged.is_empty());
        assert_eq!(latest.checkpoint.unwrap().description.step(), 2);
    }
}
