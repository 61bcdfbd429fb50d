//! The real driver: an NVIDIA device, through cudarc's bindings.
//!
//! Only this module calls the driver through cudarc. The driver's library is opened before, because cudarc panics without it.
//!
//! All commands of a step go to the device's queues, in the order of the calls. None of them waits on the host, so that a step can be
//! captured as a CUDA graph.

mod blas;
pub mod copies;
mod cudnn;
mod exchange;
mod graph;
mod handles;
mod host;
mod kernels;
pub mod links;
mod matmul;
mod messages;
mod nccl;
mod notes;
mod options;
mod planning;
mod process;
mod ranks;
mod reserve;
mod splits;
mod staging;
mod stamps;

pub use cudnn::AttentionBy;
pub use matmul::Single;
pub use options::Options;
pub use process::gpu_of_process;
pub use ranks::{enough, gpus};

use self::blas::Call;
use self::cudnn::Cudnn;
use self::exchange::Exchange;
use self::graph::Executable;
use self::handles::{Allocation, Context, Mark, Queue};
use self::host::{HostTasks, Lent};
use self::kernels::Kernels;
use self::matmul::Multiplier;
use self::messages::Mailboxes;
use self::nccl::Seat;
use self::notes::Notes;
use self::staging::Staging;
use self::stamps::Stamps;
use super::cache::Cache;
use super::cubins::Cubins;
use super::device::Cuda;
use super::driver::{
    Address, CollectiveTask, CopyTask, Driver, DriverError, Fetched, Graph, HostTask, LibraryTask, Loaded,
    MessageTask, MultiplyPlaces, Room, Workspace, check_library,
};
use super::libraries::Folders;
use super::nvrtc::Nvrtc;
use super::probe::{self, DeviceFacts};
use super::program::{CudaProgram, Event, Launch, Multiply, Stream};
use comm::CommError;
use program::Program;
use program::device::{Device, DeviceError};
use program::profile::DeviceProfiles;
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Returns a device that runs programs on the GPU of this number. Values on the disk lie in a file in `folder`. Profiles get the
/// times of their programs' commands, which then are in no graph. `warn` gets the reason why kernels on disk could not be used, and
/// the work that a library did not take.
///
/// # Errors
/// There is no driver, no GPU or no compiler; an operator has no kernel; the GPU refuses a program or its memory; the folder takes no file.
pub fn gpu(
    programs: Vec<Arc<Program>>,
    ordinal: usize,
    options: Options,
    folder: Option<&Path>,
    profiles: DeviceProfiles,
    warn: &dyn Fn(&str),
) -> Result<Box<dyn Device + Send>, DeviceError> {
    let mut driver = Gpu::open(ordinal, options).map_err(DeviceError::driver)?;
    let programs = programs.into_iter().map(|program| driver.lower(program).map_err(DeviceError::kernel));
    let programs = programs.collect::<Result<_, _>>()?;
    let mut cuda = Cuda::alone(driver, programs, folder)?.at(options.pace);
    cuda.record(profiles);
    cuda.driver.warnings().iter().for_each(|warning| warn(warning));
    Ok(Box::new(cuda))
}

/// An NVIDIA GPU.
///
/// Fields are dropped in this order, the context last. [`Gpu::drop`] drops the graphs before the seat.
pub struct Gpu {
    /// The GPU's place among several GPUs, if there are several.
    seat: Option<Seat>,
    /// In a pipeline, the mailboxes of messages to and from other stages. NCCL uses their memory until the seat is gone.
    mailboxes: Mailboxes,
    folders: Folders,
    options: Options,
    ordinal: usize,
    facts: DeviceFacts,
    /// The multiplier, if there is something to multiply.
    multiplier: Option<Multiplier>,
    /// cuDNN, or the reason why it cannot be used. `None` before the first search for it.
    cudnn: Option<Result<Cudnn, DriverError>>,
    /// The time at which the planning of a program's multiplications began.
    began: Instant,
    notes: Notes,
    kernels: Kernels,
    /// The events by their numbers, which all programs share. A wait is for an event's last record.
    events: Vec<Mark>,
    /// The events before and after a write or read from outside.
    fences: [Mark; 2],
    staging: RefCell<Staging>,
    exchange: RefCell<Exchange>,
    graphs: Vec<Executable>,
    host_tasks: HostTasks,
    stamps: Stamps,
    memory: Vec<Allocation>,
    /// The queues, by [`Stream`].
    queues: [Queue; Stream::ALL.len()],
    /// The memory of the host that was lent.
    lent: Vec<Lent>,
    context: Context,
}

