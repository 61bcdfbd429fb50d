//! Advice where a run does not fit: commands that fit, those with the fastest predicted step first.
//!
//! A [`Change`] sets flags of the run. Changes are tried one by one, and combinations of changes only where none of their parts fits. Each is
//! compiled and lowered as the command will be. The error of a run waits for the advice, so the number of programs and the time are
//! limited: changes whose estimate fits come first, and changes whose states alone do not fit are left out.

mod change;

use std::time::{Duration, Instant};

use change::{Change, Unfit, combinations, estimated, least};
use ir::machine::Machine;
use ir::units::{bytes, milliseconds};
use ir::{Diagnostic, Node, Op};
use program::Target;
use program::simulator::SimulatedStep;

use super::compile::{Compile, Ready};
use super::resuming::Continued;
use crate::compiler::{Shared, Stopped};
use crate::config::memory::{Budget, Budgets};
use crate::config::{RecomputeChoice, Settings};
use crate::failure::Failure;
use crate::fit::Peaks;
use crate::hardware::Chosen;
use crate::inspection::PipelineFacts;
use crate::training::RunJob;

/// The commands that are shown.
const ROWS: usize = 10;

/// After this time no further change is tried.
const LIMIT: Duration = Duration::from_secs(20);

/// A run that fits.
#[derive(Clone, Debug)]
struct Row {
    settings: Settings,
    changes: Vec<Change>,
    /// Whether the run has other losses, beyond the order of sums.
    changes_numbers: bool,
    seconds: f64,
    peaks: Peaks,
}

/// The memory that a run has to fit into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Bytes of the device.
    device: u64,
    /// Whether values on the host take these bytes too.
    is_shared_with_host: bool,
}

impl Room {
    /// The memory of a device that has no room for a run's programs.
    pub(super) fn of_device(bytes: u64, target: Target) -> Self {
        Self { device: bytes, is_shared_with_host: target.is_host() }
    }
}

impl Compile {
    /// The error of a compilation, with the commands that fit if its cause is the budget of the device.
    pub(super) fn advised(&self, stopped: Stopped, device: &Chosen) -> Failure {
        let budget = self.settings.compile.memory.device_budget();
        let Stopped { failure, compilation } = stopped;
        let Some((budget, _)) = budget.zip(compilation) else { return failure };
        let Failure::User(mut errors) = failure else { return failure };
        let room = Room { device: budget, is_shared_with_host: false };
        let unlimited = self.unlimited(device);
        let advice = unlimited.map_or_else(Vec::new, |ready| self.advice(room, &ready, device));
        if let Some(error) = errors.pop() {
            errors.push(advice.into_iter().fold(error, Diagnostic::note));
        }
        Failure::User(errors)
    }

    /// The commands that fit into so many bytes of a device, as notes of an error: a line for each, and the command. `ready` is the run
    /// that does not fit.
    pub(super) fn advice(&self, room: Room, ready: &Ready, device: &Chosen) -> Vec<String> {
        let (rows, left) = self.rows(room, &Unfit::of(ready, &self.settings.compile), device);
        let shown = |row: Row| row.settings.command(&self.model).ok().map(|command| (row, command));
        notes(rows.into_iter().filter_map(shown).collect(), left)
    }

    /// The runs that fit, and the number of changes that were not tried.
    fn rows(&self, room: Room, unfit: &Unfit, device: &Chosen) -> (Vec<Row>, usize) {
        let started = Instant::now();
        let (mut rows, mut left, mut shared): (Vec<Row>, usize, _) = (vec![], 0, Shared::default());
        let flags = &self.settings.compile;
        let hopeless =
            |changes: &[Change]| least(changes, unfit, flags, room.is_shared_with_host) > room.device;
        let singles = Change::of(flags, unfit);
        let mut tried: Vec<Vec<Change>> = singles.iter().map(|&change| vec![change]).collect();
        tried.sort_by_key(|changes| estimated(changes, unfit, flags) > room.device);
        tried.extend(combinations(&singles));
        for changes in tried.into_iter().filter(|changes| !hopeless(changes)) {
            // A change that is not needed is not made.
            if rows.iter().any(|row: &Row| row.changes.iter().all(|change| changes.contains(change))) {
                continue;
            }
            if started.elapsed() >= LIMIT {
                left += 1;
                continue;
            }
            rows.extend(self.row(changes, room, device, &mut shared));
        }
        (rows, left)
    }

    /// The run without its budget.
    fn unlimited(&self, device: &Chosen) -> Option<Ready> {
        let mut unlimited = self.trial();
        let memory = &mut unlimited.settings.compile.memory;
        (memory.memory, memory.offload) = (None, vec![]);
        unlimited.compile(device, Continued::anew(self.settings.compile.shapes.global_batch)).ok()
    }

    /// The same command to be compiled only: without data, and with one job.
    fn trial(&self) -> Self {
        let mut trial = self.clone();
        (trial.settings.data.train, trial.settings.data.eval) = (None, None);
        trial.settings.run.compress_gradients_after = None;
        trial
    }

