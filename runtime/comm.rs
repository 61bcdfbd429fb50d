//! Communication between ranks: how the collectives of a program are carried out.
//!
//! A rank issues its collectives in program order through its own [`Communicator`]. [`local`] is the one of ranks that
//! are threads of one process. [`check`] proves, before anything runs, that the programs of all ranks issue the same
//! collectives in the same order.
//!
//! `loom/` is a package of its own: it compiles `at_work`, `error`, `lent`, `mail` and `meeting` with loom's locks in place of
//! `sync`, and tries their interleavings.

pub mod agreement;
mod at_work;
pub mod block;
pub mod check;
mod combine;
pub mod disturbed;
mod error;
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

pub use error::CommError;

use ir::timetable::Task;
use ir::{DType, PartialKind};
use messages::Aligned;
use std::fmt;
use std::sync::Arc;

/// A tensor that a collective goes over: what this rank has of it before, and room for what it has after. Both are
/// dense, row-major.
///
/// An `all_reduce` may have the operand in the place of the result. A gather along the first dim of more than one element may have it
/// within the result, where it belongs.
pub struct Exchanged<'a> {
    /// Element type.
    pub dtype: DType,
    /// Sizes of this rank's part before; equal on all ranks of the group.
    pub sizes: &'a [usize],
    /// The dim along which the group's parts are put one after the other, in the group's order.
    pub gathered: Option<usize>,
    /// The dim of which this rank keeps the share of its place in the group.
    pub split: Option<usize>,
    /// The bytes before; `None` if the result holds them: all of it in an `all_reduce`, in a gather this rank's part.
    pub operand: Option<&'a [u8]>,
    /// Where the bytes after go.
    pub result: &'a mut [u8],
}

impl<'a> Exchanged<'a> {
    /// The bytes before, of a collective that has them apart from the result.
    ///
    /// # Panics
    /// They are within the result.
    fn operand(&self) -> &'a [u8] {
        self.operand.expect("only an all_reduce and a gather have their operands within their results")
    }

    /// A copy of the operand of an `all_reduce` that lies in the place of the result; nothing of an operand that lies apart.
    fn held(&self) -> Aligned {
        self.operand.map_or_else(|| Aligned::of(self.result), |_| Aligned::of(&[]))
    }
}

/// What a rank communicates through. `group` lists the ranks that take part, this one among them, in the order that
/// decides who has which part ([`ir::Mesh::group`]); all of them must issue the same. Several tensors travel together
/// and are treated alike, each apart.
///
/// Floats are summed in the order of ranks, whatever the order of the group; f16 and bf16 in f32, rounded once. So
/// every rank computes the same bits, and an all_reduce those of a reduce_scatter with an all_gather after it.
pub trait Communicator: Send + Sync {
    /// Which rank this is.
    fn rank(&self) -> u64;

    /// Names the node of the program that the next exchange is for, to those who keep a record.
    fn comes_from(&self, _origin: &Arc<str>) {}

    /// Names the task of a pipeline that the rank begins, to those who keep a record; `None` if it leaves the microbatches.
    fn turns_to(&self, _task: Option<Task>) {}

    /// Every rank gets the combination of all parts.
    fn all_reduce(
        &self,
        group: &[u64],
        kind: PartialKind,
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError>;

    /// Every rank gets all parts, one after the other along the gathered dim.
    fn all_gather(&self, group: &[u64], tensors: &mut [Exchanged]) -> Result<(), CommError>;

    /// Every rank gets its share, along the split dim, of the combination of all parts.
    fn reduce_scatter(
        &self,
        group: &[u64],
        kind: PartialKind,
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError>;

    /// Every rank gets its share of every part along the split dim, one after the other along the gathered dim.
    fn all_to_all(&self, group: &[u64], tensors: &mut [Exchanged]) -> Result<(), CommError>;

    /// Sends bytes to another rank, and returns when the transport has a copy. The receiver may come later. Messages of one channel
    /// between two ranks keep their order. Ranks count over all stages of a pipeline.
    fn send(&self, to: u64, channel: u32, bytes: &[u8]) -> Result<(), CommError>;

    /// Receives bytes from another rank, which sends as many on this channel.
    fn receive(&self, from: u64, channel: u32, bytes: &mut [u8]) -> Result<(), CommError>;
}

/// What a rank says it issues: equal on all ranks of a group, or nothing is exchanged.
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
    fn of(name: &'static str, group: &[u64], reduced: Option<PartialKind>, tensors: &[Exchanged]) -> Self {
        let terms = |tensor: &Exchanged| TensorTerms {
            dtype: tensor.dtype,
            sizes: tensor.sizes.to_vec(),
            gathered: tensor.gathered,
            split: tensor.split,
        };
        Self { name, group: group.to_vec(), reduced, tensors: tensors.iter().map(terms).collect() }
    }

    /// Of a message of so many bytes from one rank to another.
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
