//! The search for an order in which best fit places the buffers well. Best fit puts each buffer into the smallest gap that holds
//! it; its plan is good only if the order is good. Several greedy orders are tried, then single buffers are moved within the best
//! order.
//!
//! Best fit compares each pair of buffers, so it has a budget of comparisons. A program of very many buffers begins with a
//! sweep over time ([`super::sweep`]) instead. The last plans to be tried are skylines ([`super::skyline`]). Sweeps and
//! skylines compare no pairs.
//!
//! The search ends near the lower bound, or after so many comparisons of buffers: it never looks at a clock, and its
//! random choices are the same each time.

use super::placement::Buffer;
use super::skyline;
use super::sweep::sweep;
use crate::analysis::Lifetime;
use crate::random::philox;
use std::cmp::Reverse;

/// A plan is good enough if it exceeds the lower bound by at most 1/NEAR of the bound.
const NEAR: u64 = 1024;
/// The budget for the first order, in comparisons of two buffers: a few tenths of a second, enough for 23,000 buffers. For more
/// buffers, the first plan is made by [`sweep`].
const FIRST_COMPARISONS: u64 = 1 << 28;
/// Comparisons of two buffers besides those for the first order: some tens of milliseconds.
const COMPARISONS: u64 = 1 << 23;
/// The budget of all skylines together, in placed buffers: up to a second. At least one skyline is made.
const PLACEMENTS: usize = 1 << 19;

/// An order of placement with its result.
#[derive(Clone, Debug, Default)]
pub(super) struct PlacementOrder {
    /// The end of the last buffer.
    pub(super) peak: u64,
    /// The offset of each buffer.
    pub(super) offsets: Vec<u64>,
    pub(super) order: Vec<usize>,
}

/// Looks for a small plan. All buffers have a size above 0 that is a multiple of the alignment. `live` has the bytes that are
/// alive at each position.
pub(super) fn search(buffers: &[Buffer], live: &[u64]) -> PlacementOrder {
    let bound = live.iter().copied().max().unwrap_or(0);
    let near = bound.saturating_add(bound / NEAR);
    let fullest = Fullest::of(live);
    let mut packer = Packer::new(buffers);
    let mut best = first(&mut packer, &fullest, FIRST_COMPARISONS);
    packer.left = COMPARISONS;
    for key in &KEYS[1..] {
        if best.peak <= near {
            return best;
        }
        if packer.comparisons() > packer.left {
            break;
        }
        let better = packer.plan(sorted(buffers, &fullest, *key), best.peak - 1);
        best = better.unwrap_or(best);
    }
    climb(&mut packer, &mut best, near);
    let skylines = (PLACEMENTS / buffers.len().max(1)).max(1);
    for key in KEYS.into_iter().take(skylines) {
        if best.peak <= near {
            break;
        }
        let better = skyline::plan(buffers, sorted(buffers, &fullest, key), best.peak - 1);
        best = better.unwrap_or(best);
    }
    best
}

/// Returns the plan of the first order. If that would take more than `comparisons`, returns the plan of a sweep over time.
fn first(packer: &mut Packer, fullest: &Fullest, comparisons: u64) -> PlacementOrder {
    packer.left = comparisons;
    let plan = packer.plan(sorted(packer.buffers, fullest, KEYS[0]), u64::MAX);
    plan.unwrap_or_else(|| {
        let (offsets, order) = sweep(packer.buffers);
        let ends =
            packer.buffers.iter().zip(&offsets).map(|(buffer, offset)| offset.saturating_add(buffer.bytes));
        PlacementOrder { peak: ends.max().unwrap_or(0), offsets, order }
    })
}

/// A sort key of a buffer. Buffers with greater keys are placed earlier.
pub(super) type Key = fn(&Buffer, &Fullest) -> (u128, u64);

/// The keys of the greedy orders; the first is usually good enough. Buffers that are alive at the fullest position must lie there
/// without gaps, so two of the keys begin with this position (as MiniMalloc does: Moffitt, ASPLOS 2023).
pub(super) const KEYS: [Key; 7] = [
    |buffer, fullest| (fullest.during(buffer.lifetime).into(), length(buffer)),
    |buffer, _| (buffer.bytes.into(), length(buffer)),
    |buffer, _| (u128::from(length(buffer)) * u128::from(buffer.bytes), buffer.bytes),
    |buffer, _| (buffer.lifetime.last.into(), buffer.bytes),
    |buffer, _| (u128::from(u32::MAX - buffer.lifetime.first), buffer.bytes),
    |buffer, fullest| (fullest.during(buffer.lifetime).into(), buffer.bytes),
    |buffer, _| (length(buffer).into(), buffer.bytes),
];

