//! Checks every schedule with the checker, and against the bubble and the memory of its paper.

mod faults;

use super::*;
use Schedule::{DualPipeV, Gpipe, Interleaved, OneFOneB, PipeDream, TwoBw, ZbH1, ZbV};
use ir::Phase::{Backward, Forward, Weight};
use ir::timetable::{
    ChunkPhase, Dependency, Timeline, TimetableError, check, check_slots, check_stream, slots,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The costs of the tasks of a chunk.
#[derive(Clone, Copy, Debug)]
struct Costs {
    forward: u64,
    /// The cost of the gradients of activations.
    backward: u64,
    /// The cost of the gradients of parameters.
    weight: u64,
}

/// Costs with `weight` ≤ `backward`, for which the bubbles of the papers hold.
const COSTS: [Costs; 4] = [
    Costs { forward: 1, backward: 1, weight: 1 },
    Costs { forward: 3, backward: 4, weight: 2 },
    Costs { forward: 2, backward: 4, weight: 3 },
    Costs { forward: 7, backward: 3, weight: 3 },
];

impl Plan {
    fn dependencies(&self) -> Vec<Dependency> {
        Dependency::chain(self.placement.len() as u32, self.splits_backward)
    }

    fn check(&self, microbatches: u32) -> Result<(), TimetableError> {
        let dependencies = self.dependencies();
        if self.delays.is_empty() {
            check(&self.timetable, &self.placement, microbatches, &dependencies)
        } else {
            check_stream(&self.timetable, &self.placement, microbatches, &self.delays, &dependencies)
        }
    }

    /// Returns the plan of several steps of an asynchronous schedule, as one long step.
    fn unrolled(&self, microbatches: u32, steps: u32) -> Self {
        let timetable = self.timetable.unrolled(microbatches, steps);
        Self { timetable, delays: vec![], ..self.clone() }
    }

    fn timeline(&self, microbatches: u32, costs: Costs) -> Timeline<u64> {
        let with_backward = if self.splits_backward { 0 } else { costs.weight };
        let cost = |part: ChunkPhase| match part.phase {
            Forward => costs.forward,
            Backward => costs.backward + with_backward,
            _ => costs.weight,
        };
        let dependencies = self.dependencies();
        Timeline::new(&self.timetable, &self.placement, microbatches, &dependencies, cost, |_| 0)
            .expect("a valid timetable")
    }

    /// Returns the number of slots on each rank, from forward to the last phase that reads activations.
    fn slots(&self) -> Vec<u32> {
        let last = if self.splits_backward { Weight } else { Backward };
        self.timetable.ranks.iter().map(|tasks| slots(tasks, Forward, last).count).collect()
    }
}

/// Returns the plan for numbers that the schedule accepts.
fn plan(schedule: Schedule, ranks: u32, chunks: u32, microbatches: u32) -> Plan {
    schedule.plan(ranks, chunks, microbatches).expect("numbers that the schedule takes")
}

/// Returns the numbers of ranks from 2 to 16 and of microbatches from `least(ranks)` to 64.
fn sizes(least: impl Fn(u32) -> u32) -> impl Iterator<Item = (u32, u32)> {
    (2..=16).flat_map(move |ranks| (least(ranks)..=64).map(move |microbatches| (ranks, microbatches)))
}

/// Asserts that each rank idles for `bubble(p - 1, costs)` of the step.
fn assert_bubble(
    schedule: Schedule,
    chunks: u32,
    (ranks, microbatches): (u32, u32),
    bubble: fn(u64, Costs) -> u64,
) -> Plan {
    let plan = plan(schedule, ranks, chunks, microbatches);
    for costs in COSTS {
        let timeline = plan.timeline(microbatches, costs);
        for rank in 0..ranks as usize {
            let expected = bubble(u64::from(ranks - 1), costs);
            assert_eq!(timeline.idle(rank), expected, "{schedule:?} {ranks} {microbatches} {costs:?}");
        }
    }
    plan
}

/// Returns (p − 1)(F + B), where B is the whole backward.
fn one_f_one_b_bubble(others: u64, costs: Costs) -> u64 {
    others * (costs.forward + costs.backward + costs.weight)
}

/// Whether every task can run if a message waits for the previous one on its channel, until the task that reads that one is done.
/// MPI has a copy of one message for each channel, and a GPU has two.
fn runs_with_one_message_a_channel(plan: &Plan, microbatches: u32) -> bool {
    let dependencies = plan.dependencies();
    let rank_of = |part: ChunkPhase| plan.placement[part.chunk as usize];
    let mut done: BTreeMap<ChunkPhase, u32> = BTreeMap::new();
    let mut next = vec![0; plan.timetable.ranks.len()];
    loop {
        let before = next.clone();
        for (rank, tasks) in plan.timetable.ranks.iter().enumerate() {
            while let Some(task) = tasks.get(next[rank]) {
                let count = |part: ChunkPhase| done.get(&part).copied().unwrap_or_default();
                let is_ready = dependencies.iter().all(|&Dependency { from, to }| {
                    let has_input = to != task.part || count(from) > task.microbatch;
                    let is_message = from == task.part && rank_of(from) != rank_of(to);
                    has_input && (!is_message || count(to) >= task.microbatch)
                });
                if !is_ready {
                    break;
                }
                done.insert(task.part, task.microbatch + 1);
                next[rank] += 1;
            }
        }
        if next == before {
            let tasks: usize = plan.timetable.ranks.iter().map(Vec::len).sum();
            assert!(done.values().all(|&count| count <= microbatches));
            return next.into_iter().sum::<usize>() == tasks;
        }
    }
}

#[test]
fn no_schedule_needs_more_than_one_message_on_a_channel() {
    for (schedule, _) in Schedule::ALL {
        for (ranks, microbatches) in (2..=16).flat_map(|ranks| [1, ranks, 2 * ranks, 64].map(|m| (ranks, m)))
        {
            for chunks in 1..=4 {
                let Ok(plan) = schedule.plan(ranks, chunks, microbatches) else { continue };
                let (plan, microbatches) = if schedule.is_asynchronous() {
                    (plan.unrolled(microbatches, 4), 4 * microbatches)
                } else {
                    (plan, microbatches)
                };
                assert!(
                    runs_with_one_message_a_channel(&plan, microbatches),
                    "{schedule:?} {ranks} {chunks} {microbatches}"
                );
            }
        }
    }
}

#[test]
fn every_schedule_passes_the_checker() {
    let mut count = 0;
    for (schedule, _) in Schedule::ALL {
        for (ranks, microbatches) in (1..=16).flat_map(|ranks| (1..=64).map(move |m| (ranks, m))) {
            for chunks in 1..=4 {
                let Ok(plan) = schedule.plan(ranks, chunks, microbatches) else { continue };
                let found = plan.check(microbatches);
                assert_eq!(found, Ok(()), "{schedule:?} {ranks} {chunks} {microbatches}");
                assert_eq!(plan.timetable.splits_backward(), plan.splits_backward);
                count += 1;
            }
        }
    }
    // 1024 of each of GPipe, 1F1B, ZB-H1 and ZB-V; the sums of ⌊64/p⌋ · 3 and of 65 − 2p; 16 of PipeDream, and the sum of 65 − p of 2BW.
    assert_eq!(count, 4 * 1024 + 3 * 211 + 768 + 16 + 904);
}

#[test]
fn gpipe_has_the_bubble_and_the_memory_of_its_paper() {
    for size in sizes(|ranks| ranks) {
        let plan = assert_bubble(Gpipe, 1, size, one_f_one_b_bubble);
        assert!(plan.slots().iter().all(|&slots| slots == size.1));
    }
}

#[test]
fn one_f_one_b_has_the_bubble_and_the_memory_of_its_paper() {
    for size in sizes(|ranks| ranks) {
        let plan = assert_bubble(OneFOneB, 1, size, one_f_one_b_bubble);
        let expected: Vec<u32> = (1..=size.0).rev().collect();
        assert_eq!(plan.slots(), expected);
    }
}

/// The bubble in costs of a stage is divided by v, so in costs of a chunk it is (p − 1)(F + B). Memory is p(1 + (p − 1)/(pv)) stages,
/// which is pv + p − 1 chunks, if there are as many.
#[test]
fn interleaved_has_the_bubble_and_the_memory_of_its_paper() {
    for chunks in 2..=4 {
        for size in sizes(|ranks| ranks).filter(|(ranks, microbatches)| microbatches % ranks == 0) {
            let plan = assert_bubble(Interleaved, chunks, size, one_f_one_b_bubble);
            let (ranks, microbatches) = size;
            let expected = (ranks * chunks + ranks - 1).min(microbatches * chunks);
            assert_eq!(plan.slots().into_iter().max(), Some(expected));
        }
    }
}

#[test]
fn the_first_of_16_ranks_with_3_chunks_needs_63_slots_from_one_pool() {
    let plan = plan(Interleaved, 16, 3, 64);
    let tasks = &plan.timetable.ranks[0];
    assert_eq!(slots(tasks, Forward, Backward).count, 63);
    let pool = |chunk| {
        let own: Vec<Task> = tasks.iter().filter(|task| task.part.chunk == chunk).copied().collect();
        slots(&own, Forward, Backward).count
    };
    assert_eq!([0, 16, 32].map(pool).iter().sum::<u32>(), 79);
}

/// Zero Bubble, section 2.3: (p − 1)(F + Bi − W), and the memory of 1F1B's first rank on every rank. This holds for W ≤ F.
///
/// With F < W ≤ Bi the bubble is (p − 1)Bi, and no schedule with this memory has less: the first gradient comes back to the
/// first rank at pF + (p − 1)Bi at the earliest, and until then this rank may run no more than p forward tasks.
#[test]
fn zb_h1_has_the_bubble_and_the_memory_of_its_paper() {
    for size in sizes(|ranks| ranks) {
        let bubble = |others, costs: Costs| {
            others * (costs.forward + costs.backward - costs.weight.min(costs.forward))
        };
        let plan = assert_bubble(ZbH1, 1, size, bubble);
        assert_eq!(plan.slots(), vec![size.0; size.0 as usize]);
    }
}

/// Zero Bubble, section 6, measures the bubble between the first and the last task of a rank, and has none with F = Bi = W.
/// In the whole step, a rank loses the p − 1 forward tasks that the pipeline takes to fill. Memory is p stages: 2p chunks.
#[test]
fn zb_v_has_no_bubble_and_the_memory_of_1f1b() {
    for (ranks, microbatches) in sizes(|ranks| 2 * ranks - 1) {
        let plan = plan(ZbV, ranks, 2, microbatches);
        let timeline = plan.timeline(microbatches, COSTS[0]);
        for rank in 0..ranks as usize {
            assert_eq!((timeline.stalled(rank), timeline.idle(rank)), (0, u64::from(ranks - 1)));
        }
        assert_eq!(plan.slots(), vec![2 * ranks; ranks as usize]);
    }
}

/// DualPipe's README gives (p − 1)(F&B + B − 3W), where F&B is the time of a forward and a whole backward that run together;
/// one after the other they take F + Bi + W. There gradients leave a rank when W is done. Here they leave when Bi is done,
/// which with F = Bi takes (p − 1)(F + Bi − W). Memory is 2p + 1 chunks in both.
#[test]
fn dual_pipe_v_has_at_most_the_bubble_of_its_source_and_the_same_memory() {
    for (ranks, microbatches) in sizes(|ranks| 2 * ranks) {
        let plan = plan(DualPipeV, ranks, 2, microbatches);
        for weight in 1..=4 {
            let [forward, backward] = [4; 2];
            let idle = plan.timeline(microbatches, Costs { forward, backward, weight }).idle(0);
            let others = u64::from(ranks - 1);
            assert_eq!(idle, others * (forward + backward - weight));
            let pair = forward + backward + weight;
            assert!(idle <= others * (pair + (backward + weight) - 3 * weight));
        }
        assert_eq!(plan.slots(), vec![2 * ranks + 1; ranks as usize]);
    }
}

/// PipeDream (arXiv 1806.03377, section 3.2): "in steady state, there are no pipeline stalls". In a stream of any number of steps, each
/// rank loses the (p − 1)(F + B) of one fill and one drain, as 1F1B does in every step. Memory is that of 1F1B: p − r microbatches on
/// rank r (PipeDream-2BW, arXiv 2006.09503, section 3.1, keeps 2 versions of the weights and the activations of at most p microbatches).
#[test]
fn an_asynchronous_schedule_has_one_bubble_for_all_steps_and_the_memory_of_1f1b() {
    for (schedule, steps) in [(PipeDream, 70), (TwoBw, 3)] {
        let is_due = |size: &(u32, u32)| schedule != PipeDream || size.1 == 64;
        for (ranks, microbatches) in sizes(|ranks| ranks).filter(is_due) {
            let microbatches = if schedule == PipeDream { 1 } else { microbatches };
            let plan = plan(schedule, ranks, 1, microbatches).unrolled(microbatches, steps);
            for costs in COSTS {
                let timeline = plan.timeline(microbatches * steps, costs);
                let expected = one_f_one_b_bubble(u64::from(ranks - 1), costs);
                assert!(
                    (0..ranks as usize).all(|rank| timeline.idle(rank) == expected),
                    "{schedule:?} {ranks}"
                );
            }
            assert_eq!(plan.slots(), (1..=ranks).rev().collect::<Vec<_>>());
        }
    }
}

/// PipeDream, section 3.3: stage s of p, counted from 0, computes with the weights of p − 1 − s updates ago. 2BW, section 3.1:
/// W(t+1) = W(t) − ν · ∇f(W(t − 1)) on every stage. No forward task finds fewer updates done than that.
#[test]
fn the_delays_are_those_of_the_papers_and_as_small_as_the_timetable_allows() {
    for (ranks, microbatches) in sizes(|ranks| ranks) {
        let pipedream = plan(PipeDream, ranks, 1, 1);
        assert_eq!(pipedream.delays, (0..ranks).rev().collect::<Vec<_>>());
        let two = plan(TwoBw, ranks, 1, microbatches);
        assert_eq!(two.delays, vec![1; ranks as usize]);
        for (plan, microbatches) in [(pipedream, 1), (two, microbatches)] {
            let mut fewer = plan.clone();
            fewer.delays[0] -= 1;
            let found = fewer.check(microbatches);
            assert!(matches!(found, Err(TimetableError::VersionNotMade { rank: 0, .. })), "{found:?}");
        }
    }
}

#[test]
fn one_rank_has_no_bubble() {
    for (schedule, _) in Schedule::ALL {
        let microbatches = if schedule == PipeDream { 1 } else { 5 };
        let plan = plan(schedule, 1, schedule.default_chunks(), microbatches);
        assert!(COSTS.iter().all(|&costs| plan.timeline(microbatches, costs).idle(0) == 0));
    }
}

#[test]
fn a_small_timetable_of_each_schedule_reads_as_in_its_paper() {
    let text = |schedule: Schedule, microbatches| {
        plan(schedule, 2, schedule.default_chunks(), microbatches).timetable.to_string()
    };
    assert_eq!(text(Gpipe, 2), "rank 0: F0.0 F0.1 B0.0 B0.1\nrank 1: F1.0 F1.1 B1.0 B1.1\n");
    assert_eq!(text(OneFOneB, 2), "rank 0: F0.0 F0.1 B0.0 B0.1\nrank 1: F1.0 B1.0 F1.1 B1.1\n");
    let interleaved = "rank 0: F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3\n\
                       rank 1: F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3\n";
    assert_eq!(text(Interleaved, 4), interleaved);
    let zb_h1 = "rank 0: F0.0 F0.1 B0.0 W0.0 F0.2 B0.1 W0.1 B0.2 W0.2\n\
                 rank 1: F1.0 B1.0 F1.1 B1.1 W1.0 F1.2 B1.2 W1.1 W1.2\n";
    assert_eq!(text(ZbH1, 3), zb_h1);
    let zb_v = "rank 0: F0.0 F0.1 F0.2 F3.0 B3.0 W3.0 F3.1 B3.1 W3.1 B0.0 W0.0 F3.2 B3.2 W3.2 B0.1 W0.1 B0.2 W0.2\n\
                rank 1: F1.0 F2.0 F1.1 F2.1 B2.0 W2.0 F1.2 B1.0 W1.0 F2.2 B2.1 W2.1 B1.1 B2.2 B1.2 W1.1 W2.2 W1.2\n";
    assert_eq!(text(ZbV, 3), zb_v);
    let dual_pipe_v = "rank 0: F0.0 F0.1 F0.2 F3.0 B3.0 W3.0 F3.1 F0.3 B3.1 W3.1 F3.2 B0.0 W0.0 B3.2 W3.2 F3.3 B0.1 W0.1 B3.3 W3.3 B0.2 W0.2 B0.3 W0.3\n\
                       rank 1: F1.0 F2.0 F1.1 F2.1 F1.2 B2.0 W2.0 F2.2 B1.0 W1.0 F1.3 B2.1 W2.1 F2.3 B1.1 W1.1 B2.2 W2.2 B1.2 W1.2 B2.3 B1.3 W2.3 W1.3\n";
    assert_eq!(text(DualPipeV, 4), dual_pipe_v);
    assert_eq!(text(PipeDream, 1), "rank 0: F0.1 B0.0\nrank 1: F1.0 B1.0\n");
    assert_eq!(text(TwoBw, 2), "rank 0: F0.1 B0.0 F0.2 B0.1\nrank 1: F1.0 B1.0 F1.1 B1.1\n");
    let unrolled = plan(TwoBw, 2, 1, 2).timetable.unrolled(2, 2).to_string();
    let expected = "rank 0: F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 B0.3\n\
                    rank 1: F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3\n";
    assert_eq!(unrolled, expected);
}

#[test]
fn numbers_that_a_schedule_cannot_take_are_errors_that_say_which_would_work() {
    let fault = |schedule: Schedule, ranks, chunks, microbatches| {
        schedule.plan(ranks, chunks, microbatches).expect_err("a fault")
    };
    let expected = "`interleaved` on 4 ranks needs a multiple of 4 microbatches, not 6; 4 or 8 would work";
    assert_eq!(fault(Interleaved, 4, 2, 6), expected);
    let expected = "`interleaved` on 4 ranks needs a multiple of 4 microbatches, not 3; 4 would work";
    assert_eq!(fault(Interleaved, 4, 2, 3), expected);
    let expected = "`dualpipev` on 4 ranks needs at least 8 microbatches, not 7; `zb-v` takes any number";
    assert_eq!(fault(DualPipeV, 4, 2, 7), expected);
    let expected = "`1f1b` needs exactly 1 chunk per rank, not 2; `interleaved` takes 2 or more";
    assert_eq!(fault(OneFOneB, 4, 2, 8), expected);
    let expected = "`gpipe` needs at least 1 rank and 1 microbatch, not 0 and 8";
    assert_eq!(fault(Gpipe, 0, 1, 8), expected);
    let expected = "16 stages and 1000000 microbatches make more than 16777216 tasks; at most 524288 microbatches would work";
    assert_eq!(fault(Gpipe, 16, 1, 1_000_000), expected);
    let expected = "20000 stages and 1 microbatches make more than 16777216 tasks; fewer ranks would work";
    assert_eq!(fault(ZbV, 10_000, 2, 1), expected);
    let expected = "`pipedream` updates the weights after each microbatch, and a step has 8; `2bw` takes 4 microbatches or more";
    assert_eq!(fault(PipeDream, 4, 1, 8), expected);
    let expected =
        "`2bw` on 4 ranks needs at least 4 microbatches, not 3; `pipedream` takes 1, `1f1b` any number";
    assert_eq!(fault(TwoBw, 4, 1, 3), expected);
    for (schedule, _) in Schedule::ALL {
        assert!(schedule.plan(u32::MAX, u32::MAX, u32::MAX).is_err());
        assert!(schedule.plan(u32::MAX, 1, 1).is_err());
        assert!(schedule.plan(2, 0, 1).is_err());
    }
}

#[test]
fn a_choice_prints_and_parses() {
    for (schedule, name) in Schedule::ALL {
        let choice: ScheduleChoice = name.parse().expect("a name");
        assert_eq!(choice, ScheduleChoice { schedule, chunks: None });
        assert_eq!(choice.to_string(), name);
        assert_eq!(schedule.name(), name);
        let microbatches = if schedule == PipeDream { 1 } else { 8 };
        assert!(schedule.plan(4, choice.chunks_per_rank(), microbatches).is_ok());
    }
    for text in ["interleaved:chunks=4", "zb-v:chunks=2", "gpipe:chunks=1"] {
        assert_eq!(text.parse().map(|choice: ScheduleChoice| choice.to_string()), Ok(text.to_string()));
    }
    let fault = |text: &str| text.parse::<ScheduleChoice>().expect_err("a fault");
    let names = "gpipe, 1f1b, interleaved, zb-h1, zb-v, dualpipev, pipedream, 2bw";
    assert_eq!(fault("pipedreams"), format!("`pipedreams` is not a schedule; the schedules are {names}"));
    assert_eq!(fault("zb-v:chunks=3"), "`zb-v` needs exactly 2 chunks per rank, not 3");
    let expected = "`interleaved` needs at least 2 chunks per rank, not 1; with 1 chunk per rank, `1f1b` is the same schedule";
    assert_eq!(fault("interleaved:chunks=1"), expected);
    assert_eq!(fault("1f1b:v=2"), "`v=2` is not an option of a schedule; `chunks=2` would be");
    assert_eq!(fault("1f1b:"), "`` is not an option of a schedule; `chunks=2` would be");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_is_valid_and_deterministic_and_prints(
        (schedule, _) in prop::sample::select(Schedule::ALL.to_vec()),
        ranks in 1..=16u32, chunks in 2..=4u32, microbatches in 1..=64u32, costs in [1..9u64, 1..9, 1..9],
    ) {
        let chunks = if schedule == Interleaved { chunks } else { schedule.default_chunks() };
        let least = microbatches.next_multiple_of(2 * ranks);
        let least = if schedule == PipeDream { 1 } else { least };
        let microbatches = if schedule.plan(ranks, chunks, microbatches).is_ok() { microbatches } else { least };
        let plan = plan(schedule, ranks, chunks, microbatches);
        prop_assert_eq!(plan.check(microbatches), Ok(()));
        prop_assert_eq!(plan.timetable.to_string().parse(), Ok(plan.timetable.clone()));
        let (plan, microbatches) = if schedule.is_asynchronous() {
            (plan.unrolled(microbatches, 3), 3 * microbatches)
        } else {
            (plan, microbatches)
        };
        let [forward, backward, weight] = costs;
        let costs = Costs { forward, backward, weight };
        prop_assert_eq!(plan.timeline(microbatches, costs), plan.timeline(microbatches, costs));
        for tasks in &plan.timetable.ranks {
            for (from, to) in [(Forward, Backward), (Forward, Weight), (Backward, Weight)] {
                prop_assert_eq!(check_slots(tasks, from, to, &slots(tasks, from, to)), Ok(()));
            }
        }
    }
}
