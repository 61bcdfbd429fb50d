//! Tests of a rank that fails in the middle of a step, in every way: all ranks end, with its error, and nothing hangs.

mod late;

use crate::ranks::with_communicators;
use comm::disturbed::Disturbed;
use comm::record::FlightRecord;
use comm::{CommError, Communicator};
use program::device::{Device, DeviceError, ProgramId};
use program::lower::{LowerOptions, lower, lower_rank};
use program::{Microbatches, Program, Section};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

fn program(ranks: usize, microbatches: Microbatches) -> Program {
    let text = r#"trainyard-ir 1
        module @m placed mesh [dp=RANKS] {
          state @w : f32[4] parameter = zeros
          func @train(%0 = @w, %1 "x" : f32[8, 4] {dp, -}) {
            %2 = mul %1, %0 : f32[8, 4] {dp, -}
            %3 = reduce %2 {kind = sum, dims = [0], keep = false} : f32[4] partial(sum dp) !{bwd}
            %4 = all_reduce %3 : f32[4] !{bwd, origin "node of the weight"}
            %5 = mul %4, %0 : f32[4] !{bwd}
            %6 = reduce %1 {kind = sum, dims = [0], keep = false} : f32[4] partial(sum dp) !{bwd}
            %7 = all_reduce %6 : f32[4] !{bwd, origin "node of the input"}
            %8 = add %5, %7 : f32[4] !{bwd}
            %9 = accumulate %8 : f32[4] !{update}
            %10 = add %0, %9 : f32[4] !{update}
          }
          update @w = %10
        }"#;
    let module = ir::text::parse(&text.replace("RANKS", &ranks.to_string())).unwrap();
    lower(&module, &LowerOptions { microbatches, ..LowerOptions::of(crate::TARGET) }).unwrap()
}

/// Runs three microbatches on ranks. The second rank has a program and a communicator of its own.
fn ended(
    ranks: usize,
    second: Program,
    through: impl Fn(Arc<dyn Communicator>) -> Arc<dyn Communicator>,
) -> String {
    let mut programs = vec![vec![Arc::new(program(ranks, Microbatches::Many))]; ranks];
    programs[1] = vec![Arc::new(second)];
    let of_second = |inner: Arc<dyn Communicator>| if inner.rank() == 1 { through(inner) } else { inner };
    let mut ranks = with_communicators(programs, Some(2), None, None, of_second).unwrap();
    let x = vec![vec![0; 8 * 4 * 4]; 1];
    let error = ranks.step(ProgramId(0), &[x.clone(), x.clone(), x]).unwrap_err();
    // The states of different ranks may now come from different steps, so nothing can be saved.
    assert!(matches!(ranks.read_state(ProgramId(0), 0), Err(DeviceError::Ended)));
    assert!(matches!(ranks.step(ProgramId(0), &[]), Err(DeviceError::Ended)));
    error.to_string()
}

#[test]
fn a_rank_that_panics_at_a_collective_ends_all() {
    for ranks in [2, 4] {
        let faulty = |inner| Disturbed::within(inner, 2, true);
        let error = ended(ranks, program(ranks, Microbatches::Many), faulty);
        assert_eq!(error, "rank 1: it panicked: as the test asks for");
    }
}

#[test]
fn a_rank_that_returns_an_error_ends_all() {
    for ranks in [2, 4] {
        let faulty = |inner| Disturbed::within(inner, 2, false);
        let error = ended(ranks, program(ranks, Microbatches::Many), faulty);
        assert_eq!(error, "rank 1: rank 1 is not in the group []");
    }
}

#[test]
fn a_rank_that_refuses_before_it_begins_ends_all() {
    for ranks in [2, 4] {
        let error = ended(ranks, program(ranks, Microbatches::One), |inner| inner);
        assert!(error.starts_with("rank 1: the program was lowered for one microbatch per step"), "{error}");
    }
}

#[test]
fn a_rank_whose_kernel_panics_between_collectives_ends_all() {
    for ranks in [2, 4] {
        let mut broken = program(ranks, Microbatches::Many);
        // The instruction reads the bytes that it writes, which the arena does not lend.
        let instructions = &mut broken.sections[Section::Microbatch as usize];
        let at = instructions.iter().rposition(|instruction| instruction.name().contains("reduce")).unwrap();
        assert!(at > 0 && instructions[at].name() == "all_reduce");
        let reduce = instructions[..at].iter_mut().rfind(|i| i.name() == "reduce").unwrap();
        reduce.results[0].base = reduce.operands[0].base;
        let error = ended(ranks, broken, |inner| inner);
        assert_eq!(error, "rank 1: it panicked: the memory plan keeps operands clear of results");
    }
}

