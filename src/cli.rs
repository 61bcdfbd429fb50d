//! The command line: `trainyard` and its subcommands, one file each; config files; messages to the user; exit codes.

mod advice;
pub mod compile;
pub mod completions;
pub mod doctor;
pub mod inspect;
pub mod opt;
mod profile;
pub mod reference;
pub mod report;
mod resuming;
mod summary;
pub mod verify;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use comm::launcher::Launched;

pub use compile::Compile;
pub use completions::Completions;
pub use doctor::Doctor;
pub use inspect::Inspect;
pub use opt::Opt;
pub use report::Outcome;
pub use verify::Verify;

use crate::config::CommandLine;
use crate::config::check::{check_names, with_exclusions};
use crate::config::deepspeed::Notes;
use crate::config::file::ConfigFile;
use crate::failure::Failure;
use crate::hardware;
use crate::log;

/// A compiler that trains ONNX models
#[derive(Parser, Clone, Debug)]
#[command(name = "trainyard", version, propagate_version = true, max_term_width = 110)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
    /// Notes for the user on a DeepSpeed config.
    #[arg(skip)]
    pub notes: Option<Notes>,
}

/// The subcommands.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Import a model, run the passes and lower the program; with --train, train it
    Compile(Box<Compile>),
    /// Describe a model or an output folder
    Inspect(Box<Inspect>),
    /// Run passes on a program in its text form
    Opt(Box<Opt>),
    /// Compare the transformed program with the untransformed graph
    Verify(Box<Verify>),
    /// List the processor, GPUs and NVIDIA libraries of this machine
    Doctor(Doctor),
    /// Write a script that lets a shell complete the flags
    Completions(Completions),
}

/// The reason why a command line is refused before a subcommand starts.
#[derive(Debug)]
pub enum ParseError {
    /// An error of clap: wrong flags, and also `--help` and `--version`.
    Usage(clap::Error),
    /// An error of a config file.
    Settings(Vec<ir::Diagnostic>),
    /// Flags that do not go together. All processes of a run find the same.
    Rules(Vec<ir::Diagnostic>),
}

impl From<clap::Error> for ParseError {
    fn from(error: clap::Error) -> Self {
        Self::Usage(error)
    }
}

/// Runs a command line, its program name first, as this process: as the only one, or as one that a launcher started.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    // The subcommand's name is the first argument after the program's: there are no global flags.
    let is_launched = arguments.get(1).is_some_and(|name| name == COMPILE);
    let launched = if is_launched { Launched::of_process() } else { Ok(None) };
    let launched = match launched {
        Ok(launched) => launched,
        // `--help` and wrong flags come first.
        Err(error) => {
            return match command().try_get_matches_from(&arguments) {
                Ok(_) => report::finish(Err(error.into())),
                Err(usage) => report::finish_parse_error(usage.into(), true),
            };
        }
    };
    let is_first = launched.is_none_or(|launched| launched.rank == 0);
    match Cli::parse_launched(arguments, launched.as_ref()) {
        Ok(cli) => {
            if launched.is_some() {
                log::keep();
            }
            if !is_first {
                report::mute();
            }
            report::finish(cli.run())
        }
        Err(error) => report::finish_parse_error(error, is_first),
    }
}

/// The command line, with the rules between flags that clap knows.
pub fn command() -> clap::Command {
    Cli::command().mut_subcommands(with_exclusions)
}

impl Cli {
    /// As [`Self::parse_launched`], for a process that no launcher started.
    ///
    /// # Errors
    /// As [`Self::parse_launched`].
    pub fn parse_with_config<A: Into<OsString>>(
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Self, ParseError> {
        Self::parse_launched(arguments, None)
    }

    /// Parses a command line, its program name first, and the config file that `--config` names; the command line
    /// wins. The mesh is fitted to the processes that a launcher started.
    ///
    /// # Errors
    /// Wrong flags or values here or in the file, and flags that do not go together. `--help` comes as an error too.
    pub fn parse_launched<A: Into<OsString>>(
        arguments: impl IntoIterator<Item = A>,
        launched: Option<&Launched>,
    ) -> Result<Self, ParseError> {
        let mut arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
        let mut command = command();
        let mut matches = command.try_get_matches_from_mut(&arguments)?;
        let mut notes = None;
        let line = CommandLine::new(&command, &matches, launched.map(|launched| launched.ranks));
        if let Some(path) = line.value::<PathBuf>("config") {
            let file = ConfigFile::read(&path, &line).map_err(ParseError::Settings)?;
            let from_file = file.arguments_for(&line);
            notes = file.notes(&from_file);
            arguments.splice(2..2, from_file.into_iter().map(OsString::from));
            matches = command.try_get_matches_from_mut(&arguments)?;
        }
        let mut cli = Self { notes, ..Self::from_arg_matches(&matches)? };
        if let (Command::Compile(compile), Some(launched)) = (&mut cli.command, launched) {
            compile.settings.adapt_to(launched).map_err(|error| ParseError::Rules(vec![error]))?;
            compile.launched = Some(*launched);
        }
        let line = CommandLine::new(&command, &matches, None);
        let mut errors = check_names(&line.names(), |flag| line.has(flag));
        errors.extend(cli.command.check());
        if errors.is_empty() { Ok(cli) } else { Err(ParseError::Rules(errors)) }
    }

    /// Prints the notes, and runs the subcommand.
    ///
    /// # Errors
    /// Those of the subcommand.
    pub fn run(&self) -> Result<Outcome, Failure> {
        if let Some(notes) = &self.notes {
            report::tell_lines(&notes.to_string());
        }
        self.command.run()
    }
}

/// The subcommand that a launcher may start.
const COMPILE: &str = "compile";

impl Command {
    /// Runs the subcommand.
    pub fn run(&self) -> Result<Outcome, Failure> {
        hardware::check_environment()?;
        match self {
            Self::Compile(compile) => compile.run(),
            Self::Inspect(inspect) => inspect.run(),
            Self::Opt(opt) => opt.run(),
            Self::Verify(verify) => verify.run(),
            Self::Doctor(doctor) => doctor.run(),
            Self::Completions(completions) => completions.run(),
        }
    }

    /// The rules that the values of the flags break.
    fn check(&self) -> Vec<ir::Diagnostic> {
        match self {
            Self::Compile(compile) => compile.settings.compile.check(compile.settings.run.steps),
            Self::Inspect(inspect) => inspect.compile.check(inspect.steps),
            Self::Verify(verify) => verify.compile.check(verify.steps),
            Self::Opt(_) | Self::Doctor(_) | Self::Completions(_) => vec![],
        }
    }
}
