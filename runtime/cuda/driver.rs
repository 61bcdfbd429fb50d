//! The interface of a GPU's driver: memory, kernels, streams and events. It has two implementations: the real driver, and a
//! stand-in on the processor that does the same in host memory.

use super::program::{Collective, Command, CudaProgram, Event, Launch, Multiply, Stream};
use program::{Instruction, Region};
use std::sync::Arc;

/// A place in a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

/// The starts of a program's memories on a device.
#[derive(Clone, Debug)]
pub struct Memories {
    /// The arena.
    pub arena: Address,
    /// The constants.
    pub constants: Address,
    /// Memory of the host.
    pub host: Address,
    /// In a pipeline, the places of the blocks of the present microbatch in the arena or in memory of the host.
    pub blocks: Arc<[u64]>,
}

impl Memories {
    /// Returns the start of a memory.
    pub fn of(&self, region: Region) -> Address {
        match region {
            Region::Arena => self.arena,
            Region::Constants => self.constants,
            Region::Host => self.host,
            // Only the host's copies touch a file, and they take no addresses.
            Region::Disk => unreachable!("a file has no address"),
            Region::Block(_) => Address(self.arena.0.wrapping_add(region.start(&self.blocks))),
            Region::HostBlock(_) => Address(self.host.0.wrapping_add(region.start(&self.blocks))),
        }
    }
}

/// The reason why a driver refuses a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DriverError(pub String);

/// A driver's number for the kernels of a program, from [`Driver::load`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded(pub usize);

/// A driver's number for captured commands, from [`Driver::end_capture`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graph(pub usize);

/// Bytes that are on their way from the device, from [`Driver::fetch`]. They are collected once.
#[derive(Debug, PartialEq, Eq)]
pub struct Fetched(pub usize);

/// The memory that a device has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that can be allocated.
    pub free: u64,
    /// The part of `free` that the driver and its libraries take at most when programs are loaded and run.
    pub reserve: u64,
    /// The device's name for messages.
    pub device: String,
}

/// A driver takes commands in the order of the calls. Each stream runs its own commands in that order, and may be behind the
/// caller. [`Driver::read`] and [`Driver::write`] wait until every stream is done. [`Driver::feed`] and [`Driver::fetch`] return
/// at once; they run after all earlier commands of every stream and before all later ones.
pub trait Driver: Send {
    /// Returns the memory that is left for these programs.
    fn room(&self, programs: &[CudaProgram]) -> Result<Room, DriverError>;

    /// Allocates zeroed memory, which lives as long as the driver.
    fn allocate(&mut self, bytes: u64) -> Result<Address, DriverError>;

    /// Lets the device copy from and to memory of the host, which outlives the driver.
    fn lend(&mut self, memory: *mut u8, bytes: usize) -> Result<Address, DriverError>;

    /// Makes the kernels of a program ready.
    fn load(&mut self, program: &CudaProgram) -> Result<Loaded, DriverError>;

    /// Writes memory.
    fn write(&mut self, at: Address, bytes: &[u8]) -> Result<(), DriverError>;

    /// Reads memory.
    fn read(&self, at: Address, bytes: &mut [u8]) -> Result<(), DriverError>;

    /// Writes memory in the order of the commands.
    fn feed(&mut self, at: Address, bytes: &[u8]) -> Result<(), DriverError>;

    /// Copies bytes from places of the given lengths, in the order of the commands.
    fn fetch(&mut self, places: &[(Address, usize)]) -> Result<Fetched, DriverError>;

    /// Waits for the bytes of [`Self::fetch`] and returns them, one place after the other.
    fn collect(&mut self, fetched: Fetched) -> Result<Vec<u8>, DriverError>;

    /// Begins a capture: from now on commands are recorded and do not run. The capture begins on the main stream. Any other
    /// stream has to wait for an event of the main stream before it gets commands, and the main stream has to wait for all others
    /// before the end. Only commands of streams are given meanwhile.
    fn begin_capture(&mut self) -> Result<(), DriverError>;

    /// Ends the capture, whether it succeeded or not.
    fn end_capture(&mut self) -> Result<Graph, DriverError>;

    /// Runs captured commands on the main stream, with the arguments of the capture. Their memory, kernels and events must still
    /// exist.
    fn replay(&mut self, graph: Graph) -> Result<(), DriverError>;

    /// Declares the memory that the next command reads and writes. A driver may check the command against it.
    fn declare(&mut self, _touches: Touches) {}

    /// Runs a kernel on a stream. Arguments are 8 bytes each.
    fn launch(
        &mut self,
        stream: Stream,
        loaded: Loaded,
        launch: &Launch,
        arguments: &[u64],
    ) -> Result<(), DriverError>;

    /// Multiplies matrices on a stream that has a [`Workspace`]. With `add`, the product is added to the previous result.
    fn multiply(
        &mut self,
        stream: Stream,
        multiply: &Multiply,
        places: MultiplyPlaces,
        add: bool,
    ) -> Result<(), DriverError>;

    /// Runs an instruction with a library, on the main stream ([`check_library`]).
    fn library(&mut self, stream: Stream, task: LibraryTask) -> Result<(), DriverError>;

