//! The models: each is one way in which ranks meet, or fail to meet.

use crate::CommError::{Different, Ended, Stuck};
use crate::Terms;
use crate::ranks::{ADD, Rank, sum, try_all};

/// The number of times that an interleaving of three ranks may preempt a rank that could go on. CI has no time for more; most faults of
/// this kind take one or two.
const THREE: Option<usize> = Some(2);

/// The same number for two ranks that meet several times. Single meetings of two ranks are tried in all interleavings.
const AGAIN: Option<usize> = Some(3);

/// Meets a group and returns the sum of the lent bytes.
fn meet(rank: &Rank, group: &[u64]) -> Result<u8, crate::CommError> {
    rank.meet(group, ADD, |inside| sum(&inside.lent(0)))
}

#[test]
fn two_ranks_meet_again_and_again() {
    let run = |rank: &Rank| [meet(rank, &[0, 1]), meet(rank, &[0, 1]), meet(rank, &[1, 0])];
    try_all(2, AGAIN, run, |sums| assert_eq!(sums, [[Ok(3), Ok(3), Ok(3)], [Ok(3), Ok(3), Ok(3)]]));
}

#[test]
fn two_ranks_meet_in_all_interleavings() {
    try_all(2, None, |rank| meet(rank, &[0, 1]), |sums| assert_eq!(sums, [Ok(3), Ok(3)]));
}

#[test]
fn two_ranks_reduce_in_place() {
    try_all(2, None, |rank| rank.add(&[0, 1]), |sums| assert_eq!(sums, [Ok(6), Ok(6)]));
}

#[test]
fn three_ranks_meet_twice() {
    let run = |rank: &Rank| [meet(rank, &[0, 1, 2]), meet(rank, &[0, 1, 2])];
    try_all(3, THREE, run, |sums| assert_eq!(sums, [const { [Ok(6), Ok(6)] }; 3]));
}

#[test]
fn two_ranks_reduce_in_place_and_meet_again() {
    let run = |rank: &Rank| [rank.add(&[0, 1]), meet(rank, &[0, 1])];
    try_all(2, AGAIN, run, |sums| assert_eq!(sums, [[Ok(6), Ok(3)], [Ok(6), Ok(3)]]));
}

#[test]
fn two_ranks_reduce_in_place_twice() {
    let run = |rank: &Rank| [rank.add(&[0, 1]), rank.add(&[0, 1])];
    try_all(2, AGAIN, run, |sums| assert_eq!(sums, [const { [Ok(6), Ok(6)] }; 2]));
}

#[test]
fn three_ranks_reduce_in_place() {
    try_all(3, THREE, |rank| rank.add(&[0, 1, 2]), |sums| assert_eq!(sums, [const { Ok(18) }; 3]));
}

#[test]
fn groups_of_three_ranks_meet_without_each_other() {
    let run = |rank: &Rank| {
        let pairs = [vec![[0, 1], [0, 2]], vec![[0, 1]], vec![[0, 2]]];
        pairs[rank.number as usize].iter().map(|pair| meet(rank, pair).unwrap()).collect::<Vec<_>>()
    };
    try_all(3, THREE, run, |sums| assert_eq!(sums, [vec![3, 4], vec![3], vec![4]]));
}

#[test]
fn a_rank_that_leaves_is_not_waited_for() {
    let run = |rank: &Rank| if rank.number == 1 { Ok(0) } else { meet(rank, &[0, 1]) };
    let waits = (0, "add".to_owned());
    try_all(2, None, run, move |ended| assert_eq!(ended, [Err(Stuck(vec![waits.clone()])), Ok(0)]));
}

#[test]
fn of_three_ranks_one_leaves_after_the_first_meeting() {
    let run = |rank: &Rank| {
        assert_eq!(meet(rank, &[0, 1, 2]), Ok(6));
        if rank.number == 1 { Ok(0) } else { rank.add(&[0, 1, 2]) }
    };
    try_all(3, THREE, run, |ended| {
        assert_eq!(ended[1], Ok(0));
        [0, 2].into_iter().for_each(|rank| {
            assert!(matches!(&ended[rank], Err(Stuck(waiting)) if waiting.len() == 2), "{ended:?}")
        });
    });
}

#[test]
fn a_rank_that_fails_ends_those_that_wait_and_those_that_will() {
    for (ranks, preemptions) in [(2, None), (3, THREE)] {
        let run = move |rank: &Rank| {
            if rank.number == 1 {
                rank.fail();
                return Ok(0);
            }
            let group: Vec<u64> = (0..ranks).collect();
            meet(rank, &group)?;
            meet(rank, &group)
        };
        try_all(ranks, preemptions, run, |ended| {
            let waited = ended.iter().enumerate().filter(|(rank, _)| *rank != 1);
            waited.for_each(|(_, ended)| assert_eq!(*ended, Err(Ended { rank: 1 })));
        });
    }
}

