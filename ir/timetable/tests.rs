//! Tests with hand-written timetables: valid ones, and others with one planted fault each.

use super::*;
use Phase::{Backward, Forward, Weight};
use proptest::prelude::*;

/// 1F1B on two ranks with two microbatches.
const TWO_RANKS: &str = "rank 0: F0.0 F0.1 B0.0 B0.1\nrank 1: F1.0 B1.0 F1.1 B1.1\n";
/// The same schedule with weight tasks.
const SPLIT: &str = "rank 0: F0.0 F0.1 B0.0 W0.0 B0.1 W0.1\nrank 1: F1.0 B1.0 F1.1 B1.1 W1.0 W1.1\n";

fn timetable(text: &str) -> Timetable {
    text.parse().expect("a timetable")
}

fn task(text: &str) -> Task {
    text.parse().expect("a task")
}

/// Checks a timetable with one chunk per rank in a chain, and two microbatches.
fn verdict(text: &str) -> Result<(), TimetableError> {
    let timetable = timetable(text);
    let placement: Vec<u32> = (0..timetable.ranks.len() as u32).collect();
    let dependencies = Dependency::chain(placement.len() as u32, timetable.splits_backward());
    check(&timetable, &placement, 2, &dependencies)
}

fn fault(text: &str) -> String {
    verdict(text).expect_err("a fault").to_string()
}

#[test]
fn a_timetable_prints_and_parses() {
    for text in [TWO_RANKS, SPLIT, "", "rank 0:\nrank 1: W4294967295.7\n"] {
        assert_eq!(timetable(text).to_string(), text);
    }
    let fault = |text: &str| text.parse::<Timetable>().expect_err("a fault").to_string();
    assert_eq!(fault("rank 1: F0.0"), "line 1 must start with `rank 0:`");
    assert_eq!(
        fault("rank 0: F0.0\nrank 1: G0.0"),
        "line 2: `G0.0` is not a task; a task is F, B or W, then stage.microbatch, such as `F0.3`"
    );
    for word in ["", "F", "F0", "F0.", "F.0", "F00.1", "F+0.1", "F0.1.2", "F4294967296.0", "é0.1", "f0.1"] {
        assert!(word.parse::<Task>().is_err(), "{word}");
    }
}

#[test]
fn a_chain_depends_forward_and_backward() {
    let texts = |split| Dependency::chain(2, split).iter().map(Dependency::to_string).collect::<Vec<_>>();
    assert_eq!(texts(false), ["F0 -> B0", "F0 -> F1", "B1 -> B0", "F1 -> B1"]);
    assert_eq!(texts(true), ["F0 -> B0", "B0 -> W0", "F0 -> F1", "B1 -> B0", "F1 -> B1", "B1 -> W1"]);
    assert!(Dependency::chain(0, true).is_empty());
}

#[test]
fn a_valid_timetable_passes() {
    assert_eq!(verdict(TWO_RANKS), Ok(()));
    assert_eq!(verdict(SPLIT), Ok(()));
}

#[test]
fn two_ranks_that_change_places_are_caught() {
    let swapped =
        TWO_RANKS.replace("rank 0", "rank 2").replace("rank 1", "rank 0").replace("rank 2", "rank 1");
    let lines: Vec<&str> = swapped.lines().rev().collect();
    assert_eq!(fault(&lines.join("\n")), "rank 0 runs F1.0, but stage 1 is on rank 1");
}

#[test]
fn a_task_on_the_wrong_rank_is_caught() {
    let text = "rank 0: F0.0 F0.1 B0.0 B0.1 B1.1\nrank 1: F1.0 B1.0 F1.1";
    assert_eq!(fault(text), "rank 0 runs B1.1, but stage 1 is on rank 1");
}

#[test]
fn swapped_microbatches_are_caught() {
    let text = "rank 0: F0.0 F0.1 B0.1 B0.0\nrank 1: F1.0 B1.0 F1.1 B1.1";
    let expected = "rank 0 runs B0.1 before B0.0; a stage runs each phase in ascending order of microbatches";
    assert_eq!(fault(text), expected);
}

