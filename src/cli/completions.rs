//! `trainyard completions`: scripts with which a shell completes subcommands, flags and their values.

use clap::Args;
use clap_complete::Shell;

use super::report::{self, Outcome};
use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  Write a script that bash can source, or a script for the completions folder of fish:
    trainyard completions bash
    trainyard completions fish";

/// Arguments of `completions`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

impl Completions {
    /// Writes the script to standard output.
    ///
    /// # Errors
    /// Output that cannot be written.
    pub fn run(&self) -> Result<Outcome, Failure> {
        report::write_out(&self.script())?;
        Ok(Outcome::Done)
    }

    /// The script.
    pub fn script(&self) -> String {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut super::command(), "trainyard", &mut script);
        String::from_utf8_lossy(&script).into_owned()
    }
}
