//! The real driver: a device of NVIDIA's, by way of cudarc's bindings.
//!
//! Only here are the driver and cuBLASLt called. Their libraries are opened before: without them cudarc would panic.
//!
//! Everything that a step gives to the device goes to the two queues, in the order of the calls, and nothing of it waits
//! on the host: a step can be captured as a CUDA graph by beginning a capture on the main queue.

mod blas;
pub mod copies;
mod handles;
mod kernels;
pub mod links;
mod matmul;
mod staging;

pub use matmul::Single;

use self::blas::Call;
use self::handles::{Context, Mark, Memory, Queue};
use self::kernels::Kernels;
use self::matmul::Multiplier;
use self::staging::Staging;
use super::cache::Cache;
use super::cubins::Cubins;
use super::device::Cuda;
use super::driver::{Address, Driver, DriverError, LibraryTask, Loaded, MultiplyPlaces};
use super::libraries::Folders;
use super::nvrtc::Nvrtc;
use super::probe::{self, DeviceFacts};
use super::program::{CudaProgram, Event, Launch, Multiply, Stream, Task};
use crate::device::{Device, DeviceError};
use crate::program::Program;
use std::cell::RefCell;
use std::sync::Arc;

/// How a GPU is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// How f32 is multiplied.
    pub single: Single,
}

/// Programs on the GPU of this number.
///
/// # Errors
/// Why nothing can run on it: there is no driver, no GPU, no compiler; what has no kernel; what the GPU refuses.
pub fn gpu(
    programs: Vec<Arc<Program>>,
    ordinal: usize,
    options: Options,
) -> Result<Box<dyn Device + Send>, DeviceError> {
    let refused =
        |error: DriverError| DeviceError::Driver { operator: String::new(), origin: "".into(), error };
    let driver = Gpu::open(ordinal, options).map_err(refused)?;
    Ok(Box::new(Cuda::new(driver, programs)?))
}

/// A GPU of NVIDIA's.
///
/// Fields are dropped in this order, the context last.
pub struct Gpu {
    folders: Folders,
    options: Options,
    ordinal: usize,
    facts: DeviceFacts,
    /// When there is something to multiply.
    multiplier: Option<Multiplier>,
    kernels: Kernels,
    /// By their number, whichever program they are of: each waits for its last mark.
    events: Vec<Mark>,
    /// Before and after what is written or read from outside.
    fences: [Mark; 2],
    staging: RefCell<Staging>,
    memory: Vec<Memory>,
    /// By [`Stream`].
    queues: [Queue; 2],
    warned: bool,
    context: Context,
}

// SAFETY: CUDA's handles may be used on any thread on which their context is current, which every call sees to.
#[allow(unsafe_code)]
unsafe impl Send for Gpu {}

impl Gpu {
    /// The GPU of this number.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn open(ordinal: usize, options: Options) -> Result<Self, DriverError> {
        let folders = Folders::of_process();
        let told = |error: &dyn std::fmt::Display| DriverError(error.to_string());
        let driver = probe::find_driver(&folders).map_err(|error| told(&error))?;
        let facts = driver.devices.get(ordinal).cloned().ok_or_else(|| absent(ordinal, &driver.devices))?;
        let nvrtc = Nvrtc::open(&folders).map_err(|error| told(&error))?;
        let architecture = nvrtc.architecture(facts.capability).map_err(|error| told(&error))?;
        let number = i32::try_from(ordinal).map_err(|error| told(&error))?;
        let context = Context::new(number)?;
        Ok(Self {
            multiplier: None,
            kernels: Kernels::new(Cubins::new(nvrtc, Cache::of_process(), architecture)),
            events: vec![],
            fences: [Mark::new()?, Mark::new()?],
            staging: RefCell::new(Staging::new()?),
            memory: vec![],
            queues: [Queue::new(true)?, Queue::new(false)?],
            warned: false,
            context,
            folders,
            options,
            ordinal,
            facts,
        })
    }

    fn queue(&self, stream: Stream) -> &Queue {
        &self.queues[stream as usize]
    }

    /// Does something on the main queue, after all that was given to either and before all that will be.
    fn apart(&self, act: impl FnOnce(&Queue) -> Result<(), DriverError>) -> Result<(), DriverError> {
        let [main, side] = &self.queues;
        let [before, after] = &self.fences;
        before.record(side)?;
        main.wait(before)?;
        act(main)?;
        after.record(main)?;
        side.wait(after)
    }

    fn event(&self, event: Event) -> Result<&Mark, DriverError> {
        let unknown = || DriverError(format!("there is no event {}", event.0));
        self.events.get(event.0 as usize).ok_or_else(unknown)
    }

    /// Says once what went wrong with the kernels on disk: everything runs without them.
    fn warn(&mut self) {
        if let Some(trouble) = self.kernels.trouble().filter(|_| !self.warned) {
            eprintln!("warning: {trouble}");
            self.warned = true;
        }
    }
}

