//! Buffers with lifetimes in one arena: their places, the bound that no plan can beat, and the proof that none overlap.

use super::search::search;
use crate::analysis::Lifetime;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// The divisor of every offset: the bytes of a cache line, and of the widest vector register.
pub const ALIGNMENT: u64 = 64;

/// A buffer to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The buffer's size.
    pub bytes: u64,
    /// The positions in which the buffer holds data.
    pub lifetime: Lifetime,
}

/// The offsets of all buffers in the arena.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The offset of each buffer, in bytes from the start of the arena.
    pub offsets: Vec<u64>,
    /// The arena's size: the end of the last buffer.
    pub peak: u64,
    /// The largest sum of bytes alive at one position: no plan of these lifetimes is smaller.
    pub lower_bound: u64,
}

/// Two buffers that are alive together and share bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "buffers {first} and {second} are both alive at position {position} and share bytes from offset {offset} of the arena"
)]
pub struct Overlap {
    /// The first buffer.
    pub first: usize,
    /// The second buffer.
    pub second: usize,
    /// A position at which both are alive.
    pub position: u32,
    /// The first byte they share.
    pub offset: u64,
}

/// Returns a size rounded up to the alignment.
pub fn aligned(bytes: u64) -> u64 {
    bytes.saturating_add(ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT
}

/// Places buffers in one arena. The same buffers always get the same plan. The number of comparisons of two buffers is bounded,
/// whatever the number of buffers.
pub fn place(buffers: &[Buffer]) -> Placement {
    let live = live_bytes(buffers);
    let sized: Vec<usize> = (0..buffers.len()).filter(|&index| buffers[index].bytes > 0).collect();
    let rounded = |&index: &usize| Buffer { bytes: aligned(buffers[index].bytes), ..buffers[index] };
    let found = search(&sized.iter().map(rounded).collect::<Vec<_>>(), &live);
    let mut offsets = vec![0; buffers.len()];
    sized.iter().zip(found.offsets).for_each(|(&index, offset)| offsets[index] = offset);
    Placement { offsets, peak: found.peak, lower_bound: live.into_iter().max().unwrap_or(0) }
}

/// Returns the first position with the most bytes alive, each buffer rounded up to the alignment.
pub fn busiest(buffers: &[Buffer]) -> u32 {
    let live = live_bytes(buffers);
    let most = live.iter().max().copied().unwrap_or(0);
    live.iter().position(|&bytes| bytes == most).unwrap_or(0) as u32
}

/// Returns the largest sum of bytes that are alive at one position, each buffer rounded up to the alignment.
pub fn lower_bound(buffers: &[Buffer]) -> u64 {
    live_bytes(buffers).into_iter().max().unwrap_or(0)
}

/// Returns the bytes that are alive at each position, each buffer rounded up to the alignment.
pub(super) fn live_bytes(buffers: &[Buffer]) -> Vec<u64> {
    let end = buffers.iter().map(|buffer| buffer.lifetime.last as usize + 1).max().unwrap_or(0);
    let mut change = vec![0i128; end + 1];
    for buffer in buffers {
        change[buffer.lifetime.first as usize] += i128::from(aligned(buffer.bytes));
        change[buffer.lifetime.last as usize + 1] -= i128::from(aligned(buffer.bytes));
    }
    let mut alive = 0;
    let sums = change.into_iter().take(end).map(|bytes| {
        alive += bytes;
        u64::try_from(alive).unwrap_or(u64::MAX)
    });
    sums.collect()
}

/// Proves that no two buffers that are alive together share a byte, in O(n log n) for n buffers.
pub fn check(buffers: &[Buffer], offsets: &[u64]) -> Result<(), Overlap> {
    let mut by_time: Vec<usize> = (0..buffers.len()).filter(|&i| buffers[i].bytes > 0).collect();
    by_time.sort_by_key(|&i| (buffers[i].lifetime.first, i));
    let end = |i: usize| offsets[i].saturating_add(buffers[i].bytes);
    // The buffers that are alive, by offset. As long as none overlaps, a new buffer can only overlap its neighbours.
    let mut alive: BTreeSet<(u64, usize)> = BTreeSet::new();
    let mut deaths: BinaryHeap<Reverse<(u32, usize)>> = BinaryHeap::new();
    for new in by_time {
        let position = buffers[new].lifetime.first;
        while let Some(&Reverse((_, dead))) = deaths.peek().filter(|Reverse((last, _))| *last < position) {
            alive.remove(&(offsets[dead], dead));
            deaths.pop();
        }
        let place = (offsets[new], new);
        let below = alive.range(..place).next_back().map(|&(_, below)| (below, new));
        let above = alive.range(place..).next().map(|&(_, above)| (new, above));
        for (first, second) in below.into_iter().chain(above) {
            if offsets[second] < end(first) {
                return Err(Overlap { first, second, position, offset: offsets[second] });
            }
        }
        alive.insert(place);
        deaths.push(Reverse((buffers[new].lifetime.last, new)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(bytes: u64, first: u32, last: u32) -> Buffer {
        Buffer { bytes, lifetime: Lifetime { first, last } }
    }

    #[test]
    fn buffers_that_never_meet_share_their_bytes() {
        let buffers = [buffer(100, 0, 1), buffer(100, 2, 3), buffer(100, 1, 2)];
        let placement = place(&buffers);
        check(&buffers, &placement.offsets).unwrap();
        assert_eq!((placement.peak, placement.lower_bound), (256, 256));
    }

    #[test]
    fn a_broken_slot_is_caught() {
        let buffers = [buffer(100, 0, 1), buffer(100, 1, 3), buffer(100, 2, 3)];
        let mut placement = place(&buffers);
        check(&buffers, &placement.offsets).unwrap();
        placement.offsets[1] = placement.offsets[0] + 64;
        let overlap = check(&buffers, &placement.offsets).unwrap_err();
        assert_eq!((overlap.first, overlap.second, overlap.position), (0, 1, 1));
    }

    #[test]
    fn overlaps_are_found_wherever_the_other_buffer_lies() {
        // The last buffer is placed over each of the others, which are all alive with it.
        let buffers = [buffer(64, 0, 3), buffer(64, 1, 3), buffer(64, 2, 2), buffer(64, 2, 3)];
        for (over, pair) in [(0, (0, 3)), (64, (1, 3)), (32, (0, 3)), (96, (1, 3)), (128, (2, 3))] {
            let overlap = check(&buffers, &[0, 64, 128, over]).unwrap_err();
            assert_eq!(
                (overlap.first, overlap.second, overlap.position, overlap.offset),
                (pair.0, pair.1, 2, over)
            );
        }
        assert_eq!(check(&buffers, &[0, 64, 128, 192]), Ok(()));
    }

    #[test]
    fn empty_buffers_take_no_place() {
        let buffers = [buffer(0, 0, 9), buffer(64, 0, 9), buffer(0, 3, 4)];
        assert_eq!(place(&buffers).peak, 64);
        assert_eq!(place(&[]), Placement::default());
    }

    #[test]
    fn the_bound_is_what_is_alive_at_the_fullest_position() {
        let buffers = [buffer(1, 0, 4), buffer(65, 2, 3), buffer(64, 3, 3), buffer(0, 3, 3)];
        assert_eq!(live_bytes(&buffers), [64, 64, 192, 256, 64]);
        assert_eq!(lower_bound(&buffers), 256);
    }
}
