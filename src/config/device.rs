//! The device that runs the program.

use crate::targets;
use clap::{Args, ValueEnum};
use ir::machine::DeviceKind;
use program::Target;
use serde::Serialize;

use super::value::{ValueError, whole_number};

/// Flags of the device.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Device")]
#[serde(rename_all = "kebab-case")]
pub struct Device {
    /// Device that runs the program
    #[arg(long, value_enum, default_value_t)]
    pub device: DeviceChoice,
    /// Number of processor threads, at most 1024; the ranks of a mesh share them [default: one per core]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
}

impl Device {
    /// The kind of device that these flags choose. A GPU is used only if the user asks for it.
    pub fn target(&self) -> Target {
        match self.device {
            DeviceChoice::Cuda => targets::of(DeviceKind::Gpu),
            DeviceChoice::Auto | DeviceChoice::Cpu => targets::of(DeviceKind::Cpu),
        }
    }
}

/// The user's choice of the device.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceChoice {
    /// The processor; a note says so if the machine has a GPU
    #[default]
    Auto,
    /// The processor
    Cpu,
    /// An NVIDIA GPU, or one GPU for each rank of the mesh
    Cuda,
}

/// The most threads that a run may ask for: more than any machine has cores, and few enough that every system starts them.
pub const MOST_THREADS: u64 = 1024;

fn threads(text: &str) -> Result<usize, ValueError> {
    Ok(whole_number(1, MOST_THREADS, text)? as usize)
}
