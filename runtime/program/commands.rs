//! The list of commands that a device gets for a step, with the bytes and operations of each. A backend makes it, and the simulator runs
//! it.

pub mod work;

use crate::{Instruction, Kernel, Region, View};
use ir::ops::collective::Collective;
use ir::{AxisId, Mesh, Op};
use smallvec::SmallVec;
use std::sync::Arc;
use work::{Work, bytes, largest_sizes};

/// The commands of a step, as a device is given them.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandList {
    /// The devices.
    pub mesh: Mesh,
    /// Microbatches of a step.
    pub microbatches: u64,
    /// One run of each part, by [`Part`](crate::Part).
    pub parts: [Vec<Command>; 4],
}

/// A command.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// Its class.
    pub class: CommandClass,
    /// The name of a kernel without the parts that distinguish its instances, `multiply`, or the name of an operator.
    pub kind: String,
    /// The sizes that it works on: `[batch, rows, terms, columns]` for a multiplication, else those of its largest tensor.
    pub sizes: Vec<usize>,
    /// The ONNX node of the command, or the first of several.
    pub origin: Arc<str>,
    /// Its stream.
    pub stream: Stream,
    /// The commands of the part that must end before it, by number, besides the previous command on its stream.
    pub waits: SmallVec<[usize; 2]>,
    /// The number of launches that are combined in this command.
    pub layers: u32,
    /// Its bytes and operations.
    pub work: Work,
}

/// A class of commands, by the part of a machine or library that runs them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandClass {
    /// A kernel of ours.
    Kernel,
    /// A multiplication of matrices, by cuBLASLt or the `gemm` crate.
    Multiplication,
    /// An operator that cuDNN runs.
    Library,
    /// An exchange with other devices.
    Collective(Exchange),
    /// A copy of this number of bytes from the host to the device.
    Upload(u64),
    /// A copy of this number of bytes from the device to the host.
    Download(u64),
    /// An instruction that the host runs.
    OnHost,
    /// A copy of this number of bytes between the host and a file.
    Disk(u64),
}

impl Command {
    /// Returns an instruction as one command of the main stream, on a device whose memory is that of the host. `adds` tells whether results
    /// are added to their old contents.
    pub fn of(instruction: &Instruction, mesh: &Mesh, adds: bool) -> Self {
        let is_chain = matches!(instruction.kernel, Kernel::Elementwise(_));
        Self {
            class: CommandClass::of(instruction, mesh),
            kind: if is_chain { "elementwise".into() } else { instruction.name() },
            sizes: largest_sizes(instruction),
            origin: instruction.origin.clone(),
            stream: Stream::Main,
            waits: SmallVec::new(),
            layers: 1,
            work: Work::of(instruction, adds),
        }
    }

    /// Returns the exchange with other devices, if the command is a collective.
    pub fn exchange(&self) -> Option<&Exchange> {
        match &self.class {
            CommandClass::Collective(exchange) => Some(exchange),
            CommandClass::Kernel | CommandClass::Multiplication | CommandClass::Library => None,
            CommandClass::Upload(_) | CommandClass::Download(_) => None,
            CommandClass::OnHost | CommandClass::Disk(_) => None,
        }
    }

    /// Whether the device itself computes the command.
    pub fn is_computed(&self) -> bool {
        matches!(self.class, CommandClass::Kernel | CommandClass::Multiplication | CommandClass::Library)
    }
}

impl CommandClass {
    /// Returns the class of an instruction on a device whose memory is that of the host.
    fn of(instruction: &Instruction, mesh: &Mesh) -> Self {
        match &instruction.kernel {
            Kernel::Contract(_) | Kernel::Op(Op::Contract(_)) => Self::Multiplication,
            Kernel::Collective(exchange) => Self::Collective(Exchange::of(exchange, instruction, mesh)),
            Kernel::Op(Op::Copy(_)) if is_with_file(instruction) => {
                Self::Disk(bytes(&instruction.results[0]))
            }
            Kernel::Op(_) | Kernel::Elementwise(_) | Kernel::Copy | Kernel::Accumulate | Kernel::Part(_) => {
                Self::Kernel
            }
            // Messages between threads are copies.
            Kernel::Message(_) => Self::Kernel,
        }
    }
}

/// Returns whether an instruction reads or writes a file.
fn is_with_file(instruction: &Instruction) -> bool {
    let mut touched = instruction.operands.iter().chain(&instruction.results);
    touched.any(|view| view.region == Region::Disk)
}

/// A queue of commands, which run in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// Commands that all others wait for sooner or later.
    Main,
    /// Commands whose results are not needed soon: gradients of weights.
    Side,
    /// Exchanges with other devices.
    Exchange,
    /// Copies from the host.
    Upload,
    /// Copies to the host.
    Download,
    /// Instructions that run on the host.
    Host,
    /// Copies between the host and a file, which the host carries out.
    Disk,
}

impl Stream {
    /// Every stream.
    pub const ALL: [Self; 7] =
        [Self::Main, Self::Side, Self::Exchange, Self::Upload, Self::Download, Self::Host, Self::Disk];

    /// Returns the name for `inspect`'s JSON and for timelines: that of [`Self::described`] without the word "stream".
    pub fn name(self) -> &'static str {
        let name = self.described();
        name.strip_suffix(" stream").unwrap_or(name)
    }

    /// Returns the stream's name in a sentence.
    pub fn described(self) -> &'static str {
        match self {
            Self::Main => "main stream",
            Self::Side => "side stream",
            Self::Exchange => "exchange stream",
            Self::Upload => "upload stream",
            Self::Download => "download stream",
            Self::Host => "host",
            Self::Disk => "disk",
        }
    }
}

/// The exchange of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The collective.
    pub kind: Collective,
    /// The axes of its groups.
    pub axes: SmallVec<[AxisId; 2]>,
    /// The bytes of a group's values together ([`Collective::group_bytes`]).
    pub group_bytes: u64,
}

impl Exchange {
    /// Returns the exchange of an instruction.
    fn of(exchange: &crate::Exchange, instruction: &Instruction, mesh: &Mesh) -> Self {
        let (kind, devices) = (exchange.collective, mesh.size(&exchange.axes));
        let of_pair = |(from, to): (&View, &View)| kind.group_bytes(bytes(from), bytes(to), devices);
        let group_bytes = instruction.operands.iter().zip(&instruction.results).map(of_pair).sum();
        Self { kind, axes: exchange.axes.clone(), group_bytes }
    }

    /// Returns the bytes that each device sends in a ring algorithm.
    pub fn sent(&self, mesh: &Mesh) -> u64 {
        self.kind.bytes_sent(self.group_bytes, mesh.size(&self.axes))
    }
}
