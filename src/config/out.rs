//! The output folder of a run, and the file of the memory plan.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

/// Flags of the output folder.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Out")]
#[serde(rename_all = "kebab-case")]
pub struct Out {
    /// Write the compiled program and the run to DIR [default: NAME.trainyard]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Replace another run in the output folder
    #[arg(long)]
    pub force: bool,
    /// Write the memory plan to FILE as JSON: every instruction with the memories, the bytes and the values that it reads and writes, and
    /// the order of a GPU's commands
    #[arg(long, value_name = "FILE")]
    pub memory_plan: Option<PathBuf>,
}

impl Out {
    /// The output folder for a model: `--output`, else the model's file name with `.trainyard` for its ending, in
    /// the current folder.
    pub fn folder(&self, model: &Path) -> PathBuf {
        let mut name = model.file_stem().unwrap_or("model".as_ref()).to_owned();
        name.push(".trainyard");
        self.output.clone().unwrap_or_else(|| name.into())
    }
}
