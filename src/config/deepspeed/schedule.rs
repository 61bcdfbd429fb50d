//! The learning rate and its schedule. The formulas of DeepSpeed's schedules stand in `deepspeed/runtime/lr_schedules.py`.

use ir::Diagnostic;
use passes::optimizer::DEFAULT_LEARNING_RATE;
use passes::optimizer::schedule::Curve;

use super::super::command_line::CommandLine;
use super::super::nearest::nearest;
use super::Translation;
use super::document::{Document, Leaf};
use super::keys::LINE;
use super::optimizer::default_rate;

const TYPE: &str = "scheduler.type";
const HIGHEST: &str = "scheduler.params.warmup_max_lr";
const OF_OPTIMIZER: &str = "optimizer.params.lr";

/// DeepSpeed's schedules that Trainyard has too.
const SCHEDULES: [(&str, Curve); 3] =
    [("WarmupLR", Curve::Constant), ("WarmupDecayLR", Curve::Linear), ("WarmupCosineLR", Curve::Cosine)];

/// The highest learning rate.
pub(super) struct Rate<'a> {
    /// As `--lr` takes it, with the key that gives it; `None` for the flag's default.
    pub(super) of_file: Option<(String, &'a Leaf)>,
    /// The rate of the run.
    pub(super) value: f64,
}

/// The highest rate: the command line's, the scheduler's, or the optimizer's.
pub(super) fn rate<'a>(document: &'a Document, line: &CommandLine) -> Rate<'a> {
    let digits = |path: &str| document.leaf(path).and_then(|leaf| Some((leaf.digits()?.to_owned(), leaf)));
    let scheduler = document.leaf(TYPE).filter(|_| !line.gives("lr-schedule"));
    let of_scheduler = scheduler.and_then(|scheduler| match scheduler.text() {
        Some("WarmupLR") => digits(HIGHEST),
        // This scheduler has a rate of its own, also if the file does not give it.
        Some("WarmupDecayLR") if !document.is_automatic(HIGHEST) => {
            digits(HIGHEST).or(Some(("0.001".to_owned(), scheduler)))
        }
        _ => None,
    });
    let of_optimizer = || digits(OF_OPTIMIZER).or_else(|| default_rate(document));
    let of_file = of_scheduler.or_else(of_optimizer);
    let value = of_file.as_ref().and_then(|(digits, _)| digits.parse().ok());
    let value = line.value("lr").or(value).unwrap_or(DEFAULT_LEARNING_RATE);
    Rate { of_file, value }
}

/// `--lr-schedule`. A schedule that does not exist here is an error, unless the command line gives one.
pub(super) fn translate(translation: &mut Translation, rate: &Rate) {
    let document = translation.document;
    let Some(leaf) = document.leaf(TYPE).filter(|_| !translation.line.gives("lr-schedule")) else { return };
    let name = leaf.text().unwrap_or_default();
    let Some((_, curve)) = SCHEDULES.into_iter().find(|(known, _)| *known == name) else {
        return translation.refuse(leaf, unknown(name));
    };
    let steps = "scheduler.params.warmup_num_steps";
    let warmup = match document.count(steps) {
        None if document.is_automatic(steps) => 0,
        None => 1000,
        Some(warmup) => warmup.max(2),
    };
    let total = document.count("scheduler.params.total_num_steps").map(|total| format!(",steps={total}"));
    let total = total.unwrap_or_default();
    let text = match curve {
        Curve::Constant => format!("constant:warmup={warmup}"),
        Curve::Linear => format!("linear:warmup={warmup}{total}"),
        Curve::Cosine | Curve::WarmupStableDecay => {
            let least = "scheduler.params.cos_min_ratio";
            let default = if document.is_automatic(least) { 0.0 } else { 0.0001 };
            let min = rate.value * document.number(least).unwrap_or(default);
            format!("cosine:warmup={warmup},min={min:?}{total}")
        }
    };
    translation.set("lr-schedule", &text, leaf);
    let rise = "scheduler.params.warmup_type";
    let rise = document.text(rise).unwrap_or(if document.is_automatic(rise) { "linear" } else { "log" });
    if warmup > 0 && rise != "linear" {
        translation.notes.drop_key(format!("scheduler.params.warmup_type {rise:?}"), LINE);
    }
}

/// The error for a schedule that does not exist.
fn unknown(name: &str) -> Diagnostic {
    let names = SCHEDULES.map(|(name, _)| name);
    let error = Diagnostic::new(format!("`{TYPE}`: there is no schedule `{name}`"));
    let near = nearest(name, names).unwrap_or_default();
    error
        .note(format!("there are {}; the nearest is `{near}`", names.join(", ")))
        .note("or give a schedule on the command line, which wins: --lr-schedule cosine:warmup=100")
}
