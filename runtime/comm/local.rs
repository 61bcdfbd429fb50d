//! Ranks as threads of one process. Each rank reads the others' operands in place, and writes only its own result.

pub use super::at_work::AtWork;
use super::block::{self, Block};
use super::combine::{Addend, combine};
use super::mail::Route;
use super::meeting::World;
use super::messages::Aligned;
use super::pieces::{Shape, Shares, by_rank, in_parts};
use super::record::{FlightRecord, Recorded};
use super::stores::Stores;
use super::{CollectiveKind, CommError, Communicator, Exchanged, Terms};
use ir::PartialKind;
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// The ranks of this process, from 0.
#[derive(Clone)]
pub struct Local {
    world: Arc<World>,
    records: Arc<[FlightRecord]>,
}

/// One rank of this process.
pub struct LocalRank {
    world: Arc<World>,
    rank: u64,
}

impl Local {
    /// Makes this number of ranks.
    pub fn new(ranks: u64) -> Self {
        let records = (0..ranks).map(|_| FlightRecord::new()).collect();
        Self { world: Arc::new(World::new(ranks)), records }
    }

    /// Returns the communicator of a rank.
    pub fn communicator(&self, rank: u64) -> LocalRank {
        LocalRank { world: self.world.clone(), rank }
    }

    /// Returns the communicator of a rank that keeps a record of its exchanges.
    pub fn recorded(&self, rank: u64) -> Arc<dyn Communicator> {
        Arc::new(Recorded::new(Arc::new(self.communicator(rank)), self.records[rank as usize].clone()))
    }

    /// Returns the last exchanges of each rank that has a record.
    pub fn records(&self) -> &[FlightRecord] {
        &self.records
    }

    /// Returns the reason why all ranks ended, if they ended since [`Self::begin`].
    pub fn ended(&self) -> Option<CommError> {
        self.world.ended()
    }

    /// Returns an error that names ranks for which others have waited for at least `timeout` at `time`, by the watchdog's clock. The
    /// watchdog asks repeatedly; a wait counts from the first time that it was asked about.
    pub fn late(&self, time: Duration, timeout: Duration) -> Option<CommError> {
        self.world.late(time, timeout)
    }

    /// Puts all ranks to work, each on a thread of its own. No rank may be at work when this is called.
    pub fn begin(&self) -> Vec<AtWork> {
        self.world.begin();
        (0..self.records.len() as u64).map(|rank| AtWork::new(self.world.clone(), rank)).collect()
    }
}

impl Communicator for LocalRank {
    fn rank(&self) -> u64 {
        self.rank
    }

    fn collective(
        &self,
        kind: CollectiveKind,
        group: &[u64],
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError> {
        let terms = Terms::of(kind, group, tensors);
        match kind {
            CollectiveKind::AllReduce(kind) => self.all_reduce(group, terms, kind, tensors),
            CollectiveKind::ReduceScatter(kind) => self.reduce_scatter(group, terms, kind, tensors),
            CollectiveKind::AllGather | CollectiveKind::AllToAll => self.put_together(group, terms, tensors),
        }
    }

    fn send(&self, to: u64, channel: u32, bytes: &[u8]) -> Result<(), CommError> {
        self.world.post(Route { from: self.rank, to, channel }, bytes)
    }

    fn receive(&self, from: u64, channel: u32, bytes: &mut [u8]) -> Result<(), CommError> {
        self.world.take(Route { from, to: self.rank, channel }, bytes)
    }
}

impl LocalRank {
    /// Returns this rank's place in a group. The meeting refuses a rank outside the group.
    fn place(&self, group: &[u64]) -> usize {
        group.iter().position(|&member| member == self.rank).unwrap_or(0)
    }

