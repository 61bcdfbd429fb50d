//! The device that runs the program.

use clap::{Args, ValueEnum};
use serde::Serialize;

/// Flags of the device.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Device")]
#[serde(rename_all = "kebab-case")]
pub struct Device {
    /// What the program runs on
    #[arg(long, value_enum, default_value_t)]
    pub device: DeviceChoice,
}

/// What the program runs on.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceChoice {
    /// The best there is
    #[default]
    Auto,
    /// The processor
    Cpu,
}
