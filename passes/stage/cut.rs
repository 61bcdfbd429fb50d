//! Cuts the forward phase into stages.
//!
//! A stage is a run of nodes in program order. Its time is that of its nodes, and of the messages over the cut where it begins:
//! activations on their way to it, and their gradients on their way back. The slowest stage is made as fast as possible. Times within
//! [`TIE`] of that count as equal, and among such cuts the one with the fewest bytes of messages is taken. If the memory of a device is
//! known, every stage must fit, by an estimate.

use super::work::Work;
use std::ops::Range;

/// The inverse of the share by which the slowest stage may be slower: the cost model is not more exact.
pub(super) const TIE: u64 = 50;

/// Returns the bytes of a stage, by its index and its nodes: first a lower bound that does not shrink if the stage begins earlier, then
/// the bytes.
pub(super) type StageSizes<'a> = dyn Fn(usize, &Range<usize>) -> (u64, u64) + 'a;

/// The memory of stages.
#[derive(Clone, Copy)]
pub(super) struct MemoryBound<'a> {
    /// The bytes of stages.
    pub(super) bytes: &'a StageSizes<'a>,
    /// The bytes that each stage may take.
    pub(super) limits: &'a [u64],
}

/// Divides the work into `stages` runs, none of them empty. `None` if there are fewer nodes, or if no division fits into the memory.
pub(super) fn balanced(
    work: &[Work],
    stages: usize,
    bound: Option<MemoryBound>,
) -> Option<Vec<Range<usize>>> {
    if stages == 0 || work.len() < stages {
        return None;
    }
    let places = Places::of(work, bound);
    let fastest = places.fastest(stages)?;
    Some(places.lightest(stages, fastest.saturating_add(fastest / TIE)))
}

/// Returns the least bytes of the largest stage over all divisions of `nodes` nodes, by dynamic programming over the places.
pub(super) fn least_bytes(nodes: usize, stages: usize, bytes: &StageSizes) -> Option<u64> {
    let mut largest: Vec<Option<u64>> = vec![None; nodes + 1];
    largest[0] = Some(0);
    for stage in 0..stages {
        let next = |end: usize| {
            let mut least: Option<u64> = None;
            for start in (stage..end).rev() {
                let (at_least, own) = bytes(stage, &(start..end));
                if least.is_some_and(|least| at_least >= least) {
                    break;
                }
                let all = largest[start].map(|before| before.max(own));
                least = [least, all].into_iter().flatten().min();
            }
            least
        };
        largest = (0..=nodes).map(next).collect();
    }
    largest[nodes]
}

/// The places between nodes, with the sums of times up to each place.
struct Places<'w> {
    work: &'w [Work],
    bound: Option<MemoryBound<'w>>,
    /// The time of all nodes before a place.
    until: Vec<u64>,
}

impl<'w> Places<'w> {
    fn of(work: &'w [Work], bound: Option<MemoryBound<'w>>) -> Self {
        let mut until = vec![0u64];
        until.extend(work.iter().scan(0u64, |sum, work| {
            *sum = sum.saturating_add(work.time);
            Some(*sum)
        }));
        Self { work, bound, until }
    }

    /// Returns the time of a stage.
    fn time(&self, start: usize, end: usize) -> u64 {
        let messages = if start == 0 { 0 } else { self.work[start].messages };
        (self.until[end] - self.until[start]).saturating_add(messages)
    }

    /// Returns the places where a stage of at most the time `most` may begin, the latest place first. The stage ends at `end`, follows
    /// `run` others, and must fit into the memory.
    fn starts(&self, run: usize, end: usize, most: u64) -> impl Iterator<Item = usize> {
        let in_time = move |&start: &usize| self.until[end] - self.until[start] <= most;
        let fitting = move |start: usize| {
            let Some(bound) = &self.bound else { return Some((start, true)) };
            let (at_least, bytes) = (bound.bytes)(run, &(start..end));
            let limit = bound.limits[run];
            // A stage that begins earlier takes at least `at_least` bytes, so the search ends when these exceed the limit.
            (at_least <= limit).then_some((start, bytes <= limit))
        };
        let starts = (run..end).rev().take_while(in_time).map_while(fitting);
        let starts = starts.filter(|(_, fits)| *fits).map(|(start, _)| start);
        starts.filter(move |&start| self.time(start, end) <= most)
    }

