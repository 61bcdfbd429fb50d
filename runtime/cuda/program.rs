//! A program for a GPU: kernels, and commands on streams. [`super::lower`] makes it from a [`Program`], and keeps every place in the
//! memory of that program.

mod ranks;

pub use program::commands::Stream;
pub use ranks::{ByRank, Collective, CutDim, Pieces};

use ir::DType;
use program::layout::{Layout, Sizes};
use program::{Activation, Instruction, Message, Part, Program, Region, Section, View};
use smallvec::SmallVec;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A program for a GPU.
#[derive(Clone, Debug)]
pub struct CudaProgram {
    /// The program that it was made from, with memory, inputs, outputs and states.
    pub program: Arc<Program>,
    /// The kernels, each once.
    pub kernels: Vec<Kernel>,
    /// The commands of each section, by [`Section`].
    pub sections: [Vec<Command>; 3],
    /// The commands that finish a microbatch which is not the last of its step ([`Part::RestOfMicrobatch`]).
    pub rest_of_microbatch: Vec<Command>,
    /// The number of events.
    pub events: u32,
    /// The arguments of combined launches, one launch after the other. They go to the device once.
    pub tables: Vec<Argument>,
    /// Whether [`Argument::Halt`] can keep all commands of the update from writing a state.
    pub halts: bool,
}

/// A function that runs on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The function's name: a description and a hash of its text.
    pub name: String,
    /// The files of `kernels/` that precede its text, in order.
    pub files: Vec<&'static File>,
    /// The function, in CUDA C++.
    pub text: String,
}

/// A file of `kernels/`.
#[derive(Debug, PartialEq, Eq)]
pub struct File {
    /// The file's name.
    pub name: &'static str,
    /// The file's text.
    pub text: &'static str,
    /// The files that precede it, besides the prelude.
    pub after: &'static [&'static File],
}

impl File {
    /// Returns the files that it needs, and then the file itself.
    pub(super) fn all(&'static self) -> impl Iterator<Item = &'static Self> {
        self.after.iter().copied().chain([self])
    }
}

/// A mark on a stream, for which another stream can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Event(pub u32);

/// A command on a stream of a device.
#[derive(Clone, Debug)]
pub struct Command {
    /// The stream.
    pub stream: Stream,
    /// The events that it waits for, besides the earlier commands of its stream.
    pub waits: SmallVec<[Event; 2]>,
    /// The event that is recorded after it.
    pub records: Option<Event>,
    /// The work.
    pub task: Task,
    /// The memory that it reads.
    pub reads: SmallVec<[TouchedBytes; 6]>,
    /// The memory that it writes.
    pub writes: SmallVec<[TouchedBytes; 3]>,
    /// The range of the section's instructions from its first to its last.
    pub instructions: Range<usize>,
    /// Its instructions.
    pub waves: Waves,
}

/// The instructions of a command, by their indices in the section. The instructions of a wave run at once, and waves run one after the
/// other.
pub type Waves = SmallVec<[SmallVec<[usize; 1]>; 1]>;

/// The work of a command.
#[derive(Clone, Debug)]
pub enum Task {
    /// Runs a kernel.
    Launch(Launch),
    /// Multiplies matrices, by cuBLASLt.
    Multiply(Box<Multiply>),
    /// Runs the instruction by cuDNN.
    Library,
    /// Exchanges with other ranks, by NCCL.
    Collective(Box<Collective>),
    /// Sends to another pipeline rank, or receives from it.
    Message(PlacedMessage),
    /// Copies bytes from the host or to it.
    Copy(MemoryCopy),
    /// Runs the instruction on the host.
    Host,
    /// Copies a value from a file to the host, or from the host to a file, on the host.
    Disk,
}

/// Bytes of a program's memory that a command reads or writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TouchedBytes {
    /// The memory.
    pub region: Region,
    /// The bytes, from the first to the last.
    pub bytes: Range<u64>,
    /// The runs of bytes, if there are gaps between them.
    pub runs: Option<Runs>,
}

