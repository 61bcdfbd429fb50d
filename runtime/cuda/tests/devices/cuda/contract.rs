//! Contractions whose tensors lie so that no stride reaches through their matrices: copies make multiplications of them,
//! where the product is large enough.

use super::host;
use super::writer::Writer;
use crate::compare::{Microbatch, assert_agrees_on, unit};
use cuda::host::Order;
use cuda::program::{CudaProgram, Task};
use ir::interp::Mode;
use ir::ops::contract::Contract;
use ir::{DType, testing};
use program::lower::{LowerOptions, lower};
use program::{Kernel, Microbatches, Program, Section};
use std::sync::Arc;

/// A contraction and the sizes of its operands.
type Case = (&'static str, &'static [usize], &'static [usize]);

/// The terms of two dims of the left side, which lie apart.
const TWO_SUMMED_RUNS: Case = ("bhsd,hdk->bsk", &[2, 4, 64, 16], &[4, 16, 144]);

/// The same on the right side, with rows in two dims.
const TWO_SUMMED_RUNS_RIGHT: Case = ("shd,hkd->sk", &[130, 4, 16], &[4, 136, 16]);

/// Matrices of which neither rows nor columns are neighbours.
const BATCH_INSIDE: Case = ("mkb,knb->bmn", &[64, 32, 8], &[32, 72, 8]);

/// Two batch dims, with other dims between them in both operands.
const BATCHES_APART: Case = ("bqhd,bkhd->bhqk", &[17, 40, 18, 8], &[17, 48, 18, 8]);

/// Two batch dims, with another dim between them in a dense result.
const BATCHES_APART_IN_RESULT: Case = ("bhqk,bhkd->bqhd", &[17, 18, 24, 16], &[17, 18, 16, 16]);

fn written(dtype: DType, (text, lhs, rhs): Case) -> Writer {
    let mut w = Writer::default();
    let [lhs, rhs] = [lhs, rhs].map(|sizes| w.numbers(dtype, sizes, |x| x / 8.0));
    w.op(Contract::new(text), &[lhs, rhs]);
    w
}

fn for_cuda(program: Program) -> CudaProgram {
    cuda::lower::lower(Arc::new(program)).unwrap_or_else(|error| panic!("{error}"))
}

/// The multiplications, the copies and the scalar contractions of a program.
fn commands(cuda: &CudaProgram) -> [usize; 3] {
    let commands = || cuda.sections.iter().flatten();
    let launches = |name: &str| {
        let is_it = |task: &Task| matches!(task, Task::Launch(launch) if cuda.kernels[launch.kernel].name.starts_with(name));
        commands().filter(|command| is_it(&command.task)).count()
    };
    let multiplications = commands().filter(|command| matches!(command.task, Task::Multiply(_))).count();
    [multiplications, launches("copy"), launches("contract")]
}

#[test]
fn large_contractions_become_one_multiplication_by_copies() {
    for (case, copies) in [
        (TWO_SUMMED_RUNS, 1),
        (TWO_SUMMED_RUNS_RIGHT, 1),
        (BATCH_INSIDE, 2),
        (BATCHES_APART, 2),
        (BATCHES_APART_IN_RESULT, 0),
    ] {
        for dtype in [DType::F32, DType::BF16] {
            let found = commands(&for_cuda(written(dtype, case).lowered()));
            assert_eq!(found, [1, copies, 0], "{case:?} in {dtype}");
        }
    }
}

#[test]
fn contractions_that_are_small_or_read_much_stay_scalar() {
    let cases: [Case; 3] = [
        ("bhsd,hdk->bsk", &[2, 4, 8, 16], &[4, 16, 40]),
        // Two operations for each element that would be copied.
        ("bhsd,hdk->bsk", &[8, 16, 512, 16], &[16, 16, 1]),
        ("mkb,knb->bmn", &[512, 64, 64], &[64, 1, 64]),
    ];
    for case in cases {
        assert_eq!(commands(&for_cuda(written(DType::F32, case).lowered())), [0, 0, 1], "{case:?}");
    }
}

#[test]
fn contractions_that_need_no_copy_have_none() {
    let cases: [Case; 3] = [
        ("bshd,hdk->bsk", &[4, 64, 4, 16], &[4, 16, 144]),
        ("bqhd,bkhd->bhqk", &[16, 64, 18, 8], &[16, 64, 18, 8]),
        ("ab,cb->ac", &[256, 256], &[256, 256]),
    ];
    for (case, multiplications) in cases.into_iter().zip([1, 16, 1]) {
        let found = commands(&for_cuda(written(DType::BF16, case).lowered()));
        assert_eq!(found, [multiplications, 0, 0], "{case:?}");
    }
}

/// A contraction with two summed runs, whose result is added up over microbatches.
const ACCUMULATED: &str = r#"
trainyard-ir 1
module @accumulated training {
  data @0 "w" : f32[128, 96]
  state @w : f32[128, 96] parameter = data @0
  func @train(%0 "x" batched : f32[2, 48, 128], %1 "dy" batched : f32[2, 96, 48], %2 = @w) {
    %3 = contract %0, %1 {lhs = abc, rhs = adb, out = cd} : f32[128, 96] !{bwd}
    %4 = accumulate %3 : f32[128, 96] !{update}
    %5 = mul %4, %2 : f32[128, 96] !{update}
  }
  output "dw" = %5
}
"#;

#[test]
#[ignore = "needs a C++ compiler"]
fn multiplications_of_copies_agree_with_the_interpreter() {
    for (order, dtype) in [DType::F32, DType::F16, DType::BF16].into_iter().enumerate() {
        for case in
            [TWO_SUMMED_RUNS, TWO_SUMMED_RUNS_RIGHT, BATCH_INSIDE, BATCHES_APART, BATCHES_APART_IN_RESULT]
        {
            written(dtype, case).check(order as u32);
        }
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn products_of_copies_are_added_up_over_microbatches() {
    let module = ir::text::parse(ACCUMULATED).unwrap_or_else(|error| panic!("{error}"));
    let options = LowerOptions { microbatches: Microbatches::Many, ..LowerOptions::of(cuda::TARGET) };
    let lowered = || lower(&module, &options).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(commands(&for_cuda(lowered())), [1, 1, 0]);
    let step: Vec<Microbatch> = (0..3).map(|index| testing::microbatch(&module, 7, index)).collect();
    let make = |program| host(program, Order::default());
    assert_agrees_on(&make, Mode::Exact, &module, &options, &[step.clone(), step], unit);
}

#[test]
fn a_processor_copies_nothing() {
    let program = lower(written(DType::F32, TWO_SUMMED_RUNS).module(), &LowerOptions::of(cpu::TARGET));
    let program = program.unwrap_or_else(|error| panic!("{error}"));
    let is_copy = |kernel: &Kernel| matches!(kernel, Kernel::Copy);
    assert!(!program.section(Section::Microbatch).iter().any(|instruction| is_copy(&instruction.kernel)));
}