#[test]
fn a_task_before_its_input_is_caught() {
    let text = "rank 0: F0.0 F0.1 B0.0 B0.1\nrank 1: B1.0 F1.0 F1.1 B1.1";
    assert_eq!(fault(text), "rank 1 runs B1.0 before F1.0, from which it reads");
    let text = SPLIT.replace("B0.0 W0.0", "W0.0 B0.0");
    assert_eq!(fault(&text), "rank 0 runs W0.0 before B0.0, from which it reads");
}

#[test]
fn a_dropped_task_is_caught() {
    for text in [TWO_RANKS, SPLIT] {
        for word in text.split_whitespace().filter(|word| word.parse::<Task>().is_ok()) {
            let Err(TimetableError::Missing { task: missing, .. }) = verdict(&text.replace(word, "")) else {
                panic!("{word}")
            };
            assert_eq!(missing, task(word));
        }
    }
}

#[test]
fn a_repeated_task_is_caught() {
    assert_eq!(fault(&SPLIT.replace("W1.1", "W1.1 W1.0")), "rank 1 runs W1.0 twice");
}

#[test]
fn tasks_of_unknown_chunks_microbatches_and_phases_are_caught() {
    for word in ["F2.0", "F0.2", "W4294967295.0"] {
        let expected =
            format!("rank 0 runs {word}, which does not exist: 2 stages and 2 microbatches count from 0");
        assert_eq!(fault(&TWO_RANKS.replace("B0.1", word)), expected);
    }
    let mut timetable = timetable(TWO_RANKS);
    timetable.ranks[1][2].part.phase = Phase::Update;
    let found = check(&timetable, &[0, 1], 2, &[]);
    assert!(matches!(found, Err(TimetableError::UnknownTask { rank: 1, .. })), "{found:?}");
    timetable.ranks.pop();
    let found = check(&timetable, &[0, 1], 2, &[]);
    assert_eq!(found, Err(TimetableError::UnknownRank { chunk: 1, rank: 1, ranks: 1 }));
}

#[test]
fn dependencies_without_tasks_are_caught() {
    for (from, to) in
        [((Backward, 0), (Weight, 0)), ((Forward, 1), (Forward, 2)), ((Phase::Prepare, 0), (Forward, 0))]
    {
        let [from, to] = [from, to].map(|(phase, chunk)| ChunkPhase::new(phase, chunk));
        let dependency = Dependency { from, to };
        let found = check(&timetable(TWO_RANKS), &[0, 1], 2, &[dependency]);
        assert_eq!(found, Err(TimetableError::UnknownPart(dependency)));
    }
}

#[test]
fn two_ranks_that_wait_for_each_other_are_caught() {
    // Each list by itself is in order. Rank 0 waits for the first gradient before it sends the second activation; rank 1 waits for
    // the second activation before it sends the first gradient.
    let text = "rank 0: F0.0 B0.0 F0.1 B0.1\nrank 1: F1.0 F1.1 B1.0 B1.1";
    let expected = "the pipeline waits for ever: \
        stage 0 (rank 0) waits in B0.0 for B1.0 of stage 1 (rank 1), which stands behind F1.1; \
        stage 1 (rank 1) waits in F1.1 for F0.1 of stage 0 (rank 0), which stands behind B0.0";
    assert_eq!(fault(text), expected);
}

#[test]
fn a_deadlock_names_the_circle_and_not_the_ranks_behind_it() {
    let text = "rank 0: F0.0 F0.1 B0.0 B0.1\nrank 1: F1.0 B1.0 F1.1 B1.1\nrank 2: F2.0 F2.1 B2.0 B2.1";
    let Err(TimetableError::Deadlock(waits)) = verdict(text) else { panic!("no deadlock") };
    assert_eq!(waits.iter().map(|wait| wait.rank).collect::<Vec<_>>(), [1, 2]);
    assert_eq!([waits[0].task, waits[0].needed, waits[0].behind], ["B1.0", "B2.0", "F2.1"].map(task));
}