    /// Returns the time of the slowest stage in the most balanced division, by dynamic programming over the places.
    fn fastest(&self, stages: usize) -> Option<u64> {
        // Without messages there is a division of the time `nodes`, and no cut adds more than the longest messages. It may not fit.
        let messages = self.work.iter().map(|work| work.messages).max().unwrap_or(0);
        let nodes =
            if self.bound.is_some() { self.until.last().copied()? } else { self.without_messages(stages) };
        let most = nodes.saturating_add(messages);
        // `slowest[end]`: the time of the slowest run so far, if the runs end at `end`.
        let mut slowest: Vec<Option<u64>> = vec![None; self.until.len()];
        slowest[0] = Some(0);
        for run in 0..stages {
            let next = |end: usize| {
                let of = |start: usize| Some(slowest[start]?.max(self.time(start, end)));
                self.starts(run, end, most).filter_map(of).min()
            };
            slowest = (0..self.until.len()).map(next).collect();
        }
        slowest.last().copied().flatten()
    }

    /// Returns the time of the slowest stage in the most balanced division, if messages take no time.
    fn without_messages(&self, stages: usize) -> u64 {
        let most = self.until.last().copied().unwrap_or(0);
        let (mut low, mut high) = (self.work.iter().map(|work| work.time).max().unwrap_or(0), most);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.runs(middle) <= stages { high = middle } else { low = middle + 1 }
        }
        low
    }

    /// Returns the fewest runs of nodes, each of which takes at most this time.
    fn runs(&self, most: u64) -> usize {
        let (mut count, mut sum) = (1, 0u64);
        for work in self.work {
            if sum.saturating_add(work.time) > most {
                (count, sum) = (count + 1, 0);
            }
            sum = sum.saturating_add(work.time);
        }
        count
    }

    /// Returns the division into stages of at most this time with the fewest bytes over its cuts, by dynamic programming over the
    /// places.
    fn lightest(&self, stages: usize, most: u64) -> Vec<Range<usize>> {
        let count = self.work.len();
        // `bytes[end]`: the fewest bytes over the cuts of the runs so far, if they end at `end`; `from[run][end]`: where the last run
        // begins.
        let mut bytes: Vec<Option<u64>> = vec![None; count + 1];
        bytes[0] = Some(0);
        let mut from = vec![];
        for run in 0..stages {
            let mut next = vec![None; count + 1];
            let mut began = vec![0; count + 1];
            for end in run + 1..=count {
                let cut = |start: usize| if start == 0 { 0 } else { self.work[start].bytes };
                let all = |start: usize| Some((bytes[start]?.saturating_add(cut(start)), start));
                if let Some((least, start)) = self.starts(run, end, most).filter_map(all).min() {
                    (next[end], began[end]) = (Some(least), start);
                }
            }
            bytes = next;
            from.push(began);
        }
        let mut end = count;
        let mut ranges: Vec<Range<usize>> = from
            .iter()
            .rev()
            .map(|began| {
                let range = began[end]..end;
                end = range.start;
                range
            })
            .collect();
        ranges.reverse();
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn work(of: &[(u64, u64)]) -> Vec<Work> {
        of.iter().map(|&(time, bytes)| Work { time, bytes, messages: 0 }).collect()
    }

    #[test]
    fn the_slowest_stage_is_as_fast_as_it_can_be() {
        let work = work(&[(5, 1), (1, 1), (1, 1), (5, 1), (2, 1)]);
        assert_eq!(balanced(&work, 2, None), Some(vec![0..3, 3..5]));
        assert_eq!(balanced(&work, 3, None), Some(vec![0..2, 2..4, 4..5]));
        assert_eq!(balanced(&work, 5, None).map(|runs| runs.len()), Some(5));
        assert_eq!(balanced(&work, 6, None), None);
    }

    #[test]
    fn of_cuts_that_take_as_long_the_one_with_the_fewest_bytes_is_taken() {
        let even = work(&[(100, 0), (1, 9), (1, 3), (1, 7), (100, 8)]);
        assert_eq!(balanced(&even, 2, None), Some(vec![0..2, 2..5]));
    }

    #[test]
    fn messages_take_time_of_the_stage_that_they_go_to() {
        let of = |time, bytes| Work { time, bytes, messages: bytes };
        // A cut in the middle is even, but its messages take longer than the node that another cut moves to the first stage.
        let work = [of(100, 0), of(10, 60), of(10, 5), of(100, 60)];
        assert_eq!(balanced(&work, 2, None), Some(vec![0..2, 2..4]));
        let work = [of(100, 0), of(10, 5), of(10, 60), of(100, 60)];
        assert_eq!(balanced(&work, 2, None), Some(vec![0..1, 1..4]));
    }

    #[test]
    fn every_division_is_found_with_long_messages() {
        let of = |time, messages| Work { time, bytes: 1, messages };
        let work = [of(1, 0), of(1, 1000), of(1, 1000), of(1, 1)];
        assert_eq!(balanced(&work, 4, None).map(|runs| runs.len()), Some(4));
        assert_eq!(balanced(&work, 2, None), Some(vec![0..3, 3..4]));
    }

    /// Returns every division into this number of runs.
    fn divisions(nodes: Range<usize>, stages: usize) -> Vec<Vec<Range<usize>>> {
        if stages == 1 {
            return if nodes.is_empty() { vec![] } else { vec![vec![nodes]] };
        }
        let ends = nodes.start + 1..nodes.end;
        let with = |end: usize| {
            let rest = divisions(end..nodes.end, stages - 1).into_iter();
            rest.map(move |rest| std::iter::once(nodes.start..end).chain(rest).collect())
        };
        ends.flat_map(with).collect()
    }

    proptest! {
        /// The slowest stage of the result is as fast as in the best division that fits, up to a tie. If none fits, there is no result. The
        /// least memory is that of the best of all divisions.
        #[test]
        fn a_division_within_memory_is_as_fast_as_the_best_of_all(
            nodes in prop::collection::vec((0u64..40, 0u64..20, 0u64..30, 0u64..9), 1..9),
            stages in 1usize..5,
            live in prop::collection::vec(1u64..5, 4),
            limits in prop::collection::vec(0u64..250, 4),
        ) {
            let work: Vec<Work> = nodes
                .iter()
                .map(|&(time, bytes, ..)| Work { time, bytes, messages: bytes })
                .collect();
            // A stage keeps the activations of its nodes and of its messages, and the states of its nodes.
            let bytes = |stage: usize, run: &Range<usize>| {
                let own: u64 = nodes[run.clone()].iter().map(|(_, _, kept, states)| kept * live[stage] + states).sum();
                let sent = if run.start == 0 { 0 } else { nodes[run.start].1 };
                (own, own + sent * live[stage])
            };
            let time = |run: &Range<usize>| {
                let sent = if run.start == 0 { 0 } else { work[run.start].messages };
                work[run.clone()].iter().map(|work| work.time).sum::<u64>() + sent
            };
            let all = divisions(0..nodes.len(), stages);
            let sizes = |runs: &[Range<usize>]| -> Vec<u64> {
                runs.iter().enumerate().map(|(stage, run)| bytes(stage, run).1).collect()
            };
            let fits = |runs: &[Range<usize>]| sizes(runs).iter().zip(&limits).all(|(own, limit)| own <= limit);
            let slowest = |runs: &[Range<usize>]| runs.iter().map(time).max().unwrap_or(0);
            let best = all.iter().filter(|runs| fits(runs)).map(|runs| slowest(runs)).min();
            let found = balanced(&work, stages, Some(MemoryBound { bytes: &bytes, limits: &limits }));
            prop_assert_eq!(found.is_some(), best.is_some());
            if let (Some(found), Some(best)) = (found, best) {
                prop_assert!(fits(&found));
                prop_assert!(all.contains(&found));
                prop_assert!(slowest(&found) <= best + best / TIE);
            }
            let least = all.iter().filter_map(|runs| sizes(runs).into_iter().max()).min();
            prop_assert_eq!(least_bytes(nodes.len(), stages, &bytes), least);
        }
    }
}
