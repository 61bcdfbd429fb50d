//! What ranks exchange, and the part that each keeps of what all have.
//!
//! NCCL takes what lies in pieces, one for each rank, one after the other. A tensor that is cut along another dim than its
//! first is copied to scratch before, or from there after.

use super::copy::moved;
use super::shape::copied;
use super::source::{KernelDraft, address};
use super::{Step, Unplaced, missing};
use crate::cuda::program::{Argument, ByRank, Collective, Cut, Pieces, Start};
use crate::layout::Layout;
use crate::program::{Exchange, Instruction, LocalPart, Moved, View};
use ir::{DType, Diagnostic};
use smallvec::SmallVec;

/// The rank's part of what every rank has: a copy from another place on each.
pub(super) fn part(part: &LocalPart, instruction: &Instruction) -> KernelDraft {
    let (from, to) = (&instruction.operands[0], &instruction.results[0]);
    let Argument::Address(region, first) = address(from) else { unreachable!("an address") };
    let (mut layout, mut cuts) = (from.layout.clone(), SmallVec::new());
    for (dim, axes) in &part.dims {
        let (whole, part) = (layout.sizes[*dim], to.layout.sizes[*dim]);
        let step = layout.strides[*dim] as i64 * from.dtype.bytes() as i64;
        cuts.push(Cut { axes: axes.clone(), part: part as u64, whole: whole as u64, step });
        layout.sizes[*dim] = part;
    }
    moved(instruction, &layout, Argument::AddressByRank(region, Box::new(ByRank { first, cuts })))
}

/// Copies to scratch, the exchange, copies from there; of tensors that lie as they should the exchange alone.
pub(super) fn steps(exchange: &Exchange, instruction: &Instruction) -> Result<Vec<Step>, Diagnostic> {
    let Instruction { operands, results, scratch, .. } = instruction;
    let (mut before, mut after, mut tensors) = (vec![], vec![], vec![]);
    let lie = operands.iter().zip(results).map(|(from, to)| (from.dtype, [&from.layout, &to.layout]));
    for (index, way) in ways(exchange, lie).0.into_iter().enumerate() {
        let (from, to) = (&operands[index], &results[index]);
        let count = from.layout.len() / if exchange.dims[index].split.is_some() { way.ranks } else { 1 };
        if count == 0 {
            continue;
        }
        combines(exchange, from.dtype)?;
        let mut pieces = Pieces { dtype: from.dtype, count, from: Start::of(from), to: Start::of(to) };
        let views = |view: &View, copy: Copy| {
            let scratch = scratch.as_ref().expect("`scratch` has asked for it");
            let layout = Layout::dense(&copy.layout.sizes);
            let own = View::whole(scratch.region, scratch.base + copy.room, view.dtype, layout);
            (View { layout: copy.layout, ..view.clone() }, own)
        };
        if let Some(copy) = way.sent {
            let (view, own) = views(from, copy);
            before.push(Step::Kernel(copied("pack", &view, &own)));
            pieces.from = Start::of(&own);
        }
        if let Some(copy) = way.received {
            let (view, own) = views(to, copy);
            after.push(Step::Kernel(copied("unpack", &own, &view)));
            pieces.to = Start::of(&own);
        }
        tensors.push(pieces);
    }
    let Exchange { collective: kind, axes, reduced, .. } = exchange;
    let collective = Collective { kind: *kind, axes: axes.clone(), reduced: *reduced, tensors };
    Ok(before.into_iter().chain([Step::Collective(collective)]).chain(after).collect())
}

/// NCCL has no integers of 16 bits.
fn combines(exchange: &Exchange, dtype: DType) -> Result<(), Diagnostic> {
    match (exchange.reduced, dtype) {
        (Some(_), DType::I16 | DType::U16) => Err(missing(&format!("a reduction of {dtype} over GPUs"))),
        _ => Ok(()),
    }
}

/// The number of pieces of a tensor in an exchange, and its copies in scratch, piece by piece.
struct PieceCopies {
    /// Pieces of what is cut, or put together.
    ranks: usize,
    /// How it is laid out before it is sent, unless it is.
    sent: Option<Copy>,
    /// How it is laid out after it was received, unless it is.
    received: Option<Copy>,
}

/// A tensor that is copied from or to scratch.
struct Copy {
    /// It, piece by piece.
    layout: Layout,
    /// Where that is in scratch, in bytes.
    room: u64,
}

/// The way of each tensor, and the bytes of scratch that this takes.
fn ways<'a>(
    exchange: &Exchange,
    tensors: impl Iterator<Item = (DType, [&'a Layout; 2])>,
) -> (Vec<PieceCopies>, u64) {
    let mut end = 0;
    let way = |(moved, (dtype, [from, to])): (&Moved, (DType, [&Layout; 2]))| {
        let ranks = ranks(moved, from, to);
        let mut copy = |dim: Option<usize>, layout: &Layout| {
            let (layout, room) = (by_piece(layout, dim?, ranks), end);
            if layout.is_dense() {
                return None;
            }
            end += (layout.len() as u64 * dtype.bytes()).next_multiple_of(256);
            Some(Copy { layout, room })
        };
        let (sent, received) = (copy(moved.split, from), copy(moved.gathered, to));
        PieceCopies { ranks, sent, received }
    };
    let ways = exchange.dims.iter().zip(tensors).map(way).collect();
    (ways, end)
}

/// How many ranks a tensor goes over, if a dim of it is cut or put together.
fn ranks(moved: &Moved, from: &Layout, to: &Layout) -> usize {
    let parts = |whole: &Layout, part: &Layout, dim: usize| whole.sizes[dim].checked_div(part.sizes[dim]);
    let cut = moved.split.and_then(|dim| parts(from, to, dim));
    cut.or_else(|| moved.gathered.and_then(|dim| parts(to, from, dim))).unwrap_or(1).max(1)
}

/// A layout with the pieces of a dim as a dim before all others.
fn by_piece(layout: &Layout, dim: usize, pieces: usize) -> Layout {
    let mut own = layout.clone();
    own.sizes[dim] /= pieces;
    let between = own.sizes[dim] as isize * own.strides[dim];
    own.sizes.insert(0, pieces);
    own.strides.insert(0, between);
    own
}

/// The f32 numbers of scratch that the kernels take.
pub(in crate::cuda) fn scratch(exchange: &Exchange, operands: &[Unplaced], results: &[Unplaced]) -> usize {
    let lie = operands.iter().zip(results).map(|(from, to)| (from.dtype, [&from.layout, &to.layout]));
    ways(exchange, lie).1.div_ceil(4) as usize
}