// SAFETY: CUDA's handles may be used on any thread on which their context is current, and every call makes it current.
#[allow(unsafe_code)]
unsafe impl Send for Gpu {}

impl Gpu {
    /// Opens the GPU of this number.
    ///
    /// # Errors
    /// The reason why the GPU cannot be used.
    pub fn open(ordinal: usize, options: Options) -> Result<Self, DriverError> {
        let folders = Folders::of_process();
        let told = |error: &dyn std::fmt::Display| DriverError(error.to_string());
        let driver = probe::find_driver(&folders).map_err(|error| told(&error))?;
        let facts = facts_of(ordinal, &driver.devices)?.clone();
        let nvrtc = Nvrtc::open(&folders).map_err(|error| told(&error))?;
        let architecture = nvrtc.architecture(facts.capability).map_err(|error| told(&error))?;
        let number = i32::try_from(ordinal).map_err(|error| told(&error))?;
        let context = Context::new(number)?;
        Ok(Self {
            seat: None,
            mailboxes: Mailboxes::default(),
            multiplier: None,
            cudnn: None,
            began: Instant::now(),
            notes: Notes::default(),
            kernels: Kernels::new(Cubins::new(nvrtc, Cache::of_process(), architecture)),
            events: vec![],
            fences: [Mark::new()?, Mark::new()?],
            staging: RefCell::new(Staging::new()?),
            exchange: RefCell::new(Exchange::new()?),
            graphs: vec![],
            stamps: Stamps::default(),
            memory: vec![],
            // The main stream, exchanges and copies are urgent: kernels that wait for them would wait longer behind other work.
            queues: [
                Queue::new(true)?,
                Queue::new(false)?,
                Queue::new(true)?,
                Queue::new(true)?,
                Queue::new(true)?,
                Queue::new(false)?,
                Queue::new(false)?,
            ],
            lent: vec![],
            host_tasks: HostTasks::default(),
            context,
            folders,
            options,
            ordinal,
            facts,
        })
    }

    /// Returns the GPU's description for messages.
    fn described(&self) -> String {
        format!("GPU {} ({})", self.ordinal, self.facts.name)
    }

    /// Returns a stream's queue, after it has made the context current on this thread.
    fn queue(&self, stream: Stream) -> Result<&Queue, DriverError> {
        self.context.bind()?;
        Ok(&self.queues[stream as usize])
    }

    /// Makes the context current, and runs `act` on the main queue, after all earlier commands of every queue and before all later ones.
    fn apart<T>(&self, act: impl FnOnce(&Queue) -> Result<T, DriverError>) -> Result<T, DriverError> {
        self.context.bind()?;
        let [main, others @ ..] = &self.queues;
        let [before, after] = &self.fences;
        for other in others {
            before.record(other)?;
            main.wait(before)?;
        }
        let done = act(main)?;
        after.record(main)?;
        others.iter().try_for_each(|other| other.wait(after))?;
        Ok(done)
    }

    fn event(&self, event: Event) -> Result<&Mark, DriverError> {
        let unknown = || DriverError(format!("there is no event {}", event.0));
        self.events.get(event.0 as usize).ok_or_else(unknown)
    }

    /// Refuses results that were computed after another rank had failed.
    fn together(&self) -> Result<(), DriverError> {
        self.seat.as_ref().map_or(Ok(()), Seat::alive)
    }

    /// Returns the warnings since the last call: the reason why kernels on disk could not be used, and the work that a library did not
    /// take. Everything runs in spite of them.
    pub fn warnings(&mut self) -> Vec<String> {
        let trouble = self.kernels.trouble().map(str::to_owned);
        trouble.into_iter().chain(self.notes.take()).collect()
    }
}

/// Returns the facts of the GPU of a number, if kernels run on it.
fn facts_of(ordinal: usize, devices: &[DeviceFacts]) -> Result<&DeviceFacts, DriverError> {
    let facts = devices.get(ordinal).ok_or_else(|| absent(ordinal, devices))?;
    facts.refusal(ordinal).map_or(Ok(facts), |refusal| Err(DriverError(refusal)))
}

