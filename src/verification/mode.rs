//! How a program is run to be compared with the reference: the values of `--mode`.

use clap::ValueEnum;
use ir::machine::DeviceKind;

/// How `verify` runs the transformed program.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The interpreter in f64
    #[default]
    Exact,
    /// The interpreter, with each value rounded to its type
    Typed,
    /// The CPU backend
    Cpu,
    /// The GPU's program, run on the processor: it is slow, and needs a C++ compiler (CXX, or c++)
    Cuda,
}

impl Mode {
    /// The kind of device whose kernels run the program; `None` for the interpreter.
    pub fn kind(self) -> Option<DeviceKind> {
        match self {
            Self::Exact | Self::Typed => None,
            Self::Cpu => Some(DeviceKind::Cpu),
            Self::Cuda => Some(DeviceKind::Gpu),
        }
    }

    /// The name of the flag's value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Typed => "typed",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}