/// Runs a step of a pipeline of two ranks. The second rank has a communicator of its own.
fn ended_in_pipeline(through: impl Fn(Arc<dyn Communicator>) -> Arc<dyn Communicator>) -> String {
    let text = r#"trainyard-ir 1
        module @m placed {
          pipeline "1f1b" microbatches 3 stages [0, 1] {
            rank F0.0 F0.1 B0.0 F0.2 B0.1 B0.2
            rank F1.0 B1.0 F1.1 B1.1 F1.2 B1.2
          }
          state @w : f32[4] parameter = zeros
          func @train(%0 "x" batched : f32[6, 4], %1 = @w) {
            %2 = mul %0, %1 : f32[6, 4] !{fwd}
            %3 = transfer %2 : f32[6, 4] !{fwd, stage 1}
            %4 = exp %3 : f32[6, 4] !{fwd, stage 1}
            %5 = mul %4, %4 : f32[6, 4] !{bwd, stage 1}
            %6 = transfer %5 : f32[6, 4] !{bwd}
            %7 = mul %6, %0 : f32[6, 4] !{bwd}
            %8 = reduce %7 {kind = sum, dims = [0], keep = false} : f32[4] !{bwd}
            %9 = accumulate %8 : f32[4] !{update}
            %10 = sub %1, %9 : f32[4] !{update}
          }
          update @w = %10
        }"#;
    let module = ir::text::parse(text).unwrap();
    let lower = |rank| vec![Arc::new(lower_rank(&module, rank, &LowerOptions::of(crate::TARGET)).unwrap())];
    let of_second = |inner: Arc<dyn Communicator>| if inner.rank() == 1 { through(inner) } else { inner };
    let mut ranks = with_communicators(vec![lower(0), lower(1)], Some(2), None, None, of_second).unwrap();
    let x = vec![vec![0; 6 * 4 * 4]; 1];
    ranks.step(ProgramId(0), &[x.clone(), x.clone(), x]).unwrap_err().to_string()
}

/// In each microbatch the second rank receives a message in forward, and sends one in backward.
#[test]
fn a_rank_that_fails_in_a_pipeline_is_told_with_its_task() {
    let error = ended_in_pipeline(|inner| Disturbed::within(inner, 3, true));
    assert_eq!(error, "rank 1, in backward of stage 1, microbatch 1: it panicked: as the test asks for");
    let error = ended_in_pipeline(|inner| Disturbed::within(inner, 4, false));
    assert_eq!(error, "rank 1, in forward of stage 1, microbatch 2: rank 1 is not in the group []");
}

#[test]
fn the_watchdog_tells_of_a_rank_that_stands_still() {
    let one = Arc::new(program(4, Microbatches::One));
    let (tell, told) = mpsc::channel();
    let (go, wait) = mpsc::channel();
    let wait = Mutex::new(Some(wait));
    // Rank 1 waits before its second exchange until the watchdog has reported it.
    let through = |inner: Arc<dyn Communicator>| match inner.rank() {
        1 => Disturbed::once(inner, 1, wait.lock().unwrap().take().unwrap()),
        _ => inner,
    };
    let mut ranks = with_communicators(vec![vec![one]; 4], Some(4), None, None, through).unwrap();
    let give_up = move |late: &CommError, records: &[FlightRecord]| {
        let open: Vec<Option<String>> = records.iter().map(FlightRecord::open).collect();
        tell.send((late.clone(), open)).unwrap();
        go.send(()).unwrap();
    };
    ranks.watch(Duration::from_millis(1500), give_up).unwrap();
    ranks.step(ProgramId(0), &[vec![vec![0; 8 * 4 * 4]]]).unwrap_or_else(|error| panic!("{error}"));
    let (late, open) = told.recv().unwrap();
    assert!(
        matches!(late, CommError::Late { rank: 0, seconds: 1, ref missing } if *missing == [1]),
        "{late}"
    );
    assert_eq!(open[1], None);
    let exchange = "`all_reduce` (sum) of f32[4] among the ranks [0, 1, 2, 3], for node of the input";
    assert!([0, 2, 3].iter().all(|&rank| open[rank].as_deref() == Some(exchange)), "{open:?}");
}
