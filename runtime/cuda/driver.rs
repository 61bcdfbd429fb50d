//! What a GPU's driver does for a program: memory, kernels, streams and events. There are two: the real one, and a
//! stand-in on the processor that does the same things in host memory.

use super::program::{CudaProgram, Event, Launch, Multiply, Stream};
use crate::program::Instruction;

/// A place in a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

/// Why a driver refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DriverError(pub String);

/// The program's kernels, as the driver knows them: given by [`Driver::load`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded(pub usize);

/// Commands are taken in the order of the calls; each stream runs its own in that order, and may be behind. Calls that
/// read or write the memory from outside wait until every stream is done.
pub trait Driver: Send {
    /// Zeroed memory, which stays for the driver's life.
    fn allocate(&mut self, bytes: u64) -> Result<Address, DriverError>;

    /// Makes the kernels of a program ready.
    fn load(&mut self, program: &CudaProgram) -> Result<Loaded, DriverError>;

    /// Sets memory.
    fn write(&mut self, at: Address, bytes: &[u8]) -> Result<(), DriverError>;

    /// Reads memory.
    fn read(&self, at: Address, bytes: &mut [u8]) -> Result<(), DriverError>;

    /// Runs a kernel on a stream. Arguments are 8 bytes each.
    fn launch(
        &mut self,
        stream: Stream,
        loaded: Loaded,
        launch: &Launch,
        arguments: &[u64],
    ) -> Result<(), DriverError>;

    /// Multiplies matrices on a stream; `add` to what is there.
    fn multiply(
        &mut self,
        stream: Stream,
        multiply: &Multiply,
        places: MultiplyPlaces,
        add: bool,
    ) -> Result<(), DriverError>;

    /// Runs an instruction by a library, on a stream.
    fn library(&mut self, stream: Stream, task: LibraryTask) -> Result<(), DriverError>;

    /// Marks what was given to a stream so far.
    fn record(&mut self, stream: Stream, event: Event) -> Result<(), DriverError>;

    /// Lets what is given to a stream from now on wait for the last mark.
    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DriverError>;

    /// Waits until everything is done.
    fn finish(&self) -> Result<(), DriverError>;
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

/// An instruction for a library, and where its memory is.
#[derive(Clone, Copy, Debug)]
pub struct LibraryTask<'a> {
    /// What is computed.
    pub instruction: &'a Instruction,
    /// Where the arena begins.
    pub arena: Address,
    /// Where the constants begin.
    pub constants: Address,
    /// Whether it adds to what the results hold.
    pub add: bool,
}
