//! The stand-in as a device to check, so that tests run the same code as the check of a GPU.

use super::Subject;
use crate::device::Cuda;
use crate::driver::{Driver, DriverError};
use crate::gpu::Options;
use crate::gpu::copies::{Copies, Direction};
use crate::host::{Host, LaunchCheck, Order};
use crate::pace::Pace;
use crate::program::{CudaProgram, Kernel};
use program::device::DeviceError;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The stand-in, with a change of its kernels.
#[derive(Clone, Debug)]
pub struct StandIn {
    /// The order of threads and streams.
    pub order: Order,
    /// The change of a kernel: a planted fault, or nothing.
    pub change: fn(&mut Kernel),
    /// The way in which commands reach the device.
    pub pace: Pace,
    /// A second way of running each launch, with which the stand-in is compared, if there is one.
    pub second_way: Option<Arc<dyn LaunchCheck>>,
}

impl StandIn {
    /// Returns the stand-in with unchanged kernels.
    pub fn sound(order: Order) -> Self {
        Self { order, change: |_| (), pace: Pace::default(), second_way: None }
    }

    /// Returns the stand-in with the pace that the environment asks for; see [`Options::of_process`].
    pub fn of_process() -> Self {
        Self { pace: Options::of_process().pace, ..Self::sound(Order::default()) }
    }
}

impl Subject for StandIn {
    type Driver = Host;

    fn with(&self, mut program: CudaProgram) -> Result<Cuda<Host>, DeviceError> {
        program.kernels.iter_mut().for_each(self.change);
        let host = Host::new(self.order);
        let host = match &self.second_way {
            Some(second_way) => host.checked_by(second_way.clone()),
            None => host.checked(),
        };
        Ok(Cuda::with(host, vec![program])?.at(self.pace))
    }

    fn copy(&self, copies: Copies) -> Result<Vec<Duration>, DriverError> {
        let mut host = Host::new(self.order);
        let (at, mut bytes) = (host.allocate(copies.bytes as u64)?, vec![0; copies.bytes]);
        let mut copy = |_| {
            let start = Instant::now();
            match copies.direction {
                Direction::ToDevice => host.write(at, &bytes)?,
                Direction::FromDevice => host.read(at, &mut bytes)?,
                Direction::WithinDevice => return Err(DriverError("one memory is enough".into())),
            }
            Ok(start.elapsed())
        };
        (0..copies.repeats).map(&mut copy).collect()
    }
}
