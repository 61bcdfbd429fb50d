//! Ranks as threads of one process: each reads the others' operands where they are, and writes its own result alone.

pub use super::at_work::AtWork;
use super::block::{self, Block};
use super::combine::combine;
use super::mail::Way;
use super::meeting::{Inside, World};
use super::pieces::{Shape, by_rank, in_parts, share};
use super::record::{FlightRecord, Recorded};
use super::stores::Stores;
use super::{CommError, Communicator, Exchanged, Terms};
use ir::{DType, PartialKind};
use std::sync::Arc;
use std::time::Duration;

/// The ranks of this process, from 0.
#[derive(Clone)]
pub struct Local {
    world: Arc<World>,
    records: Arc<[FlightRecord]>,
}

/// One of them.
pub struct LocalRank {
    world: Arc<World>,
    rank: u64,
}

impl Local {
    /// So many ranks.
    pub fn new(ranks: u64) -> Self {
        let records = (0..ranks).map(|_| FlightRecord::new()).collect();
        Self { world: Arc::new(World::new(ranks)), records }
    }

    /// The communicator of a rank.
    pub fn communicator(&self, rank: u64) -> LocalRank {
        LocalRank { world: self.world.clone(), rank }
    }

    /// The communicator of a rank that keeps a record of its exchanges.
    pub fn recorded(&self, rank: u64) -> Arc<dyn Communicator> {
        Arc::new(Recorded::new(Arc::new(self.communicator(rank)), self.records[rank as usize].clone()))
    }

    /// The last exchanges of each rank that has a record.
    pub fn records(&self) -> &[FlightRecord] {
        &self.records
    }

    /// Why all ranks ended, since they were put to work, if they did.
    pub(crate) fn ended(&self) -> Option<CommError> {
        self.world.ended()
    }

    /// The ranks that others have waited for this long, at this time of a watchdog's, which looks again and again.
    pub(crate) fn late(&self, time: Duration, timeout: Duration) -> Option<CommError> {
        self.world.late(time, timeout)
    }

    /// Puts all ranks to work, each on a thread of its own. To be called when none is.
    pub fn begin(&self) -> Vec<AtWork> {
        self.world.begin();
        (0..self.records.len() as u64).map(|rank| AtWork::new(self.world.clone(), rank)).collect()
    }
}

impl Communicator for LocalRank {
    fn rank(&self) -> u64 {
        self.rank
    }

