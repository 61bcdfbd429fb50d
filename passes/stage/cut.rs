//! Cuts the forward phase into stages.
//!
//! Nodes stand in program order, and a stage is a run of them. The slowest stage is as fast as it can be, by the times of the cost
//! model; times within [`TIE`] of that are the same, and of such cuts the one is taken over which the fewest bytes travel.

use super::work::Work;
use std::ops::Range;

/// The slowest stage may be slower by one in so many: the cost model is not more exact.
const TIE: u64 = 50;

/// Divides the work into so many runs, of which none is empty. `None` if there are fewer nodes.
pub(super) fn balanced(work: &[Work], stages: usize) -> Option<Vec<Range<usize>>> {
    if stages == 0 || work.len() < stages {
        return None;
    }
    let times: Vec<u64> = work.iter().map(|work| work.time).collect();
    let fastest = fastest(&times, stages);
    let most = fastest.saturating_add(fastest / TIE);
    Some(lightest(work, stages, most))
}

/// The time of the slowest stage in the most balanced division.
fn fastest(times: &[u64], stages: usize) -> u64 {
    let (mut low, mut high) = (times.iter().copied().max().unwrap_or(0), times.iter().sum::<u64>());
    while low < high {
        let middle = low + (high - low) / 2;
        if runs(times, middle) <= stages { high = middle } else { low = middle + 1 }
    }
    low
}

/// The fewest runs of which none takes more than this time.
fn runs(times: &[u64], most: u64) -> usize {
    let (mut count, mut sum) = (1, 0u64);
    for &time in times {
        if sum.saturating_add(time) > most {
            (count, sum) = (count + 1, 0);
        }
        sum = sum.saturating_add(time);
    }
    count
}

/// The division into runs of at most this time over whose cuts the fewest bytes travel, by dynamic programming over the places
/// between nodes.
fn lightest(work: &[Work], stages: usize, most: u64) -> Vec<Range<usize>> {
    let count = work.len();
    let mut until = vec![0u64; count + 1];
    work.iter().enumerate().for_each(|(at, work)| until[at + 1] = until[at] + work.time);
    // `bytes[end]`: the fewest bytes over the cuts of the runs so far, which end there; `from[run][end]`: where the last began.
    let mut bytes: Vec<Option<u64>> = vec![None; count + 1];
    bytes[0] = Some(0);
    let mut from = vec![];
    for run in 0..stages {
        let mut next = vec![None; count + 1];
        let mut began = vec![0; count + 1];
        for end in run + 1..=count {
            let starts = (run..end).rev().take_while(|&start| until[end] - until[start] <= most);
            let cut = |start: usize| if start == 0 { 0 } else { work[start].bytes };
            let best =
                starts.filter_map(|start| Some((bytes[start]?.saturating_add(cut(start)), start))).min();
            if let Some((least, start)) = best {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn work(of: &[(u64, u64)]) -> Vec<Work> {
        of.iter().map(|&(time, bytes)| Work { time, bytes }).collect()
    }

    #[test]
    fn the_slowest_stage_is_as_fast_as_it_can_be() {
        let work = work(&[(5, 1), (1, 1), (1, 1), (5, 1), (2, 1)]);
        assert_eq!(balanced(&work, 2), Some(vec![0..3, 3..5]));
        assert_eq!(balanced(&work, 3), Some(vec![0..2, 2..4, 4..5]));
        assert_eq!(balanced(&work, 5).map(|runs| runs.len()), Some(5));
        assert_eq!(balanced(&work, 6), None);
    }

    #[test]
    fn of_cuts_that_take_as_long_the_one_with_the_fewest_bytes_is_taken() {
        let even = work(&[(100, 0), (1, 9), (1, 3), (1, 7), (100, 8)]);
        assert_eq!(balanced(&even, 2), Some(vec![0..2, 2..5]));
    }
}