#[test]
fn a_skip_over_a_stage_is_a_dependency_like_others() {
    // The last chunk reads a result of the first chunk, which is on the same rank and must run first.
    let timetable = timetable("rank 0: F0.0 F2.0 B2.0 B0.0\nrank 1: F1.0 B1.0");
    let mut dependencies = Dependency::chain(3, false);
    let [from, to] = [(Forward, 0), (Forward, 2)].map(|(phase, chunk)| ChunkPhase::new(phase, chunk));
    dependencies.push(Dependency { from, to });
    assert_eq!(check(&timetable, &[0, 1, 0], 1, &dependencies), Ok(()));
    dependencies.push(Dependency { from: to, to: ChunkPhase::new(Forward, 1) });
    assert!(matches!(check(&timetable, &[0, 1, 0], 1, &dependencies), Err(TimetableError::Deadlock(_))));
}

#[test]
fn slots_are_reused_when_a_block_ends_and_not_before() {
    let ranks = timetable(SPLIT).ranks;
    let counts = |from, to| [0, 1].map(|rank: usize| slots(&ranks[rank], from, to).count);
    assert_eq!(counts(Forward, Backward), [2, 1]);
    assert_eq!(counts(Forward, Weight), [2, 2]);
    assert_eq!(counts(Backward, Weight), [1, 2]);
    let mut found = slots(&ranks[1], Forward, Weight);
    assert_eq!(check_slots(&ranks[1], Forward, Weight, &found), Ok(()));
    let [first, second] = ["F1.0", "F1.1"].map(|text| task(text).block());
    found.of.insert(second, 0);
    let fault = check_slots(&ranks[1], Forward, Weight, &found).expect_err("a slot reused too early");
    assert_eq!(fault, SlotError::Reused { task: task("F1.1"), slot: 0, alive: first });
    let expected = "F1.1 starts a block in slot 0, where the block of stage 1, microbatch 0 is still alive";
    assert_eq!(fault.to_string(), expected);
    found.of.insert(second, 2);
    let outside = SlotError::Outside { task: task("F1.1"), slot: 2, count: 2 };
    assert_eq!(check_slots(&ranks[1], Forward, Weight, &found), Err(outside));
    found.of.remove(&second);
    let missing = SlotError::NoSlot { task: task("F1.1") };
    assert_eq!(check_slots(&ranks[1], Forward, Weight, &found), Err(missing));
}

#[test]
fn a_timeline_waits_for_transfers_between_ranks_alone() {
    let timeline = |transfer: u64| {
        let dependencies = Dependency::chain(2, false);
        let cost = |part: ChunkPhase| if part.phase == Forward { 10 } else { 20 };
        Timeline::new(&timetable(TWO_RANKS), &[0, 1], 2, &dependencies, cost, |_| transfer).expect("valid")
    };
    // Two microbatches take 60. The wait for one forward and one backward of the other rank is added.
    assert_eq!(timeline(0).makespan, 90);
    assert_eq!([0, 1].map(|rank| timeline(0).idle(rank)), [30, 30]);
    assert_eq!([0, 1].map(|rank| timeline(0).stalled(rank)), [30, 0]);
    assert_eq!([0, 1].map(|rank| timeline(0).busy(rank)), [60, 60]);
    let times = &timeline(1).ranks;
    assert_eq!(times[1][0], TaskTime { start: 11, end: 21 });
    assert_eq!(times[0][2], TaskTime { start: 42, end: 62 });
    assert_eq!(timeline(1).makespan, 92);
}

#[test]
fn a_timeline_of_an_invalid_timetable_is_an_error() {
    let dependencies = Dependency::chain(2, false);
    let text = "rank 0: F0.0 B0.0 F0.1 B0.1\nrank 1: F1.0 F1.1 B1.0 B1.1";
    let found = Timeline::new(&timetable(text), &[0, 1], 2, &dependencies, |_| 1.0, |_| 0.5);
    assert!(matches!(found, Err(TimetableError::Deadlock(_))));
}

