//! Random commands, and random changes of models: a run on a mesh, with flags that change no numbers, has the losses of one device,
//! or is refused. No command ends with a fault, hangs, or takes more memory than it asked for.
//!
//! Failures name their case: `TRAINYARD_FIRST_CASE=7 TRAINYARD_CASES=1 cargo test --workspace --test command sweep::mutants -- --ignored`
//! repeats case 7 of the mutants.

mod commands;
mod mutants;
mod one_program;

use crate::TRAINYARD;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use testing::workplace::{Ended, Workplace};

/// The beginnings of the flags of [`testing::random_flags::draw_alone`] that change no bit of losses, norms and weights. A run that is
/// stopped and resumed has the same bits too.
const CHANGE_NO_BIT: [&str; 4] = ["--recompute", "--compress-activations", "--offload", "--update early"];

/// The last stage that a case reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// One device refuses the model, or its loss is not finite.
    Refused,
    /// One device trains the model, and the run that is compared with it is refused.
    TrainedAlone,
    /// Both runs have the same losses.
    Compared,
}

/// The limits of a command: 4 GiB of address space, a minute of processor time, and five minutes of wall time. A command that does not hang
/// ends within them on a busy machine.
const LIMITS: &str = "ulimit -v 4194304 -t 60; exec timeout --kill-after=5 300";

/// Runs a command within [`LIMITS`]. Every end that is neither a success, nor a refusal, nor the exit code `other` is an error.
fn ended(place: &Workplace, command: &str, other: Option<i32>) -> Result<Ended, String> {
    let ended = place.run_within(LIMITS, command);
    match ended.status.code() {
        Some(0) => Ok(ended),
        Some(2) if ended.stderr.lines().any(|line| line.starts_with("error")) => Ok(ended),
        code if code.is_some() && code == other => Ok(ended),
        code => Err(format!("trainyard {command}\nexit code {code:?}\n{}", ended.stderr)),
    }
}

/// The relative errors that rounding may make.
#[derive(Clone, Copy)]
struct Allowed {
    /// The error of a loss in the first step.
    first: f64,
    /// The error of a loss in later steps. Updates that depend on the signs of gradients amplify rounding from step to step.
    later: f64,
    /// The error of the norm of the gradients, as a multiple of the others.
    norms: f64,
}

impl Allowed {
    fn of(is_half: bool) -> Self {
        let [first, later] = if is_half { [2e-2, 5e-2] } else { [1e-4, 5e-3] };
        Self { first, later, norms: 10.0 }
    }
}

/// The end of a training run.
enum Ending {
    /// The command is refused, with this text.
    Refused(String),
    /// A loss, a gradient or a state became infinite or NaN.
    NotFinite,
    Ran(Run),
}

/// The numbers of a run.
struct Run {
    /// Whether all samples were evaluated.
    compares: bool,
    /// The samples of a step.
    samples: u64,
    /// The eval loss before step 0, if this run began there and evaluates.
    before: Option<f64>,
    steps: Vec<Value>,
}

impl Ending {
    /// Compares a run with the run on one device.
    fn compare(&self, expected: &Run, allowed: Allowed) -> Result<Outcome, String> {
        match self {
            Self::Refused(_) => Ok(Outcome::TrainedAlone),
            Self::NotFinite => Err("numbers become infinite or NaN, and stay finite on one device".into()),
            Self::Ran(run) => run.compare(expected, allowed).map(|()| Outcome::Compared),
        }
    }
}

impl Run {
    /// Runs a command that trains into `folder`.
    fn of(place: &Workplace, command: &str, folder: &str) -> Result<Ending, String> {
        let ended = ended(place, &format!("{command} -o {folder}"), None)?;
        if ended.status.code() != Some(0) {
            let began = ended.stderr.lines().any(|line| line.starts_with("device: "));
            return Ok(if began { Ending::NotFinite } else { Ending::Refused(ended.stderr) });
        }
        let line = ended.stderr.lines().find_map(|line| line.strip_prefix("before step 0: eval loss "));
        // Data ranks share every batch equally.
        let compares = !ended.stderr.contains("the evaluation leaves out");
        Ok(Ending::Ran(Self {
            compares,
            samples: samples(&ended.stderr).ok_or_else(|| format!("no samples: {}", ended.stderr))?,
            before: line.and_then(|loss| loss.parse().ok()),
            steps: place.metrics(folder),
        }))
    }

