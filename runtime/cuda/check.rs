//! Whether a GPU computes what the interpreter does, and how fast it is: for `trainyard doctor --check`, and for tests,
//! which check its stand-in the same way.
//!
//! A fault of a kernel ends the CUDA context of its process, and all later calls fail. So `process` runs each `part` of a
//! check in a process of its own, and `search` looks for the sample at fault in fresh ones.

mod batch;
pub mod part;
pub mod process;
pub mod products;
pub mod rates;
pub mod samples;
pub mod search;
mod stand_in;

pub use stand_in::StandIn;

use super::device::Cuda;
use super::driver::{Driver, DriverError};
use super::gpu::copies;
use super::gpu::{Gpu, Options};
use super::program::CudaProgram;
use crate::device::DeviceError;
use std::time::Duration;

/// From where to where bytes are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From pinned memory of the host to the device.
    ToDevice,
    /// From the device to pinned memory of the host.
    FromDevice,
    /// Within the device's memory.
    WithinDevice,
}

/// Copies that are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// From where to where.
    pub direction: Direction,
    /// Bytes of each.
    pub bytes: usize,
    /// How many are timed together, one after the other.
    pub together: usize,
    /// How often that is timed, after a first time to warm up.
    pub repeats: usize,
}

/// A device that is checked: a GPU, or what stands in for one.
pub trait Subject {
    /// Its driver.
    type Driver: Driver + 'static;

    /// The device with a program. Whoever asks drops it before asking again.
    ///
    /// # Errors
    /// Kernels that do not compile; what the driver refuses.
    fn with(&self, program: CudaProgram) -> Result<Cuda<Self::Driver>, DeviceError>;

    /// The same as it is trained with: what a library is there for and faster at, it runs.
    ///
    /// # Errors
    /// As [`Self::with`].
    fn as_trained(&self, program: CudaProgram) -> Result<Cuda<Self::Driver>, DeviceError> {
        self.with(program)
    }

    /// How long these copies take, together, each time.
    ///
    /// # Errors
    /// What the driver refuses.
    fn copy(&self, copies: Copies) -> Result<Vec<Duration>, DriverError>;
}

/// The GPU of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfNumber {
    /// The number.
    pub number: usize,
    /// How it is used.
    pub options: Options,
}

impl OfNumber {
    /// As the environment asks for; see [`Options::of_process`].
    pub fn of_process(number: usize) -> Self {
        Self { number, options: Options::of_process() }
    }

    fn open(&self) -> Result<Gpu, DeviceError> {
        Gpu::open(self.number, self.options).map_err(DeviceError::driver)
    }
}

impl Subject for OfNumber {
    type Driver = Gpu;

    fn with(&self, program: CudaProgram) -> Result<Cuda<Gpu>, DeviceError> {
        Ok(Cuda::with(self.open()?, vec![program])?.at(self.options.pace))
    }

    fn as_trained(&self, program: CudaProgram) -> Result<Cuda<Gpu>, DeviceError> {
        let mut gpu = self.open()?;
        let program = gpu.lower(program.program).map_err(DeviceError::kernel)?;
        Ok(Cuda::with(gpu, vec![program])?.at(self.options.pace))
    }

    fn copy(&self, copies: Copies) -> Result<Vec<Duration>, DriverError> {
        copies::time(self.number, copies)
    }
}
