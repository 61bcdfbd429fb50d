//! Multiplications that are joined: projections of one tensor with different widths, with biases, and their gradients.

use crate::rewritten::{assert_agrees, for_cuda};
use cuda::host::Order;
use cuda::program::Task;
use ir::interp::Mode;
use ir::{Module, testing};
use program::check::{Microbatch, unit};
use program::{Microbatches, Section};

/// The queries and keys of a layer. One of them is transposed. Weights are cast, as in a model that computes in another type.
const LAYER: &str = r#"
trainyard-ir 1
module @layer training {
  data @0 "wq" : f64[8, 16]
  data @1 "wk" : f64[8, 8]
  data @2 "bq" : f64[16]
  data @3 "bk" : f64[8]
  state @wq : f64[8, 16] parameter = data @0
  state @wk : f64[8, 8] parameter = data @1
  state @bq : f64[16] parameter = data @2
  state @bk : f64[8] parameter = data @3
  func @train(%0 "x" batched : f32[3, 5, 8], %1 "factor" : f32[], %2 = @wq, %3 = @wk, %4 = @bq, %5 = @bk) {
    %6 = cast %2 {to = f32} : f32[8, 16] !{prepare}
    %7 = cast %3 {to = f32} : f32[8, 8] !{prepare}
    %8 = cast %4 {to = f32} : f32[16] !{prepare}
    %9 = cast %5 {to = f32} : f32[8] !{prepare}
    %10 = contract %0, %6 {lhs = abc, rhs = cd, out = abd} : f32[3, 5, 16] !{fwd}
    %11 = add %10, %8 : f32[3, 5, 16] !{fwd}
    %12 = reshape %11 : f32[3, 5, 2, 8] !{fwd}
    %13 = transpose %12 {permutation = [0, 2, 1, 3]} : f32[3, 2, 5, 8] !{fwd}
    %14 = contract %0, %7 {lhs = abc, rhs = cd, out = abd} : f32[3, 5, 8] !{fwd}
    %15 = add %14, %9 : f32[3, 5, 8] !{fwd}
    %16 = tanh %13 : f32[3, 2, 5, 8] !{bwd}
    %17 = transpose %16 {permutation = [0, 2, 1, 3]} : f32[3, 5, 2, 8] !{bwd}
    %18 = reshape %17 : f32[3, 5, 16] !{bwd}
    %19 = tanh %15 : f32[3, 5, 8] !{bwd}
    %20 = reduce %18 {kind = sum, dims = [0, 1], keep = false} : f32[16] !{bwd}
    %21 = contract %18, %6 {lhs = abd, rhs = cd, out = abc} : f32[3, 5, 8] !{bwd}
    %22 = contract %0, %18 {lhs = abc, rhs = abd, out = cd} : f32[8, 16] !{bwd}
    %23 = reduce %19 {kind = sum, dims = [0, 1], keep = false} : f32[8] !{bwd}
    %24 = contract %19, %7 {lhs = abd, rhs = cd, out = abc} : f32[3, 5, 8] !{bwd}
    %25 = contract %0, %19 {lhs = abc, rhs = abd, out = cd} : f32[8, 8] !{bwd}
    %26 = add %21, %24 : f32[3, 5, 8] !{bwd}
    %27 = accumulate %22 : f32[8, 16] !{update}
    %28 = accumulate %25 : f32[8, 8] !{update}
    %29 = accumulate %20 : f32[16] !{update}
    %30 = accumulate %23 : f32[8] !{update}
    %31 = contract %27, %27 {lhs = ab, rhs = ab, out = _} : f32[] !{update}
    %32 = mul %27, %31 : f32[8, 16] !{update}
    %33 = tanh %28 : f32[8, 8] !{update}
    %34 = neg %29 : f32[16] !{update}
    %35 = neg %30 : f32[8] !{update}
    %36 = splat {value = 0.0} : f32[] !{update}
  }
  output "dx" = %26
  output "dwq" = %32
  output "dwk" = %33
  output "dbq" = %34
  output "dbk" = %35
  output "loss" = %36
}
"#;

fn layer() -> Module {
    parsed(LAYER)
}

#[test]
fn projections_are_one_multiplication_and_so_are_their_gradients() {
    for microbatches in [Microbatches::One, Microbatches::Many] {
        let cuda = for_cuda(&layer(), microbatches);
        let multiplications =
            cuda.section(Section::Microbatch).iter().filter_map(|command| match &command.task {
                Task::Multiply(multiply) => Some(multiply.sizes),
                _ => None,
            });
        let mut found: Vec<[usize; 3]> = multiplications.collect();
        found.sort_unstable();
        assert_eq!(found, [[8, 15, 24], [15, 8, 24], [15, 24, 8]]);
        let copies = cuda.kernels.iter().filter(|kernel| kernel.name.starts_with("copy")).count();
        assert_eq!(copies, 0, "what is concatenated is written in place");
    }
}

/// Compares a step of `count` microbatches on the stand-in with the interpreter.
fn check(module: &Module, count: u64, order: Order) {
    let step: Vec<Microbatch> = (0..count).map(|index| testing::microbatch(module, 7, index)).collect();
    assert_agrees(module, order, Mode::Exact, &[step.clone(), step], unit);
}

