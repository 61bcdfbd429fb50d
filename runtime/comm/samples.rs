//! Collectives of generated tensors, with which a transport is compared with ranks that share memory.

use super::local::{AtWork, Local};
use super::messages::Aligned;
use super::{CollectiveKind, CommError, Communicator, Exchanged};
use ir::{DType, PartialKind, Tensor, random};
use std::sync::Arc;
use std::thread;

/// A collective of tensors of two dims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// `all_reduce` of sums.
    Sum,
    /// `all_reduce` of maxima.
    Max,
    /// `all_reduce` of sums, with each operand in the place of its result.
    SumInPlace,
    /// `all_reduce` of maxima, in the same way.
    MaxInPlace,
    /// `all_gather` along a dim.
    Gather(usize),
    /// `all_gather` along the first dim, with each operand within its result.
    GatherInPlace,
    /// `reduce_scatter` of sums along a dim.
    Scatter(usize),
    /// `all_to_all` that gathers along a dim and splits the other.
    Transpose(usize),
}

impl Collective {
    /// All collectives.
    pub const ALL: [Self; 11] = [
        Self::Sum,
        Self::Max,
        Self::SumInPlace,
        Self::MaxInPlace,
        Self::Gather(0),
        Self::Gather(1),
        Self::GatherInPlace,
        Self::Scatter(0),
        Self::Scatter(1),
        Self::Transpose(0),
        Self::Transpose(1),
    ];

    /// Returns the dims that it gathers and splits.
    fn dims(self) -> (Option<usize>, Option<usize>) {
        match self {
            Self::Sum | Self::Max | Self::SumInPlace | Self::MaxInPlace => (None, None),
            Self::Gather(dim) => (Some(dim), None),
            Self::GatherInPlace => (Some(0), None),
            Self::Scatter(dim) => (None, Some(dim)),
            Self::Transpose(dim) => (Some(dim), Some(1 - dim)),
        }
    }
}

/// A collective of a group, on tensors that travel together.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The collective.
    pub collective: Collective,
    /// The ranks that take part.
    pub group: Vec<u64>,
    /// The element type of each tensor, and the sizes of a rank's operand. The group's size divides dims that are split.
    pub tensors: Vec<(DType, Vec<usize>)>,
}

impl Sample {
    /// Runs the collective. Returns the bytes of each result; no results on a rank outside the group.
    ///
    /// # Errors
    /// Those of the communicator.
    pub fn run(&self, communicator: &dyn Communicator) -> Result<Vec<Vec<u8>>, CommError> {
        let rank = communicator.rank();
        if !self.group.contains(&rank) {
            return Ok(vec![]);
        }
        let (gathered, split) = self.collective.dims();
        let operands: Vec<Aligned> = self.tensors.iter().map(|tensor| operand(tensor, rank)).collect();
        let mut room: Vec<Aligned> =
            operands.iter().map(|operand| Aligned::new(self.after(operand))).collect();
        let (is_in_place, place) = match self.collective {
            Collective::GatherInPlace => (true, self.group.iter().position(|&member| member == rank)),
            Collective::SumInPlace | Collective::MaxInPlace => (true, None),
            _ => (false, None),
        };
        for (operand, result) in operands.iter().zip(&mut room).filter(|_| is_in_place) {
            let (operand, start) = (operand.bytes(), place.unwrap_or(0) * operand.bytes().len());
            result.bytes_mut()[start..][..operand.len()].copy_from_slice(operand);
        }
        let tensors = self.tensors.iter().zip(&operands).zip(&mut room);
        let mut tensors: Vec<Exchanged> = tensors
            .map(|(((dtype, sizes), operand), result)| Exchanged {
                dtype: *dtype,
                sizes,
                gathered,
                split,
                operand: (!is_in_place).then_some(operand.bytes()),
                result: result.bytes_mut(),
            })
            .collect();
        let kind = match self.collective {
            Collective::Sum | Collective::SumInPlace => CollectiveKind::AllReduce(PartialKind::Sum),
            Collective::Max | Collective::MaxInPlace => CollectiveKind::AllReduce(PartialKind::Max),
            Collective::Gather(_) | Collective::GatherInPlace => CollectiveKind::AllGather,
            Collective::Scatter(_) => CollectiveKind::ReduceScatter(PartialKind::Sum),
            Collective::Transpose(_) => CollectiveKind::AllToAll,
        };
        communicator.collective(kind, &self.group, &mut tensors)?;
        Ok(room.iter().map(|result| result.bytes().to_vec()).collect())
    }

    /// Returns the number of bytes of a result.
    fn after(&self, operand: &Aligned) -> usize {
        let ranks = self.group.len();
        match self.collective.dims() {
            (None, Some(_)) => operand.bytes().len() / ranks,
            (Some(_), None) => operand.bytes().len() * ranks,
            (None, None) | (Some(_), Some(_)) => operand.bytes().len(),
        }
    }
}

/// Returns the bytes of a rank's operand: numbers whose sum depends on the order.
fn operand((dtype, sizes): &(DType, Vec<usize>), rank: u64) -> Aligned {
    let count: usize = sizes.iter().product();
    let rough = |i: usize| random::normal(3, rank, i as u64) * 10f64.powi((i % 5) as i32);
    let numbers: Vec<f64> = (0..count).map(rough).collect();
    let bytes = if dtype.is_float() {
        Tensor::float(*dtype, sizes.clone(), numbers).rounded().to_bytes()
    } else {
        let integers = numbers.iter().map(|x| (x.abs() * 100.0) as i64 % 50).collect();
        Tensor::int(*dtype, sizes.clone(), integers).to_bytes()
    };
    Aligned::of(&bytes)
}

/// Runs a function on this number of ranks, which are threads, and returns the results by rank.
///
/// # Panics
/// Panics if the function panics on any rank.
pub fn on_threads<R: Send>(ranks: u64, work: impl Fn(Arc<dyn Communicator>) -> R + Sync) -> Vec<R> {
    let local = Local::new(ranks);
    thread::scope(|scope| {
        let one = |at_work: AtWork| {
            let communicator = Arc::new(local.communicator(at_work.rank()));
            let work = &work;
            scope.spawn(move || {
                let _at_work = at_work;
                work(communicator)
            })
        };
        let threads: Vec<_> = local.begin().into_iter().map(one).collect();
        let result = |thread: thread::ScopedJoinHandle<'_, R>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(result).collect()
    })
}
