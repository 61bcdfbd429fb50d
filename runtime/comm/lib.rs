//! Communication between ranks, which carries out the collectives of a program.
//!
//! A rank issues its collectives in program order through its own [`Communicator`]. [`local`] has the communicator of ranks that are
//! threads of one process. [`check`] proves, before anything runs, that the programs of all ranks issue the same collectives in the same
//! order. [`launcher`] reads the rank of this process and the address at which the processes meet.
//!
//! `loom/` is a package of its own: it compiles `at_work`, `delivery`, `lent`, `mail`, `meeting` and the error with loom's locks in place of
//! `sync`, and tries their interleavings.

pub mod agreement;
mod at_work;
pub mod block;
pub mod check;
mod combine;
mod delivery;
pub mod disturbed;
pub mod launcher;
mod lent;
pub mod local;
mod mail;
mod meeting;
pub mod messages;
pub mod of_stage;
mod pieces;
pub mod queue;
pub mod record;
pub mod samples;
pub mod star;
mod stores;
mod sync;
#[cfg(test)]
mod tests;
pub mod watchdog;

pub use program::device::CommError;

use ir::ops::collective::Collective;
use ir::timetable::Task;
use ir::{DType, PartialKind};
use messages::Aligned;
use std::fmt;
use std::sync::Arc;

/// A tensor of a collective: this rank's data before the collective, and room for its data after it. Both are dense and row-major.
///
/// The operand of an `all_reduce` may lie in the place of the result. The operand of a gather may lie in its place within the result, if
/// the gathered dim is the first dim with more than one element.
pub struct Exchanged<'a> {
    /// The element type.
    pub dtype: DType,
    /// The sizes of this rank's operand, which are equal on all ranks of the group.
    pub sizes: &'a [usize],
    /// The dim along which the group's parts are concatenated, in the group's order.
    pub gathered: Option<usize>,
    /// The dim that is cut into shares. Each rank keeps the share at its own place in the group.
    pub split: Option<usize>,
    /// The bytes of the operand. `None` if the result holds them: all of the result in an `all_reduce`, this rank's part in a gather.
    pub operand: Option<&'a [u8]>,
    /// The bytes of the result.
    pub result: &'a mut [u8],
}

impl<'a> Exchanged<'a> {
    /// Returns the bytes of an operand that lies apart from the result.
    ///
    /// # Panics
    /// Panics if the operand lies within the result.
    fn operand(&self) -> &'a [u8] {
        self.operand.expect("only an all_reduce and a gather have their operands within their results")
    }

    /// Returns a copy of the operand of an `all_reduce` that lies in the place of the result, and an empty copy if it lies apart.
    fn held(&self) -> Aligned {
        self.operand.map_or_else(|| Aligned::of(self.result), |_| Aligned::of(&[]))
    }
}

/// A collective that exchanges data, with the kind of its reduction if it reduces. A program's [`Collective`] may also be an `all_slice`,
/// which exchanges nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveKind {
    /// Combines the operands of all ranks. Every rank gets the whole combination.
    AllReduce(PartialKind),
    /// Concatenates the operands of all ranks along the gathered dim. Every rank gets the whole result.
    AllGather,
    /// Combines the operands of all ranks. Every rank gets its share of the combination along the split dim.
    ReduceScatter(PartialKind),
    /// Gives every rank its share of every operand along the split dim. The rank's shares are concatenated along the gathered dim.
    AllToAll,
}

impl CollectiveKind {
    /// Returns the kind of a program's collective. `None` for an `all_slice`, in which nothing is exchanged.
    ///
    /// # Panics
    /// Panics if a collective that reduces has no kind of reduction. Lowering gives the kind to each of them.
    pub fn of(collective: Collective, reduced: Option<PartialKind>) -> Option<Self> {
        let kind = || reduced.expect("a reduction has a kind");
        match collective {
            Collective::AllReduce => Some(Self::AllReduce(kind())),
            Collective::AllGather => Some(Self::AllGather),
            Collective::ReduceScatter => Some(Self::ReduceScatter(kind())),
            Collective::AllToAll => Some(Self::AllToAll),
            Collective::AllSlice => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::AllReduce(_) => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter(_) => "reduce_scatter",
            Self::AllToAll => "all_to_all",
        }
    }

