//! Going on with a run: what is other than it was begun with, and whether any step is left.

use crate::config::{Loss, Optimizer, Precision, Settings};
use crate::output::Folder;
use clap::{Args, Command};
use ir::Diagnostic;
use std::path::Path;
use toml::{Table, Value};

/// A note for each flag of the optimizer, the loss and the precision that is not what the run in a folder was begun or last
/// gone on with; none if its `config.toml` is not there or cannot be read.
pub(super) fn changed_flags(from: &Path, settings: &Settings) -> Vec<String> {
    let written = std::fs::read_to_string(Folder::new(from).join("config.toml"));
    let then = written.ok().and_then(|text| text.parse::<Table>().ok());
    let now = settings.to_toml().ok().and_then(|text| text.parse::<Table>().ok());
    let (Some(then), Some(now)) = (then, now) else { return vec![] };
    let flags = [Optimizer::augment_args, Loss::augment_args, Precision::augment_args]
        .into_iter()
        .fold(Command::new("flags"), |command, augment| augment(command));
    let keys = flags.get_arguments().filter_map(|arg| arg.get_long());
    let changed = keys.filter(|key| then.get(*key) != now.get(*key));
    changed
        .map(|key| {
            let [then, now] = [&then, &now].map(|table| shown(key, table.get(key)));
            format!("the run in {} had {then}, and goes on with {now}", from.display())
        })
        .collect()
}

/// A flag as it is given on a command line.
fn shown(key: &str, value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Boolean(false)) => format!("no --{key}"),
        Some(Value::Boolean(true)) => format!("--{key}"),
        Some(Value::String(text)) => format!("--{key} {text}"),
        Some(value) => format!("--{key} {value}"),
    }
}

/// Refuses a length that the run in a folder is past; a note where it is just reached.
pub(super) fn check_length(
    from: &Path,
    done: u64,
    steps: u64,
    settings: &Settings,
) -> Result<Option<String>, Diagnostic> {
    let from = from.display();
    let asked = match (settings.run.steps, settings.run.epochs) {
        (Some(steps), _) => format!("--steps {steps}"),
        (None, Some(epochs)) => format!("--epochs {epochs} (step {steps})"),
        (None, None) => format!("one epoch (step {steps})"),
    };
    if done > steps {
        let error = Diagnostic::new(format!("the run in {from} is at step {done}, which is past {asked}"));
        return Err(error
            .note(format!("steps count from step 0: for {steps} more, give --steps {}", done + steps))
            .note("to train anew, give another folder: -o ANOTHER_DIR"));
    }
    let reached = done == steps && steps > 0;
    Ok(reached.then(|| format!("the run in {from} is at step {done}, where {asked} ends: no step is left")))
}
