//! Faults of several stand-ins: a rank fails in the middle of a step, and all ranks end with its error; or the ranks' programs are
//! wrong, and the results show it. The tests need a C++ compiler.

use super::{lowered, on_stand_ins, stand_in};
use crate::host::Order;
use crate::program::{Argument, CudaProgram, Stream, Task};
use comm::disturbed::Disturbed;
use comm::{CommError, Communicator};
use program::calls::CallClock;
use program::device::{DeviceError, ProgramId, StepOutputs};
use program::lower::{LowerOptions, lower};
use program::{Program, Section};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

fn program(ranks: usize) -> Arc<Program> {
    let text = r#"trainyard-ir 1
        module @m placed mesh [dp=RANKS] {
          state @w : f32[4] parameter = zeros
          func @train(%0 = @w, %1 "x" : f32[8, 4] {dp, -}) {
            %2 = mul %1, %0 : f32[8, 4] {dp, -}
            %3 = reduce %2 {kind = sum, dims = [0], keep = false} : f32[4] partial(sum dp) !{bwd}
            %4 = all_reduce %3 : f32[4] !{bwd}
            %5 = mul %4, %0 : f32[4] !{bwd}
            %6 = accumulate %5 : f32[4] !{update}
            %7 = add %0, %6 : f32[4] !{update}
          }
          update @w = %7
        }"#;
    let module = ir::text::parse(&text.replace("RANKS", &ranks.to_string())).unwrap();
    Arc::new(lower(&module, &LowerOptions::of(crate::TARGET)).unwrap())
}

#[test]
fn the_memory_of_all_ranks_is_asked_for_together() {
    let mut large = Program::clone(&program(2));
    large.memory.arena = u64::MAX / 4;
    let error = stand_in(vec![Arc::new(large)], Order::default()).err().expect("no machine has so much");
    assert!(matches!(&error, DeviceError::TooLarge(large) if large.ranks == 2), "{error}");
}

