//! The buffers that a plan has not placed yet, searchable by lifetime.

use super::placement::Buffer;
use crate::analysis::Lifetime;

/// The rank of an empty subtree.
const NONE: u32 = u32::MAX;

/// Buffers in an order of priority. A buffer's rank is its index in that order.
///
/// A k-d tree (Bentley, CACM 1975): each lifetime is the point (first, last), and each node stores the first rank below it. A
/// query for a range of positions visits O(√n) of `n` buffers in the worst case, and mostly far fewer.
pub(super) struct Unplaced {
    /// The children of node `i` are nodes `2 i` and `2 i + 1`. The root is node 1.
    nodes: Vec<Node>,
    /// The node of each rank.
    leaves: Vec<u32>,
}

/// The box around the points of a subtree, and their first rank.
#[derive(Clone, Copy)]
struct Node {
    rank: u32,
    /// The range of the first positions of the lifetimes.
    first: (u32, u32),
    /// The range of the last positions of the lifetimes.
    last: (u32, u32),
}

impl Node {
    const EMPTY: Self = Self { rank: NONE, first: (u32::MAX, 0), last: (u32::MAX, 0) };

    fn join(&self, other: &Self) -> Self {
        let around = |a: (u32, u32), b: (u32, u32)| (a.0.min(b.0), a.1.max(b.1));
        Self {
            rank: self.rank.min(other.rank),
            first: around(self.first, other.first),
            last: around(self.last, other.last),
        }
    }
}

impl Unplaced {
    /// Builds the tree of all buffers, ranked by `order`.
    pub(super) fn of(buffers: &[Buffer], order: &[usize]) -> Self {
        let mut tree = Self {
            nodes: vec![Node::EMPTY; 2 * order.len().next_power_of_two()],
            leaves: vec![0; order.len()],
        };
        let lifetimes: Vec<Lifetime> = order.iter().map(|&index| buffers[index].lifetime).collect();
        let mut ranks: Vec<u32> = (0..order.len() as u32).collect();
        tree.build(1, &mut ranks, &lifetimes, true);
        tree
    }

    /// Splits ranks alternately at the median of the first positions and at the median of the last positions.
    fn build(&mut self, at: usize, ranks: &mut [u32], lifetimes: &[Lifetime], by_first: bool) {
        match *ranks {
            [] => {}
            [rank] => {
                let Lifetime { first, last } = lifetimes[rank as usize];
                self.nodes[at] = Node { rank, first: (first, first), last: (last, last) };
                self.leaves[rank as usize] = at as u32;
            }
            _ => {
                let middle = ranks.len() / 2;
                ranks.select_nth_unstable_by_key(middle, |&rank| {
                    let Lifetime { first, last } = lifetimes[rank as usize];
                    (if by_first { first } else { last }, rank)
                });
                let (low, high) = ranks.split_at_mut(middle);
                self.build(2 * at, low, lifetimes, !by_first);
                self.build(2 * at + 1, high, lifetimes, !by_first);
                self.nodes[at] = self.nodes[2 * at].join(&self.nodes[2 * at + 1]);
            }
        }
    }

    /// Whether all buffers are placed.
    pub(super) fn is_empty(&self) -> bool {
        self.nodes[1].rank == NONE
    }

    /// Returns the first rank of a buffer whose lifetime lies within a range of positions.
    pub(super) fn first_within(&self, range: Lifetime) -> Option<usize> {
        let rank = self.descend(1, range, NONE);
        (rank != NONE).then_some(rank as usize)
    }

    /// Returns the smaller of `best` and the first rank below a node whose lifetime lies within a range.
    fn descend(&self, at: usize, range: Lifetime, best: u32) -> u32 {
        let Node { rank, first, last } = self.nodes[at];
        if rank >= best || first.1 < range.first || range.last < last.0 {
            return best;
        }
        if range.first <= first.0 && last.1 <= range.last {
            return rank;
        }
        let left_is_better = self.nodes[2 * at].rank < self.nodes[2 * at + 1].rank;
        let (near, far) = if left_is_better { (2 * at, 2 * at + 1) } else { (2 * at + 1, 2 * at) };
        let best = self.descend(near, range, best);
        self.descend(far, range, best)
    }

    /// Removes the buffer with this rank.
    pub(super) fn remove(&mut self, rank: usize) {
        let mut at = self.leaves[rank] as usize;
        self.nodes[at] = Node::EMPTY;
        while at > 1 {
            at /= 2;
            self.nodes[at] = self.nodes[2 * at].join(&self.nodes[2 * at + 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::philox;

    #[test]
    fn the_first_rank_within_a_range_is_that_of_a_scan() {
        for count in [1, 2, 3, 7, 64, 150] {
            let drawn = |index: u32| {
                let [first, length, _, _] = philox(7, [index, count, 0, 0]).map(|word| word >> 8);
                Buffer { bytes: 64, lifetime: Lifetime { first: first % 40, last: first % 40 + length % 15 } }
            };
            let buffers: Vec<Buffer> = (0..count).map(drawn).collect();
            let order: Vec<usize> = (0..buffers.len()).rev().collect();
            let mut unplaced = Unplaced::of(&buffers, &order);
            let mut left: Vec<usize> = (0..order.len()).collect();
            while !left.is_empty() {
                assert!(!unplaced.is_empty());
                for (first, length) in [(0, 60), (5, 3), (10, 20), (33, 9), (39, 0)] {
                    let range = Lifetime { first, last: first + length };
                    let within = |&&rank: &&usize| {
                        let lifetime = buffers[order[rank]].lifetime;
                        range.first <= lifetime.first && lifetime.last <= range.last
                    };
                    assert_eq!(unplaced.first_within(range), left.iter().find(within).copied());
                }
                unplaced.remove(left.remove(left.len() / 2));
            }
            assert!(unplaced.is_empty());
        }
    }
}
