//! The device that runs the program.

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::value::{ValueError, count_from};

/// Flags of the device.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Device")]
#[serde(rename_all = "kebab-case")]
pub struct Device {
    /// What the program runs on
    #[arg(long, value_enum, default_value_t)]
    pub device: DeviceChoice,
    /// Threads of the processor, shared by the ranks of a mesh [default: one for each core]
    #[arg(long, value_name = "N", value_parser = positive_usize)]
    pub threads: Option<usize>,
}

/// What the program runs on.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceChoice {
    /// The processor; it says that there is a GPU, if there is one
    #[default]
    Auto,
    /// The processor
    Cpu,
    /// An NVIDIA GPU, or one for each rank of the mesh
    Cuda,
}

fn positive_usize(text: &str) -> Result<usize, ValueError> {
    Ok(count_from(1, text)? as usize)
}
