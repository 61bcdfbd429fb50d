//! Advice where a run does not fit: commands that fit, those with the fastest predicted step first.
//!
//! A change is a set of flags. Changes are tried one by one, and combinations of changes only where none of their parts fits. Each is
//! compiled and lowered as the command will be. The error of a run waits for the advice, so the number of programs and the time are
//! limited.

mod command;

use std::ffi::OsString;
use std::time::{Duration, Instant};

use command::{edited, pasted};
use ir::machine::Machine;
use ir::{Diagnostic, Node, Op};
use passes::optimizer::{Algorithm, Moments};
use program::Target;
use program::simulator::SimulatedStep;

use super::compile::{Compile, Ready};
use super::resuming::Continued;
use super::{Cli, Command};
use crate::config::memory::Budget;
use crate::config::{PrecisionChoice, UpdateChoice};
use crate::failure::Failure;
use crate::hardware::Chosen;
use crate::inspection::milliseconds;
use crate::inspection::units::bytes;
use crate::plan::RunPlan;
use crate::tiers::Peaks;

/// The commands that are shown.
const ROWS: usize = 10;

/// After this time no further change is tried.
const LIMIT: Duration = Duration::from_secs(20);

/// A flag that a change sets, with its value unless it is a switch.
type Flag = (&'static str, Option<String>);

/// Flags that may make a run fit.
#[derive(Clone, Debug, PartialEq)]
struct Change {
    flags: Vec<Flag>,
    /// The effect, for people.
    says: String,
    /// Whether the run has other losses, beyond the order of sums.
    changes_numbers: bool,
}

/// A command that fits.
#[derive(Clone, Debug)]
struct Row {
    command: String,
    change: Change,
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

/// The run that does not fit, as it would be with more memory.
#[derive(Clone, Copy, Debug)]
struct Unfit {
    /// Samples of a microbatch on each data rank.
    microbatch: u64,
    microbatches: u64,
    data_ranks: u64,
    /// Bytes of the states on each device, and the fewest that its part of the parameters takes.
    states: u64,
    parameters: u64,
}

impl Compile {
    /// An error with the commands that fit, if its cause is the budget of the device.
    pub(super) fn advised(&self, failure: Failure, device: &Chosen) -> Failure {
        let Some(budget) = self.settings.compile.memory.device_budget() else { return failure };
        let Failure::User(mut errors) = failure else { return failure };
        let room = Room { device: budget, is_shared_with_host: false };
        let advice = self.unlimited(device).map_or_else(Vec::new, |plan| self.advice(room, &plan, device).0);
        if let Some(error) = errors.pop() {
            errors.push(advice.into_iter().fold(error, Diagnostic::note));
        }
        Failure::User(errors)
    }

    /// The commands that fit into so many bytes of a device, as notes of an error: a line for each, and the command; and whether there is a
    /// command. `plan` is that of the run that does not fit.
    pub(super) fn advice(&self, room: Room, plan: &RunPlan, device: &Chosen) -> (Vec<String>, bool) {
        if !self.is_advised() {
            return (vec![], false);
        }
        let unfit = Unfit::of(
            plan,
            self.settings.compile.parallel.data_ranks(),
            self.settings.compile.parallel.ranks(),
        );
        let started = Instant::now();
        let (mut rows, mut left): (Vec<Row>, usize) = (vec![], 0);
        let singles = self.changes(unfit);
        let mut fitting: Vec<Vec<usize>> = vec![];
        for parts in (0..singles.len()).map(|single| vec![single]).chain(combinations(&singles)) {
            // A change that is not needed is not made.
            if fitting.iter().any(|fits| fits.iter().all(|part| parts.contains(part))) {
                continue;
            }
            let change = Change::all(&singles, &parts);
            if self.least(&change, unfit, room) > room.device {
                continue;
            }
            if started.elapsed() >= LIMIT {
                left += 1;
                continue;
            }
            if let Some(row) = self.row(change, room, device) {
                rows.push(row);
                fitting.push(parts);
            }
        }
        let has_commands = !rows.is_empty();
        (notes(rows, left), has_commands)
    }

    /// Whether commands are printed: not for a pipeline, which has no predicted step of a single program.
    fn is_advised(&self) -> bool {
        !self.arguments.is_empty() && self.settings.compile.parallel.stage().is_none()
    }

    /// The plan of the run without its budget.
    fn unlimited(&self, device: &Chosen) -> Option<RunPlan> {
        if !self.is_advised() {
            return None;
        }
        let mut unlimited = self.trial();
        (unlimited.settings.compile.memory.memory, unlimited.settings.compile.memory.offload) =
            (None, vec![]);
        Some(unlimited.compile(device, Continued::anew(self.settings.compile.shapes.global_batch)).ok()?.plan)
    }

    /// Bytes of the device that no program of a change goes without: those of its states.
    fn least(&self, change: &Change, unfit: Unfit, room: Room) -> u64 {
        let memory = &self.settings.compile.memory;
        let may_leave = memory.tiers().is_some() || change.sets("offload");
        let states = if change.sets("optimizer") { unfit.parameters } else { unfit.states };
        match may_leave && !room.is_shared_with_host {
            true => 0,
            // In half precision, ZeRO divides weights that it leaves whole in f32.
            false if change.sets("zero") || self.settings.compile.parallel.zero > 0 => {
                states / unfit.data_ranks
            }
            false => states,
        }
    }

    /// The same command to be compiled only: without data, and without advice of its own.
    fn trial(&self) -> Self {
        let mut trial = Self { arguments: vec![], ..self.clone() };
        (trial.settings.data.train, trial.settings.data.eval) = (None, None);
        trial
    }

    /// The changes that may help. Changes that leave the numbers as they are come first.
    fn changes(&self, batch: Unfit) -> Vec<Change> {
        let settings = &self.settings;
        let flag = |name: &'static str, value: &str| vec![(name, Some(value.to_owned()))];
        let change =
            |flags: Vec<Flag>, says: &str| Change { flags, says: says.into(), changes_numbers: false };
        let mut all = vec![];
        if settings.compile.memory.offload.is_empty() {
            all.push(change(flag("offload", "auto"), "values rest on the host"));
        }
        if settings.compile.memory.update == UpdateChoice::Late && batch.microbatches == 1 {
            let says = "updates run in backward; a gradient that is not finite ends the run";
            all.push(change(flag("update", "early"), says));
        }
        if batch.data_ranks > 1 {
            let stages = [
                (1, "optimizer states"),
                (2, "optimizer states and gradients"),
                (3, "all states and gradients"),
            ];
            let higher = stages.into_iter().filter(|(stage, _)| *stage > settings.compile.parallel.zero);
            all.extend(higher.map(|(stage, divided)| {
                change(
                    flag("zero", &stage.to_string()),
                    &format!("{divided} are divided over the data ranks"),
                )
            }));
        }
        let global = batch.microbatch * batch.microbatches * batch.data_ranks;
        let halved =
            std::iter::successors(Some(batch.microbatch), |size| size.is_multiple_of(2).then_some(size / 2));
        let halved: Vec<u64> = halved.skip(1).collect();
        let sizes = halved.iter().take(2).chain(halved.last().filter(|_| halved.len() > 2));
        all.extend(sizes.map(|size| {
            let flags =
                vec![("microbatch", Some(size.to_string())), ("global-batch", Some(global.to_string()))];
            change(flags, &format!("a step has {} microbatches", global / (size * batch.data_ranks)))
        }));
        let other_numbers = |change: Change| Change { changes_numbers: true, ..change };
        if settings.compile.precision.choice() == PrecisionChoice::Fp32 {
            all.push(other_numbers(change(vec![("bf16", None)], "steps compute in bf16")));
        }
        for (moments, says) in
            [(Moments::Bf16, "moments are kept in bf16"), (Moments::EightBit, "moments are kept in 8 bits")]
        {
            if let Some(rule) = with_moments(settings.compile.optimizer.optimizer, moments) {
                all.push(other_numbers(change(flag("optimizer", &rule), says)));
            }
        }
        all
    }

    /// Compiles the command with a change. `None` if the command is refused, or does not fit.
    fn row(&self, mut change: Change, room: Room, device: &Chosen) -> Option<Row> {
        let mut flags = change.flags.clone();
        if self.settings.compile.memory.device_budget().is_none() {
            flags.push(("memory", Some(format!("device={}", rounded_down(room.device)))));
        }
        let arguments: Vec<OsString> = edited(&self.arguments, &flags);
        let Ok(Cli { command: Command::Compile(compile), .. }) = Cli::parse_with_config(arguments.clone())
        else {
            return None;
        };
        let ready = compile
            .trial()
            .compile(device, Continued::anew(compile.settings.compile.shapes.global_batch))
            .ok()?;
        // The statistics of a batch norm, and some losses, are those of a microbatch.
        let of_microbatch = |node: &Node| matches!(node.op, Op::BatchStatistics(_));
        let depends_on_microbatch = ready.compilation.training.nodes().any(|(_, node)| of_microbatch(node))
            || ready.compilation.doubt(ready.plan.microbatches).is_some();
        change.changes_numbers |= change.sets("microbatch") && depends_on_microbatch;
        let peaks = Peaks::of(&ready.programs);
        let taken = peaks.device + if room.is_shared_with_host { peaks.host } else { 0 };
        let seconds = self.seconds(&ready, device)?;
        (taken <= room.device).then(|| Row { command: pasted(&arguments), change, seconds, peaks })
    }

    /// The predicted time of a step.
    fn seconds(&self, ready: &Ready, device: &Chosen) -> Option<f64> {
        let cluster = self.settings.compile.parallel.cluster().ok()?;
        let machine = cluster.map_or_else(|| Machine::Node(device.device()), Machine::Cluster);
        let list =
            ready.programs.target.commands(ready.programs.training.first(), ready.plan.microbatches).ok()?;
        Some(SimulatedStep::of(&list, &machine).seconds())
    }
}

impl Unfit {
    fn of(plan: &RunPlan, data_ranks: u64, ranks: u64) -> Self {
        // An element has at least two bytes.
        let parameters = 2 * plan.parameter_elements / ranks;
        let (microbatch, microbatches) = (plan.microbatch / data_ranks, plan.microbatches);
        Self { microbatch, microbatches, data_ranks, states: plan.memory.states, parameters }
    }
}

impl Room {
    /// The memory of a device that has no room for a run's programs.
    pub(super) fn of_device(bytes: u64, target: Target) -> Self {
        Self { device: bytes, is_shared_with_host: target.is_host() }
    }
}

impl Change {
    /// Several changes at once.
    fn all(changes: &[Self], parts: &[usize]) -> Self {
        let parts: Vec<&Self> = parts.iter().map(|&part| &changes[part]).collect();
        Self {
            flags: parts.iter().flat_map(|part| part.flags.clone()).collect(),
            says: parts.iter().map(|part| part.says.as_str()).collect::<Vec<_>>().join("; "),
            changes_numbers: parts.iter().any(|part| part.changes_numbers),
        }
    }

    fn sets(&self, flag: &str) -> bool {
        self.flags.iter().any(|(name, _)| *name == flag)
    }
}

/// The combinations that are tried, of the strongest change of each flag: first all pairs; then all changes that leave the numbers as they
/// are, and all changes.
fn combinations(changes: &[Change]) -> Vec<Vec<usize>> {
    // The last change of a flag is the strongest. Early updates save nothing with several microbatches.
    let strongest: Vec<usize> = (0..changes.len())
        .filter(|&index| {
            let later = &changes[index + 1..];
            !changes[index].flags.iter().any(|(flag, _)| later.iter().any(|other| other.sets(flag)))
        })
        .collect();
    let is_early = |index: usize| changes[index].sets("update");
    let smaller = |index: usize| changes[index].sets("microbatch");
    let mut all = vec![];
    for (place, &one) in strongest.iter().enumerate() {
        let others = strongest[place + 1..].iter().filter(|&&other| !(is_early(one) && smaller(other)));
        all.extend(others.map(|&other| vec![one, other]));
    }
    all.sort_by_key(|parts| parts.iter().any(|&part| changes[part].changes_numbers));
    let many = strongest.iter().copied().filter(|&index| !is_early(index));
    let exact: Vec<usize> = many.clone().filter(|&index| !changes[index].changes_numbers).collect();
    let many: Vec<usize> = many.collect();
    all.extend([exact, many].into_iter().filter(|parts| parts.len() > 2));
    all
}

/// The optimizer's flag with moments of another form, with the numbers that are not its defaults. `None` for a rule that has none, and
/// for one whose moments are not in full.
fn with_moments(mut algorithm: Algorithm, moments: Moments) -> Option<String> {
    let Algorithm::Adam { moments: Moments::Full, .. } = algorithm else { return None };
    let name = algorithm.name();
    let mut default = Algorithm::named(name)?;
    let mut words: Vec<String> = (algorithm.hyperparameters().iter().zip(default.hyperparameters()))
        // The second decay of moments in bf16 has a limit, and a default of its own.
        .filter(|(given, default)| {
            *given.value != *default.value && !(moments == Moments::Bf16 && given.name == "beta2")
        })
        .map(|(given, _)| format!("{}={:?}", given.name, given.value))
        .collect();
    let word = Moments::ALL.iter().find(|(form, _)| *form == moments).map(|(_, word)| *word)?;
    words.push(format!("moments={word}"));
    Some(format!("{name}:{}", words.join(",")))
}

/// A budget of at most so many bytes that is short to write.
fn rounded_down(bytes: u64) -> Budget {
    let unit = if bytes >= 1 << 30 { 1 << 20 } else { 1 << 10 };
    Budget((bytes / unit * unit).max(1))
}

/// The rows as notes. `left` changes were not tried.
fn notes(mut rows: Vec<Row>, left: usize) -> Vec<String> {
    rows.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
    rows.truncate(ROWS);
    let mut notes = vec![];
    if rows.is_empty() {
        notes.push("no other flags that were tried make it fit".to_owned());
    } else {
        notes.push("these commands fit, by their predicted step:".to_owned());
    }
    for Row { command, change, seconds, peaks } in rows {
        let mut memory = format!("{} on the device", bytes(peaks.device));
        for (size, place) in [(peaks.host, "on the host"), (peaks.disk, "on the disk")] {
            if size > 0 {
                memory.push_str(&format!(", {} {place}", bytes(size)));
            }
        }
        let numbers = if change.changes_numbers { "; the losses change" } else { "" };
        notes.push(format!("{}, {memory}: {}{numbers}", milliseconds(seconds * 1e3), change.says));
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
    use ir::machine::Preset;
    use program::Multiprocessors;

    fn change(flags: &[&'static str], changes_numbers: bool) -> Change {
        let flags = flags.iter().map(|&flag| (flag, Some("1".into()))).collect();
        Change { flags, says: String::new(), changes_numbers }
    }

    #[test]
    fn combinations_take_the_strongest_change_of_each_flag() {
        let changes = [
            change(&["offload"], false),
            change(&["update"], false),
            change(&["microbatch", "global-batch"], false),
            change(&["microbatch", "global-batch"], false),
            change(&["bf16"], true),
        ];
        let expected: [&[usize]; 6] = [&[0, 1], &[0, 3], &[0, 4], &[1, 4], &[3, 4], &[0, 3, 4]];
        assert_eq!(combinations(&changes), expected);
    }

    /// A run that has no room on its device has no budget: the commands get one.
    #[test]
    fn a_run_without_room_gets_commands_with_a_budget() {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/gpt2-fresh.onnx");
        let words = ["trainyard", "compile", model, "--microbatch", "8"];
        let Ok(Cli { command: Command::Compile(compile), .. }) = Cli::parse_with_config(words) else {
            panic!("not a compile")
        };
        let (multiprocessors, described) = (Multiprocessors::default(), String::new());
        let device = Chosen {
            target: crate::targets::of(ir::machine::DeviceKind::Cpu),
            multiprocessors,
            described,
            preset: Some(Preset::Cpu),
        };
        let ready =
            compile.compile(&device, Continued::default()).unwrap_or_else(|error| panic!("{error:?}"));
        let bytes = ready.programs.peak() / 2;
        let advice = |target: Target| compile.advice(Room::of_device(bytes, target), &ready.plan, &device).0;
        let offloaded = |notes: &[String]| notes.iter().any(|note| note.contains("--offload auto"));
        let apart = advice(crate::targets::of(ir::machine::DeviceKind::Gpu));
        assert!(offloaded(&apart), "{apart:?}");
        let commands = apart.iter().filter(|note| note.starts_with("  trainyard"));
        let budget = format!("--memory device={}", rounded_down(bytes));
        assert!(
            commands.clone().count() > 0 && commands.into_iter().all(|command| command.contains(&budget))
        );
        // On a processor, values on the host take the same memory.
        let shared = advice(crate::targets::of(ir::machine::DeviceKind::Cpu));
        assert!(!offloaded(&shared), "{shared:?}");
    }

    #[test]
    fn moments_of_another_form_keep_the_other_numbers() {
        let Some(Algorithm::Adam { beta1, beta2, eps, decoupled, .. }) = Algorithm::named("adamw") else {
            panic!("there is adamw")
        };
        let with = |beta1, beta2| Algorithm::Adam { beta1, beta2, eps, decoupled, moments: Moments::Full };
        assert_eq!(
            with_moments(with(beta1, beta2), Moments::EightBit).as_deref(),
            Some("adamw:moments=8bit")
        );
        let own = with(0.8, 0.97);
        assert_eq!(
            with_moments(own, Moments::EightBit).as_deref(),
            Some("adamw:beta1=0.8,beta2=0.97,moments=8bit")
        );
        assert_eq!(with_moments(own, Moments::Bf16).as_deref(), Some("adamw:beta1=0.8,moments=bf16"));
        let lion = Algorithm::named("lion").expect("there is lion");
        assert_eq!(with_moments(lion, Moments::Bf16), None);
    }
}