fn absent(ordinal: usize, devices: &[DeviceFacts]) -> DriverError {
    let names: Vec<String> =
        devices.iter().enumerate().map(|(i, device)| format!("{i} ({})", device.name)).collect();
    DriverError(format!("there is no GPU {ordinal}; there are {}", names.join(", ")))
}

/// Returns the error of a message where there is no other rank.
fn alone(task: MessageTask) -> DriverError {
    DriverError(format!("a message of channel {}: {}", task.channel, CommError::Alone))
}

/// Returns the error of memory that cannot be allocated.
fn too_much(bytes: u64, gpu: &str, (free, total): (u64, u64)) -> DriverError {
    DriverError(format!("cannot allocate {bytes} bytes on {gpu}: {free} of its {total} bytes are free"))
}

impl Driver for Gpu {
    fn room(&self, programs: &[CudaProgram]) -> Result<Room, DriverError> {
        self.context.bind()?;
        let (free, _) = self.context.memory()?;
        Ok(Room { free, reserve: reserve::reserve(programs), device: self.described() })
    }

    fn allocate(&mut self, bytes: u64) -> Result<Address, DriverError> {
        self.context.bind()?;
        let (free, total) = self.context.memory()?;
        let gpu = self.described();
        if bytes > free {
            return Err(too_much(bytes, &gpu, (free, total)));
        }
        // Free memory may be fragmented.
        let memory = Allocation::new(bytes)
            .map_err(|error| DriverError(format!("{}: {error}", too_much(bytes, &gpu, (free, total)))))?;
        let main = &self.queues[Stream::Main as usize];
        memory.clear(bytes, main)?;
        main.finish()?;
        let at = memory.at;
        self.memory.push(memory);
        Ok(at)
    }

    fn lend(&mut self, memory: *mut u8, bytes: usize) -> Result<Address, DriverError> {
        self.context.bind()?;
        let lent = Lent::new(memory, bytes)?;
        let at = lent.at;
        self.lent.push(lent);
        Ok(at)
    }

    fn load(&mut self, program: &CudaProgram) -> Result<Loaded, DriverError> {
        self.context.bind()?;
        self.plan_multiplications(program)?;
        for instruction in program.for_libraries() {
            self.cudnn()?.load(instruction)?;
        }
        if let Some(Ok(cudnn)) = &mut self.cudnn {
            cudnn.make_room()?;
        }
        while self.events.len() < program.events as usize {
            self.events.push(Mark::new()?);
        }
        self.kernels.load(program)
    }

    fn write(&mut self, at: Address, bytes: &[u8]) -> Result<(), DriverError> {
        self.apart(|main| self.staging.borrow_mut().write(main, at, bytes))
    }

    fn read(&self, at: Address, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.apart(|main| self.staging.borrow_mut().read(main, at, bytes))?;
        self.together()
    }

    fn feed(&mut self, at: Address, bytes: &[u8]) -> Result<(), DriverError> {
        self.apart(|main| self.exchange.borrow_mut().feed(main, at, bytes))
    }

    fn fetch(&mut self, places: &[(Address, usize)]) -> Result<Fetched, DriverError> {
        self.apart(|main| self.exchange.borrow_mut().fetch(main, places))
    }

    fn collect(&mut self, fetched: Fetched) -> Result<Vec<u8>, DriverError> {
        self.context.bind()?;
        let bytes = self.exchange.get_mut().collect(fetched)?;
        self.together()?;
        Ok(bytes)
    }

    fn begin_capture(&mut self) -> Result<(), DriverError> {
        self.queue(Stream::Main)?.begin_capture()?;
        self.host_tasks.begin_capture();
        Ok(())
    }

    fn end_capture(&mut self) -> Result<Graph, DriverError> {
        self.host_tasks.end_capture();
        let graph = self.queue(Stream::Main)?.end_capture()?;
        self.graphs.push(graph);
        Ok(Graph(self.graphs.len() - 1))
    }