    /// Compiles the run with some changes. `None` if it is refused, or does not fit.
    fn row(&self, changes: Vec<Change>, room: Room, device: &Chosen, shared: &mut Shared) -> Option<Row> {
        let mut changed = self.clone();
        let flags = &mut changed.settings.compile;
        changes.iter().for_each(|change| change.apply(flags));
        if flags.memory.device_budget().is_none() {
            let device = Some(rounded_down(room.device));
            (flags.memory.memory, flags.memory.recompute) =
                (Some(Budgets { device, ..Budgets::default() }), RecomputeChoice::None);
        }
        let global_batch = flags.shapes.global_batch;
        if !changed.settings.check().is_empty() {
            return None;
        }
        let continued = Continued::anew(global_batch);
        let ready = changed.trial().compile_sharing(device, continued, Some(shared)).ok()?;
        // The statistics of a batch norm, and some losses, are those of a microbatch.
        let of_microbatch = |node: &Node| matches!(node.op, Op::BatchStatistics(_));
        let RunJob { compilation, programs, .. } = ready.last();
        let depends_on_microbatch = compilation.training.nodes().any(|(_, node)| of_microbatch(node))
            || compilation.doubt(ready.plan.microbatches).is_some();
        let changes_numbers = |change: &Change| match change {
            Change::Microbatch { .. } => depends_on_microbatch,
            change => change.changes_numbers(),
        };
        let peaks = Peaks::of(programs);
        let taken = peaks.device + if room.is_shared_with_host { peaks.host } else { 0 };
        let seconds = self.seconds(&ready, device).filter(|_| taken <= room.device)?;
        let changes_numbers = changes.iter().any(changes_numbers);
        Some(Row { settings: changed.settings, changes, changes_numbers, seconds, peaks })
    }

    /// The predicted time of a step.
    fn seconds(&self, ready: &Ready, device: &Chosen) -> Option<f64> {
        let cluster = self.settings.compile.parallel.cluster().ok()?;
        let machine = cluster.map_or_else(|| Machine::Node(device.device()), Machine::Cluster);
        let RunJob { compilation, programs, .. } = ready.last();
        if compilation.training.pipeline.is_some() {
            let pipeline = PipelineFacts::of_compiled(compilation, programs, Some(&machine)).ok()??;
            return pipeline.step.map(|step| step.step_ms * 1e-3);
        }
        let list = programs.target.commands(programs.training.first(), ready.plan.microbatches).ok()?;
        Some(SimulatedStep::of(&list, &machine).seconds())
    }
}

/// A budget of at most so many bytes that is short to write.
fn rounded_down(bytes: u64) -> Budget {
    let unit = if bytes >= 1 << 30 { 1 << 20 } else { 1 << 10 };
    Budget((bytes / unit * unit).max(1))
}

/// The rows as notes, each with its command. `left` changes were not tried.
fn notes(mut rows: Vec<(Row, String)>, left: usize) -> Vec<String> {
    rows.sort_by(|(one, _), (other, _)| one.seconds.total_cmp(&other.seconds));
    rows.truncate(ROWS);
    let mut notes = vec![];
    if rows.is_empty() {
        notes.push("no other flags that were tried make it fit".to_owned());
    } else {
        notes.push("these commands fit, by their predicted step:".to_owned());
    }
    for (Row { changes, changes_numbers, seconds, peaks, .. }, command) in rows {
        let mut memory = format!("{} on the device", bytes(peaks.device));
        for (size, place) in [(peaks.host, "on the host"), (peaks.disk, "on the disk")] {
            if size > 0 {
                memory.push_str(&format!(", {} {place}", bytes(size)));
            }
        }
        let says: Vec<String> = changes.iter().map(Change::to_string).collect();
        let numbers = if changes_numbers { "; the losses change" } else { "" };
        notes.push(format!("{}, {memory}: {}{numbers}", milliseconds(seconds * 1e3), says.join("; ")));
        notes.push(format!("  {command}"));
    }
    if left > 0 {
        notes.push(format!("{left} other changes were not tried within {} s", LIMIT.as_secs()));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use ir::machine::{DeviceKind, Preset};
    use program::Multiprocessors;

    /// A run that has no room on its device has no budget: the commands get one, which excludes `--recompute`.
    #[test]
    fn a_run_without_room_gets_commands_with_a_budget() {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/gpt2-fresh.onnx");
        let words = ["trainyard", "compile", model, "--microbatch", "8", "--recompute", "selective"];
        let Ok(Cli { command: Command::Compile(compile), .. }) = Cli::parse_with_config(words) else {
            panic!("not a compile")
        };
        let device = Chosen {
            target: crate::targets::of(DeviceKind::Cpu),
            multiprocessors: Multiprocessors::default(),
            described: String::new(),
            preset: Some(Preset::Cpu),
        };
        let ready =
            compile.compile(&device, Continued::default()).unwrap_or_else(|error| panic!("{error:?}"));
        let bytes = ready.plan.memory.peak / 2;
        let advice = |kind: DeviceKind| {
            let room = Room::of_device(bytes, crate::targets::of(kind));
            compile.advice(room, &ready, &device)
        };
        let offloaded = |notes: &[String]| notes.iter().any(|note| note.contains("--offload auto"));
        let apart = advice(DeviceKind::Gpu);
        assert!(offloaded(&apart), "{apart:?}");
        let commands: Vec<&String> = apart.iter().filter(|note| note.starts_with("  trainyard")).collect();
        let budget = format!("--memory {}", rounded_down(bytes));
        assert!(
            !commands.is_empty() && commands.iter().all(|command| command.contains(&budget)),
            "{apart:?}"
        );
        for command in commands {
            let parsed = Cli::parse_with_config(command.split_whitespace());
            assert!(parsed.is_ok() && !command.contains("--recompute"), "{command}: {parsed:?}");
        }
        // On a processor, values on the host take the same memory.
        let shared = advice(DeviceKind::Cpu);
        assert!(!offloaded(&shared), "{shared:?}");
    }
}