    fn all_reduce(
        &self,
        group: &[u64],
        terms: Terms,
        kind: PartialKind,
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError> {
        if tensors.iter().map(|tensor| tensor.result.len()).sum::<usize>() > SMALL {
            return self.by_shares(group, terms, kind, tensors);
        }
        // Others read the operand while the result is written. If the two share one place, they read a copy.
        let held: Vec<Aligned> = tensors.iter().map(Exchanged::held).collect();
        let operands = tensors.iter().zip(&held).map(|(tensor, held)| tensor.operand.unwrap_or(held.bytes()));
        let (operands, order) = (operands.collect::<Vec<_>>(), by_rank(group));
        self.world.meet(self.rank, group, terms, &operands, |inside| {
            for (i, tensor) in tensors.iter_mut().enumerate() {
                let parts = in_order(&inside.lent(i), &order);
                combine(tensor.dtype, kind, &parts, tensor.result, Stores::Cached);
            }
        })
    }

    fn reduce_scatter(
        &self,
        group: &[u64],
        terms: Terms,
        kind: PartialKind,
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError> {
        let shapes: Vec<Shape> = tensors.iter().map(|tensor| Shape::of(tensor, group.len())).collect();
        let operands: Vec<&[u8]> = tensors.iter().map(Exchanged::operand).collect();
        let stores = Stores::of(tensors.iter().map(|tensor| tensor.result.len()).sum());
        let order = by_rank(group);
        self.world.meet(self.rank, group, terms, &operands, |inside| {
            for (i, tensor) in tensors.iter_mut().enumerate() {
                let (shape, dtype, width) = (&shapes[i], tensor.dtype, tensor.dtype.bytes() as usize);
                let parts = in_order(&inside.lent(i), &order);
                let (mine, all) = (shape.share(inside.place()), Block::all(&shape.part));
                block::for_runs(&shape.part, [&mine, &all], |[from, to], len| {
                    let runs: Vec<Addend> = parts
                        .iter()
                        .map(|part| part.map(|part| &part[from * width..][..len * width]))
                        .collect();
                    combine(dtype, kind, &runs, &mut tensor.result[to * width..][..len * width], stores);
                });
            }
        })
    }

    /// Runs an `all_reduce` in two meetings: every rank combines its share, and then copies the shares of the others from them. In the
    /// first meeting a rank lends everything but its share, which it writes. In the second it lends its share, and writes everything else.
    /// So each result may lie in the place of its operand.
    fn by_shares(
        &self,
        group: &[u64],
        terms: Terms,
        kind: PartialKind,
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError> {
        let (place, order) = (self.place(group), by_rank(group));
        let stores = Stores::of(tensors.iter().map(|tensor| tensor.result.len()).sum());
        let (mut own, mut others) = (vec![], vec![]);
        for tensor in &mut *tensors {
            let shares = Shares::of(tensor, group.len());
            let (before, rest) = tensor.result.split_at_mut(shares.at(place).start);
            let (result, after) = rest.split_at_mut(shares.at(place).len());
            own.push((shares, tensor.operand, result));
            others.push([before, after]);
        }
        let lent =
            own.iter().zip(&others).flat_map(|((shares, operand, _), [before, after])| match operand {
                Some(operand) => [&operand[..shares.at(place).start], &operand[shares.at(place).end..]],
                None => [&**before, &**after],
            });
        let lent: Vec<&[u8]> = lent.collect();
        self.world.meet(self.rank, group, terms.clone(), &lent, |inside| {
            for (i, (shares, operand, result)) in own.iter_mut().enumerate() {
                let [before, after] = [inside.lent(2 * i), inside.lent(2 * i + 1)];
                let part = |&from: &usize| match from.cmp(&place) {
                    Ordering::Less => Some(&after[from][shares.behind(from, place)]),
                    Ordering::Equal => operand.map(|operand| &operand[shares.at(place)]),
                    Ordering::Greater => Some(&before[from][shares.at(place)]),
                };
                let parts: Vec<Addend> = order.iter().map(part).collect();
                combine(shares.dtype, kind, &parts, result, stores);
            }
        })?;
        let lent: Vec<&[u8]> = own.iter().map(|(_, _, result)| &**result).collect();
        self.world.meet(self.rank, group, terms, &lent, |inside| {
            for (i, [before, after]) in others.into_iter().enumerate() {
                let shares = own[i].0;
                for (from, part) in inside.lent(i).into_iter().enumerate() {
                    match from.cmp(&place) {
                        Ordering::Less => stores.copy(part, &mut before[shares.at(from)]),
                        Ordering::Equal => {}
                        Ordering::Greater => stores.copy(part, &mut after[shares.behind(place, from)]),
                    }
                }
            }
        })
    }

    /// Concatenates the parts of all ranks, or this rank's share of each part.
    fn put_together(&self, group: &[u64], terms: Terms, tensors: &mut [Exchanged]) -> Result<(), CommError> {
        let count = group.len();
        let place = self.place(group);
        let (mut shapes, mut operands, mut rooms) = (vec![], vec![], vec![]);
        for tensor in tensors {
            shapes.push((Shape::of(tensor, count), tensor.dtype.bytes() as usize));
            let (operand, room) = match tensor.operand {
                Some(operand) => (operand, Destination::Whole(tensor.result)),
                None => {
                    let mut parts = in_parts(tensor.result, count);
                    (&*parts.remove(place), Destination::Others(parts))
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
                    Destination::Whole(result) => {
                        let (shape, width) = &shapes[i];
                        let mine = shape.share(place);
                        for (from, part) in lent.into_iter().enumerate() {
                            let target = (&mut *result, &shape.place(from, count));
                            block::copy(&shape.part, *width, (part, &mine), target);
                        }
                    }
                    Destination::Others(parts) => {
                        lent.remove(place);
                        parts.into_iter().zip(lent).for_each(|(to, from)| stores.copy(from, to));
                    }
                }
            }
        })
    }
}

/// The places into which the parts of a gather are copied.
enum Destination<'a> {
    /// The whole result.
    Whole(&'a mut [u8]),
    /// The parts of the other ranks, by place. This rank's part already lies in its place.
    Others(Vec<&'a mut [u8]>),
}

/// If all tensors together have fewer bytes than this, every rank combines everything by itself, because a second meeting would take
/// longer. The bits are the same.
const SMALL: usize = 1 << 14;

/// Returns the parts in the order of ranks.
fn in_order<'a>(parts: &[&'a [u8]], order: &[usize]) -> Vec<Addend<'a>> {
    order.iter().map(|&place| Some(parts[place])).collect()
}
