//! Checks whether a GPU computes the same as the interpreter, and measures how fast it is: for `trainyard doctor --check`, and for
//! tests, which check its stand-in in the same way.
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
use super::gpu::copies::{self, Copies};
use super::gpu::{Gpu, Options};
use super::program::CudaProgram;
use program::device::DeviceError;
use std::time::Duration;

/// A device that is checked: a GPU, or its stand-in.
pub trait Subject {
    /// The device's driver.
    type Driver: Driver + 'static;

    /// Returns the device with a program. The caller drops it before the next call.
    ///
    /// # Errors
    /// A kernel that does not compile; an error of the driver.
    fn with(&self, program: CudaProgram) -> Result<Cuda<Self::Driver>, DeviceError>;

    /// Returns the device as in training: a library runs the work at which it is faster, if it is installed.
    ///
    /// # Errors
    /// As [`Self::with`].
    fn as_trained(&self, program: CudaProgram) -> Result<Cuda<Self::Driver>, DeviceError> {
        self.with(program)
    }

    /// Measures the time that these copies take together, for each repetition.
    ///
    /// # Errors
    /// The driver refuses a call.
    fn copy(&self, copies: Copies) -> Result<Vec<Duration>, DriverError>;
}

/// The GPU of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfNumber {
    /// The number.
    pub number: usize,
    /// The options of its use.
    pub options: Options,
}

impl OfNumber {
    /// Returns the GPU with the options that the environment asks for; see [`Options::of_process`].
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
