//! What multiplications take in, where that is not to be had, and concatenations around them: such programs compute what the
//! interpreter does.

use super::host;
use crate::compare::{assert_agrees_on, unit};
use cuda::device::Cuda;
use cuda::host::{Host, Order};
use cuda::lower::{Libraries, lower_with};
use cuda::program::{CudaProgram, Multiply, Task};
use ir::interp::Mode;
use ir::{DType, Module, testing};
use program::device::Device;
use program::lower::{LowerOptions, lower};
use program::{Kernel, Microbatches, Program, Section};
use std::sync::Arc;

fn module(body: &str) -> Module {
    let text = format!("trainyard-ir 1\nmodule @test imported {{{body}}}\n");
    ir::text::parse(&text).unwrap_or_else(|error| panic!("{error}"))
}

fn options() -> LowerOptions<'static> {
    LowerOptions { microbatches: Microbatches::One, ..LowerOptions::of(cuda::TARGET) }
}

/// Runs it on the stand-in, with every epilogue taken and with every epilogue refused.
fn check(module: &Module) {
    check_on(&|program| host(program, Order::default()), module);
    check_on(&refusing, module);
}

fn check_on(make: &dyn Fn(Program) -> Box<dyn Device>, module: &Module) {
    let inputs = testing::microbatch(module, 7, 0);
    assert_agrees_on(make, Mode::Typed, module, &options(), &[vec![inputs]], |dtype| match dtype {
        DType::BF16 => 1e-2,
        _ => unit(dtype),
    });
}

/// A cuBLASLt that takes no epilogue.
struct RefusesEpilogues;

impl Libraries for RefusesEpilogues {
    fn takes(&mut self, multiply: &Multiply) -> bool {
        assert!(!multiply.epilogue.is_addition(), "every multiplication can add a matrix");
        false
    }
}

fn without_epilogues(program: Program) -> CudaProgram {
    let lowered = lower_with(Arc::new(program), &mut RefusesEpilogues);
    lowered.unwrap_or_else(|error| panic!("{error}"))
}

/// The stand-in without epilogues.
fn refusing(program: Program) -> Box<dyn Device> {
    let host = Host::new(Order::default()).checked();
    let cuda = Cuda::with(host, vec![without_epilogues(program)]);
    Box::new(cuda.unwrap_or_else(|error| panic!("{error}")))
}

/// How many contractions take something in.
fn fused(module: &Module) -> usize {
    contracts(&lower(module, &options()).unwrap_or_else(|error| panic!("{error}")))
}

fn contracts(program: &Program) -> usize {
    let instructions = Section::ALL.iter().flat_map(|(section, _)| &program.sections[*section as usize]);
    instructions.filter(|instruction| matches!(instruction.kernel, Kernel::Contract(_))).count()
}

/// Both parts of a concatenation lie in one place, and one is made of the other.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_part_may_be_made_of_another() {
    check(&module(
        r#"
  func @forward(%0 "x" batched : f32[4, 6, 8], %1 "w" : f32[8, 8], %2 "u" : f32[8, 8]) {
    %3 = contract %0, %1 {lhs = abc, rhs = cd, out = abd} : f32[4, 6, 8] !{fwd}
    %4 = contract %3, %2 {lhs = abc, rhs = cd, out = abd} : f32[4, 6, 8] !{fwd}
    %5 = tanh %3 : f32[4, 6, 8] !{fwd}
    %6 = concat %3, %4, %5 {dim = 1} : f32[4, 18, 8] !{fwd}
    %7 = neg %6 : f32[4, 18, 8] !{fwd}
  }
  output "y" = %7
"#,
    ));
}

/// What GELU is applied to is kept for a contraction that comes before GELU's other operand is there.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_contraction_stays_before_what_reads_its_result() {
    let module = module(
        r#"
  func @forward(%0 "x" batched : bf16[4, 16], %1 "w" : bf16[16, 16], %2 "u" : bf16[16, 16]) {
    %3 = contract %0, %1 {lhs = ab, rhs = bc, out = ac} : bf16[4, 16] !{fwd}
    %4 = gelu_tanh %3 : bf16[4, 16] !{fwd}
    %5 = contract %3, %2 {lhs = ab, rhs = bc, out = ac} : bf16[4, 16] !{fwd}
    %6 = mul %4, %5 : bf16[4, 16] !{fwd}
  }
  output "y" = %6
"#,
    );
    assert_eq!(fused(&module), 0);
    check(&module);
}

