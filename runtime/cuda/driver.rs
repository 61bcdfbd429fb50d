//! What a GPU's driver does for a program: memory, kernels, streams and events. There are two: the real one, and a
//! stand-in on the processor that does the same things in host memory.

use super::program::{Collective, Command, CudaProgram, Event, Launch, Multiply, Stream};
use crate::program::{Instruction, Region};
use std::sync::Arc;

/// A place in a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

/// Where the memories of a program begin on a device.
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
    /// Where a memory begins.
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

/// Why a driver refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DriverError(pub String);

/// The program's kernels, as the driver knows them: given by [`Driver::load`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded(pub usize);

/// Commands that were captured, as the driver knows them: given by [`Driver::end_capture`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graph(pub usize);

/// Bytes that are on their way from the device: given by [`Driver::fetch`], to be collected once.
#[derive(Debug, PartialEq, Eq)]
pub struct Fetched(pub usize);

/// What a device can still hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that can be allocated.
    pub free: u64,
    /// Of those, what the driver and its libraries take at most when programs are loaded and run.
    pub reserve: u64,
    /// The device, for people.
    pub device: String,
}

/// Commands are taken in the order of the calls; each stream runs its own in that order, and may be behind. [`Driver::read`]
/// and [`Driver::write`] wait until every stream is done; [`Driver::feed`] and [`Driver::fetch`] take their turn after all
/// that was given to any stream and before all that will be, and the caller goes on.
pub trait Driver: Send {
    /// How much memory there is for these programs.
    fn room(&self, programs: &[CudaProgram]) -> Result<Room, DriverError>;

    /// Zeroed memory, which stays for the driver's life.
    fn allocate(&mut self, bytes: u64) -> Result<Address, DriverError>;

    /// Lets the device copy from memory of the host and to it. The memory outlives the driver.
    fn lend(&mut self, memory: *mut u8, bytes: usize) -> Result<Address, DriverError>;

    /// Makes the kernels of a program ready.
    fn load(&mut self, program: &CudaProgram) -> Result<Loaded, DriverError>;

    /// Sets memory.
    fn write(&mut self, at: Address, bytes: &[u8]) -> Result<(), DriverError>;

    /// Reads memory.
    fn read(&self, at: Address, bytes: &mut [u8]) -> Result<(), DriverError>;

    /// Sets memory in its turn.
    fn feed(&mut self, at: Address, bytes: &[u8]) -> Result<(), DriverError>;

    /// Copies so many bytes from each of some places in their turn.
    fn fetch(&mut self, places: &[(Address, usize)]) -> Result<Fetched, DriverError>;

    /// The bytes of [`Self::fetch`], one place after the other, when they are there.
    fn collect(&mut self, fetched: Fetched) -> Result<Vec<u8>, DriverError>;

    /// From now on what is given to the streams is kept, not done. It begins on the main stream: another has to wait for
    /// that before it gets anything, and the main one for all others before the end. Nothing else is called meanwhile.
    fn begin_capture(&mut self) -> Result<(), DriverError>;

    /// Ends the capture, whether it went well or not.
    fn end_capture(&mut self) -> Result<Graph, DriverError>;

    /// Does on the main stream what was captured, with the arguments that were given then. Memory, kernels and events have
    /// to be there still.
    fn replay(&mut self, graph: Graph) -> Result<(), DriverError>;

    /// Says what the command that is given next reads and writes. A driver may hold it to that.
    fn declare(&mut self, _touches: Touches) {}

    /// Runs a kernel on a stream. Arguments are 8 bytes each.
    fn launch(
        &mut self,
        stream: Stream,
        loaded: Loaded,
        launch: &Launch,
        arguments: &[u64],
    ) -> Result<(), DriverError>;

    /// Multiplies matrices on a stream that has a [`Workspace`]; `add` to what is there.
    fn multiply(
        &mut self,
        stream: Stream,
        multiply: &Multiply,
        places: MultiplyPlaces,
        add: bool,
    ) -> Result<(), DriverError>;

    /// Runs an instruction by a library, on the main stream ([`check_library`]).
    fn library(&mut self, stream: Stream, task: LibraryTask) -> Result<(), DriverError>;

    /// Exchanges with other ranks, on a stream. All ranks of a group give the same to each other in the same order.
    fn collective(&mut self, stream: Stream, task: CollectiveTask) -> Result<(), DriverError>;

    /// Sends a message, in its turn on the main stream: the bytes are copied, and travel beside what follows. The next message of
    /// the channel waits until they have left.
    fn send(&mut self, task: MessageTask) -> Result<(), DriverError>;

