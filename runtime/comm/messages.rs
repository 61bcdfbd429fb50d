//! Collectives over messages between ranks, for ranks that share no memory.
//!
//! A transport implements [`Messages`]. [`ByMessages`] makes a [`Communicator`] from it: ranks exchange the pieces of their tensors and
//! combine them in the order of ranks. So a mesh has the same bits as ranks that are threads.

use super::block::{self, Block};
use super::combine::{Addend, combine};
use super::pieces::{Shape, Shares, by_rank, in_parts};
use super::stores::Stores;
use super::{CollectiveKind, CommError, Communicator, Exchanged, Terms};
use ir::{DType, PartialKind};
use twox_hash::XxHash3_64;

/// The receiver of a message, and its bytes.
pub type Sent<'a> = (u64, &'a [u8]);
/// The sender of a message, and room for its bytes.
pub type Received<'a> = (u64, &'a mut [u8]);

/// A transport of messages between ranks. Messages from one rank to another arrive in the order in which they were sent.
pub trait Messages: Send + Sync {
    /// Returns the number of this rank.
    fn rank(&self) -> u64;

    /// Sends and receives all messages at once, and returns when all are done. A message that arrives has the length of its room.
    ///
    /// # Errors
    /// A rank failed, or did not send in time.
    fn exchange(&self, sent: &[Sent<'_>], received: Vec<Received<'_>>) -> Result<(), CommError>;

    /// Sends a copy of a message on a channel, and returns before it is received. Messages of one channel between two ranks keep their
    /// order, and do not mix with messages of [`Messages::exchange`].
    ///
    /// # Errors
    /// A rank failed; the transport has no separate channel with this number.
    fn post(&self, to: u64, channel: u32, bytes: &[u8]) -> Result<(), CommError>;

    /// Waits for a message on a channel. Returns its length, which is at most that of the room.
    ///
    /// # Errors
    /// A message that is longer than its room; a rank failed, or did not send in time.
    fn take(&self, from: u64, channel: u32, room: &mut [u8]) -> Result<usize, CommError>;
}

/// The collectives of ranks that exchange messages.
pub struct ByMessages<M>(pub M);

/// If all tensors together have fewer bytes than this, every rank sends everything to all ranks, because a second round of messages would
/// take longer. The bits are the same.
const SMALL: usize = 1 << 14;

/// The bytes of memory into which a reduction receives pieces of the other ranks, one after the other. So a large tensor takes no more
/// memory than a small one.
const ROOM: usize = if cfg!(test) { 1 << 10 } else { 8 << 20 };

/// The alignment of pieces in bytes, so that they hold whole elements of any type.
const ALIGNED: usize = size_of::<u64>();

impl<M: Messages> Communicator for ByMessages<M> {
    fn rank(&self) -> u64 {
        self.0.rank()
    }

    fn collective(
        &self,
        kind: CollectiveKind,
        group: &[u64],
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError> {
        self.agree(group, &Terms::of(kind, group, tensors))?;
        match kind {
            CollectiveKind::AllReduce(kind) => self.all_reduce(group, kind, tensors),
            CollectiveKind::ReduceScatter(kind) => self.reduce_scatter(group, kind, tensors),
            CollectiveKind::AllGather | CollectiveKind::AllToAll => self.put_together(group, tensors),
        }
    }

    fn send(&self, to: u64, channel: u32, bytes: &[u8]) -> Result<(), CommError> {
        self.0.post(to, channel, bytes)
    }

    fn receive(&self, from: u64, channel: u32, bytes: &mut [u8]) -> Result<(), CommError> {
        let length = self.0.take(from, channel, bytes)?;
        if length == bytes.len() {
            return Ok(());
        }
        let told = |length| Terms::of_message(from, self.rank(), length).to_string();
        let (first, second) = ((from, told(length)), (self.rank(), told(bytes.len())));
        Err(CommError::Different { first, second })
    }
}

impl<M: Messages> ByMessages<M> {
    /// Returns the place of this rank in a group.
    fn place(&self, group: &[u64]) -> Result<usize, CommError> {
        let rank = self.rank();
        let outside = || CommError::Outside { rank, group: group.to_vec() };
        group.iter().position(|&member| member == rank).ok_or_else(outside)
    }

    /// Returns the other ranks of a group, in its order.
    fn others<'g>(&self, group: &'g [u64]) -> impl Iterator<Item = u64> + use<'g, M> {
        let rank = self.rank();
        group.iter().copied().filter(move |&member| member != rank)
    }

