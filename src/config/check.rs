//! Rules between flags: flags that exclude each other, need each other, or contradict each other by their values.
//!
//! The rules between names are two tables. Clap, config files and DeepSpeed's JSON read the first one. The settings of a command
//! are compared with both, and so are the settings that the advice has changed.

use clap::{Arg, Command, Id};
use ir::Diagnostic;
use passes::optimizer::schedule::Curve;

use super::{CompileFlags, Settings};

/// Flags of which a command has at most one, with spaces between them.
const EXCLUSIVE: [&str; 6] = [
    "precision bf16 fp16",
    "steps epochs",
    "memory recompute",
    "target cluster",
    "memory-plan after",
    "bisect against",
];

/// Flags that have no effect without another flag.
struct Needs {
    /// The flags, with spaces between them.
    flags: &'static str,
    needed: &'static str,
    /// The reason, if the names do not give it.
    reason: &'static str,
    remedy: &'static str,
}

const NEEDS: [Needs; 4] = [
    Needs {
        flags: "eval eval-every tokenizer input steps epochs save-every keep export patience \
                compress-gradients-after resume",
        needed: "train",
        reason: "",
        remedy: "give training data: --train corpus.txt, or --train synthetic to try the model",
    },
    Needs {
        flags: "patience",
        needed: "eval-every",
        reason: ": the run is evaluated only at its end",
        remedy: "give the number of steps between evaluations: --eval-every 100",
    },
    Needs {
        flags: "compress-least",
        needed: "compress-activations",
        reason: "",
        remedy: "give the forms of compressed activations: --compress-activations masks",
    },
    Needs {
        flags: "compress-gradients-after",
        needed: "compress-gradients",
        reason: "",
        remedy: "give the form of compressed gradients: --compress-gradients powersgd",
    },
];

/// Returns whether a command has at most one of these two flags.
pub(super) fn exclude(one: &str, other: &str) -> bool {
    let has = |flags: &&str, name: &str| flags.split(' ').any(|flag| flag == name);
    one != other && EXCLUSIVE.iter().any(|flags| has(flags, one) && has(flags, other))
}

/// Returns the first two of these flags that exclude each other.
pub(super) fn exclusive<'f>(given: &[&'f str]) -> Option<(&'f str, &'f str)> {
    given.iter().enumerate().find_map(|(at, one)| {
        let other = given[at..].iter().find(|other| exclude(one, other))?;
        Some((*one, *other))
    })
}

/// Lets clap refuse flags of a command that exclude each other.
pub(crate) fn with_exclusions(command: Command) -> Command {
    let flags: Vec<Arg> = command.get_arguments().cloned().collect();
    command.mut_args(|arg| {
        let others = flags.iter().filter(|other| exclude(long(&arg), long(other)));
        let others: Vec<Id> = others.map(|other| other.get_id().clone()).collect();
        arg.conflicts_with_all(others)
    })
}

/// The name of a flag, without dashes; empty for an argument without one.
fn long(arg: &Arg) -> &str {
    arg.get_long().unwrap_or_default()
}

/// Returns an error for each rule between the names of flags that a command with the flags `given` breaks. A flag needs another one only if
/// `has` says that the command has the other flag: `inspect --steps 5` is the program of a run, and trains nothing.
pub(crate) fn check_names(given: &[&str], has: impl Fn(&str) -> bool) -> Vec<Diagnostic> {
    let exclusive = exclusive(given).map(|(one, other)| {
        Diagnostic::new(format!("--{one} and --{other} exclude each other")).note("give only one of them")
    });
    let broken = NEEDS.iter().filter(|rule| has(rule.needed) && !given.contains(&rule.needed));
    let needs = broken.filter_map(|rule| {
        let idle = rule.flags.split(' ').filter(|flag| given.contains(flag));
        let idle: Vec<String> = idle.map(|flag| format!("--{flag}")).collect();
        let verb = if idle.len() == 1 { "does" } else { "do" };
        let message =
            format!("{} {verb} not apply without --{}{}", idle.join(", "), rule.needed, rule.reason);
        (!idle.is_empty()).then(|| Diagnostic::new(message).note(rule.remedy))
    });
    exclusive.into_iter().chain(needs).collect()
}

