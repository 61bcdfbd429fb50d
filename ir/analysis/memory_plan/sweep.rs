//! A plan that places buffers in order of time, as an allocator would. It is for programs with so many buffers that comparing all
//! pairs takes too long.

use super::placement::Buffer;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// Returns the offset of each buffer, and the order in which they were placed. A buffer takes the smallest gap that holds it when
/// it comes to life (the first if several are equal), and frees its place when it dies. Takes O(n log n) for n buffers.
pub(super) fn sweep(buffers: &[Buffer]) -> (Vec<u64>, Vec<usize>) {
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    // Buffers that come to life together are placed by their deaths, the latest first, and then by size, the largest first.
    order.sort_by_key(|&index| {
        let Buffer { bytes, lifetime } = buffers[index];
        (lifetime.first, Reverse(lifetime.last), Reverse(bytes), index)
    });
    let (mut offsets, mut gaps) = (vec![0; buffers.len()], Gaps::default());
    let mut alive: BinaryHeap<Reverse<(u32, usize)>> = BinaryHeap::new();
    for &index in &order {
        let Buffer { bytes, lifetime } = buffers[index];
        while let Some(&Reverse((_, dead))) = alive.peek().filter(|Reverse((last, _))| *last < lifetime.first)
        {
            gaps.give_back(offsets[dead], buffers[dead].bytes);
            alive.pop();
        }
        offsets[index] = gaps.take(bytes);
        alive.push(Reverse((lifetime.last, index)));
    }
    (offsets, order)
}

/// The gaps between live buffers, and the end of the highest buffer so far.
#[derive(Default)]
struct Gaps {
    /// The bytes of each gap, by its offset.
    by_offset: BTreeMap<u64, u64>,
    /// Each gap as its bytes and its offset.
    by_bytes: BTreeSet<(u64, u64)>,
    /// The end of all buffers so far.
    end: u64,
}

impl Gaps {
    /// Returns the offset of so many free bytes, which are occupied from now on.
    fn take(&mut self, bytes: u64) -> u64 {
        if let Some(&(gap, offset)) = self.by_bytes.range((bytes, 0)..).next() {
            self.remove(offset, gap);
            if gap > bytes {
                self.add(offset.saturating_add(bytes), gap - bytes);
            }
            return offset;
        }
        // The last gap is extended if it reaches the end.
        let last = self.by_offset.last_key_value().map(|(&offset, &gap)| (offset, gap));
        let offset = match last.filter(|(offset, gap)| offset.saturating_add(*gap) == self.end) {
            Some((offset, gap)) => {
                self.remove(offset, gap);
                offset
            }
            None => self.end,
        };
        self.end = offset.saturating_add(bytes);
        offset
    }

    /// Adds the place of a dead buffer to the gaps, merged with neighbouring gaps.
    fn give_back(&mut self, mut offset: u64, mut bytes: u64) {
        let below = self.by_offset.range(..offset).next_back().map(|(&offset, &gap)| (offset, gap));
        if let Some((start, gap)) = below.filter(|(start, gap)| start.saturating_add(*gap) == offset) {
            self.remove(start, gap);
            (offset, bytes) = (start, bytes.saturating_add(gap));
        }
        let above = offset.saturating_add(bytes);
        if let Some(gap) = self.by_offset.get(&above).copied() {
            self.remove(above, gap);
            bytes = bytes.saturating_add(gap);
        }
        self.add(offset, bytes);
    }

    fn add(&mut self, offset: u64, bytes: u64) {
        self.by_offset.insert(offset, bytes);
        self.by_bytes.insert((bytes, offset));
    }

    fn remove(&mut self, offset: u64, bytes: u64) {
        self.by_offset.remove(&offset);
        self.by_bytes.remove(&(bytes, offset));
    }
}

#[cfg(test)]
mod tests {
    use super::super::placement::{check, lower_bound};
    use super::*;
    use crate::analysis::Lifetime;
    use crate::random::philox;

    fn buffer(bytes: u64, first: u32, last: u32) -> Buffer {
        Buffer { bytes, lifetime: Lifetime { first, last } }
    }

    fn peak(buffers: &[Buffer]) -> u64 {
        let (offsets, _) = sweep(buffers);
        check(buffers, &offsets).expect("no two overlap");
        buffers.iter().zip(offsets).map(|(buffer, offset)| buffer.bytes + offset).max().unwrap_or(0)
    }

    /// Activations are read again in reverse order, as by backward passes.
    #[test]
    fn lifetimes_inside_each_other_lie_without_gaps() {
        let nested: Vec<Buffer> = (0..1000).map(|i| buffer(64, i, 2000 - i)).collect();
        assert_eq!(peak(&nested), lower_bound(&nested));
    }

    #[test]
    fn a_chain_takes_the_room_of_two() {
        let chain: Vec<Buffer> = (0..1000).map(|i| buffer(64, i, i + 1)).collect();
        assert_eq!(peak(&chain), 128);
    }

    #[test]
    fn gaps_beside_each_other_become_one() {
        let buffers = [buffer(64, 0, 0), buffer(64, 0, 0), buffer(64, 0, 2), buffer(128, 1, 2)];
        assert_eq!(peak(&buffers), 192);
    }

    #[test]
    fn sizes_that_no_address_holds_do_not_overflow() {
        let [half, other] = [(0, 2), (0, 0)].map(|(first, last)| buffer(1 << 63, first, last));
        let (offsets, _) = sweep(&[half, half, other, buffer(64, 1, 1)]);
        assert_eq!(offsets, [0, 1 << 63, u64::MAX, u64::MAX]);
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