fn parsed(text: &str) -> Module {
    ir::text::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
#[ignore = "needs a C++ compiler"]
fn joined_multiplications_compute_what_each_did() {
    for (count, threads) in [(1, 0), (1, 5), (3, 0), (3, 5)] {
        check(&layer(), count, Order { threads, ..Order::default() });
    }
}

/// Sums that add a product twice, or are read before the node that concatenates their operands, are not joined into one product.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_product_that_is_added_twice_counts_twice() {
    let sums = [
        ("%26", "%40 = add %26, %26 : f32[3, 5, 8] !{bwd}"),
        ("%26", "%40 = add %21, %26 : f32[3, 5, 8] !{bwd}"),
        ("%26", "%40 = add %26, %24 : f32[3, 5, 8] !{bwd}"),
    ];
    for (sum, twice) in sums {
        let text = LAYER.replace("    %27 = acc", &format!("    {twice}\n    %27 = acc"));
        let text = text.replace(&format!("\"dx\" = {sum}"), "\"dx\" = %40");
        check(&parsed(&text), 1, Order::default());
    }
}

/// Products whose operands are concatenated only later.
const LATER: &str = r#"
trainyard-ir 1
module @later imported {
  func @forward(%0 "x" batched : f32[6, 8], %1 "w" : f32[8, 8]) {
    %2 = tanh %0 : f32[6, 8] !{fwd}
    %3 = neg %0 : f32[6, 8] !{fwd}
    %4 = tanh %1 : f32[8, 8] !{fwd}
    %5 = neg %1 : f32[8, 8] !{fwd}
    %6 = contract %2, %4 {lhs = ab, rhs = bc, out = ac} : f32[6, 8] !{fwd}
    %7 = contract %3, %5 {lhs = ab, rhs = bc, out = ac} : f32[6, 8] !{fwd}
    %8 = add %6, %7 : f32[6, 8] !{fwd}
    %9 = concat %2, %3 {dim = 1} : f32[6, 16] !{fwd}
    %10 = concat %4, %5 {dim = 0} : f32[16, 8] !{fwd}
    %11 = exp %10 : f32[16, 8] !{fwd}
  }
  output "sum" = %8
  output "left" = %9
  output "right" = %11
}
"#;

#[test]
#[ignore = "needs a C++ compiler"]
fn products_of_what_is_concatenated_later_stay() {
    check(&parsed(LATER), 1, Order::default());
}

/// Two pairs of products. A result of the first pair is an operand of the second. The joined first pair makes it later than its own product did.
const MOVED: &str = r#"
trainyard-ir 1
module @moved imported {
  func @forward(%0 "x" batched : f32[4, 8], %1 "s" : f32[4, 4], %2 "a" : f32[8, 8], %3 "b" : f32[8, 8]) {
    %4 = tanh %2 : f32[8, 8] !{fwd}
    %5 = contract %0, %4 {lhs = ab, rhs = bc, out = ac} : f32[4, 8] !{fwd}
    %6 = tanh %0 : f32[4, 8] !{fwd}
    %7 = exp %3 : f32[8, 8] !{fwd}
    %8 = contract %0, %7 {lhs = ab, rhs = bc, out = ac} : f32[4, 8] !{fwd}
    %9 = contract %1, %5 {lhs = ab, rhs = bc, out = ac} : f32[4, 8] !{fwd}
    %10 = contract %1, %6 {lhs = ab, rhs = bc, out = ac} : f32[4, 8] !{fwd}
    %11 = mul %9, %10 : f32[4, 8] !{fwd}
    %12 = add %11, %8 : f32[4, 8] !{fwd}
  }
  output "y" = %12
}
"#;

#[test]
#[ignore = "needs a C++ compiler"]
fn what_a_joined_product_makes_is_joined_no_earlier() {
    check(&parsed(MOVED), 1, Order::default());
}

/// A norm's kernel adds to a gradient that is a part of a concatenation. This kernel writes rows without gaps.
const ADDED: &str = r#"
trainyard-ir 1
module @added imported {
  func @forward(%0 "x" batched : f32[6, 8], %1 "scale" : f32[8], %2 "dy" batched : f32[6, 8]) {
    %3, %4 = rms_norm %0, %1 {eps = 1e-6} : f32[6, 8], f32[6] !{fwd}
    %5, %6 = rms_norm_grad %0, %1, %4, %2 : f32[6, 8], f32[8] !{fwd}
    %7 = tanh %3 : f32[6, 8] !{fwd}
    %8 = add %5, %2 : f32[6, 8] !{fwd}
    %9 = concat %7, %8 {dim = 1} : f32[6, 16] !{fwd}
    %10 = neg %9 : f32[6, 16] !{fwd}
  }
  output "both" = %10
  output "dscale" = %6
}
"#;

#[test]
#[ignore = "needs a C++ compiler"]
fn a_part_that_is_made_elsewhere_is_copied() {
    check(&parsed(ADDED), 1, Order::default());
}