/// cuBLASLt keeps what GELU is applied to in rows of 16 bytes, which a part of a concatenation may not be.
#[test]
#[ignore = "needs a C++ compiler"]
fn what_gelu_is_applied_to_is_kept_in_aligned_rows() {
    for parts in ["%3, %5", "%5, %3"] {
        let module = module(&format!(
            r#"
  func @forward(%0 "x" batched : bf16[4, 16], %1 "w" : bf16[16, 16], %2 "z" : bf16[4, 4]) {{
    %3 = contract %0, %1 {{lhs = ab, rhs = bc, out = ac}} : bf16[4, 16] !{{fwd}}
    %4 = gelu_tanh %3 : bf16[4, 16] !{{fwd}}
    %5 = tanh %2 : bf16[4, 4] !{{fwd}}
    %6 = concat {parts} {{dim = 1}} : bf16[4, 20] !{{fwd}}
    %7 = neg %6 : bf16[4, 20] !{{fwd}}
  }}
  output "y" = %4
  output "z" = %7
"#
        ));
        assert_eq!(fused(&module), 1);
        check(&module);
    }
}

/// The gradient of GELU reads what it was applied to from such rows as well: a view that begins elsewhere is copied.
#[test]
#[ignore = "needs a C++ compiler"]
fn what_gelu_was_applied_to_is_read_in_aligned_rows() {
    let module = module(
        r#"
  func @forward(%0 "dy" batched : bf16[4, 16], %1 "w" : bf16[16, 16], %2 "x" : bf16[67]) {
    %3 = slice %2 {dim = 0, start = 3, step = 1} : bf16[64] !{fwd}
    %4 = reshape %3 : bf16[4, 16] !{fwd}
    %5 = contract %0, %1 {lhs = ab, rhs = bc, out = ac} : bf16[4, 16] !{fwd}
    %6 = gelu_tanh_grad %4, %5 : bf16[4, 16] !{fwd}
  }
  output "dx" = %6
"#,
    );
    assert_eq!(fused(&module), 1);
    check(&module);
}

/// cuBLASLt refuses epilogues of half-precision rows that begin at odd elements: such operands are copied, and a result goes to
/// a place of its own before it becomes part of a concatenation.
#[test]
#[ignore = "needs a C++ compiler"]
fn half_precision_rows_of_an_epilogue_begin_at_four_bytes() {
    let module = module(
        r#"
  func @forward(%0 "x" batched : bf16[67], %1 "w" : bf16[16, 16], %2 "b" : bf16[16], %3 "z" : bf16[4, 3]) {
    %4 = slice %0 {dim = 0, start = 3, step = 1} : bf16[64] !{fwd}
    %5 = reshape %4 : bf16[4, 16] !{fwd}
    %6 = contract %5, %1 {lhs = ab, rhs = bc, out = ac} : bf16[4, 16] !{fwd}
    %7 = add %6, %2 : bf16[4, 16] !{fwd}
    %8 = tanh %3 : bf16[4, 3] !{fwd}
    %9 = concat %8, %7 {dim = 1} : bf16[4, 19] !{fwd}
    %10 = neg %9 : bf16[4, 19] !{fwd}
  }
  output "y" = %10
"#,
    );
    assert_eq!(fused(&module), 1);
    check(&module);
}

/// No one stride reaches through the rows of what is turned: it is copied, and so is the part of a concatenation that would
/// be written so.
#[test]
#[ignore = "needs a C++ compiler"]
fn rows_that_no_stride_reaches_through_are_copied() {
    let turned = module(
        r#"
  func @forward(%0 "x" batched : f32[4, 3, 5, 16], %1 "w" : f32[16, 16], %2 "b" : f32[16]) {
    %3 = transpose %0 {permutation = [2, 1, 0, 3]} : f32[5, 3, 4, 16] !{fwd}
    %4 = contract %3, %1 {lhs = abcd, rhs = de, out = abce} : f32[5, 3, 4, 16] !{fwd}
    %5 = add %4, %2 : f32[5, 3, 4, 16] !{fwd}
  }
  output "y" = %5
"#,
    );
    let parted = module(
        r#"
  func @forward(%0 "x" batched : f32[4, 6, 8], %1 "w" : f32[8, 8], %2 "b" : f32[8]) {
    %3 = contract %0, %1 {lhs = abc, rhs = cd, out = abd} : f32[4, 6, 8] !{fwd}
    %4 = add %3, %2 : f32[4, 6, 8] !{fwd}
    %5 = tanh %0 : f32[4, 6, 8] !{fwd}
    %6 = concat %5, %4 {dim = 1} : f32[4, 12, 8] !{fwd}
    %7 = neg %6 : f32[4, 12, 8] !{fwd}
  }
  output "y" = %7
"#,
    );
    for module in [turned, parted] {
        assert_eq!(fused(&module), 1);
        check(&module);
    }
}