/// Runs of bytes that are the same part of each row of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// The number of bytes of a run.
    pub length: u64,
    /// The number of bytes from the start of a run to the start of the next.
    pub apart: u64,
}

/// A kernel and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The kernel's index in the program.
    pub kernel: usize,
    /// The numbers of blocks along x, y and z. In a combined launch, each launch is a layer along z.
    pub grid: [u32; 3],
    /// The threads of a block, along x.
    pub block: u32,
    /// The arguments, of 8 bytes each.
    pub arguments: Vec<Argument>,
}

/// An argument of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// The address of a byte of a memory.
    Address(Region, i64),
    /// The address of a byte of a memory, which differs between ranks.
    AddressByRank(Region, Box<ByRank>),
    /// A number.
    Number(i64),
    /// A number that differs between ranks.
    NumberByRank(Box<ByRank>),
    /// The address of the program's table, from this argument on.
    Table(usize),
    /// The address of two words: whether the device halts at a number that is not finite, and whether it has halted.
    Halt,
    /// 1 if results are added to their previous values, else 0. An instruction that accumulates adds from a step's second microbatch
    /// on.
    Adds,
}

/// `out = activation(lhs · rhs + bias + addend)` for each of several matrices; an accumulating multiplication adds this to `out`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Multiply {
    /// The rows of the left side, the terms of a sum, and the columns of the right side.
    pub sizes: [usize; 3],
    /// The number of matrices.
    pub batch: usize,
    /// `[rows, terms]`
    pub lhs: Matrices,
    /// `[terms, columns]`
    pub rhs: Matrices,
    /// `[rows, columns]`
    pub out: Matrices,
    /// The element type of both sides. Sums are f32, or f64 if the sides are f64.
    pub dtype: DType,
    /// The element type of the result.
    pub out_dtype: DType,
    /// Whether it adds to `out` from a step's second microbatch on.
    pub accumulates: bool,
    /// The epilogue. Batched multiplications have none.
    pub epilogue: Epilogue,
}

/// The operations on a product before it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epilogue {
    /// The vector that is added to every row, of the result's type.
    pub bias: Option<ValueStart>,
    /// The matrix that is added, of the result's type.
    pub addend: Option<Matrices>,
    /// The activation, which comes last.
    pub activation: Activation,
    /// The inputs of the activation, of the result's type: the activation stores them there, and the activation's gradient reads them
    /// there.
    pub aux: Option<Matrices>,
    /// The sums over the terms of the left side (0), one for each row of the result, or of the right side (1), one for each column.
    /// They have the result's type.
    pub sums: Option<(u32, ValueStart)>,
}

/// A message, and the memory that it leaves from or arrives in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedMessage {
    /// The pipeline ranks, and the transfer, whose messages keep their order.
    pub message: Message,
    /// The start of its bytes.
    pub at: ValueStart,
    /// The number of bytes.
    pub bytes: u64,
}

/// A copy of consecutive bytes between the memories of the device and of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryCopy {
    /// The source.
    pub from: ValueStart,
    /// The destination.
    pub to: ValueStart,
    /// The number of bytes.
    pub bytes: u64,
}

/// The start of a value in a program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueStart {
    /// The memory.
    pub region: Region,
    /// The first byte.
    pub byte: i64,
}

impl ValueStart {
    /// Returns the place of the element `[0, 0, …]` of a view.
    pub fn of(view: &View) -> Self {
        let byte = view.base as i64 + view.layout.offset as i64 * view.dtype.bytes() as i64;
        Self { region: view.region, byte }
    }
}

/// Matrices with the same layout, one after the other. Distances are counted in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrices {
    /// The memory.
    pub region: Region,
    /// The first byte of the first matrix.
    pub start: i64,
    /// The distance between rows, and between columns. One of them is 1.
    pub strides: [i64; 2],
    /// The distance between matrices.
    pub apart: i64,
}

