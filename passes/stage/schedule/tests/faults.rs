//! A fault planted in each schedule, and the error that finds it.

use super::*;

const RANKS: u32 = 4;
const MICROBATCHES: u32 = 8;

/// Plants a fault into the timetable of every schedule, and returns what the checker says of it.
fn verdicts(plant: impl Fn(&mut Vec<Vec<Task>>)) -> impl Iterator<Item = Result<(), TimetableError>> {
    Schedule::ALL.into_iter().map(move |(schedule, _)| {
        let mut plan = plan(schedule, RANKS, schedule.default_chunks(), MICROBATCHES);
        plant(&mut plan.timetable.ranks);
        plan.check(MICROBATCHES)
    })
}

fn position(tasks: &[Task], task: Task) -> usize {
    tasks.iter().position(|&other| other == task).expect("a task of the rank")
}

#[test]
fn swapped_lines_are_found_as_tasks_on_the_wrong_rank() {
    for verdict in verdicts(|ranks| ranks.swap(1, 2)) {
        let Err(TimetableError::WrongRank { rank: 1, owner: 2, .. }) = verdict else { panic!("{verdict:?}") };
    }
}

#[test]
fn swapped_microbatches_are_found_as_out_of_order() {
    for phase in [Forward, Backward] {
        let [early, late] = [3, 4].map(|microbatch| Task::new(phase, 2, microbatch));
        let swap = |ranks: &mut Vec<Vec<Task>>| {
            let [a, b] = [early, late].map(|task| position(&ranks[2], task));
            ranks[2].swap(a, b);
        };
        for verdict in verdicts(swap) {
            assert_eq!(verdict, Err(TimetableError::MicrobatchOrder { rank: 2, task: late, earlier: early }));
        }
    }
}

#[test]
fn a_backward_before_its_forward_is_found_as_before_its_input() {
    // On the last rank the two stand side by side.
    let [needed, task] = [Forward, Backward].map(|phase| Task::new(phase, 3, 0));
    let plan = plan(OneFOneB, RANKS, 1, MICROBATCHES);
    let mut faulty = plan.clone();
    faulty.timetable.ranks[3].swap(0, 1);
    let found = faulty.check(MICROBATCHES);
    assert_eq!(found, Err(TimetableError::BeforeItsInput { rank: 3, task, needed }));
}

#[test]
fn a_dropped_task_is_found_as_missing() {
    for at in [0, 5, 15] {
        let dropped = |schedule: Schedule| {
            plan(schedule, RANKS, schedule.default_chunks(), MICROBATCHES).timetable.ranks[1][at]
        };
        let drop_task = |ranks: &mut Vec<Vec<Task>>| {
            ranks[1].remove(at);
        };
        for (verdict, (schedule, _)) in verdicts(drop_task).zip(Schedule::ALL) {
            assert_eq!(verdict, Err(TimetableError::Missing { rank: 1, task: dropped(schedule) }));
        }
    }
}

#[test]
fn a_moved_task_is_found_on_the_wrong_rank() {
    let move_task = |ranks: &mut Vec<Vec<Task>>| {
        let task = ranks[0].remove(3);
        ranks[3].insert(3, task);
    };
    for verdict in verdicts(move_task) {
        let Err(TimetableError::WrongRank { rank: 3, owner: 0, .. }) = verdict else { panic!("{verdict:?}") };
    }
}

#[test]
fn a_slot_reused_too_early_is_found() {
    for (schedule, _) in Schedule::ALL {
        let plan = plan(schedule, RANKS, schedule.default_chunks(), MICROBATCHES);
        let tasks = &plan.timetable.ranks[0];
        let mut found = slots(tasks, Forward, Backward);
        let [first, second] = [tasks[0], tasks[1]];
        found.of.insert(second.block(), found.of[&first.block()]);
        let fault = check_slots(tasks, Forward, Backward, &found);
        let expected = ir::timetable::SlotError::Reused { task: second, slot: 0, alive: first.block() };
        assert_eq!(fault, Err(expected));
    }
}

/// The last rank wants all activations before it sends a gradient, as in GPipe; the rank before it wants the first gradient
/// after two activations, as in 1F1B.
#[test]
fn ranks_of_two_schedules_are_found_to_wait_for_each_other() {
    let mut plan = plan(OneFOneB, RANKS, 1, MICROBATCHES);
    plan.timetable.ranks[3] = Gpipe.plan(RANKS, 1, MICROBATCHES).expect("a plan").timetable.ranks.remove(3);
    let expected = "the pipeline waits for ever: \
        stage 2 (rank 2) waits in B2.0 for B3.0 of stage 3 (rank 3), which stands behind F3.2; \
        stage 3 (rank 3) waits in F3.2 for F2.2 of stage 2 (rank 2), which stands behind B2.0";
    assert_eq!(plan.check(MICROBATCHES).map_err(|fault| fault.to_string()), Err(expected.to_string()));
}