    fn compare(&self, expected: &Self, allowed: Allowed) -> Result<(), String> {
        let near = |what: &str, own: Option<f64>, one: Option<f64>, tolerance: f64| match (own, one) {
            (Some(own), Some(one)) if (own - one).abs() <= tolerance * one.abs().max(1e-2) => Ok(()),
            (None, None) => Ok(()),
            // A resumed run evaluates once more.
            (None, _) | (_, None) if what.contains("eval") => Ok(()),
            _ => Err(format!("{what} is {own:?}, and {one:?} on one device")),
        };
        let Allowed { first, later, norms: of_norms } = allowed;
        let compares = self.compares && expected.compares;
        if compares {
            near("the eval loss before step 0", self.before, expected.before, first)?;
        }
        if self.steps.len() != expected.steps.len() {
            return Err(format!("{} steps, and {} on one device", self.steps.len(), expected.steps.len()));
        }
        for (step, (own, one)) in self.steps.iter().zip(&expected.steps).enumerate() {
            let tolerance = if step == 0 { first } else { later };
            let number = |values: &Value, key: &str| values[key].as_f64();
            near(&format!("the loss of step {step}"), number(own, "loss"), number(one, "loss"), tolerance)?;
            let norms = [own, one].map(|values| number(values, "grad_norm"));
            near(&format!("the norm of step {step}"), norms[0], norms[1], of_norms * tolerance)?;
            let evals = [own, one].map(|values| number(values, "eval_loss").filter(|_| compares));
            near(&format!("the eval loss of step {step}"), evals[0], evals[1], tolerance)?;
        }
        Ok(())
    }

    /// Compares the bits of losses and norms.
    fn compare_bits(&self, expected: &Self) -> Result<(), String> {
        let numbers = |run: &Self| -> Vec<[Value; 2]> {
            run.steps.iter().map(|step| ["loss", "grad_norm"].map(|key| step[key].clone())).collect()
        };
        let (own, one) = (numbers(self), numbers(expected));
        if own == one { Ok(()) } else { Err(format!("losses and norms are {own:?}, and {one:?}")) }
    }
}

/// The samples of a step of all ranks, in the first line of a run: `…, 2 x 4 samples per step`.
fn samples(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_suffix(" samples per step"))?;
    let (microbatches, microbatch) = line.rsplit_once(", ")?.1.split_once(" x ")?;
    Some(microbatches.parse::<u64>().ok()? * microbatch.parse::<u64>().ok()?)
}

/// Checks `count` cases on two threads. Returns how many cases reached each outcome.
fn check_cases(
    first: u64,
    count: u64,
    check: impl Fn(&Workplace, u64) -> Result<Outcome, String> + Sync,
) -> BTreeMap<Outcome, u64> {
    let (next, outcomes) = (AtomicU64::new(first), Mutex::new(BTreeMap::new()));
    let faults = Mutex::new(vec![]);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let place = Workplace::new(TRAINYARD);
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    match check(&place, seed) {
                        Ok(outcome) => {
                            *outcomes.lock().expect("no thread panicked").entry(outcome).or_default() += 1;
                        }
                        Err(fault) => {
                            faults.lock().expect("no thread panicked").push(format!("case {seed}: {fault}"));
                        }
                    }
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().expect("no thread panicked");
    println!("{count} cases: {outcomes:?}");
    let faults = faults.into_inner().expect("no thread panicked");
    assert!(faults.is_empty(), "{} of {count} cases:\n{}", faults.len(), faults.join("\n\n"));
    outcomes
}

/// The first case of a longer test, and the number of its cases: `TRAINYARD_FIRST_CASE` and `TRAINYARD_CASES`. CI's nightly run checks
/// 3000.
fn longer(first: u64) -> [u64; 2] {
    [("TRAINYARD_FIRST_CASE", first), ("TRAINYARD_CASES", 40)].map(|(name, otherwise)| {
        std::env::var(name).map_or(otherwise, |value| value.parse().expect("a number"))
    })
}