    fn replay(&mut self, Graph(graph): Graph) -> Result<(), DriverError> {
        let unknown = || DriverError("a CUDA graph that was not captured".into());
        self.queue(Stream::Main)?.replay(self.graphs.get(graph).ok_or_else(unknown)?)
    }

    fn launch(
        &mut self,
        stream: Stream,
        loaded: Loaded,
        launch: &Launch,
        arguments: &[u64],
    ) -> Result<(), DriverError> {
        self.kernels.launch(self.queue(stream)?, loaded, launch, arguments)
    }

    fn multiply(
        &mut self,
        stream: Stream,
        multiply: &Multiply,
        places: MultiplyPlaces,
        add: bool,
    ) -> Result<(), DriverError> {
        self.context.bind()?;
        let (queue, workspace) = (&self.queues[stream as usize], Workspace::of(stream)?);
        let unloaded = || DriverError("a multiplication of a program that was not loaded".into());
        let multiplier = self.multiplier.as_mut().ok_or_else(unloaded)?;
        multiplier.run(queue, workspace, &Call::of(multiply, &places, add)?)
    }

    fn library(&mut self, stream: Stream, task: LibraryTask) -> Result<(), DriverError> {
        let unloaded =
            || DriverError(format!("`{}` of a program that was not loaded", task.instruction.name()));
        let Some(Ok(cudnn)) = &self.cudnn else { return Err(unloaded()) };
        check_library(stream, &task)?;
        cudnn.run(self.queue(stream)?, &task)
    }

    fn copy(&mut self, stream: Stream, task: CopyTask) -> Result<(), DriverError> {
        self.queue(stream)?.copy(task)
    }

    fn on_host(&mut self, stream: Stream, task: HostTask) -> Result<(), DriverError> {
        self.context.bind()?;
        self.host_tasks.give(&self.queues[stream as usize], task)
    }

    fn collective(&mut self, stream: Stream, task: CollectiveTask) -> Result<(), DriverError> {
        let alone = || DriverError(format!("{}: {}", task.collective, CommError::Alone));
        self.seat.as_ref().ok_or_else(alone)?.exchange(self.queue(stream)?, task)
    }

    fn send(&mut self, task: MessageTask) -> Result<(), DriverError> {
        self.context.bind()?;
        let seat = self.seat.as_ref().ok_or_else(|| alone(task))?;
        self.mailboxes.send(&self.queues[Stream::Main as usize], seat, task)
    }

    fn receive(&mut self, task: MessageTask, another: bool) -> Result<(), DriverError> {
        self.context.bind()?;
        let seat = self.seat.as_ref().ok_or_else(|| alone(task))?;
        self.mailboxes.receive(&self.queues[Stream::Main as usize], seat, task, another)
    }

    /// A GPU needs no thread for its commands, but messages have to leave before the rank ends.
    fn settle(&mut self) -> Result<(), DriverError> {
        self.context.bind()?;
        self.mailboxes.finish()?;
        self.together()
    }

    fn record(&mut self, stream: Stream, event: Event) -> Result<(), DriverError> {
        self.event(event)?.record(self.queue(stream)?)
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DriverError> {
        self.queue(stream)?.wait(self.event(event)?)
    }

    fn stamp(&mut self, stream: Stream, number: usize) -> Result<(), DriverError> {
        self.context.bind()?;
        self.stamps.stamp(number, &self.queues[stream as usize])
    }

    fn seconds(&self, from: usize, to: usize) -> Result<f64, DriverError> {
        self.context.bind()?;
        self.stamps.seconds(from, to)
    }

    fn has_failed(&self) -> bool {
        // A question about memory may be answered without a look at the kernels; a query of a stream reports errors of its commands.
        self.context.bind().and_then(|()| self.queues.iter().try_for_each(Queue::check)).is_err()
    }

    fn finish(&self) -> Result<(), DriverError> {
        self.context.bind()?;
        self.queues.iter().try_for_each(Queue::finish)?;
        self.together()
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // Memory must not be in use when it is freed, and is freed in its context.
        if let Err(error) = self.finish() {
            if let Some(seat) = &self.seat {
                seat.end(&error.0);
            }
            self.host_tasks.leave();
        }
        // NCCL waits for the graphs that contain its collectives.
        self.graphs.clear();
        self.seat = None;
    }
}

#[cfg(test)]
mod tests;
