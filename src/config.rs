//! The flags, defined once: each group below is a set of command-line flags and, under the same names, of keys in
//! `trainyard.toml`. A subcommand flattens the groups it takes; [`Settings`] is all of them.
//!
//! A config file is turned into arguments and parsed like a command line ([`mod@file`]), so a key has the same
//! values, the same limits and the same errors as its flag. The keys of a DeepSpeed config become flags too ([`deepspeed`]).

pub mod check;
pub mod command;
pub mod command_line;
pub mod data;
pub mod deepspeed;
pub mod device;
pub mod experts;
pub mod file;
pub mod initial;
mod json_file;
pub mod look;
pub mod loss;
pub mod machine;
pub mod memory;
pub mod nearest;
pub mod optimizer;
pub mod out;
pub mod parallel;
pub mod precision;
pub mod run;
pub mod shapes;
pub mod target;
mod text_file;
mod toml_file;
pub mod value;

pub use command_line::CommandLine;
pub use data::{Data, InputBinding};
pub use device::{Device, DeviceChoice};
pub use experts::Experts;
pub use initial::{Init, Initial, Seed};
pub use look::Look;
pub use loss::Loss;
pub use memory::{Memory, RecomputeChoice};
pub use optimizer::Optimizer;
pub use out::Out;
pub use parallel::{MeshAxes, Parallel};
pub use precision::Precision;
pub use run::{Export, Length, Resume, ResumePlace, RunFlags};
pub use shapes::{Bindings, Shapes};
pub use target::TargetDevice;
pub use value::ValueError;

use clap::Args;
use comm::launcher::Launched;
use ir::Diagnostic;
use serde::Serialize;

/// The flags of a compilation, for the commands that compile.
#[derive(Args, Clone, Debug, PartialEq, Serialize)]
pub struct CompileFlags {
    /// Batch and other dims.
    #[command(flatten)]
    #[serde(flatten)]
    pub shapes: Shapes,
    /// The seed of everything random.
    #[command(flatten)]
    #[serde(flatten)]
    pub seed: Seed,
    /// New weights in place of the file's.
    #[command(flatten)]
    #[serde(flatten)]
    pub init: Init,
    /// The update rule.
    #[command(flatten)]
    #[serde(flatten)]
    pub optimizer: Optimizer,
    /// Mixtures of experts.
    #[command(flatten)]
    #[serde(flatten)]
    pub experts: Experts,
    /// The objective.
    #[command(flatten)]
    #[serde(flatten)]
    pub loss: Loss,
    /// The element types.
    #[command(flatten)]
    #[serde(flatten)]
    pub precision: Precision,
    /// The mesh, and the values that are split over it.
    #[command(flatten)]
    #[serde(flatten)]
    pub parallel: Parallel,
    /// The memory of each device.
    #[command(flatten)]
    #[serde(flatten)]
    pub memory: Memory,
}

/// Every shared flag, and so every key of `trainyard.toml`.
#[derive(Args, Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// The training data and the evaluation data.
    #[command(flatten)]
    #[serde(flatten)]
    pub data: Data,
    /// The length of the run, its checkpoints, and the checkpoint at which it resumes.
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunFlags,
    /// The flags of the compilation.
    #[command(flatten)]
    #[serde(flatten)]
    pub compile: CompileFlags,
    /// The source of the weights of step 0.
    #[command(flatten)]
    #[serde(flatten)]
    pub initial: Initial,
    /// The device that runs the program.
    #[command(flatten)]
    #[serde(flatten)]
    pub device: Device,
    /// The parts of the compilation that are printed. They apply to one call, so they are not written to a `config.toml`.
    #[command(flatten)]
    #[serde(skip)]
    pub look: Look,
    /// The output folder. It applies to one call, so it is not written to a `config.toml`.
    #[command(flatten)]
    #[serde(skip)]
    pub out: Out,
}

impl Settings {
    /// Fits the mesh to the processes that a launcher started. A mesh without an axis of data ranks gets one, as its outermost, with as
    /// many ranks as the processes allow.
    ///
    /// # Errors
    /// The mesh has another number of ranks than the launcher started.
    pub fn adapt_to(&mut self, launched: &Launched) -> Result<(), Diagnostic> {
        let Launched { launcher, ranks, .. } = *launched;
        let mesh = self.compile.parallel.mesh.get_or_insert_with(MeshAxes::default);
        mesh.open_to(ranks);
        let mesh = mesh.to_string();
        if self.compile.parallel.ranks() != ranks {
            let message = format!(
                "{launcher} started {ranks} processes, and --mesh {mesh} has {}",
                self.compile.parallel.ranks()
            );
            let note = format!(
                "start as many processes as the mesh has ranks: -n {}",
                self.compile.parallel.ranks()
            );
            return Err(Diagnostic::new(message).note(note));
        }
        Ok(())
    }

    /// Writes the settings as a `config.toml`, from which `--config` reads equal settings. Left out are the settings of one call:
    /// `--resume`, and the groups [`Look`] and [`Out`].
    ///
    /// # Errors
    /// When a path is not valid UTF-8, which TOML cannot hold.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}