impl Settings {
    /// Returns an error for each rule between flags that the settings break; none if they can be used.
    pub fn check(&self) -> Vec<Diagnostic> {
        // A path that is not UTF-8 is refused where the settings are printed.
        let given = self.changed().unwrap_or_default();
        let given: Vec<&str> = given.keys().map(String::as_str).collect();
        check_names(&given, |_| true).into_iter().chain(self.compile.check(self.run.steps)).collect()
    }
}

impl CompileFlags {
    /// Returns an error for each rule between these flags that they break, for a run of `steps` steps if the number is known.
    pub fn check(&self, steps: Option<u64>) -> Vec<Diagnostic> {
        let problems = [self.batches(), self.schedule(steps), self.precision.check(), self.memory.check()];
        problems.into_iter().flatten().chain(self.parallel.check()).collect()
    }

    /// The global batch must be a whole number of microbatches.
    fn batches(&self) -> Option<Diagnostic> {
        let (global, microbatch) = (self.shapes.global_batch?, self.shapes.microbatch?);
        let data_ranks = self.parallel.data_ranks();
        let fits = global % (microbatch * data_ranks) == 0;
        (!fits).then(|| crate::sizes::no_whole_number(global, microbatch, data_ranks))
    }

    /// The lowest learning rate must not be above the highest, and the warm-up must leave steps for the decay.
    fn schedule(&self, steps: Option<u64>) -> Option<Diagnostic> {
        let (schedule, lr) = (&self.optimizer.lr_schedule, self.optimizer.lr);
        if schedule.curve == Curve::Constant {
            return None;
        }
        if schedule.min > lr {
            let message = format!(
                "the schedule ends at a learning rate of {:?}, which is above the highest learning rate \
                 {lr:?}",
                schedule.min
            );
            return Some(
                Diagnostic::new(message).note("min is an absolute learning rate, not a fraction of --lr"),
            );
        }
        let steps = steps.filter(|&steps| schedule.steps == 0 && steps > 0)?;
        let decay = if schedule.curve == Curve::WarmupStableDecay { schedule.decay } else { 0 };
        if decay > 0 && schedule.warmup < steps && decay > steps - schedule.warmup {
            let message = format!(
                "the warm-up of {} steps and the decay of {decay} steps do not fit into the run's {steps} \
                 steps",
                schedule.warmup
            );
            return Some(
                Diagnostic::new(message)
                    .note("shorten the warm-up or the decay, or give the schedule a length: steps=N"),
            );
        }
        (schedule.warmup >= steps).then(|| {
            let message = format!(
                "the warm-up of {} steps is as long as the run's {steps} steps or longer",
                schedule.warmup
            );
            Diagnostic::new(message).note("shorten the warm-up, or give the schedule a length: steps=N")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    #[test]
    fn each_name_of_the_tables_is_a_flag() {
        let cli = Cli::command();
        let flags: Vec<&str> =
            cli.get_subcommands().flat_map(Command::get_arguments).filter_map(Arg::get_long).collect();
        let needs = NEEDS.iter().flat_map(|rule| [rule.flags, rule.needed]);
        for name in EXCLUSIVE.into_iter().chain(needs).flat_map(|names| names.split(' ')) {
            assert!(flags.contains(&name), "--{name}");
        }
    }

    #[test]
    fn settings_are_held_against_the_tables() {
        let told = |given: &[&str]| -> Vec<String> {
            check_names(given, |flag| flag != "patience").into_iter().map(|error| error.message).collect()
        };
        assert_eq!(told(&["memory", "seed", "recompute"]), ["--memory and --recompute exclude each other"]);
        assert_eq!(
            told(&["compress-least"]),
            ["--compress-least does not apply without --compress-activations"]
        );
        assert_eq!(told(&["bf16", "memory", "train", "steps"]), [""; 0]);
    }
}
