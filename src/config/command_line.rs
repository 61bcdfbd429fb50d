//! The command line beside a config file, which it overrules.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

/// A command line that was parsed without its config file.
#[derive(Clone, Copy)]
pub struct CommandLine<'a> {
    command: &'a Command,
    given: &'a ArgMatches,
    ranks: Option<u64>,
}

impl<'a> CommandLine<'a> {
    /// A subcommand and its flags. `ranks` is the number of processes, if a launcher started them.
    pub fn new(command: &'a Command, given: &'a ArgMatches, ranks: Option<u64>) -> Self {
        Self { command, given, ranks }
    }

    /// The number of processes that a launcher started.
    pub(super) fn ranks(&self) -> Option<u64> {
        self.ranks
    }

    /// Whether the user gave the flag.
    pub(super) fn gives(&self, flag: &str) -> bool {
        self.given().any(|arg| arg.get_long() == Some(flag))
    }

    /// The value that the user gave the flag.
    pub(super) fn value<T: Clone + Send + Sync + 'static>(&self, flag: &str) -> Option<T> {
        let arg = self.given().find(|arg| arg.get_long() == Some(flag))?;
        self.given.try_get_one::<T>(arg.get_id().as_str()).ok()?.cloned()
    }

    /// Whether a key of a config file applies: the subcommand has its flag, and the command line neither gives nor excludes this flag.
    pub(super) fn admits(&self, key: &str) -> bool {
        let excludes = |a: &Arg, b: &Arg| {
            a.get_id() == b.get_id()
                || self.command.get_arg_conflicts_with(a).iter().any(|other| other.get_id() == b.get_id())
        };
        let arg = self.command.get_arguments().find(|arg| arg.get_long() == Some(key));
        arg.is_some_and(|arg| !self.given().any(|other| excludes(arg, other) || excludes(other, arg)))
    }

    /// The flags that the user gave.
    fn given(&self) -> impl Iterator<Item = &'a Arg> {
        let is_given =
            |arg: &&Arg| self.given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
        self.command.get_arguments().filter(is_given)
    }
}