impl CudaProgram {
    /// Returns the commands of a section.
    pub fn section(&self, section: Section) -> &[Command] {
        &self.sections[section as usize]
    }

    /// Returns the commands of a part.
    pub fn part(&self, part: Part) -> &[Command] {
        match part {
            Part::RestOfMicrobatch => &self.rest_of_microbatch,
            _ => self.section(part.section()),
        }
    }

    /// Returns the instructions that go to a library.
    pub fn for_libraries(&self) -> impl Iterator<Item = &Instruction> {
        let of_section = |(section, _): (Section, &str)| {
            let all = self.program.section(section);
            let commands = self.section(section).iter();
            commands
                .filter(|command| matches!(command.task, Task::Library))
                .map(move |command| &all[command.instructions.start])
        };
        Section::ALL.into_iter().flat_map(of_section)
    }

    /// Returns the event that a stream records where a section ends.
    pub fn end_of(&self, stream: Stream) -> Event {
        Event(self.events - 1 - stream as u32)
    }

    /// Returns the part's commands for these instructions of its section. `None` if one of the commands has other instructions as well.
    pub fn of_instructions(&self, part: Part, instructions: &Range<usize>) -> Option<Vec<&Command>> {
        let mut own = Vec::new();
        for command in self.part(part) {
            let [first, last] = [command.instructions.start, command.instructions.end - 1];
            match [first, last].map(|instruction| instructions.contains(&instruction)) {
                [true, true] => own.push(command),
                [false, false] => {}
                _ => return None,
            }
        }
        Some(own)
    }
}

impl TouchedBytes {
    /// Returns the bytes that a view touches.
    pub fn of(view: &View) -> Self {
        Self { region: view.region, bytes: view.bytes(), runs: runs(&view.layout, view.dtype) }
    }

    /// Whether these bytes and others have a byte in common. For different layouts, whether they might.
    pub fn meets(&self, other: &Self) -> bool {
        self.region == other.region
            && self.bytes.start < other.bytes.end
            && other.bytes.start < self.bytes.end
            && !self.passes(other)
    }

    /// Whether these bytes and others are parts of the same rows, side by side.
    fn passes(&self, other: &Self) -> bool {
        let (Some(own), Some(others)) = (self.runs, other.runs) else { return false };
        // The distance from the start of a run of these bytes to the next start of a run of the others.
        let after = (other.bytes.start % own.apart + own.apart - self.bytes.start % own.apart) % own.apart;
        own.apart == others.apart && after >= own.length && after + others.length <= own.apart
    }
}

/// Returns the runs of a layout, if its elements are the same part of rows of one length.
fn runs(layout: &Layout, dtype: DType) -> Option<Runs> {
    let width = dtype.bytes();
    match layout.transpose(&layout.by_distance()).collapsed()[..] {
        [ref outer @ .., (_, apart), (length, 1)]
            if apart > length as isize && outer.iter().all(|(_, stride)| stride % apart == 0) =>
        {
            Some(Runs { length: length as u64 * width, apart: apart as u64 * width })
        }
        _ => None,
    }
}

impl Epilogue {
    /// Whether the epilogue at most adds a matrix, which cuBLASLt does in every multiplication without an epilogue of its own.
    pub fn is_addition(&self) -> bool {
        let Self { bias, addend: _, activation, aux, sums } = self;
        bias.is_none() && *activation == Activation::None && aux.is_none() && sums.is_none()
    }
}