/// Rows whose dims come in another order are not for one multiplication.
#[test]
#[ignore = "needs a C++ compiler"]
fn rows_in_another_order_take_nothing_in() {
    let crossed = module(
        r#"
  func @forward(%0 "x" batched : f32[4, 3, 8], %1 "w" : f32[8, 16], %2 "b" : f32[16]) {
    %3 = contract %0, %1 {lhs = abc, rhs = cd, out = bad} : f32[3, 4, 16] !{fwd}
    %4 = add %3, %2 : f32[3, 4, 16] !{fwd}
  }
  output "y" = %4
"#,
    );
    assert_eq!(fused(&crossed), 0);
    check(&crossed);
}

/// A product of weights is made once a step, before there is an input to add to it.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_contraction_takes_in_nothing_of_a_later_phase() {
    let module = module(
        r#"
  func @forward(%0 "x" batched : f32[4, 8], %1 "v" : f32[4, 8], %2 "w" : f32[8, 8]) {
    %3 = splat {value = 0.5} : f32[4, 8] !{prepare}
    %4 = splat {value = 0.25} : f32[8, 8] !{prepare}
    %5 = contract %3, %4 {lhs = ab, rhs = bc, out = ac} : f32[4, 8] !{prepare}
    %6 = add %5, %0 : f32[4, 8] !{fwd}
  }
  output "y" = %6
"#,
    );
    assert_eq!(fused(&module), 0);
    check(&module);
}

/// cuBLASLt refuses these epilogues: the multiplication has none, and kernels do the rest.
#[test]
#[ignore = "needs a C++ compiler"]
fn an_epilogue_that_is_refused_is_a_kernel() {
    let bias = |rows: u64, terms: u64, columns: u64| {
        format!(
            r#"
  func @forward(%0 "x" batched : bf16[{rows}, {terms}], %1 "w" : bf16[{terms}, {columns}], %2 "b" : bf16[{columns}]) {{
    %3 = contract %0, %1 {{lhs = ab, rhs = bc, out = ac}} : bf16[{rows}, {columns}] !{{fwd}}
    %4 = add %3, %2 : bf16[{rows}, {columns}] !{{fwd}}
  }}
  output "y" = %4
"#
        )
    };
    let gradient = |rows: u64| {
        format!(
            r#"
  func @forward(%0 "dy" batched : bf16[{rows}, 16], %1 "w" : bf16[16, 16], %2 "x" : bf16[{rows}, 16]) {{
    %3 = contract %0, %1 {{lhs = ab, rhs = bc, out = ac}} : bf16[{rows}, 16] !{{fwd}}
    %4 = gelu_tanh_grad %2, %3 : bf16[{rows}, 16] !{{fwd}}
  }}
  output "dx" = %4
"#
        )
    };
    let sums = |rows: u64, columns: u64| {
        format!(
            r#"
  func @forward(%0 "x" batched : f32[{rows}, 8], %1 "dy" batched : f32[{rows}, {columns}]) {{
    %2 = contract %0, %1 {{lhs = ab, rhs = ac, out = bc}} : f32[8, {columns}] !{{fwd}}
    %3 = reduce %1 {{kind = sum, dims = [0], keep = false}} : f32[{columns}] !{{fwd}}
  }}
  output "dw" = %2
  output "db" = %3
"#
        )
    };
    for (taken, refused) in [
        (bias(4, 8, 6), vec![bias(4, 8, 5), bias(4, 7, 6)]),
        (gradient(2), vec![gradient(1)]),
        (sums(4, 2), vec![sums(4, 1), sums(1, 2)]),
    ] {
        assert_eq!(fused(&module(&taken)), 1, "{taken}");
        check(&module(&taken));
        for refused in refused {
            assert_eq!(fused(&module(&refused)), 0, "{refused}");
            check(&module(&refused));
        }
    }
}

#[test]
fn without_epilogues_multiplications_take_nothing_in() {
    let module = module(
        r#"
  func @forward(%0 "x" batched : f32[4, 8], %1 "w" : f32[8, 8], %2 "b" : f32[8]) {
    %3 = contract %0, %1 {lhs = ab, rhs = bc, out = ac} : f32[4, 8] !{fwd}
    %4 = add %3, %2 : f32[4, 8] !{fwd}
  }
  output "y" = %4
"#,
    );
    let plain = LowerOptions { without_epilogues: true, ..options() };
    let program = lower(&module, &plain).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((fused(&module), contracts(&program)), (1, 0));
}

/// A contraction of `[6, 16]` and `[16, 24]` and the nodes after it, in one type. `{d}` stands for the type.
fn epilogue(dtype: DType, inputs: &str, nodes: &str, outputs: &[(&str, u32)]) -> Module {
    let outputs: String =
        outputs.iter().map(|(name, value)| format!("  output \"{name}\" = %{value}\n")).collect();
    let text = format!(
        r#"
  func @forward(%0 "x" batched : {{d}}[6, 16], %1 "w" : {{d}}[16, 24]{inputs}) {{
    %9 = contract %0, %1 {{lhs = ab, rhs = bc, out = ac}} : {{d}}[6, 24] !{{fwd}}
{nodes}
  }}
{outputs}"#
    );
    module(&text.replace("{d}", &dtype.to_string()))
}

