//! The gradient of a tensor that is read in parts, by slices.
//!
//! Each slice gives a gradient of the whole tensor, which is zero outside of the slice's stretch of one dim (`pad`). If these gradients were
//! added one by one, a loop that reads one step of a sequence at a time would take the square of its steps in time and memory. So stretches
//! that do not overlap become one concatenation, with zeros where no slice reads. Stretches that overlap, such as those of a moving window,
//! go to as few concatenations as possible.
//!
//! Three slices `x[0..2]`, `x[2..3]` and `x[1..3]` of 4 elements give `concat(a, b, 0) + pad(c)`.

use ir::ops::Float;
use ir::ops::shape::{Concat, Pad};
use ir::{Builder, Node, Op, Phase, TypeError, ValueId};
use std::ops::Range;

/// A gradient that is zero outside of a stretch of one dim.
struct Part {
    dim: u32,
    stretch: Range<u64>,
    /// The elements of the stretch.
    inside: ValueId,
    /// The gradient with its zeros.
    padded: ValueId,
}

/// Replaces the parts among the addends of a gradient by concatenations. The sum stays the same.
pub(super) fn join(b: &mut Builder, addends: Vec<ValueId>) -> Result<Vec<ValueId>, TypeError> {
    let (mut parts, mut joined) = (Vec::new(), Vec::new());
    for addend in addends {
        match part(b, addend) {
            Some(part) => parts.push(part),
            None => joined.push(addend),
        }
    }
    for row in rows(parts) {
        joined.push(concatenated(b, &row)?);
    }
    Ok(joined)
}

/// Returns the part that an addend is, if it is one.
fn part(b: &Builder, padded: ValueId) -> Option<Part> {
    let Node { op: Op::Pad(pad), operands, phase: Phase::Backward, .. } = b.module().producer(padded)? else {
        return None;
    };
    let length = b.ty(operands[0]).dims[pad.dim as usize].size().filter(|&length| length > 0)?;
    let is_zero = pad.value == Float::new(0.0);
    let stretch = pad.before..pad.before + length;
    is_zero.then(|| Part { dim: pad.dim, stretch, inside: operands[0], padded })
}

/// Divides parts into rows. The parts of a row follow each other along one dim.
fn rows(mut parts: Vec<Part>) -> Vec<Vec<Part>> {
    parts.sort_by_key(|part| (part.dim, part.stretch.start));
    let mut rows: Vec<Vec<Part>> = Vec::new();
    for part in parts {
        let follows = |row: &&mut Vec<Part>| {
            row.last().is_some_and(|last| last.dim == part.dim && last.stretch.end <= part.stretch.start)
        };
        match rows.iter_mut().find(follows) {
            Some(row) => row.push(part),
            None => rows.push(vec![part]),
        }
    }
    rows
}

/// Builds the sum of the parts of a row, which has at least one.
fn concatenated(b: &mut Builder, row: &[Part]) -> Result<ValueId, TypeError> {
    let [first, .., last] = row else { return Ok(row[0].padded) };
    let ty = b.ty(first.padded).clone();
    let (dim, mut end) = (first.dim, first.stretch.start);
    let mut operands = Vec::new();
    for Part { stretch, inside, .. } in row {
        if end < stretch.start {
            let mut gap = ty.clone();
            gap.dims[dim as usize] = (stretch.start - end).into();
            operands.push(b.splat(gap, 0.0)?);
        }
        operands.push(*inside);
        end = stretch.end;
    }
    let whole = b.one(Concat { dim }, &operands)?;
    if first.stretch.start == 0 && ty.dims[dim as usize].size() == Some(last.stretch.end) {
        return Ok(whole);
    }
    b.one_typed(Pad { dim, before: first.stretch.start, value: Float::new(0.0) }, &[whole], ty)
}