impl Multiply {
    /// Returns the reason why cuBLASLt refuses the epilogue, if it does. The stand-in refuses the same epilogues.
    pub fn refused_epilogue(&self) -> Option<&'static str> {
        let Self { sizes: [m, k, n], epilogue, dtype, out_dtype, .. } = self;
        if *epilogue == Epilogue::default() {
            return None;
        }
        let even = |matrices: &Matrices, dtype: DType| dtype.bytes() != 2 || matrices.is_in_rows_of(4, dtype);
        if !even(&self.lhs, *dtype) || !even(&self.rhs, *dtype) || !even(&self.out, *out_dtype) {
            return Some("the rows of a half-precision matrix of an epilogue are not multiples of 4 bytes");
        }
        if epilogue.aux.as_ref().is_some_and(|aux| !aux.is_in_rows_of(16, *out_dtype)) {
            return Some("the rows of GELU's operand are not multiples of 16 bytes");
        }
        if epilogue.activation == Activation::GeluTanhGrad && *m == 1 {
            return Some("GELU's gradient is computed for a single row");
        }
        let single = |&(side, _): &(u32, ValueStart)| *k == 1 || [m, n][side as usize] == &1;
        let is_single = epilogue.sums.as_ref().is_some_and(single);
        is_single.then_some("the sums have one term, or there is only one sum")
    }
}

impl Matrices {
    /// Whether every row begins at a multiple of this number of bytes.
    fn is_in_rows_of(&self, bytes: i64, dtype: DType) -> bool {
        self.start % bytes == 0
            && self.strides.iter().all(|&stride| stride == 1 || stride * dtype.bytes() as i64 % bytes == 0)
    }

    /// Returns the bytes that these matrices span.
    pub fn touched(&self, dtype: DType, batch: usize, [rows, columns]: [usize; 2]) -> TouchedBytes {
        let strides = [self.apart, self.strides[0], self.strides[1]].map(|stride| stride as isize);
        let sizes = Sizes::from_slice(&[batch, rows, columns]);
        let layout = Layout { sizes, strides: SmallVec::from_slice(&strides), offset: 0 };
        let bytes = self.start as u64..self.start as u64 + layout.span().end as u64 * dtype.bytes();
        TouchedBytes { region: self.region, bytes, runs: runs(&layout, dtype) }
    }
}

impl fmt::Display for CudaProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (part, name) in Part::ALL {
            if part == Part::RestOfMicrobatch && self.rest_of_microbatch.is_empty() {
                continue;
            }
            writeln!(f, "{name}:")?;
            for command in self.part(part) {
                write!(f, "  {:?}", command.stream)?;
                command.waits.iter().try_for_each(|event| write!(f, " after {}", event.0))?;
                match &command.task {
                    Task::Launch(launch) => {
                        let [x, y, z] = launch.grid;
                        write!(
                            f,
                            " {} [{x}, {y}, {z}] x {}",
                            self.kernels[launch.kernel].name, launch.block
                        )?;
                    }
                    Task::Multiply(multiply) => {
                        let ([m, k, n], batch) = (multiply.sizes, multiply.batch);
                        let types = (multiply.dtype, multiply.out_dtype);
                        write!(f, " multiply {} -> {} {batch} x [{m}, {k}] [{k}, {n}]", types.0, types.1)?;
                        write!(f, "{}", multiply.epilogue)?;
                    }
                    Task::Library => write!(f, " library")?,
                    Task::Collective(collective) => write!(f, " {collective}")?,
                    Task::Message(PlacedMessage {
                        message: Message { from, to, channel }, bytes, ..
                    }) => {
                        write!(f, " message {channel} from {from} to {to}, {bytes} bytes")?;
                    }
                    Task::Copy(MemoryCopy { bytes, .. }) => write!(f, " copy {bytes} bytes")?,
                    Task::Host => write!(f, " on the host")?,
                    Task::Disk => write!(f, " copy with a file")?,
                }
                command.records.iter().try_for_each(|event| write!(f, " marks {}", event.0))?;
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

/// ` bias addend GeluTanh aux sums 1`
impl fmt::Display for Epilogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bias.map_or(Ok(()), |_| write!(f, " bias"))?;
        self.addend.as_ref().map_or(Ok(()), |_| write!(f, " addend"))?;
        if self.activation != Activation::None {
            write!(f, " {:?}", self.activation)?;
        }
        self.aux.as_ref().map_or(Ok(()), |_| write!(f, " aux"))?;
        self.sums.map_or(Ok(()), |(side, _)| write!(f, " sums {side}"))
    }
}