/// The gradient of a weight from so many rows, with the sums over the rows of a side.
fn sums(dtype: DType, side: &str, rows: u64) -> Module {
    let text = format!(
        r#"
  func @forward(%0 "x" batched : {dtype}[{rows}, 24], %1 "dy" batched : {dtype}[{rows}, 24]) {{
    %2 = contract %0, %1 {{lhs = ab, rhs = ac, out = bc}} : {dtype}[24, 24] !{{fwd}}
    %3 = reduce {side} {{kind = sum, dims = [0], keep = false}} : {dtype}[24] !{{fwd}}
  }}
  output "dw" = %2
  output "db" = %3
"#
    );
    module(&text)
}

/// Every form of an epilogue in a type.
fn epilogues(dtype: DType) -> Vec<Module> {
    let bias = "%10 = add %9, %2 : {d}[6, 24] !{fwd}";
    let with_bias = r#", %2 "b" : {d}[24]"#;
    let with_addend = r#", %2 "b" : {d}[24], %3 "r" batched : {d}[6, 24]"#;
    let both = format!("{bias}\n%11 = add %3, %10 : {{d}}[6, 24] !{{fwd}}");
    let mut all = vec![
        epilogue(dtype, with_bias, bias, &[("y", 10)]),
        epilogue(dtype, r#", %2 "r" batched : {d}[6, 24]"#, bias, &[("y", 10)]),
        epilogue(dtype, with_addend, &both, &[("y", 11)]),
    ];
    all.extend(["%0", "%1"].map(|side| sums(dtype, side, 16)));
    if dtype == DType::F32 {
        return all;
    }
    let gelu = "%12 = gelu_tanh %9 : {d}[6, 24] !{fwd}";
    let after_bias = format!("{bias}\n%12 = gelu_tanh %10 : {{d}}[6, 24] !{{fwd}}");
    let after_both = format!("{both}\n%12 = gelu_tanh %11 : {{d}}[6, 24] !{{fwd}}");
    let kept = |from: u32| format!("\n%13 = neg %{from} : {{d}}[6, 24] !{{fwd}}");
    let gradient = "%12 = gelu_tanh_grad %2, %9 : {d}[6, 24] !{fwd}";
    all.extend([
        epilogue(dtype, "", gelu, &[("y", 12)]),
        epilogue(dtype, "", &format!("{gelu}{}", kept(9)), &[("y", 12), ("z", 13)]),
        epilogue(dtype, with_bias, &after_bias, &[("y", 12)]),
        epilogue(dtype, with_bias, &format!("{after_bias}{}", kept(10)), &[("y", 12), ("z", 13)]),
        epilogue(dtype, with_addend, &format!("{after_both}{}", kept(11)), &[("y", 12), ("z", 13)]),
        epilogue(dtype, r#", %2 "a" batched : {d}[6, 24]"#, gradient, &[("dx", 12)]),
    ]);
    all
}

/// cuBLASLt may refuse an epilogue for a reason of its own: a multiplication and kernels compute the same.
#[test]
#[ignore = "needs a C++ compiler"]
fn every_epilogue_that_cublaslt_refuses_is_a_multiplication_and_kernels() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for module in epilogues(dtype) {
            assert_eq!(fused(&module), 1, "{}", ir::text::print(&module));
            check_on(&refusing, &module);
        }
    }
}

/// A reduction by itself would divide so many rows among blocks, whose sums go to scratch. A refused epilogue has none.
#[test]
#[ignore = "needs a C++ compiler"]
fn sums_of_many_rows_need_no_scratch() {
    for side in ["%0", "%1"] {
        check_on(&refusing, &sums(DType::F32, side, 4096));
    }
}

/// The multiplication of a refused epilogue adds a matrix at most, and no second multiplication is made.
#[test]
fn a_refused_epilogue_leaves_one_multiplication_that_adds() {
    for module in [DType::F32, DType::BF16].into_iter().flat_map(epilogues) {
        let cuda = without_epilogues(lower(&module, &options()).unwrap_or_else(|error| panic!("{error}")));
        let multiplications: Vec<bool> = cuda
            .section(Section::Microbatch)
            .iter()
            .filter_map(|command| match &command.task {
                Task::Multiply(multiply) => Some(multiply.epilogue.is_addition()),
                _ => None,
            })
            .collect();
        assert_eq!(multiplications, [true], "{}", ir::text::print(&module));
    }
}