fn length(buffer: &Buffer) -> u64 {
    u64::from(buffer.lifetime.last - buffer.lifetime.first) + 1
}

pub(super) fn sorted(buffers: &[Buffer], fullest: &Fullest, key: Key) -> Vec<usize> {
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_cached_key(|&index| (Reverse(key(&buffers[index], fullest)), index));
    order
}

/// Moves and swaps buffers in the order of a plan until the comparisons are used up. Keeps each change that gives no larger plan.
fn climb(packer: &mut Packer, best: &mut PlacementOrder, near: u64) {
    for round in 0u32.. {
        let count = best.order.len();
        packer.left = packer.left.saturating_sub(count as u64);
        if best.peak <= near || packer.left == 0 || packer.left < packer.comparisons() {
            return;
        }
        let mut order = best.order.clone();
        vary(&mut order, packer.buffers, best, round);
        if let Some(plan) = packer.plan(order, best.peak) {
            *best = plan;
        }
    }
}

/// Moves one of the buffers that end at the peak before an earlier placed buffer that is alive with it. In some rounds two further
/// buffers swap their places.
fn vary(order: &mut [usize], buffers: &[Buffer], plan: &PlacementOrder, round: u32) {
    let words = philox(0, [round, 0, 0, 0]);
    let drawn = |word: u32, from: usize| ((u64::from(word) * from as u64) >> 32) as usize;
    let ends_at_peak = |index: usize| plan.offsets[index].saturating_add(buffers[index].bytes) == plan.peak;
    let tops: Vec<usize> = (0..order.len()).filter(|&at| ends_at_peak(order[at])).collect();
    let from = tops[drawn(words[0], tops.len())];
    let lifetime = buffers[order[from]].lifetime;
    let earlier: Vec<usize> =
        (0..from).filter(|&at| buffers[order[at]].lifetime.overlaps(&lifetime)).collect();
    let [swaps, moves, also, _] = philox(0, [round, 1, 0, 0]).map(|word| word & 3);
    if earlier.is_empty() || also == 0 {
        order.swap(drawn(words[2], order.len()), drawn(words[3], order.len()));
    }
    if let Some(&to) = earlier.get(drawn(words[1], earlier.len())) {
        match (swaps ^ moves) & 1 {
            0 => order.swap(from, to),
            _ => order[to..=from].rotate_right(1),
        }
    }
}

/// Places buffers one after the other.
struct Packer<'a> {
    buffers: &'a [Buffer],
    /// The placed buffers, ordered by offset.
    placed: Vec<Placed>,
    /// The number of comparisons that may still be made.
    left: u64,
}

struct Placed {
    lifetime: Lifetime,
    offset: u64,
    end: u64,
}

impl<'a> Packer<'a> {
    fn new(buffers: &'a [Buffer]) -> Self {
        Self { buffers, placed: Vec::with_capacity(buffers.len()), left: u64::MAX }
    }

    /// Returns the number of comparisons that an order takes: one for each pair of buffers.
    fn comparisons(&self) -> u64 {
        let count = self.buffers.len() as u64;
        count * count.saturating_sub(1) / 2
    }

    /// Returns the plan of an order. `None` if it is larger than `most`, or takes more comparisons than are left.
    fn plan(&mut self, order: Vec<usize>, most: u64) -> Option<PlacementOrder> {
        if self.comparisons() > self.left {
            return None;
        }
        self.placed.clear();
        let mut offsets = vec![0; self.buffers.len()];
        let mut peak = 0;
        for &index in &order {
            self.left -= self.placed.len() as u64;
            let Buffer { bytes, lifetime } = self.buffers[index];
            let offset = self.best_fit(bytes, lifetime);
            let end = offset.saturating_add(bytes);
            if end > most {
                return None;
            }
            peak = peak.max(end);
            offsets[index] = offset;
            let at = self.placed.partition_point(|other| other.offset <= offset);
            self.placed.insert(at, Placed { lifetime, offset, end });
        }
        Some(PlacementOrder { peak, offsets, order })
    }

