//! The command line beside a config file, which it overrules.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::check::exclude;

/// A command line that was parsed without its config file.
#[derive(Clone, Copy)]
pub struct CommandLine<'a> {
    command: &'a Command,
    given: &'a ArgMatches,
    ranks: Option<u64>,
}

impl<'a> CommandLine<'a> {
    /// The subcommand that `all` commands matched, and its flags. `ranks` is the number of processes, if a launcher started them.
    ///
    /// # Panics
    /// If no subcommand was matched.
    pub fn new(all: &'a Command, matches: &'a ArgMatches, ranks: Option<u64>) -> Self {
        let matched =
            matches.subcommand().and_then(|(name, given)| Some((all.find_subcommand(name)?, given)));
        let (command, given) = matched.expect("a subcommand is required");
        Self { command, given, ranks }
    }

    /// The number of processes that a launcher started.
    pub(super) fn ranks(&self) -> Option<u64> {
        self.ranks
    }

    /// Whether the user gave the flag.
    pub(super) fn gives(&self, flag: &str) -> bool {
        self.names().contains(&flag)
    }

    /// The value that the user gave the flag.
    pub(crate) fn value<T: Clone + Send + Sync + 'static>(&self, flag: &str) -> Option<T> {
        let arg = self.given().find(|arg| arg.get_long() == Some(flag))?;
        self.given.try_get_one::<T>(arg.get_id().as_str()).ok()?.cloned()
    }

    /// Whether a key of a config file applies: the subcommand has its flag, and the command line does not decide it.
    pub(super) fn admits(&self, key: &str) -> bool {
        self.has(key) && !self.decides(key)
    }

    /// Whether the subcommand has a flag.
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.command.get_arguments().any(|arg| arg.get_long() == Some(flag))
    }

    /// Whether the command line gives a flag, or excludes it.
    pub(super) fn decides(&self, flag: &str) -> bool {
        self.names().into_iter().any(|given| given == flag || exclude(given, flag))
    }

    /// The names of the flags that the user gave.
    pub fn names(&self) -> Vec<&'a str> {
        self.given().filter_map(Arg::get_long).collect()
    }

    /// The flags that the user gave.
    fn given(&self) -> impl Iterator<Item = &'a Arg> {
        let is_given =
            |arg: &&Arg| self.given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
        self.command.get_arguments().filter(is_given)
    }
}
