//! The lines on the terminal at the end of a run.

use crate::export::Exported;
use ir::Diagnostic;
use passes::moe::Moe;
use std::collections::BTreeMap;
use train::{BestCheckpoint, Outcome};

/// The result of a run as text. `best` is the checkpoint that was exported in place of the last.
pub(super) fn text(
    outcome: &Outcome,
    best: Option<&BestCheckpoint>,
    exported: &Exported,
    steps: u64,
) -> String {
    if outcome.stopped {
        let at = if outcome.steps == steps {
            format!("in the evaluation after the last of {steps} steps")
        } else {
            format!("after {} of {steps} steps", outcome.steps)
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
    text += &format!("done: {} steps", outcome.steps);
    for (name, loss) in [("loss", outcome.loss), ("eval loss", outcome.eval_loss)] {
        text += &loss.map_or(String::new(), |loss| format!(", {name} {loss:.6}"));
    }
    text += &format!("; wrote {}", exported.model.display());
    if let Some(BestCheckpoint { evaluation, .. }) = best {
        text += &format!(" of step {}, with the lowest eval loss, {:.6}", evaluation.steps, evaluation.loss);
    }
    let notes: String = exported.notes().iter().map(|note| format!("note: {note}\n")).collect();
    text + "\n" + &notes
}

/// The routing of the last step as text, and a warning if nearly all tokens meet the same experts.
pub(super) fn experts(outcome: &Outcome, moe: &Moe) -> Option<(String, Option<Diagnostic>)> {
    let scalar = |name: &str| outcome.scalars.get(&format!("moe.{name}")).copied().flatten();
    let entropy = scalar("entropy")?;
    let mut text = format!("experts: entropy of the router {entropy:.2} of {:.2}", (moe.experts as f64).ln());
    if let (Some(balance), false) = (scalar("balance"), outcome.loads.is_empty()) {
        // The mean over routers, of the most that an expert has and the mean.
        let busiest = |load: &Vec<f64>| largest(load) * load.len() as f64 / load.iter().sum::<f64>();
        let busiest = outcome.loads.values().map(busiest).sum::<f64>() / outcome.loads.len() as f64;
        text += &format!(", balance {balance:.2}, the busiest expert has {busiest:.2} times its share");
    }
    if let Some(dropped) = scalar("dropped") {
        text += &format!(", {:.1} % of the choices found no slot", dropped * 100.0);
    }
    Some((text, collapsed(&outcome.loads, moe)))
}

/// Tells of routers that send nearly all tokens to the same experts.
fn collapsed(loads: &BTreeMap<String, Vec<f64>>, moe: &Moe) -> Option<Diagnostic> {
    // With `random-second` (GShard), only first choices are counted. A token chooses different experts, so no expert has more choices than
    // there are tokens.
    let choices = if moe.routing.random_second { 1 } else { moe.routing.top };
    let share = |load: &[f64]| {
        let tokens = load.iter().sum::<f64>() / choices as f64;
        largest(load) / tokens
    };
    let shares = loads.iter().map(|(router, load)| (router, share(load)));
    let collapsed: Vec<(&String, f64)> =
        shares.filter(|(_, share)| moe.experts > choices && *share > COLLAPSED).collect();
    let (router, share) = collapsed.iter().copied().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let message = format!(
        "nearly all tokens meet the same experts: one of `{router}` has {:.0} % of them, and {} of {} routers have such an expert",
        share * 100.0,
        collapsed.len(),
        loads.len()
    );
    Some(Diagnostic::new(message).note(
        "raise the factor of the balance loss, for example --moe …,balance=0.1; metrics.jsonl has `moe.load` of each step",
    ))
}

/// The number of choices of the expert that has the most.
fn largest(load: &[f64]) -> f64 {
    load.iter().fold(0.0, |most: f64, &count| most.max(count))
}

/// The share of the tokens at one expert from which a router counts as collapsed.
const COLLAPSED: f64 = 0.95;

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use train::Evaluation;

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
                done: 20 steps, loss 1.500000; wrote run/model.onnx
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

    #[test]
    fn a_router_that_has_collapsed_is_told() {
        let moe = |text: &str| {
            let pipeline: passes::Pipeline = format!("moe({text})").parse().expect("options");
            let [passes::Pass::Moe(moe)] = &pipeline.passes[..] else { panic!("not moe alone") };
            moe.clone()
        };
        let outcome = |dropped: Option<f64>, load: [f64; 4]| {
            let numbers = [("entropy", Some(1.25)), ("balance", Some(1.5)), ("dropped", dropped)];
            let there = numbers.into_iter().filter(|(_, number)| number.is_some());
            Outcome {
                scalars: there.map(|(name, number)| (format!("moe.{name}"), number)).collect(),
                loads: [("0.router", [25.0; 4]), ("1.router", load)]
                    .map(|(router, load)| (router.to_owned(), load.to_vec()))
                    .into(),
                ..Outcome::default()
            }
        };
        let (text, warning) =
            experts(&outcome(None, [45.0, 40.0, 15.0, 0.0]), &moe("experts=4")).expect("it has experts");
        expect!["experts: entropy of the router 1.25 of 1.39, balance 1.50, the busiest expert has 1.40 times its share"]
            .assert_eq(&text);
        assert!(warning.is_none());
        let (text, warning) = experts(&outcome(Some(0.5), [0.0, 98.0, 1.0, 1.0]), &moe("switch, experts=4"))
            .expect("it has experts");
        assert!(text.ends_with(", 50.0 % of the choices found no slot"), "{text}");
        expect!["nearly all tokens meet the same experts: one of `1.router` has 98 % of them, and 1 of 2 routers have such an expert"]
            .assert_eq(&warning.expect("it has collapsed").message);
        assert!(experts(&Outcome::default(), &moe("experts=4")).is_none());
    }
}
