//! Collectives between ranks, and each rank's own part of a tensor that all ranks have.
//!
//! NCCL takes contiguous pieces, one for each rank, one after the other. A tensor that is cut along another dim than its first is
//! copied to scratch before the collective, or from scratch after it.

use super::copy::moved;
use super::shape::copied;
use super::source::{KernelDraft, address};
use super::{Step, Unplaced, missing};
use crate::program::{Argument, ByRank, Collective, CutDim, Pieces, ValueStart};
use ir::{DType, Diagnostic};
use program::layout::Layout;
use program::{Exchange, Instruction, LocalPart, Moved, View};
use smallvec::SmallVec;

/// Returns a copy of the rank's part of a tensor that every rank has. The part begins at another place on each rank.
pub(super) fn part(part: &LocalPart, instruction: &Instruction) -> KernelDraft {
    let (from, to) = (&instruction.operands[0], &instruction.results[0]);
    let Argument::Address(region, first) = address(from) else { unreachable!("an address") };
    let (mut layout, mut cuts) = (from.layout.clone(), SmallVec::new());
    for (dim, axes) in &part.dims {
        let (whole, part) = (layout.sizes[*dim], to.layout.sizes[*dim]);
        let step = layout.strides[*dim] as i64 * from.dtype.bytes() as i64;
        cuts.push(CutDim { axes: axes.clone(), part: part as u64, whole: whole as u64, step });
        layout.sizes[*dim] = part;
    }
    moved(instruction, &layout, Argument::AddressByRank(region, Box::new(ByRank { first, cuts })))
}

/// Returns the copies to scratch, the collective, and the copies from scratch. Tensors that lie in contiguous pieces need no copies.
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
        let mut pieces =
            Pieces { dtype: from.dtype, count, from: ValueStart::of(from), to: ValueStart::of(to) };
        let views = |view: &View, copy: Copy| {
            let scratch = scratch.as_ref().expect("`scratch` has asked for it");
            let layout = Layout::dense(&copy.layout.sizes);
            let own = View::whole(scratch.region, scratch.base + copy.room, view.dtype, layout);
            (View { layout: copy.layout, ..view.clone() }, own)
        };
        if let Some(copy) = way.sent {
            let (view, own) = views(from, copy);
            before.push(Step::Kernel(copied("pack", &view, &own)));
            pieces.from = ValueStart::of(&own);
        }
        if let Some(copy) = way.received {
            let (view, own) = views(to, copy);
            after.push(Step::Kernel(copied("unpack", &own, &view)));
            pieces.to = ValueStart::of(&own);
        }
        tensors.push(pieces);
    }
    let Exchange { collective: kind, axes, reduced, .. } = exchange;
    let collective = Collective { kind: *kind, axes: axes.clone(), reduced: *reduced, tensors };
    Ok(before.into_iter().chain([Step::Collective(collective)]).chain(after).collect())
}

/// Refuses reductions of 16-bit integers, which NCCL does not have.
fn combines(exchange: &Exchange, dtype: DType) -> Result<(), Diagnostic> {
    match (exchange.reduced, dtype) {
        (Some(_), DType::I16 | DType::U16) => Err(missing(&format!("a reduction of {dtype} over GPUs"))),
        _ => Ok(()),
    }
}

/// The number of pieces of a tensor in an exchange, and its copies in scratch, piece by piece.
struct PieceCopies {
    /// The number of pieces of a dim that is cut or gathered.
    ranks: usize,
    /// The copy before the tensor is sent, unless its pieces are contiguous.
    sent: Option<Copy>,
    /// The copy after the tensor is received, unless its pieces are contiguous.
    received: Option<Copy>,
}

/// A tensor that is copied from or to scratch.
struct Copy {
    /// The tensor's layout, piece by piece.
    layout: Layout,
    /// The start of the copy in scratch, in bytes.
    room: u64,
}

/// Returns the copies of each tensor, and the bytes of scratch that they take.
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

/// Returns the number of ranks between which a dim of a tensor is cut or gathered; 1 if no dim is.
fn ranks(moved: &Moved, from: &Layout, to: &Layout) -> usize {
    let parts = |whole: &Layout, part: &Layout, dim: usize| whole.sizes[dim].checked_div(part.sizes[dim]);
    let cut = moved.split.and_then(|dim| parts(from, to, dim));
    cut.or_else(|| moved.gathered.and_then(|dim| parts(to, from, dim))).unwrap_or(1).max(1)
}

/// Returns a layout with the pieces of a dim as a new first dim.
fn by_piece(layout: &Layout, dim: usize, pieces: usize) -> Layout {
    let mut own = layout.clone();
    own.sizes[dim] /= pieces;
    let between = own.sizes[dim] as isize * own.strides[dim];
    own.sizes.insert(0, pieces);
    own.strides.insert(0, between);
    own
}

/// Returns the f32 numbers of scratch that the kernels take.
pub(crate) fn scratch(exchange: &Exchange, operands: &[Unplaced], results: &[Unplaced]) -> usize {
    let lie = operands.iter().zip(results).map(|(from, to)| (from.dtype, [&from.layout, &to.layout]));
    ways(exchange, lie).1.div_ceil(4) as usize
}