fn absent(ordinal: usize, devices: &[DeviceFacts]) -> DriverError {
    let names: Vec<String> =
        devices.iter().enumerate().map(|(i, device)| format!("{i} ({})", device.name)).collect();
    DriverError(format!("there is no GPU {ordinal}; there are {}", names.join(", ")))
}

/// Why memory cannot be had.
fn too_much(bytes: u64, gpu: &str, (free, total): (u64, u64)) -> DriverError {
    DriverError(format!("cannot allocate {bytes} bytes on {gpu}: of its {total} bytes {free} are free"))
}

impl Driver for Gpu {
    fn allocate(&mut self, bytes: u64) -> Result<Address, DriverError> {
        self.context.bind()?;
        let (free, total) = self.context.memory()?;
        let gpu = format!("GPU {} ({})", self.ordinal, self.facts.name);
        if bytes > free {
            return Err(too_much(bytes, &gpu, (free, total)));
        }
        // Free memory may be in pieces.
        let memory = Memory::new(bytes)
            .map_err(|error| DriverError(format!("{}: {error}", too_much(bytes, &gpu, (free, total)))))?;
        let main = self.queue(Stream::Main);
        memory.clear(bytes, main)?;
        main.finish()?;
        let at = memory.at;
        self.memory.push(memory);
        Ok(at)
    }

    fn load(&mut self, program: &CudaProgram) -> Result<Loaded, DriverError> {
        self.context.bind()?;
        let mut commands = program.sections.iter().flatten();
        if self.multiplier.is_none() && commands.any(|command| matches!(command.task, Task::Multiply(_))) {
            self.multiplier = Some(Multiplier::new(&self.folders, self.options.single)?);
        }
        while self.events.len() < program.events as usize {
            self.events.push(Mark::new()?);
        }
        let loaded = self.kernels.load(program)?;
        self.warn();
        Ok(loaded)
    }

    fn write(&mut self, at: Address, bytes: &[u8]) -> Result<(), DriverError> {
        self.context.bind()?;
        self.apart(|main| self.staging.borrow_mut().write(main, at, bytes))
    }

    fn read(&self, at: Address, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.context.bind()?;
        self.apart(|main| self.staging.borrow_mut().read(main, at, bytes))
    }

    fn launch(
        &mut self,
        stream: Stream,
        loaded: Loaded,
        launch: &Launch,
        arguments: &[u64],
    ) -> Result<(), DriverError> {
        self.context.bind()?;
        self.kernels.launch(self.queue(stream), loaded, launch, arguments)
    }

    fn multiply(
        &mut self,
        stream: Stream,
        multiply: &Multiply,
        places: MultiplyPlaces,
        add: bool,
    ) -> Result<(), DriverError> {
        self.context.bind()?;
        let queue = &self.queues[stream as usize];
        let unloaded = || DriverError("a multiplication of a program that was not loaded".into());
        let multiplier = self.multiplier.as_mut().ok_or_else(unloaded)?;
        multiplier.run(queue, stream as usize, &Call::of(multiply, &places, add)?)
    }

    fn library(&mut self, _: Stream, task: LibraryTask) -> Result<(), DriverError> {
        let name = task.instruction.name();
        Err(DriverError(format!(
            "`{name}` is for cuDNN, which is not called yet; --device cpu runs everything"
        )))
    }

    fn record(&mut self, stream: Stream, event: Event) -> Result<(), DriverError> {
        self.context.bind()?;
        self.event(event)?.record(self.queue(stream))
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DriverError> {
        self.context.bind()?;
        self.queue(stream).wait(self.event(event)?)
    }

    fn finish(&self) -> Result<(), DriverError> {
        self.context.bind()?;
        self.queues.iter().try_for_each(Queue::finish)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // What is given back must not be in use, and is given back in its context. What fails now failed before.
        let _ = self.finish();
    }
}

#[cfg(test)]
mod tests;
