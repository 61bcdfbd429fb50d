//! A plan that is filled from offset 0 upwards, for programs with so many buffers that comparing all pairs takes too long.
//!
//! The skyline is the end of the highest buffer at each position. Its lowest valley takes the first unplaced buffer whose
//! lifetime lies within the valley; if there is none, the valley is raised to its lower neighbour. This is the best-fit
//! heuristic of strip packing (Burke, Kendall, Whitwell: Operations Research 2004) with fixed positions, as Sekiyama et al.
//! use it for networks (arXiv 1804.10001). Buffers with nested lifetimes are placed without gaps.

use super::placement::Buffer;
use super::search::PlacementOrder;
use super::unplaced::Unplaced;
use crate::analysis::Lifetime;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Plans buffers in the priorities of `order`. Returns `None` if the plan is larger than `most`.
pub(super) fn plan(buffers: &[Buffer], order: Vec<usize>, most: u64) -> Option<PlacementOrder> {
    let mut unplaced = Unplaced::of(buffers, &order);
    let mut skyline = Skyline::flat(buffers.iter().map(|buffer| buffer.lifetime.last).max().unwrap_or(0));
    let (mut offsets, mut peak) = (vec![0; buffers.len()], 0);
    while !unplaced.is_empty() {
        let valley = skyline.take_lowest()?;
        let Some(rank) = unplaced.first_within(valley.range) else {
            skyline.raise(valley);
            continue;
        };
        unplaced.remove(rank);
        let Buffer { bytes, lifetime } = buffers[order[rank]];
        let end = valley.height.saturating_add(bytes);
        if end > most {
            return None;
        }
        offsets[order[rank]] = valley.height;
        peak = peak.max(end);
        skyline.build(valley, Segment { range: lifetime, height: end });
    }
    Some(PlacementOrder { peak, offsets, order })
}

/// A maximal range of positions with the same height.
#[derive(Clone, Copy)]
struct Segment {
    range: Lifetime,
    height: u64,
}

