//! The device that runs the program.

use crate::targets::{self, BACKENDS};
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use ir::machine::DeviceKind;
use program::Target;
use serde::{Serialize, Serializer};
use std::sync::LazyLock;

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

/// The user's choice of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The processor; a note says so if the machine has another device.
    #[default]
    Auto,
    /// The devices of a backend.
    Of(Target),
}

impl DeviceChoice {
    /// The kind of device that is chosen. Others than the processor are used only if the user asks for them.
    pub fn target(self) -> Target {
        match self {
            Self::Auto => targets::of(DeviceKind::Cpu),
            Self::Of(target) => target,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Of(target) => target.name(),
        }
    }
}

impl ValueEnum for DeviceChoice {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<DeviceChoice>> = LazyLock::new(|| {
            let backends = BACKENDS.iter().map(|backend| DeviceChoice::Of(backend.target()));
            [DeviceChoice::Auto].into_iter().chain(backends).collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Auto => "The processor; a note says so if the machine has a GPU",
            Self::Of(target) => targets::backend(*target).help(),
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}

impl Serialize for DeviceChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The most threads that a run may ask for: more than any machine has cores, and few enough that every system starts them.
pub const MOST_THREADS: u64 = 1024;

fn threads(text: &str) -> Result<usize, ValueError> {
    Ok(whole_number(1, MOST_THREADS, text)? as usize)
}