    /// Receives a message, in its turn on the main stream. If `another` of as many bytes comes on the channel, it may arrive beside
    /// what follows.
    fn receive(&mut self, task: MessageTask, another: bool) -> Result<(), DriverError>;

    /// Copies bytes between the device's memory and memory of the host that was lent, on a stream.
    fn copy(&mut self, stream: Stream, task: CopyTask) -> Result<(), DriverError>;

    /// Runs an instruction on the host when a stream has come to it.
    fn on_host(&mut self, stream: Stream, task: HostTask) -> Result<(), DriverError>;

    /// A rank's thread is about to end: does what needs it.
    fn settle(&mut self) -> Result<(), DriverError>;

    /// Marks what was given to a stream so far.
    fn record(&mut self, stream: Stream, event: Event) -> Result<(), DriverError>;

    /// Lets what is given to a stream from now on wait for the last mark.
    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DriverError>;

    /// Stamps the moment at which a stream has done what it was given so far, under a number, which may be used again.
    fn stamp(&mut self, stream: Stream, number: usize) -> Result<(), DriverError>;

    /// Seconds from one stamped moment to a later one, when everything is done.
    fn seconds(&self, from: usize, to: usize) -> Result<f64, DriverError>;

    /// Whether something that was given went wrong, so that nothing goes on. It does not wait for what is being done.
    fn has_failed(&self) -> bool;

    /// Waits until everything is done.
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

    /// The workspace of a stream.
    ///
    /// # Errors
    /// The stream has none.
    pub fn of(stream: Stream) -> Result<Self, DriverError> {
        match stream {
            Stream::Main => Ok(Self::Main),
            Stream::Side => Ok(Self::Side),
            Stream::Exchange | Stream::Upload | Stream::Download | Stream::Host | Stream::Disk => {
                let stream = stream.name();
                Err(DriverError(format!(
                    "a multiplication on the {stream}: only the main stream and the side stream have a workspace of cuBLASLt"
                )))
            }
        }
    }
}

/// Refuses an instruction for cuDNN on another stream than the main one, for which the only workspace of cuDNN is.
///
/// # Errors
/// The stream.
pub fn check_library(stream: Stream, task: &LibraryTask) -> Result<(), DriverError> {
    if stream == Stream::Main {
        return Ok(());
    }
    let (name, stream) = (task.instruction.name(), stream.name());
    Err(DriverError(format!("`{name}` on the {stream}: only the main stream has a workspace of cuDNN")))
}

/// What a command reads and writes, and where that memory is.
#[derive(Clone, Copy, Debug)]
pub struct Touches<'a> {
    /// The command.
    pub command: &'a Command,
    /// Where its memory is.
    pub memories: &'a Memories,
}

/// Where the matrices of a multiplication begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiplyPlaces {
    /// The left side.
    pub lhs: Address,
    /// The right side.
    pub rhs: Address,
    /// The result.
    pub out: Address,
    /// Of the epilogue what there is: bias, addend, what the activation is applied to, sums.
    pub bias: Option<Address>,
    /// See `bias`.
    pub addend: Option<Address>,
    /// See `bias`.
    pub aux: Option<Address>,
    /// See `bias`.
    pub sums: Option<Address>,
}

/// What ranks exchange, and where.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveTask<'a> {
    /// What is exchanged.
    pub collective: &'a Collective,
    /// The ranks that take part, in the order that decides who has which piece.
    pub group: &'a [u64],
    /// For each tensor where it is, and where it goes.
    pub places: &'a [[Address; 2]],
}

/// A message to another pipeline rank, or from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageTask {
    /// The transfer whose messages keep their order.
    pub channel: u32,
    /// The other rank; ranks count over all stages.
    pub other: u64,
    /// The memory that it leaves from or arrives in, and its bytes.
    pub at: Address,
    /// See `at`.
    pub bytes: u64,
}

/// A copy between the memories of the device and of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyTask {
    /// Where the bytes are.
    pub from: Address,
    /// The destination.
    pub to: Address,
    /// The number of bytes.
    pub bytes: u64,
}

/// An instruction that the host runs. It may be run again and again.
pub type HostTask = Arc<dyn Fn() + Send + Sync>;

/// An instruction for a library, and where its memory is.
#[derive(Clone, Copy, Debug)]
pub struct LibraryTask<'a> {
    /// What is computed.
    pub instruction: &'a Instruction,
    /// Where its memory is.
    pub memories: &'a Memories,
}
