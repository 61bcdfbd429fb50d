//! The lines on the terminal at the end of a run.

use crate::export::Exported;
use runtime::train::{BestCheckpoint, Outcome};

/// The result of a run as text. `best` is the checkpoint that was exported in place of the last.
pub(super) fn text(
    outcome: &Outcome,
    best: Option<&BestCheckpoint>,
    exported: &Exported,
    steps: u64,
) -> String {
    if outcome.stopped {
        let at = match outcome.steps == steps {
            true => format!("in the evaluation after the last of {steps} steps"),
            false => format!("after {} of {steps} steps", outcome.steps),
        };
        let checkpoint =
            outcome.checkpoint.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        return format!(
            "stopped {at}; saved {checkpoint}\nto continue, give the same command with --resume\n"
        );
    }
    let mut text = String::new();
    if let Some(lowest) = outcome.lowest.filter(|_| outcome.ended_early) {
        text += &format!(
            "ended early, after {} of {steps} steps: no evaluation was below the eval loss {:.6} of step \
             {}\n",
            outcome.steps, lowest.loss, lowest.steps
        );
    }
    let loss = |loss: Option<f64>| loss.map_or("none".to_string(), |loss| format!("{loss:.6}"));
    text += &format!(
        "done: {} steps, loss {}, eval loss {}; wrote {}",
        outcome.steps,
        loss(outcome.loss),
        loss(outcome.eval_loss),
        exported.model.display()
    );
    if let Some(BestCheckpoint { evaluation, .. }) = best {
        text += &format!(" of step {}, with the lowest eval loss, {:.6}", evaluation.steps, evaluation.loss);
    }
    let notes: String = exported.notes().iter().map(|note| format!("note: {note}\n")).collect();
    text + "\n" + &notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use runtime::train::Evaluation;

    fn outcome(steps: u64) -> Outcome {
        let checkpoint = Some(format!("run/checkpoints/step-{steps}").into());
        Outcome { steps, loss: Some(1.5), checkpoint, ..Outcome::default() }
    }

    fn check(outcome: &Outcome, best: Option<&BestCheckpoint>, expected: Expect) {
        let exported = Exported {
            model: "run/model.onnx".into(),
            training_form: None,
            weights: "run/model.safetensors".into(),
            tensors: 1,
            absent: vec![],
            draws: 0,
        };
        expected.assert_eq(&text(outcome, best, &exported, 20));
    }

    #[test]
    fn a_run_that_was_stopped_says_where_and_no_older_eval_loss() {
        let lowest = Some(Evaluation { steps: 5, loss: 1.25 });
        check(
            &Outcome { stopped: true, lowest, ..outcome(7) },
            None,
            expect![[r#"
                stopped after 7 of 20 steps; saved run/checkpoints/step-7
                to continue, give the same command with --resume
            "#]],
        );
        check(
            &Outcome { stopped: true, lowest, ..outcome(20) },
            None,
            expect![[r#"
                stopped in the evaluation after the last of 20 steps; saved run/checkpoints/step-20
                to continue, give the same command with --resume
            "#]],
        );
    }

    #[test]
    fn a_run_that_ended_says_why_and_what_was_exported() {
        check(
            &outcome(20),
            None,
            expect![[r#"
                done: 20 steps, loss 1.500000, eval loss none; wrote run/model.onnx
            "#]],
        );
        let evaluation = Evaluation { steps: 5, loss: 1.25 };
        let best = BestCheckpoint { path: "run/checkpoints/step-5".into(), evaluation };
        check(
            &Outcome { ended_early: true, eval_loss: Some(1.75), lowest: Some(evaluation), ..outcome(15) },
            Some(&best),
            expect![[r#"
                ended early, after 15 of 20 steps: no evaluation was below the eval loss 1.250000 of step 5
                done: 15 steps, loss 1.500000, eval loss 1.750000; wrote run/model.onnx of step 5, with the lowest eval loss, 1.250000
            "#]],
        );
    }
}
