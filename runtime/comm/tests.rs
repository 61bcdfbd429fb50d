//! The local communicator: the result of every collective, and every way in which a rank can fail.

use super::CollectiveKind::{AllGather, AllReduce, AllToAll, ReduceScatter};
use super::local::{AtWork, Local, LocalRank};
use super::samples::{Collective, Sample, on_threads};
use super::{CommError, Communicator, Exchanged};
use ir::{DType, PartialKind};
use std::panic::AssertUnwindSafe;
use std::time::Duration;

/// Runs a closure on every rank, each on a thread, and returns the values of all ranks; `None` if a rank panicked.
fn on_ranks<R: Send>(ranks: u64, run: impl Fn(u64, &LocalRank) -> R + Sync) -> Vec<Option<R>> {
    let local = Local::new(ranks);
    let work = local.begin();
    let one = |at_work: AtWork| {
        let rank = at_work.rank();
        let communicator = local.communicator(rank);
        let run = || {
            let _at_work = at_work;
            run(rank, &communicator)
        };
        std::panic::catch_unwind(AssertUnwindSafe(run)).ok()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = work.into_iter().map(|at_work| scope.spawn(|| one(at_work))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns the operand of a rank: `rank·100 + index`.
fn operand(rank: u64, len: usize) -> Vec<f32> {
    (0..len).map(|i| (rank * 100) as f32 + i as f32).collect()
}

/// Runs a collective on one tensor of f32.
fn exchange(
    sizes: &[usize],
    (gathered, split): (Option<usize>, Option<usize>),
    operand: &[f32],
    len: usize,
    run: impl FnOnce(&mut [Exchanged]) -> Result<(), CommError>,
) -> Result<Vec<f32>, CommError> {
    let mut result = vec![f32::NAN; len];
    run(&mut [Exchanged {
        dtype: DType::F32,
        sizes,
        gathered,
        split,
        operand: Some(bytemuck::cast_slice(operand)),
        result: bytemuck::cast_slice_mut(&mut result),
    }])?;
    Ok(result)
}

#[test]
fn gathers_put_parts_one_after_the_other_along_any_dim() {
    let gathered = on_ranks(2, |rank, comm| {
        [0, 1].map(|dim| {
            exchange(&[2, 2], (Some(dim), None), &operand(rank, 4), 8, |t| {
                comm.collective(AllGather, &[0, 1], t)
            })
            .unwrap()
        })
    });
    let expected = [[0., 1., 2., 3., 100., 101., 102., 103.], [0., 1., 100., 101., 2., 3., 102., 103.]];
    gathered.into_iter().for_each(|both| assert_eq!(both.unwrap(), expected));
}

#[test]
fn a_gather_around_parts_that_are_in_place_is_a_gather() {
    let tensors = [
        (DType::F32, vec![3, 5]),
        (DType::I64, vec![1, 2]),
        (DType::F16, vec![0, 4]),
        (DType::F32, vec![500, 400]),
    ];
    let gather = |collective| {
        let sample = Sample { collective, group: vec![2, 0, 1], tensors: tensors.to_vec() };
        on_threads(3, |communicator| sample.run(&*communicator).unwrap())
    };
    assert_eq!(gather(Collective::GatherInPlace), gather(Collective::Gather(0)));
}

/// Covers tensors that are reduced at once and tensors that are reduced by shares. A rank may have no share of a small tensor beside a
/// large one.
#[test]
fn a_reduction_in_the_place_of_its_operands_has_the_bits_of_one_beside_them() {
    let small = [(DType::F32, vec![3, 5]), (DType::BF16, vec![7]), (DType::I64, vec![0, 4])];
    let large = [(DType::F32, vec![500, 401]), (DType::F16, vec![2]), (DType::F32, vec![2100, 700])];
    for tensors in [&small[..], &large] {
        for group in [vec![2, 0, 3, 1], vec![1, 2, 0], vec![3, 1], vec![2]] {
            let reduce = |collective| {
                let sample = Sample { collective, group: group.clone(), tensors: tensors.to_vec() };
                on_threads(4, |communicator| sample.run(&*communicator).unwrap())
            };
            assert_eq!(reduce(Collective::SumInPlace), reduce(Collective::Sum), "{group:?}");
            assert_eq!(reduce(Collective::MaxInPlace), reduce(Collective::Max), "{group:?}");
        }
    }
}

#[test]
fn the_order_of_a_group_decides_who_has_which_part() {
    let gathered = on_ranks(2, |rank, comm| {
        exchange(&[1], (Some(0), None), &operand(rank, 1), 2, |t| comm.collective(AllGather, &[1, 0], t))
            .unwrap()
    });
    assert_eq!(gathered, [Some(vec![100., 0.]), Some(vec![100., 0.])]);
}

#[test]
fn an_all_to_all_moves_the_split_from_one_dim_to_another() {
    let moved = on_ranks(2, |rank, comm| {
        let own = operand(rank, 4);
        exchange(&[1, 4], (Some(0), Some(1)), &own, 4, |t| comm.collective(AllToAll, &[0, 1], t)).unwrap()
    });
    assert_eq!(moved, [Some(vec![0., 1., 100., 101.]), Some(vec![2., 3., 102., 103.])]);
}

/// Returns numbers whose sum depends on the order.
fn rough(rank: u64, len: usize) -> Vec<f32> {
    (0..len).map(|i| ir::random::normal(7, rank, i as u64) as f32 * 10f32.powi((i % 9) as i32)).collect()
}

#[test]
fn an_all_reduce_is_bitwise_a_reduce_scatter_and_a_gather() {
    for (rows, columns) in [(4, 3), (64, 777)] {
        let len = rows * columns;
        let reduced = on_ranks(4, |rank, comm| {
            // The group is not in the order of ranks; the sum must not change.
            let group = [2, 0, 3, 1];
            let own = rough(rank, len);
            let sum = PartialKind::Sum;
            let whole = exchange(&[rows, columns], (None, None), &own, len, |t| {
                comm.collective(AllReduce(sum), &[0, 1, 2, 3], t)
            })
            .unwrap();
            let share = exchange(&[rows, columns], (None, Some(0)), &own, len / 4, |t| {
                comm.collective(ReduceScatter(sum), &group, t)
            });
            let together = exchange(&[rows / 4, columns], (Some(0), None), &share.unwrap(), len, |t| {
                comm.collective(AllGather, &group, t)
            });
            (whole, together.unwrap())
        });
        let parts: Vec<Vec<f32>> = (0..4).map(|rank| rough(rank, len)).collect();
        let expected: Vec<f32> =
            (0..len).map(|i| parts[1..].iter().fold(parts[0][i], |s, p| s + p[i])).collect();
        for ranks in reduced {
            let (whole, together) = ranks.unwrap();
            assert_eq!(bytemuck::cast_slice::<f32, u32>(&whole), bytemuck::cast_slice::<f32, u32>(&expected));
            assert_eq!(whole, together);
        }
    }
}

#[test]
fn a_scatter_along_an_inner_dim_and_several_tensors_travel_together() {
    let scattered = on_ranks(2, |rank, comm| {
        let (rows, scalar) = (operand(rank, 8), [i64::from(rank as u32 + 1) << 40]);
        let (mut first, mut second) = (vec![0f32; 4], vec![0f32; 2]);
        let mut tensors = [
            Exchanged {
                dtype: DType::F32,
                sizes: &[2, 4],
                gathered: None,
                split: Some(1),
                operand: Some(bytemuck::cast_slice(&rows)),
                result: bytemuck::cast_slice_mut(&mut first),
            },
            Exchanged {
                dtype: DType::F32,
                sizes: &[4],
                gathered: None,
                split: Some(0),
                operand: Some(bytemuck::cast_slice(&rows[..4])),
                result: bytemuck::cast_slice_mut(&mut second),
            },
        ];
        comm.collective(ReduceScatter(PartialKind::Max), &[0, 1], &mut tensors).unwrap();
        let mut sum = [0i64];
        comm.collective(
            AllReduce(PartialKind::Sum),
            &[0, 1],
            &mut [Exchanged {
                dtype: DType::I64,
                sizes: &[],
                gathered: None,
                split: None,
                operand: Some(bytemuck::cast_slice(&scalar)),
                result: bytemuck::cast_slice_mut(&mut sum),
            }],
        )
        .unwrap();
        (first, second, sum[0])
    });
    let three = 3i64 << 40;
    assert_eq!(scattered[0], Some((vec![100., 101., 104., 105.], vec![100., 101.], three)));
    assert_eq!(scattered[1], Some((vec![102., 103., 106., 107.], vec![102., 103.], three)));
}

#[test]
fn groups_meet_many_times_without_each_other() {
    let sums = on_ranks(4, |rank, comm| {
        let pairs = [vec![rank & !1, rank | 1], vec![rank & 1, rank & 1 | 2]];
        let mut total = vec![rank as f32; 5000]; // large enough to be reduced by shares
        for round in 0..60 {
            let reduce =
                |t: &mut [Exchanged]| comm.collective(AllReduce(PartialKind::Sum), &pairs[round % 2], t);
            total = exchange(&[5000], (None, None), &total, 5000, reduce).unwrap();
            total.iter_mut().for_each(|x| *x *= 0.5);
        }
        total
    });
    sums.into_iter().for_each(|sum| assert_eq!(sum.unwrap(), vec![1.5; 5000]));
}

/// Runs an `all_reduce` of 5000 numbers by the ranks of a group.
fn reduce(comm: &dyn Communicator, group: &[u64]) -> Result<(), CommError> {
    let own = operand(comm.rank(), 5000);
    exchange(&[5000], (None, None), &own, 5000, |t| comm.collective(AllReduce(PartialKind::Sum), group, t))
        .map(drop)
}

#[test]
fn a_rank_that_panics_ends_all_that_wait_for_it() {
    for ranks in [2, 4] {
        let group: Vec<u64> = (0..ranks).collect();
        let ended = on_ranks(ranks, |rank, comm| {
            reduce(comm, &group).unwrap();
            assert_ne!(rank, 1, "as the test asks for");
            (0..100).try_for_each(|_| reduce(comm, &group))
        });
        for (rank, ended) in ended.into_iter().enumerate() {
            assert_eq!(ended, (rank != 1).then_some(Err(CommError::Ended { rank: 1 })));
        }
    }
}

#[test]
fn a_rank_that_panics_inside_a_collective_ends_all() {
    // The result of rank 2 has no room for the sum.
    let ended = on_ranks(4, |rank, comm| {
        let own = operand(rank, 8);
        let len = if rank == 2 { 7 } else { 8 };
        exchange(&[8], (None, None), &own, len, |t| comm.collective(AllGather, &[0, 1, 2, 3], t))
            .map(drop)?;
        reduce(comm, &[0, 1, 2, 3])
    });
    assert_eq!(ended[2], None);
    [0, 1, 3].into_iter().for_each(|rank| assert!(ended[rank] != Some(Ok(())), "{ended:?}"));
}

#[test]
fn a_rank_that_has_nothing_more_to_do_is_not_waited_for() {
    let ended = on_ranks(2, |rank, comm| if rank == 0 { reduce(comm, &[0, 1]) } else { Ok(()) });
    assert_eq!(ended[1], Some(Ok(())));
    let error = ended[0].clone().unwrap().unwrap_err().to_string();
    assert_eq!(
        error,
        "no rank can continue: rank 0 waits in `all_reduce` (sum) of f32[5000] among the ranks [0, 1]"
    );
}

#[test]
fn groups_that_wait_for_each_other_in_a_circle_end_with_an_error() {
    let ended = on_ranks(3, |rank, comm| {
        let groups = [[0, 1], [1, 2], [0, 2]];
        let (first, then) = [(0, 2), (1, 0), (2, 1)][rank as usize];
        reduce(comm, &groups[first])?;
        reduce(comm, &groups[then])
    });
    for error in ended {
        assert!(matches!(error.unwrap(), Err(CommError::Stuck(waiting)) if waiting.len() == 3));
    }
}

#[test]
fn different_collectives_of_one_group_are_told_apart() {
    let ended = on_ranks(2, |rank, comm| {
        let own = operand(rank, 4);
        let kind = if rank == 0 { PartialKind::Sum } else { PartialKind::Max };
        exchange(&[4], (None, None), &own, 4, |t| comm.collective(AllReduce(kind), &[0, 1], t))
    });
    for error in ended {
        assert_eq!(
            error.unwrap().unwrap_err().to_string(),
            "rank 0 issued `all_reduce` (sum) of f32[4] among the ranks [0, 1], \
             and rank 1 issued `all_reduce` (max) of f32[4] among the ranks [0, 1]"
        );
    }
}

#[test]
fn a_rank_outside_its_group_is_refused() {
    let ended = on_ranks(2, |rank, comm| if rank == 0 { reduce(comm, &[1]) } else { Ok(()) });
    assert_eq!(ended[0], Some(Err(CommError::Outside { rank: 0, group: vec![1] })));
}

#[test]
fn of_a_chain_of_ranks_that_wait_the_one_is_named_that_waits_for_nobody() {
    let local = Local::new(3);
    let mut work = local.begin();
    let late = |time, timeout| local.late(Duration::from_secs(time), Duration::from_secs(timeout));
    let by = |rank, seconds, missing: u64| Some(CommError::Late { rank, seconds, missing: vec![missing] });
    let [first, second] = [0, 1].map(|rank| local.communicator(rank));
    let told = std::thread::scope(|scope| {
        // Rank 0 waits for rank 1, which later waits for rank 2.
        scope.spawn(|| reduce(&first, &[0, 1]));
        while late(0, 0).is_none() {
            std::thread::yield_now();
        }
        let one_waits = [late(0, 0), late(1, 10)];
        scope.spawn(|| reduce(&second, &[1, 2]));
        while late(5, 0) == by(0, 0, 1) {
            std::thread::yield_now();
        }
        let told = (one_waits, late(11, 10));
        work.pop().unwrap().fail();
        told
    });
    assert_eq!(told, ([by(0, 0, 1), None], by(1, 10, 2)));
    assert_eq!(late(100, 10), None);
}

#[test]
fn messages_wait_for_their_receiver() {
    let local = Local::new(2);
    let work = local.begin();
    let [first, second] = [0, 1].map(|rank| local.communicator(rank));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            first.send(1, 7, &[1, 2]).unwrap();
            first.send(1, 8, &[3]).unwrap();
            let mut got = [0];
            first.receive(1, 9, &mut got).unwrap();
        });
        scope.spawn(|| {
            let mut got = [0; 2];
            second.receive(0, 7, &mut got).unwrap();
            let mut got = [0; 1];
            second.receive(0, 8, &mut got).unwrap();
            second.send(0, 9, &[3]).unwrap();
        });
    });
    drop(work);
}