    /// Returns the start of the smallest sufficient gap between buffers that are alive at the same time, or the end of these
    /// buffers.
    fn best_fit(&self, bytes: u64, lifetime: Lifetime) -> u64 {
        let (mut end, mut smallest, mut best) = (0u64, u64::MAX, None);
        for other in self.placed.iter().filter(|other| other.lifetime.overlaps(&lifetime)) {
            let gap = other.offset.saturating_sub(end);
            if gap >= bytes && gap < smallest {
                (smallest, best) = (gap, Some(end));
            }
            end = end.max(other.end);
        }
        best.unwrap_or(end)
    }
}

/// The most bytes alive at any position of a range, from a table of the ranges whose lengths are powers of two.
pub(super) struct Fullest {
    levels: Vec<Vec<u64>>,
}

impl Fullest {
    pub(super) fn of(live: &[u64]) -> Self {
        let mut levels = vec![live.to_vec()];
        for half in (0..).map(|level| 1 << level).take_while(|half| 2 * half <= live.len()) {
            let last = &levels[levels.len() - 1];
            levels.push(last.iter().zip(&last[half..]).map(|(a, b)| *a.max(b)).collect());
        }
        Self { levels }
    }

    fn during(&self, Lifetime { first, last }: Lifetime) -> u64 {
        let (first, last) = (first as usize, last as usize);
        let level = (last - first + 1).ilog2() as usize;
        let ranges = &self.levels[level];
        ranges[first].max(ranges[last + 1 - (1 << level)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(bytes: u64, first: u32, last: u32) -> Buffer {
        Buffer { bytes, lifetime: Lifetime { first, last } }
    }

    #[test]
    fn the_fullest_position_of_a_range_is_found() {
        let live = [3, 1, 4, 1, 5, 9, 2, 6];
        let fullest = Fullest::of(&live);
        for first in 0..live.len() {
            for last in first..live.len() {
                let expected = *live[first..=last].iter().max().unwrap();
                let range = Lifetime { first: first as u32, last: last as u32 };
                assert_eq!(fullest.during(range), expected, "{first}..={last}");
            }
        }
    }

    /// Buffers whose sizes and lifetimes no greedy order plans well.
    fn stubborn() -> Vec<Buffer> {
        let drawn = |index: u32| {
            let [bytes, first, length, _] = philox(1, [index, 47, 0, 0]).map(|word| word >> 8);
            buffer(64 * (1 + u64::from(bytes % 80)), first % 60, first % 60 + length % 20)
        };
        (0..80).map(drawn).collect()
    }

    #[test]
    fn climbing_finds_what_no_greedy_order_does() {
        let buffers = stubborn();
        let live = super::super::placement::live_bytes(&buffers);
        let bound = *live.iter().max().unwrap();
        let fullest = Fullest::of(&live);
        let mut packer = Packer::new(&buffers);
        let greedy = KEYS.map(|key| packer.plan(sorted(&buffers, &fullest, key), u64::MAX).unwrap().peak);
        let found = search(&buffers, &live);
        assert!(greedy.iter().all(|&peak| peak > bound + bound / 20), "{greedy:?} above {bound}");
        assert!(found.peak <= bound + bound / NEAR, "{} above {bound}", found.peak);
    }

    #[test]
    fn an_order_that_takes_too_many_comparisons_gives_way_to_a_sweep() {
        let buffers: Vec<Buffer> = (0..5000).map(|index| buffer(64, index, 10_000 - index)).collect();
        let live = super::super::placement::live_bytes(&buffers);
        let mut packer = Packer::new(&buffers);
        let plan = first(&mut packer, &Fullest::of(&live), 1 << 20);
        assert_eq!(packer.left, 1 << 20, "no comparison is made in vain");
        assert_eq!((plan.peak, plan.order.len()), (5000 * 64, 5000));
        super::super::check(&buffers, &plan.offsets).unwrap();
    }

    #[test]
    fn a_search_makes_no_more_comparisons_than_it_may() {
        let buffers: Vec<Buffer> = stubborn().repeat(40);
        let live = super::super::placement::live_bytes(&buffers);
        let mut packer = Packer::new(&buffers);
        packer.left = 1000;
        assert!(packer.plan((0..buffers.len()).collect(), u64::MAX).is_none());
        let once = search(&buffers, &live);
        assert_eq!(once.offsets, search(&buffers, &live).offsets);
    }
}
