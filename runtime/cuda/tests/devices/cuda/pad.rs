//! Rows of logits that are padded to 16 bytes, so that multiplications take them.

use super::host;
use crate::compare::{assert_agrees_on, unit};
use cuda::host::Order;
use cuda::lower::lower as lower_for_cuda;
use cuda::program::Task;
use ir::interp::Mode;
use ir::{DType, Module, Tensor, testing};
use program::Program;
use program::lower::{LowerOptions, lower};
use std::sync::Arc;

/// The head of a language model with its loss and its gradients, for a number of classes.
fn head(classes: u64) -> Module {
    let text = format!(
        r#"trainyard-ir 1
module @head imported {{
  func @forward(%0 "x" batched : bf16[2, 4, 16], %1 "w" : bf16[{classes}, 16], %2 "labels" batched : i64[8]) {{
    %3 = contract %0, %1 {{lhs = abk, rhs = ck, out = abc}} : bf16[2, 4, {classes}] !{{fwd}}
    %4 = reshape %3 : bf16[8, {classes}] !{{fwd}}
    %5, %6, %7 = cross_entropy %4, %2 {{ignore_index = -100, label_smoothing = 0.1}} : f32[], f32[], f32[8] !{{fwd}}
    %8 = splat {{value = 0.5}} : f32[] !{{fwd}}
    %9 = cross_entropy_grad %4, %2, %7, %8 {{ignore_index = -100, label_smoothing = 0.1}} : bf16[8, {classes}] !{{fwd}}
    %10 = reshape %9 : bf16[2, 4, {classes}] !{{fwd}}
    %11 = contract %10, %1 {{lhs = abc, rhs = ck, out = abk}} : bf16[2, 4, 16] !{{fwd}}
    %12 = contract %10, %0 {{lhs = abc, rhs = abk, out = ck}} : bf16[{classes}, 16] !{{fwd}}
  }}
  output "loss" = %5
  output "dx" = %11
  output "dw" = %12
}}
"#
    );
    ir::text::parse(&text).unwrap_or_else(|error| panic!("{error}"))
}

fn options() -> LowerOptions<'static> {
    LowerOptions::of(cuda::TARGET)
}

fn lowered(module: &Module) -> Program {
    lower(module, &options()).unwrap_or_else(|error| panic!("{error}"))
}

/// The distances between the rows of the matrices of all multiplications.
fn row_strides(module: &Module) -> Vec<i64> {
    let cuda = lower_for_cuda(Arc::new(lowered(module))).unwrap_or_else(|error| panic!("{error}"));
    let commands = cuda.sections.iter().flatten();
    let multiplications = commands.filter_map(|command| match &command.task {
        Task::Multiply(multiply) => Some(multiply),
        _ => None,
    });
    let matrices = multiplications.flat_map(|multiply| [&multiply.lhs, &multiply.rhs, &multiply.out]);
    matrices.flat_map(|matrices| matrices.strides).filter(|&stride| stride != 1).collect()
}

#[test]
fn every_row_of_a_multiplication_begins_at_16_bytes() {
    for classes in [257, 1001, 1004, 1008] {
        let strides = row_strides(&head(classes));
        assert!(strides.len() >= 9, "{strides:?}");
        assert!(strides.iter().all(|stride| stride % 8 == 0), "{classes} classes: {strides:?}");
    }
    // Logits and their gradient share one place, also where rows are padded.
    let copies = lowered(&head(1001)).sections.iter().flatten().filter(|i| i.name() == "copy").count();
    assert_eq!(copies, 0);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn padded_rows_agree_with_the_interpreter() {
    for (threads, classes) in [257, 1001, 1030].into_iter().enumerate() {
        let module = head(classes);
        let make = |program| host(program, Order { threads: threads as u32, first: None });
        let mut microbatch = testing::microbatch(&module, 3, 0);
        let labels = (0..8).map(|row| row * 37 % classes as i64).collect();
        microbatch.insert("labels".into(), Tensor::int(DType::I64, vec![8], labels));
        let steps = [vec![microbatch]];
        assert_agrees_on(&make, Mode::Typed, &module, &options(), &steps, unit);
    }
}
