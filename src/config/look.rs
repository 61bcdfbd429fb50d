//! Looking at a compilation: what to print or keep of the program between passes.

use std::path::PathBuf;

use clap::Args;
use ir::Diagnostic;
use passes::{Manager, Pass};
use serde::Serialize;

use super::nearest::nearest;

/// Flags that show the program between passes.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Look")]
#[serde(rename_all = "kebab-case")]
pub struct Look {
    /// Print the program after PASS; may be repeated
    #[arg(long, value_name = "PASS")]
    pub print_after: Vec<String>,
    /// Print the program after each pass that changes it
    #[arg(long)]
    pub print_changed: bool,
    /// Write the program after each pass to a file in DIR
    #[arg(long, value_name = "DIR")]
    pub dump: Option<PathBuf>,
}

impl Look {
    /// The pass manager that prints and writes the program as these flags say. Errors: a pass that does not exist.
    pub fn manager(&self) -> Result<Manager, Diagnostic> {
        self.print_after.iter().try_for_each(|name| known_pass("--print-after", name))?;
        Ok(Manager {
            print_after: self.print_after.clone(),
            print_changed: self.print_changed,
            dump: self.dump.clone(),
            reproducer: self.dump.clone(),
            ..Manager::default()
        })
    }
}

/// Refuses the name of a pass that does not exist.
pub fn known_pass(flag: &str, name: &str) -> Result<(), Diagnostic> {
    if Pass::NAMES.contains(&name) {
        return Ok(());
    }
    let error = Diagnostic::new(format!("{flag} {name}: there is no such pass"));
    let nearest = nearest(name, Pass::NAMES.iter().copied()).unwrap_or_default();
    Err(error.note(format!("there are {}; the nearest is `{nearest}`", Pass::NAMES.join(", "))))
}
