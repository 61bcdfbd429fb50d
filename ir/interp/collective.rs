//! Collectives between simulated ranks.

use super::ranks::{ByRank, Ranks};
use crate::ops::collective::Change;
use crate::ops::elementwise::{Binary, wrap};
use crate::tensor::Elements;
use crate::{PartialKind, Tensor, block};
use std::sync::Arc;

/// The combined parts of a group of ranks, before each rank takes its share.
struct Combined {
    /// The parts, by address. Groups along the other axes that share the same parts share the result.
    of: Vec<*const Tensor>,
    /// The sum of the parts, their concatenation, or the only part.
    whole: Arc<Tensor>,
    /// The shares of `whole`, by the place in the group.
    shares: Vec<Option<Arc<Tensor>>>,
}

/// Runs a collective on one operand, and returns each rank's part of the result. Parts are summed in the order of the group, and
/// sums are passed through `round`.
pub(super) fn run(
    ranks: &Ranks,
    change: &Change,
    parts: &ByRank,
    round: impl Fn(Tensor) -> Tensor,
) -> ByRank {
    let alone = change.reduced.is_none() && change.gathered.is_none();
    let count = ranks.mesh.size(&change.axes) as usize;
    let mut combined: Vec<Combined> = Vec::new();
    let mut result = ByRank::new();
    for (rank, own) in parts.iter().enumerate() {
        let group = ranks.mesh.group(rank as u64, &change.axes);
        let members: Vec<&Arc<Tensor>> =
            if alone { vec![own] } else { group.iter().map(|&rank| &parts[rank as usize]).collect() };
        let of: Vec<*const Tensor> = members.iter().map(|member| Arc::as_ptr(member)).collect();
        let known = combined.iter().position(|combined| combined.of == of).unwrap_or_else(|| {
            let whole = combine(change, &members, &round);
            combined.push(Combined { of, whole, shares: vec![None; count] });
            combined.len() - 1
        });
        let Combined { whole, shares, .. } = &mut combined[known];
        let place = ranks.mesh.place(rank as u64, &change.axes) as usize;
        result.push(match change.split {
            None => whole.clone(),
            Some(dim) => shares[place].get_or_insert_with(|| share(whole, dim, place, count)).clone(),
        });
    }
    result
}

/// Combines the members' parts into one tensor: a reduction, a concatenation, or a copy.
fn combine(change: &Change, members: &[&Arc<Tensor>], round: impl Fn(Tensor) -> Tensor) -> Arc<Tensor> {
    match (change.reduced, change.gathered) {
        (Some(kind), _) => {
            let mut total = members[0].as_ref().clone();
            members[1..].iter().for_each(|member| add(kind, &mut total, member));
            Arc::new(round(total))
        }
        (None, Some(dim)) => {
            let mut sizes = members[0].sizes.clone();
            let mut start = vec![0; sizes.len()];
            let step = sizes[dim];
            sizes[dim] = step * members.len();
            let mut whole = Tensor::splat(members[0].dtype, sizes, 0.0);
            for member in members {
                block::write(&mut whole, &start, member);
                start[dim] += step;
            }
            Arc::new(whole)
        }
        (None, None) => members[0].clone(),
    }
}

/// Returns the share of a place in the group: one of `count` equal parts along a dim.
fn share(whole: &Tensor, dim: usize, place: usize, count: usize) -> Arc<Tensor> {
    let (mut sizes, mut start) = (whole.sizes.clone(), vec![0; whole.sizes.len()]);
    sizes[dim] /= count;
    start[dim] = place * sizes[dim];
    Arc::new(block::read(whole, &start, &sizes))
}

/// Adds a part to the total, or takes the maximum or minimum, element by element.
fn add(kind: PartialKind, total: &mut Tensor, part: &Tensor) {
    let op = match kind {
        PartialKind::Sum => Binary::Add,
        PartialKind::Max => Binary::Max,
        PartialKind::Min => Binary::Min,
    };
    match (&mut total.elements, &part.elements) {
        (Elements::Float(total), Elements::Float(elements)) => {
            total.iter_mut().zip(elements).for_each(|(x, y)| *x = op.scalar(*x, *y))
        }
        (Elements::Int(total), Elements::Int(elements)) => {
            total.iter_mut().zip(elements).for_each(|(x, y)| *x = wrap(part.dtype, op.integer(*x, *y)))
        }
        _ => unreachable!("a partial value is of numbers"),
    }
}