    /// Returns a message to each other rank of a group. `bytes` gives the bytes for a place in the group.
    fn to_others<'b>(&self, group: &[u64], bytes: impl Fn(usize) -> &'b [u8]) -> Vec<Sent<'b>> {
        let rank = self.rank();
        let others = group.iter().enumerate().filter(|(_, member)| **member != rank);
        others.map(|(place, &member)| (member, bytes(place))).collect()
    }

    /// Exchanges all messages that are not empty.
    fn swap(&self, mut sent: Vec<Sent<'_>>, mut received: Vec<Received<'_>>) -> Result<(), CommError> {
        sent.retain(|(_, bytes)| !bytes.is_empty());
        received.retain(|(_, room)| !room.is_empty());
        self.0.exchange(&sent, received)
    }

    /// Returns an error unless all ranks of the group issued the same collective.
    fn agree(&self, group: &[u64], terms: &Terms) -> Result<(), CommError> {
        self.place(group)?;
        let own = Header::of(terms);
        let others: Vec<u64> = self.others(group).collect();
        let mut headers = vec![[0; HEADER]; others.len()];
        let room = others.iter().copied().zip(headers.iter_mut().map(|header| &mut header[..])).collect();
        self.0.exchange(&self.to_others(group, |_| &own.0), room)?;
        others
            .into_iter()
            .zip(headers)
            .try_for_each(|(other, header)| self.compare(&own, other, Header(header)))
    }

    /// Returns an error if another rank's header differs from this rank's.
    fn compare(&self, own: &Header, other: u64, header: Header) -> Result<(), CommError> {
        if own.0 == header.0 {
            return Ok(());
        }
        let mut issued = [(self.rank(), own.text()), (other, header.text())];
        issued.sort();
        let [first, second] = issued;
        Err(CommError::Different { first, second })
    }

    /// Combines the pieces that the ranks of a group have for this rank into `result`. `pieces` has this rank's pieces, one for each rank;
    /// its piece for itself may lie in the place of the result.
    fn reduce(
        &self,
        group: &[u64],
        dtype: DType,
        kind: PartialKind,
        pieces: &[Addend],
        result: &mut [u8],
    ) -> Result<(), CommError> {
        let (place, order) = (self.place(group)?, by_rank(group));
        let most = (ROOM / group.len()).next_multiple_of(ALIGNED);
        let longest = pieces.iter().flatten().map(|piece| piece.len()).max().unwrap_or(0).max(result.len());
        let mut received = Aligned::new(most.min(longest.next_multiple_of(ALIGNED)) * (group.len() - 1));
        for begin in (0..longest).step_by(most) {
            let within = |length: usize| begin.min(length)..(begin + most).min(length);
            let own = within(result.len());
            let width = own.len().next_multiple_of(ALIGNED).max(ALIGNED);
            let room = received.bytes_mut().chunks_exact_mut(width).map(|room| &mut room[..own.len()]);
            let room = self.others(group).zip(room).collect();
            let sent = |to: usize| pieces[to].map_or(&[][..], |piece| &piece[within(piece.len())]);
            self.swap(self.to_others(group, sent), room)?;
            let others = received.bytes().chunks_exact(width).map(|piece| &piece[..own.len()]);
            let mut all: Vec<Addend> = others.take(group.len() - 1).map(Some).collect();
            all.insert(place, pieces[place].map(|piece| &piece[own.clone()]));
            let in_order: Vec<Addend> = order.iter().map(|&place| all[place]).collect();
            combine(dtype, kind, &in_order, &mut result[own], Stores::Cached);
        }
        Ok(())
    }

    fn all_reduce(
        &self,
        group: &[u64],
        kind: PartialKind,
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError> {
        if tensors.iter().map(|tensor| tensor.result.len()).sum::<usize>() <= SMALL {
            return tensors.iter_mut().try_for_each(|tensor| {
                let held = tensor.held();
                let pieces = vec![Some(tensor.operand.unwrap_or(held.bytes())); group.len()];
                self.reduce(group, tensor.dtype, kind, &pieces, tensor.result)
            });
        }
        let place = self.place(group)?;
        for tensor in tensors {
            let shares = Shares::of(tensor, group.len());
            let (mut own, mut others, mut rest) = (Default::default(), vec![], &mut *tensor.result);
            for at in 0..group.len() {
                let (share, after) = rest.split_at_mut(shares.at(at).len());
                if at == place {
                    own = share;
                } else {
                    others.push(share);
                }
                rest = after;
            }
            let mut in_place = others.iter();
            let piece = |at: usize| match tensor.operand {
                Some(operand) => Some(&operand[shares.at(at)]),
                None if at == place => None,
                None => in_place.next().map(|share| &**share),
            };
            let pieces: Vec<Addend> = (0..group.len()).map(piece).collect();
            self.reduce(group, tensor.dtype, kind, &pieces, own)?;
            let own = &*own;
            self.swap(self.to_others(group, |_| own), self.others(group).zip(others).collect())?;
        }
        Ok(())
    }

    fn reduce_scatter(
        &self,
        group: &[u64],
        kind: PartialKind,
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError> {
        for tensor in tensors {
            let shape = Shape::of(tensor, group.len());
            let pieces: Vec<Piece> = (0..group.len()).map(|to| piece(tensor, &shape, to)).collect();
            let pieces: Vec<Addend> = pieces.iter().map(|piece| Some(piece.bytes())).collect();
            self.reduce(group, tensor.dtype, kind, &pieces, tensor.result)?;
        }
        Ok(())
    }

    /// Concatenates the parts of all ranks, or this rank's share of each part.
    fn put_together(&self, group: &[u64], tensors: &mut [Exchanged]) -> Result<(), CommError> {
        let (place, count) = (self.place(group)?, group.len());
        for tensor in tensors {
            let shape = Shape::of(tensor, count);
            if tensor.operand.is_none() {
                let mut room = in_parts(tensor.result, count);
                let own = &*room.remove(place);
                self.swap(self.to_others(group, |_| own), self.others(group).zip(room).collect())?;
                continue;
            }
            let pieces: Vec<Piece> = (0..count).map(|to| piece(tensor, &shape, to)).collect();
            let sent = self.to_others(group, |to| pieces[to].bytes());
            let length = pieces[place].bytes().len();
            if length == 0 {
                continue;
            }
            if is_contiguous(&shape.part, &shape.place(0, count)) {
                let mut room: Vec<&mut [u8]> = tensor.result.chunks_exact_mut(length).collect();
                room.remove(place).copy_from_slice(pieces[place].bytes());
                self.swap(sent, self.others(group).zip(room).collect())?;
                continue;
            }
            let mut received = vec![0; length * (count - 1)];
            self.swap(sent, self.others(group).zip(received.chunks_exact_mut(length)).collect())?;
            let mut all: Vec<&[u8]> = received.chunks_exact(length).collect();
            all.insert(place, pieces[place].bytes());
            let (width, source) = (tensor.dtype.bytes() as usize, Block::all(&shape.part));
            for (from, bytes) in all.into_iter().enumerate() {
                let target = (&mut *tensor.result, &shape.place(from, count));
                block::copy(&shape.part, width, (bytes, &source), target);
            }
        }
        Ok(())
    }
}

/// A piece of a tensor: its bytes in place, or a copy if it is not contiguous.
enum Piece<'a> {
    Run(&'a [u8]),
    Copy(Aligned),
}

/// Bytes that are aligned for every element type.
pub(super) struct Aligned {
    words: Vec<u64>,
    length: usize,
}

impl Aligned {
    pub(super) fn new(length: usize) -> Self {
        Self { words: vec![0; length.div_ceil(size_of::<u64>())], length }
    }

    /// Returns an aligned copy of bytes.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut copy = Self::new(bytes.len());
        copy.bytes_mut().copy_from_slice(bytes);
        copy
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.length]
    }
}