/// The end of the highest buffer at each position.
struct Skyline {
    /// Each segment, stored at its first position.
    segments: Vec<Option<Segment>>,
    /// The first position of each segment, stored at its last position.
    starts: Vec<u32>,
    /// The heights and first positions of segments. Some entries belong to segments that no longer exist.
    lowest: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Skyline {
    /// Creates a skyline of height 0 at all positions up to `last`.
    fn flat(last: u32) -> Self {
        let positions = last as usize + 1;
        let (segments, starts) = (vec![None; positions], vec![0; positions]);
        let mut skyline = Self { segments, starts, lowest: BinaryHeap::new() };
        skyline.add(Segment { range: Lifetime { first: 0, last }, height: 0 });
        skyline
    }

    /// Removes and returns the lowest segment, the first if several are equal.
    fn take_lowest(&mut self) -> Option<Segment> {
        while let Some(Reverse((height, first))) = self.lowest.pop() {
            let segment = &mut self.segments[first as usize];
            if segment.is_some_and(|segment| segment.height == height) {
                return segment.take();
            }
        }
        None
    }

    /// Puts a buffer into the removed valley. `top` has the buffer's lifetime and its end.
    fn build(&mut self, Segment { range, height }: Segment, top: Segment) {
        if range.first < top.range.first {
            self.add(Segment { range: Lifetime { last: top.range.first - 1, ..range }, height });
        }
        if top.range.last < range.last {
            self.add(Segment { range: Lifetime { first: top.range.last + 1, ..range }, height });
        }
        self.add(top);
    }

    /// Raises the removed valley to the height of its lower neighbour.
    fn raise(&mut self, valley: Segment) {
        let neighbours = self.before(valley.range).into_iter().chain(self.after(valley.range));
        let height = neighbours.map(|segment| segment.height).min().unwrap_or(valley.height);
        self.add(Segment { height, ..valley });
    }

    /// Adds a segment where there is none, and merges it with neighbours of the same height.
    fn add(&mut self, Segment { mut range, height }: Segment) {
        if let Some(before) = self.before(range).filter(|before| before.height == height) {
            self.segments[before.range.first as usize] = None;
            range = range.union(&before.range);
        }
        if let Some(after) = self.after(range).filter(|after| after.height == height) {
            self.segments[after.range.first as usize] = None;
            range = range.union(&after.range);
        }
        self.segments[range.first as usize] = Some(Segment { range, height });
        self.starts[range.last as usize] = range.first;
        self.lowest.push(Reverse((height, range.first)));
    }

    /// Returns the segment that ends just before a range.
    fn before(&self, range: Lifetime) -> Option<Segment> {
        let last = range.first.checked_sub(1)?;
        self.segments[self.starts[last as usize] as usize].filter(|segment| segment.range.last == last)
    }

    /// Returns the segment that begins just after a range.
    fn after(&self, range: Lifetime) -> Option<Segment> {
        self.segments.get(range.last as usize + 1).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::super::placement::{check, lower_bound};
    use super::*;
    use crate::random::philox;

    fn buffer(bytes: u64, first: u32, last: u32) -> Buffer {
        Buffer { bytes, lifetime: Lifetime { first, last } }
    }

    /// Returns the plan of the order by lifetime, longest first.
    fn planned(buffers: &[Buffer]) -> PlacementOrder {
        let mut order: Vec<usize> = (0..buffers.len()).collect();
        order.sort_by_key(|&index| {
            let Buffer { bytes, lifetime } = buffers[index];
            (Reverse(lifetime.last - lifetime.first), Reverse(bytes), index)
        });
        plan(buffers, order, u64::MAX).expect("no plan is too large")
    }

    fn peak(buffers: &[Buffer]) -> u64 {
        let PlacementOrder { offsets, peak, .. } = planned(buffers);
        check(buffers, &offsets).expect("no two overlap");
        let ends = buffers.iter().zip(offsets).map(|(buffer, offset)| buffer.bytes + offset);
        assert_eq!(ends.max().unwrap_or(0), peak);
        peak
    }

    /// Activations are read again in reverse order, as by backward passes.
    #[test]
    fn lifetimes_inside_each_other_lie_without_gaps() {
        let nested: Vec<Buffer> = (0..1000).map(|i| buffer(64, i, 2000 - i)).collect();
        assert_eq!(peak(&nested), lower_bound(&nested));
    }

    /// Each gradient of a backward pass lives until the update, and an activation dies where its gradient is made.
    #[test]
    fn gradients_take_the_room_of_activations() {
        let size = |i: u32, word: usize| 64 * u64::from(1 + philox(0, [i, 0, 0, 0])[word] % 9);
        let activations = (0..500).map(|i| buffer(size(i, 0), i, 1000 - i));
        let gradients = (0..500).map(|i| buffer(size(i, 1), 1000 - i, 1500 - i));
        let both: Vec<Buffer> = activations.chain(gradients).collect();
        let bound = lower_bound(&both);
        assert!(peak(&both) <= bound + bound / 32, "{} above {bound}", peak(&both));
    }

    #[test]
    fn a_chain_takes_the_room_of_two() {
        let chain: Vec<Buffer> = (0..1000).map(|i| buffer(64, i, i + 1)).collect();
        assert_eq!(peak(&chain), 128);
    }

    #[test]
    fn a_valley_is_as_wide_as_the_lifetimes_that_ended() {
        let buffers = [buffer(64, 0, 0), buffer(64, 0, 0), buffer(64, 0, 2), buffer(128, 1, 2)];
        assert_eq!(peak(&buffers), 192);
    }

    #[test]
    fn a_plan_that_is_too_large_is_given_up() {
        let buffers = [buffer(64, 0, 1), buffer(64, 1, 2)];
        assert!(plan(&buffers, vec![0, 1], 127).is_none());
        assert_eq!(plan(&buffers, vec![0, 1], 128).map(|plan| plan.peak), Some(128));
        assert_eq!(plan(&[], Vec::new(), 0).map(|plan| plan.peak), Some(0));
    }

    #[test]
    fn sizes_that_no_address_holds_do_not_overflow() {
        let [half, other] = [(0, 2), (0, 0)].map(|(first, last)| buffer(1 << 63, first, last));
        let plan = planned(&[half, half, other, buffer(64, 1, 1)]);
        assert_eq!((plan.offsets, plan.peak), (vec![0, 1 << 63, u64::MAX, u64::MAX], u64::MAX));
    }

    #[test]
    fn no_two_buffers_of_any_sizes_and_lifetimes_overlap() {
        for seed in 0..50 {
            let drawn = |index: u32| {
                let [bytes, first, length, _] = philox(seed, [index, 0, 0, 0]).map(|word| word >> 8);
                buffer(64 * (1 + u64::from(bytes % 80)), first % 60, first % 60 + length % 20)
            };
            let buffers: Vec<Buffer> = (0..200).map(drawn).collect();
            assert!(peak(&buffers) >= lower_bound(&buffers));
        }
    }
}
