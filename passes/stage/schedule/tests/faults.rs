//! Plants a fault in each schedule, and checks the error that finds it.

use super::*;

const RANKS: u32 = 4;
const MICROBATCHES: u32 = 8;

/// Returns the schedules with a flush after each step.
fn synchronous() -> impl Iterator<Item = Schedule> {
    Schedule::ALL.into_iter().map(|(schedule, _)| schedule).filter(|schedule| !schedule.is_asynchronous())
}

/// Plants a fault into the timetable of every synchronous schedule, and returns the verdict of the checker.
fn verdicts(plant: impl Fn(&mut Vec<Vec<Task>>)) -> impl Iterator<Item = Result<(), TimetableError>> {
    synchronous().map(move |schedule| {
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
    // On the last rank the two tasks are adjacent.
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
        for (verdict, schedule) in verdicts(drop_task).zip(synchronous()) {
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
    for schedule in synchronous() {
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

/// The last rank needs all activations before it sends a gradient, as in GPipe; the rank before it needs the first gradient
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

/// Plants a fault into the stream of 2BW, and returns the verdict of the checker.
fn verdict_of_stream(plant: impl Fn(&mut Vec<Vec<Task>>)) -> Result<(), TimetableError> {
    let mut plan = plan(TwoBw, RANKS, 1, MICROBATCHES);
    plant(&mut plan.timetable.ranks);
    plan.check(MICROBATCHES)
}

#[test]
fn faults_of_a_stream_are_found() {
    let verdict = verdict_of_stream(|ranks| ranks.swap(1, 2));
    assert!(matches!(verdict, Err(TimetableError::WrongRank { rank: 1, owner: 2, .. })), "{verdict:?}");
    let [needed, task] = [Forward, Backward].map(|phase| Task::new(phase, 3, 0));
    let verdict = verdict_of_stream(|ranks| ranks[3].swap(0, 1));
    assert_eq!(verdict, Err(TimetableError::BeforeItsInput { rank: 3, task, needed }));
    // The backward task of each step's first microbatch is missing.
    let verdict = verdict_of_stream(|ranks| {
        ranks[1].remove(1);
    });
    assert_eq!(verdict, Err(TimetableError::Missing { rank: 1, task: Task::new(Backward, 1, 0) }));
}

#[test]
fn a_stream_that_waits_for_ever_is_found() {
    // Rank 3 needs one more activation before it sends a gradient, and rank 2 needs the gradient before it sends the activation.
    let verdict = verdict_of_stream(|ranks| {
        ranks[2].iter_mut().for_each(|task| task.microbatch -= u32::from(task.part.phase == Forward));
        ranks[3].iter_mut().for_each(|task| task.microbatch += u32::from(task.part.phase == Forward));
    });
    assert!(matches!(verdict, Err(TimetableError::Deadlock(_))), "{verdict:?}");
}

#[test]
fn forward_that_runs_ahead_of_its_weights_is_found() {
    let last = Task::new(Forward, 0, 2 * MICROBATCHES);
    let verdict = verdict_of_stream(|ranks| {
        let behind =
            |task: &mut Task| task.microbatch += u32::from(task.part.phase == Forward) * MICROBATCHES;
        ranks[0].iter_mut().for_each(behind);
    });
    assert_eq!(verdict, Err(TimetableError::VersionNotMade { rank: 0, task: last, ahead: 2, delay: 1 }));
    let task = Task::new(Backward, 0, MICROBATCHES);
    let verdict = verdict_of_stream(|ranks| {
        let behind = |task: &mut Task| task.microbatch += u32::from(task.part.phase == Backward);
        ranks[0].iter_mut().for_each(behind);
    });
    assert_eq!(verdict, Err(TimetableError::LaterStep { rank: 0, task, microbatches: MICROBATCHES }));
}