    fn all_reduce(
        &self,
        group: &[u64],
        kind: PartialKind,
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError> {
        let terms = Terms::of("all_reduce", group, Some(kind), tensors);
        let (dtypes, operands, results) = apart(tensors);
        let order = by_rank(group);
        self.world.meet(self.rank, group, terms, &operands, |inside| {
            if results.iter().map(|result| result.len()).sum::<usize>() <= SMALL {
                for (i, result) in results.into_iter().enumerate() {
                    combine(dtypes[i], kind, &in_order(&inside.lent(i), &order), result, Stores::Cached);
                }
                return Ok(());
            }
            by_shares(inside, kind, &order, &dtypes, results)
        })?
    }

    fn all_gather(&self, group: &[u64], tensors: &mut [Exchanged]) -> Result<(), CommError> {
        self.put_together("all_gather", group, tensors)
    }

    fn reduce_scatter(
        &self,
        group: &[u64],
        kind: PartialKind,
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError> {
        let terms = Terms::of("reduce_scatter", group, Some(kind), tensors);
        let shapes: Vec<Shape> = tensors.iter().map(|tensor| Shape::of(tensor, group.len())).collect();
        let (dtypes, operands, results) = apart(tensors);
        let stores = Stores::of(results.iter().map(|result| result.len()).sum());
        let order = by_rank(group);
        self.world.meet(self.rank, group, terms, &operands, |inside| {
            for (i, result) in results.into_iter().enumerate() {
                let (shape, width) = (&shapes[i], dtypes[i].bytes() as usize);
                let parts = in_order(&inside.lent(i), &order);
                let (mine, all) = (shape.share(inside.place()), Block::all(&shape.part));
                block::for_runs(&shape.part, [&mine, &all], |[from, to], len| {
                    let runs: Vec<&[u8]> =
                        parts.iter().map(|part| &part[from * width..][..len * width]).collect();
                    combine(dtypes[i], kind, &runs, &mut result[to * width..][..len * width], stores);
                });
            }
        })
    }

    fn all_to_all(&self, group: &[u64], tensors: &mut [Exchanged]) -> Result<(), CommError> {
        self.put_together("all_to_all", group, tensors)
    }

    fn send(&self, to: u64, channel: u32, bytes: &[u8]) -> Result<(), CommError> {
        self.world.post(Way { from: self.rank, to, channel }, bytes)
    }

    fn receive(&self, from: u64, channel: u32, bytes: &mut [u8]) -> Result<(), CommError> {
        self.world.take(Way { from, to: self.rank, channel }, bytes)
    }
}

impl LocalRank {
    /// From every rank its part, or this rank's share of it, one after the other.
    fn put_together(
        &self,
        name: &'static str,
        group: &[u64],
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError> {
        let terms = Terms::of(name, group, None, tensors);
        let count = group.len();
        // The meeting refuses a rank outside the group.
        let place = group.iter().position(|&member| member == self.rank).unwrap_or(0);
        let (mut shapes, mut operands, mut rooms) = (vec![], vec![], vec![]);
        for tensor in tensors {
            shapes.push((Shape::of(tensor, count), tensor.dtype.bytes() as usize));
            let (operand, room) = match tensor.operand {
                Some(operand) => (operand, Room::Whole(tensor.result)),
                None => {
                    let mut parts = in_parts(tensor.result, count);
                    (&*parts.remove(place), Room::Others(parts))
                }
            };
            operands.push(operand);
            rooms.push(room);
        }
        let stores = Stores::of(operands.iter().map(|operand| operand.len() * (count - 1)).sum());
        self.world.meet(self.rank, group, terms, &operands, |inside| {
            for (i, room) in rooms.into_iter().enumerate() {
                let mut lent = inside.lent(i);
                match room {
                    Room::Whole(result) => {
                        let (shape, width) = &shapes[i];
                        let mine = shape.share(place);
                        for (from, part) in lent.into_iter().enumerate() {
                            let target = (&mut *result, &shape.place(from, count));
                            block::copy(&shape.part, *width, (part, &mine), target);
                        }
                    }
                    Room::Others(parts) => {
                        lent.remove(place);
                        parts.into_iter().zip(lent).for_each(|(to, from)| stores.copy(from, to));
                    }
                }
            }
        })
    }
}

/// Where the parts of a gather go.
enum Room<'a> {
    /// The whole result.
    Whole(&'a mut [u8]),
    /// The parts of the other ranks, by place: this rank's is where it belongs.
    Others(Vec<&'a mut [u8]>),
}

/// Below this number of bytes of all tensors together every rank combines everything by itself: waiting once more for
/// the others would take longer. The bits are the same.
const SMALL: usize = 1 << 14;

/// An all_reduce as what it is: every rank combines its share, and then takes the others' from them.
fn by_shares<'a>(
    inside: &Inside<'_, 'a>,
    kind: PartialKind,
    order: &[usize],
    dtypes: &[DType],
    results: Vec<&'a mut [u8]>,
) -> Result<(), CommError> {
    let (place, count) = (inside.place(), order.len());
    let stores = Stores::of(results.iter().map(|result| result.len()).sum());
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for (i, result) in results.into_iter().enumerate() {
        let share = share(result.len(), dtypes[i], place, count);
        let (before, rest) = result.split_at_mut(share.start);
        let (mine, after) = rest.split_at_mut(share.len());
        let parts = inside.lent(i);
        let parts: Vec<&[u8]> = order.iter().map(|&place| &parts[place][share.clone()]).collect();
        combine(dtypes[i], kind, &parts, mine, stores);
        own.push(&*mine);
        others.push((before, share.end, after));
    }
    let shared = inside.share(&own)?;
    for (i, (before, end, after)) in others.into_iter().enumerate() {
        for (other, shares) in shared.iter().enumerate().filter(|(other, _)| *other != place) {
            let share = share(end + after.len(), dtypes[i], other, count);
            let to = if other < place {
                &mut before[share]
            } else {
                &mut after[share.start - end..share.end - end]
            };
            stores.copy(shares[i], to);
        }
    }
    Ok(())
}

/// The tensors' element types, operands and results.
type Apart<'a> = (Vec<DType>, Vec<&'a [u8]>, Vec<&'a mut [u8]>);

fn apart<'a>(tensors: &'a mut [Exchanged]) -> Apart<'a> {
    let mut apart: Apart = Default::default();
    for tensor in tensors {
        apart.0.push(tensor.dtype);
        apart.1.push(tensor.operand());
        apart.2.push(tensor.result);
    }
    apart
}

fn in_order<'a>(parts: &[&'a [u8]], order: &[usize]) -> Vec<&'a [u8]> {
    order.iter().map(|&place| parts[place]).collect()
}