impl Piece<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Run(bytes) => bytes,
            Self::Copy(copy) => copy.bytes(),
        }
    }
}

/// Returns the piece of this rank's tensor for a place of the group.
fn piece<'a>(tensor: &Exchanged<'a>, shape: &Shape, place: usize) -> Piece<'a> {
    let (width, share) = (tensor.dtype.bytes() as usize, shape.share(place));
    let length = shape.part.iter().product::<usize>() * width;
    if is_contiguous(&shape.part, &share) {
        let mut start = 0;
        block::for_runs(&shape.part, [&share], |[run], _| start = run * width);
        return Piece::Run(&tensor.operand()[start..][..length]);
    }
    let mut copy = Aligned::new(length);
    block::copy(&shape.part, width, (tensor.operand(), &share), (copy.bytes_mut(), &Block::all(&shape.part)));
    Piece::Copy(copy)
}

/// Returns whether a block of these sizes is contiguous.
fn is_contiguous(sizes: &[usize], block: &Block) -> bool {
    let mut runs = 0;
    block::for_runs(sizes, [block], |_, _| runs += 1);
    runs <= 1
}

/// The number of bytes of a header.
const HEADER: usize = 256;

/// The terms of a collective as a message: a checksum of their text, and as much of the text as fits.
struct Header([u8; HEADER]);

impl Header {
    fn of(terms: &Terms) -> Self {
        let text = terms.to_string();
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&XxHash3_64::oneshot(text.as_bytes()).to_le_bytes());
        let shown = text.len().min(HEADER - 8);
        header[8..8 + shown].copy_from_slice(&text.as_bytes()[..shown]);
        Self(header)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0[8..]).trim_end_matches('\0').to_owned()
    }
}

#[cfg(test)]
mod tests;