/// Whether the tasks of all ranks have an order that respects both the lists and the dependencies, found by repeatedly trying
/// every task. It is slow, and shares no code with the checker.
fn has_an_order(timetable: &Timetable, dependencies: &[Dependency]) -> bool {
    let mut done: Vec<Task> = Vec::new();
    let is_ready = |task: Task, done: &[Task]| {
        let mut needed = dependencies.iter().filter(|dependency| dependency.to == task.part);
        needed.all(|dependency| done.contains(&dependency.from.task(task.microbatch)))
    };
    let mut next = vec![0; timetable.ranks.len()];
    loop {
        let before = done.len();
        for (tasks, next) in timetable.ranks.iter().zip(&mut next) {
            if let Some(&task) = tasks.get(*next).filter(|task| is_ready(**task, &done)) {
                done.push(task);
                *next += 1;
            }
        }
        if done.len() == before {
            return done.len() == timetable.task_count();
        }
    }
}

/// Makes a list for each rank, in which every part runs its microbatches in order and the parts are mixed at random.
fn mixed(
    chunks: u32,
    ranks: u32,
    microbatches: u32,
    splits_backward: bool,
    mut draw: impl FnMut(usize) -> usize,
) -> Timetable {
    let phases = TASK_PHASES.into_iter().take(if splits_backward { 3 } else { 2 });
    let lists = (0..ranks).map(|rank| {
        let own = (rank..chunks).step_by(ranks as usize);
        let parts = own.flat_map(|chunk| phases.clone().map(move |(phase, _)| ChunkPhase::new(phase, chunk)));
        let mut parts: Vec<(ChunkPhase, u32)> = parts.map(|part| (part, 0)).collect();
        let mut tasks = Vec::new();
        while !parts.is_empty() {
            let at = draw(parts.len());
            let (part, next) = &mut parts[at];
            tasks.push(part.task(*next));
            *next += 1;
            if *next == microbatches {
                parts.remove(at);
            }
        }
        tasks
    });
    Timetable { ranks: lists.collect() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_checker_accepts_exactly_the_lists_that_have_an_order(
        chunks in 1..5u32, ranks in 1..4u32, microbatches in 1..4u32, splits_backward: bool, draws: Vec<prop::sample::Index>,
    ) {
        let mut draws = draws.into_iter();
        // A list without further draws runs its parts one after another, which is often a valid order.
        let draw = |parts| draws.next().map_or(0, |index| index.index(parts));
        let timetable = mixed(chunks, ranks, microbatches, splits_backward, draw);
        let placement: Vec<u32> = (0..chunks).map(|chunk| chunk % ranks).collect();
        let dependencies = Dependency::chain(chunks, splits_backward);
        let found = check(&timetable, &placement, microbatches, &dependencies);
        prop_assert_eq!(found.is_ok(), has_an_order(&timetable, &dependencies), "{:?}\n{}", found, timetable);
        prop_assert_eq!(timetable.to_string().parse(), Ok(timetable));
    }

    #[test]
    fn slots_are_as_many_as_blocks_are_alive_at_once(draws: Vec<prop::sample::Index>, chunks in 1..4u32, microbatches in 1..6u32) {
        let mut draws = draws.into_iter();
        let timetable = mixed(chunks, 1, microbatches, false, |parts| draws.next().map_or(0, |index| index.index(parts)));
        let tasks = &timetable.ranks[0];
        let found = slots(tasks, Forward, Backward);
        let started = |task: &Task, upto: &[Task]| upto.contains(&Task { part: ChunkPhase::new(Forward, task.part.chunk), ..*task });
        // A block whose backward task precedes its forward task never ends.
        let ended = |upto: &[Task]| (0..upto.len()).filter(|&at| upto[at].part.phase == Backward && started(&upto[at], &upto[..at])).count();
        let alive = |upto: &[Task]| upto.iter().filter(|task| task.part.phase == Forward).count() - ended(upto);
        let most = (0..=tasks.len()).map(|at| alive(&tasks[..at])).max();
        prop_assert_eq!(Some(found.count as usize), most);
        prop_assert_eq!(check_slots(tasks, Forward, Backward, &found), Ok(()));
    }
}