/// Runs three microbatches, in which the second rank fails at its second collective, and returns the error.
fn ended(ranks: usize, panics: bool) -> String {
    let programs = vec![program(ranks)];
    let own = lowered(&programs).unwrap();
    let order = Order { threads: 0, first: Some(Stream::Side) };
    let made = on_stand_ins(
        programs,
        |_| own.clone(),
        order,
        |inner| {
            if inner.rank() == 1 { Disturbed::within(inner, 1, panics) } else { inner }
        },
    );
    let mut ranks = made.unwrap();
    let x = vec![vec![0; 8 * 4 * 4]; 1];
    let error = ranks.step(ProgramId(0), &[x.clone(), x.clone(), x]).unwrap_err();
    // The ranks' states may be those of different steps now, so none can be saved.
    assert!(matches!(ranks.read_state(ProgramId(0), 0), Err(DeviceError::Ended)));
    assert!(matches!(ranks.step(ProgramId(0), &[]), Err(DeviceError::Ended)));
    error.to_string()
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_rank_that_fails_at_a_collective_ends_all_with_its_error() {
    for ranks in [2, 4] {
        let error = ended(ranks, false);
        assert!(error.starts_with("rank 1: ") && error.contains("all_reduce Sum over [axis0]"), "{error}");
        assert!(error.contains(": rank 1 is not in the group []; with TRAINYARD_SYNC=1 "), "{error}");
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_rank_that_panics_at_a_collective_ends_all() {
    for ranks in [2, 4] {
        assert_eq!(ended(ranks, true), "rank 1: it panicked: as the test asks for");
    }
}

/// Returns a program on a table and columns, each split over two ranks. It reads some rows of the table, and all columns.
fn split() -> Arc<Program> {
    let text = r#"trainyard-ir 1
        module @m placed mesh [tp=2] {
          func @train(%0 "table" : f32[6, 4] {tp, -}, %1 "tokens" : i64[5], %2 "columns" : f32[3, 8] {-, tp}) {
            %3 = gather %0, %1 {dim = 0} : f32[5, 4] partial(sum tp)
            %4 = all_reduce %3 : f32[5, 4]
            %5 = all_gather %2 : f32[3, 8]
          }
          output "rows" = %4
          output "columns" = %5
        }"#;
    let module = ir::text::parse(text).unwrap();
    Arc::new(lower(&module, &LowerOptions::of(crate::TARGET)).unwrap())
}

/// Runs `split` after a change of each rank's programs.
fn outcome(change: impl Fn(u64, &mut CudaProgram)) -> Result<StepOutputs, DeviceError> {
    let programs = vec![split()];
    let own = lowered(&programs).unwrap();
    let changed = |rank| {
        let mut own = own.clone();
        change(rank, &mut own[0]);
        own
    };
    let mut ranks = on_stand_ins(programs, changed, Order::default(), |inner| inner)?;
    let numbers = |count: usize| (0..count).flat_map(|i| (i as f32 + 1.0).to_le_bytes()).collect::<Vec<u8>>();
    let tokens = [0i64, 5, 2, 3, 4].iter().flat_map(|token| token.to_le_bytes()).collect();
    ranks.step(ProgramId(0), &[vec![numbers(24), tokens, numbers(24)]])
}

fn expected() -> [Vec<u8>; 2] {
    let bytes = |numbers: Vec<f32>| numbers.into_iter().flat_map(f32::to_le_bytes).collect();
    let rows = [0, 5, 2, 3, 4].into_iter().flat_map(|row| (1..5).map(move |i| (4 * row + i) as f32));
    [bytes(rows.collect()), bytes((1..25).map(|i| i as f32).collect())]
}

#[test]
#[ignore = "needs a C++ compiler"]
fn where_nothing_is_wrong_ranks_put_their_parts_together() {
    let outputs = outcome(|_, _| {}).unwrap();
    assert_eq!([&outputs["rows"][0], &outputs["columns"][0]], expected().each_ref());
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_part_that_begins_where_that_of_the_rank_0_does_shows() {
    let outputs = outcome(|_, cuda| {
        for command in cuda.sections.iter_mut().flatten() {
            let Task::Launch(launch) = &mut command.task else { continue };
            for argument in &mut launch.arguments {
                if let Argument::NumberByRank(number) = argument {
                    *argument = Argument::Number(number.first);
                }
            }
        }
    });
    assert_ne!(outputs.unwrap()["rows"][0], expected()[0]);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn pieces_that_are_not_laid_out_show() {
    let unpacks = |cuda: &CudaProgram| -> Vec<bool> {
        cuda.kernels.iter().map(|kernel| kernel.name.starts_with("unpack")).collect()
    };
    assert!(unpacks(&lowered(&[split()]).unwrap()[0]).contains(&true));
    let forget = |_, cuda: &mut CudaProgram| {
        let unpacks = unpacks(cuda);
        for commands in &mut cuda.sections {
            commands.retain(|command| match &command.task {
                Task::Launch(launch) => !unpacks[launch.kernel],
                _ => true,
            });
        }
    };
    // Each rank may have other bytes left in memory. Then an assertion fails where the ranks' parts are put together.
    let outputs = std::panic::catch_unwind(|| outcome(forget).unwrap());
    assert!(outputs.is_err() || outputs.is_ok_and(|outputs| outputs["columns"][0] != expected()[1]));
}

#[test]
fn ranks_that_exchange_in_another_order_are_refused_before_any_of_them_starts() {
    let error = outcome(|rank, cuda| {
        let commands = &mut cuda.sections[Section::Microbatch as usize];
        let places: Vec<usize> = (0..commands.len())
            .filter(|&index| matches!(commands[index].task, Task::Collective(_)))
            .collect();
        let [first, second] = places[..] else { panic!("{places:?}") };
        if rank == 1 {
            commands.swap(first, second);
        }
    });
    let error = error.unwrap_err().to_string();
    let told = "rank 1 and rank 0 make different calls of NCCL, from call 0 on";
    assert!(error.contains(told) && error.contains("all_gather of u8 x 48"), "{error}");
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_gpu_that_does_not_answer_is_told_of() {
    let mut ranks = stand_in(vec![program(2)], Order::default()).unwrap();
    let (tell, told) = mpsc::channel();
    // The device of rank 1 is in a call, as if it waited for an exchange between GPUs.
    let clock = ranks.clocks().into_iter().nth(1).unwrap();
    let call = clock.begin();
    ranks.watch(Duration::from_millis(50), move |late, _| tell.send(late.clone()).unwrap()).unwrap();
    assert_eq!(told.recv(), Ok(CommError::Stalled { rank: 1, seconds: 0 }));
    drop(call);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_gpu_is_in_a_call_while_it_waits_for_another() {
    let (go, wait) = mpsc::channel();
    let wait = Mutex::new(Some(wait));
    let through = |inner: Arc<dyn Communicator>| match inner.rank() {
        1 => Disturbed::once(inner, 0, wait.lock().unwrap().take().unwrap()),
        _ => inner,
    };
    let own = lowered(&[program(2)]).unwrap();
    let mut ranks = on_stand_ins(vec![program(2)], |_| own.clone(), Order::default(), through).unwrap();
    let clocks = ranks.clocks();
    let is_called = |clock: &CallClock| clock.is_late(Duration::ZERO, Duration::ZERO);
    thread::scope(|scope| {
        let step = scope.spawn(|| ranks.step(ProgramId(0), &[vec![vec![0; 8 * 4 * 4]]]).map(drop));
        let begun = Instant::now();
        let mut seen = false;
        while !seen && begun.elapsed() < Duration::from_secs(60) {
            // A single call has lasted this long: the step waits in it.
            let lasts = |clock: &CallClock| clock.is_late(begun.elapsed(), Duration::from_millis(300));
            seen = clocks.iter().all(lasts);
        }
        go.send(()).unwrap();
        step.join().unwrap().unwrap();
        assert!(seen, "a step is a call");
    });
    assert!(!clocks.iter().any(is_called));
}