#[test]
fn a_rank_that_panics_before_it_comes_ends_all() {
    let run = |rank: &Rank| {
        if rank.number == 1 {
            rank.panic();
            return Ok(0);
        }
        rank.add(&[0, 1])
    };
    try_all(2, None, run, |ended| assert_eq!(ended[0], Err(Ended { rank: 1 })));
}

/// Rank 1 panics inside the meeting, before or after it has read the lent bytes.
fn panics_inside(rank: &Rank, group: &[u64]) -> Result<u8, crate::CommError> {
    if rank.number != 1 {
        return rank.add(group);
    }
    rank.meet(group, ADD, |inside| {
        rank.panic();
        sum(&inside.lent(0))
    })
}

#[test]
fn a_rank_that_panics_among_two_ends_the_other_which_may_still_read() {
    try_all(
        2,
        None,
        |rank| panics_inside(rank, &[0, 1]),
        |ended| {
            assert_eq!(ended, [Err(Ended { rank: 1 }), Ok(3)]);
        },
    );
}

#[test]
fn a_rank_that_panics_among_three_ends_the_others_which_may_still_read() {
    try_all(
        3,
        THREE,
        |rank| panics_inside(rank, &[0, 1, 2]),
        |ended| {
            assert_eq!(ended, [Err(Ended { rank: 1 }), Ok(6), Err(Ended { rank: 1 })]);
        },
    );
}

#[test]
fn different_collectives_end_both_ranks() {
    let run = |rank: &Rank| {
        let terms = Terms(["gather", "scatter"][rank.number as usize]);
        rank.meet(&[0, 1], terms, |inside| sum(&inside.lent(0)))
    };
    let told = Different { first: (0, "gather".to_owned()), second: (1, "scatter".to_owned()) };
    try_all(2, None, run, move |ended| assert_eq!(ended, [Err(told.clone()), Err(told.clone())]));
}

#[test]
fn groups_that_wait_for_each_other_in_a_circle_end() {
    let run = |rank: &Rank| {
        let group = [[0, 1], [1, 2], [0, 2]][rank.number as usize];
        meet(rank, &group)
    };
    try_all(3, THREE, run, |ended| {
        ended.iter().for_each(|ended| assert!(matches!(ended, Err(Stuck(waiting)) if waiting.len() == 3)));
    });
}

#[test]
fn messages_wait_for_their_receiver_and_channels_cross() {
    let run = |rank: &Rank| match rank.number {
        0 => [rank.send(1, 7, 1).map(|()| 0), rank.send(1, 8, 2).map(|()| 0), rank.receive(1, 7)],
        _ => [rank.receive(0, 8), rank.receive(0, 7), rank.send(0, 7, 3).map(|()| 0)],
    };
    try_all(2, AGAIN, run, |got| assert_eq!(got, [[Ok(0), Ok(0), Ok(3)], [Ok(2), Ok(1), Ok(0)]]));
}

#[test]
fn a_message_meets_a_receiver_that_waits_in_all_interleavings() {
    let run =
        |rank: &Rank| if rank.number == 0 { rank.send(1, 7, 5).map(|()| 0) } else { rank.receive(0, 7) };
    try_all(2, None, run, |got| assert_eq!(got, [Ok(0), Ok(5)]));
}

#[test]
fn ranks_that_wait_for_each_others_messages_end() {
    let run = |rank: &Rank| rank.receive(1 - rank.number, 7);
    try_all(2, None, run, |ended| {
        ended.iter().for_each(|ended| assert!(matches!(ended, Err(Stuck(waiting)) if waiting.len() == 2)));
    });
}

#[test]
fn a_rank_that_fails_ends_one_that_waits_for_its_message() {
    let run = |rank: &Rank| {
        if rank.number == 1 {
            rank.fail();
            return Ok(0);
        }
        rank.receive(1, 7)
    };
    try_all(2, None, run, |ended| assert_eq!(ended[0], Err(Ended { rank: 1 })));
}

#[test]
fn a_rank_that_leaves_sends_no_message() {
    let run = |rank: &Rank| if rank.number == 1 { Ok(0) } else { rank.receive(1, 7) };
    let waits = (0, "send".to_owned());
    try_all(2, None, run, move |ended| assert_eq!(ended, [Err(Stuck(vec![waits.clone()])), Ok(0)]));
}