    fn reduced(self) -> Option<PartialKind> {
        match self {
            Self::AllReduce(kind) | Self::ReduceScatter(kind) => Some(kind),
            Self::AllGather | Self::AllToAll => None,
        }
    }
}

/// The interface through which a rank communicates. `group` lists the ranks that take part, this rank included. Its order decides which
/// rank has which part ([`ir::Mesh::group`]). All ranks of the group must issue the same collectives. Several tensors travel together; each
/// is exchanged like a tensor alone.
///
/// Floats are summed in the order of ranks, whatever the order of the group; f16 and bf16 are summed in f32 and rounded once. So every rank
/// computes the same bits, and an all_reduce gives the same bits as a reduce_scatter followed by an all_gather.
pub trait Communicator: Send + Sync {
    /// Returns the number of this rank.
    fn rank(&self) -> u64;

    /// Tells communicators that keep a record the program's node whose exchange comes next.
    fn comes_from(&self, _origin: &Arc<str>) {}

    /// Tells communicators that keep a record the task of a pipeline that the rank begins. `None` after the microbatches.
    fn turns_to(&self, _task: Option<Task>) {}

    /// Carries out a collective with the other ranks of a group.
    fn collective(
        &self,
        kind: CollectiveKind,
        group: &[u64],
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError>;

    /// Sends bytes to another rank, and returns when the transport has a copy. The receiver may come later. Messages of one channel
    /// between two ranks keep their order. Ranks count over all stages of a pipeline.
    fn send(&self, to: u64, channel: u32, bytes: &[u8]) -> Result<(), CommError>;

    /// Receives bytes from another rank, which sends the same number of bytes on this channel.
    fn receive(&self, from: u64, channel: u32, bytes: &mut [u8]) -> Result<(), CommError>;
}

/// The description of a collective that a rank issues. Nothing is exchanged unless it is equal on all ranks of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Terms {
    name: &'static str,
    group: Vec<u64>,
    reduced: Option<PartialKind>,
    tensors: Vec<TensorTerms>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct TensorTerms {
    dtype: DType,
    sizes: Vec<usize>,
    gathered: Option<usize>,
    split: Option<usize>,
}

impl Terms {
    fn of(kind: CollectiveKind, group: &[u64], tensors: &[Exchanged]) -> Self {
        let terms = |tensor: &Exchanged| TensorTerms {
            dtype: tensor.dtype,
            sizes: tensor.sizes.to_vec(),
            gathered: tensor.gathered,
            split: tensor.split,
        };
        let (name, reduced) = (kind.name(), kind.reduced());
        Self { name, group: group.to_vec(), reduced, tensors: tensors.iter().map(terms).collect() }
    }

    /// Returns the terms of a message of this number of bytes from one rank to another.
    fn of_message(from: u64, to: u64, bytes: usize) -> Self {
        let tensor = TensorTerms { dtype: DType::U8, sizes: vec![bytes], gathered: None, split: None };
        Self { name: "send", group: vec![from, to], reduced: None, tensors: vec![tensor] }
    }
}

/// `` `all_to_all` of f32[4, 8] gathered along 0 and split along 1 among the ranks [0, 1] ``
impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.name)?;
        match self.reduced {
            Some(PartialKind::Sum) => write!(f, " (sum)")?,
            Some(PartialKind::Max) => write!(f, " (max)")?,
            Some(PartialKind::Min) => write!(f, " (min)")?,
            None => {}
        }
        for (i, tensor) in self.tensors.iter().enumerate() {
            write!(f, "{} {}{:?}", if i == 0 { " of" } else { "," }, tensor.dtype, tensor.sizes)?;
            match (tensor.gathered, tensor.split) {
                (Some(gathered), Some(split)) => {
                    write!(f, " gathered along {gathered} and split along {split}")?
                }
                (Some(dim), None) => write!(f, " gathered along {dim}")?,
                (None, Some(dim)) => write!(f, " split along {dim}")?,
                (None, None) => {}
            }
        }
        write!(f, " among the ranks {:?}", self.group)
    }
}