    /// Runs a collective with other ranks, on a stream. All ranks of a group issue the same collectives in the same order.
    fn collective(&mut self, stream: Stream, task: CollectiveTask) -> Result<(), DriverError>;

    /// Sends a message in the order of the main stream. The bytes are copied, and travel beside later commands. The channel's
    /// next message waits until they have left.
    fn send(&mut self, task: MessageTask) -> Result<(), DriverError>;

    /// Receives a message in the order of the main stream. `another` says that a further message of as many bytes follows on the
    /// channel; it may arrive beside later commands.
    fn receive(&mut self, task: MessageTask, another: bool) -> Result<(), DriverError>;

    /// Copies bytes between the device's memory and memory of the host that was lent, on a stream.
    fn copy(&mut self, stream: Stream, task: CopyTask) -> Result<(), DriverError>;

    /// Runs an instruction on the host when a stream reaches it.
    fn on_host(&mut self, stream: Stream, task: HostTask) -> Result<(), DriverError>;

    /// Completes the work that needs the rank's thread, which is about to end.
    fn settle(&mut self) -> Result<(), DriverError>;

    /// Records an event behind all commands that a stream has got so far.
    fn record(&mut self, stream: Stream, event: Event) -> Result<(), DriverError>;

    /// Lets later commands of a stream wait for the event's last record.
    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DriverError>;

    /// Stamps the moment at which a stream has run its commands so far. The stamp gets a number, which may be reused.
    fn stamp(&mut self, stream: Stream, number: usize) -> Result<(), DriverError>;

    /// Returns the seconds from one stamped moment to a later one, once all commands are done.
    fn seconds(&self, from: usize, to: usize) -> Result<f64, DriverError>;

    /// Returns whether a command has failed, so that no later one will run. Does not wait for running commands.
    fn has_failed(&self) -> bool;

    /// Waits until all commands are done.
    fn finish(&self) -> Result<(), DriverError>;
}

/// A workspace of cuBLASLt. Multiplications of one stream use it one after the other, so each stream that multiplies has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workspace {
    /// The main stream's.
    Main,
    /// The side stream's.
    Side,
}

impl Workspace {
    /// Every workspace.
    pub const ALL: [Self; 2] = [Self::Main, Self::Side];

    /// Returns the workspace of a stream.
    ///
    /// # Errors
    /// The stream has no workspace.
    pub fn of(stream: Stream) -> Result<Self, DriverError> {
        match stream {
            Stream::Main => Ok(Self::Main),
            Stream::Side => Ok(Self::Side),
            Stream::Exchange | Stream::Upload | Stream::Download | Stream::Host | Stream::Disk => {
                let stream = stream.described();
                Err(DriverError(format!(
                    "a multiplication on the {stream}: only the main stream and the side stream have a workspace of cuBLASLt"
                )))
            }
        }
    }
}

/// Refuses an instruction for cuDNN on any stream but the main one, which has cuDNN's only workspace.
///
/// # Errors
/// The stream is not the main one.
pub fn check_library(stream: Stream, task: &LibraryTask) -> Result<(), DriverError> {
    if stream == Stream::Main {
        return Ok(());
    }
    let (name, stream) = (task.instruction.name(), stream.described());
    Err(DriverError(format!("`{name}` on the {stream}: only the main stream has a workspace of cuDNN")))
}

/// A command, and the memories that it reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct Touches<'a> {
    /// The command.
    pub command: &'a Command,
    /// The starts of the program's memories.
    pub memories: &'a Memories,
}

/// The addresses of a multiplication's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiplyPlaces {
    /// The left side.
    pub lhs: Address,
    /// The right side.
    pub rhs: Address,
    /// The result.
    pub out: Address,
    /// The epilogue's bias, if it has one.
    pub bias: Option<Address>,
    /// The epilogue's addend, if it has one.
    pub addend: Option<Address>,
    /// The tensor with the inputs of the epilogue's activation, if there is one.
    pub aux: Option<Address>,
    /// The epilogue's sums, if it has any.
    pub sums: Option<Address>,
}

/// A collective, its ranks and its addresses.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveTask<'a> {
    /// The collective.
    pub collective: &'a Collective,
    /// The ranks that take part. Their order decides which rank has which piece.
    pub group: &'a [u64],
    /// The source and the destination of each tensor.
    pub places: &'a [[Address; 2]],
}

/// A message to another pipeline rank, or from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageTask {
    /// The number of the transfer; its messages keep their order.
    pub channel: u32,
    /// The other rank; ranks count over all stages.
    pub other: u64,
    /// The address of the bytes that leave or arrive.
    pub at: Address,
    /// The number of bytes.
    pub bytes: u64,
}

/// A copy between the memories of the device and of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyTask {
    /// The source.
    pub from: Address,
    /// The destination.
    pub to: Address,
    /// The number of bytes.
    pub bytes: u64,
}

/// An instruction that the host runs. It may be run again and again.
pub type HostTask = Arc<dyn Fn() + Send + Sync>;

/// An instruction for a library, and the memories that it uses.
#[derive(Clone, Copy, Debug)]
pub struct LibraryTask<'a> {
    /// The instruction.
    pub instruction: &'a Instruction,
    /// The starts of the program's memories.
    pub memories: &'a Memories,
}
