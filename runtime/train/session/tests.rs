//! Tests the number of instructions of an update that run before the norm of the gradients is read.

use super::*;
use program::Kernel;
use program::lower::{LowerOptions, lower};

/// Returns a program with a counter that is read after its next value is made, like dropout's, and a gradient that is reduced while
/// backward goes on. The last nodes compute the norm and the new weight, in either order.
fn program(last: [&str; 2]) -> Program {
    let text = r#"trainyard-ir 1
        module @m placed mesh [dp=2] {
          state @w : f32[4] parameter = zeros
          state @seen : i64[] counter = zeros
          func @train(%0 = @w, %1 = @seen, %2 "x" batched : f32[8, 4] {dp, -}) {
            %3 = splat {value = 1.0} : i64[]
            %4 = add %1, %3 : i64[]
            %5 = cast %1 {to = f32} : f32[]
            %6 = mul %2, %5 : f32[8, 4] {dp, -} !{bwd}
            %7 = mul %6, %0 : f32[8, 4] {dp, -} !{bwd}
            %8 = reduce %7 {kind = sum, dims = [0], keep = false} : f32[4] partial(sum dp) !{bwd}
            %9 = exp %2 : f32[8, 4] {dp, -} !{bwd}
            %10 = reduce %9 {kind = sum, dims = [0], keep = false} : f32[4] partial(sum dp) !{bwd}
            %11 = accumulate %8 : f32[4] partial(sum dp) !{update}
            %12 = all_reduce %11 : f32[4] !{update}
            %13 = accumulate %10 : f32[4] partial(sum dp) !{update}
            %14 = all_reduce %13 : f32[4] !{update}
            %15 = add %12, %14 : f32[4] !{update}
            LAST
          }
          output "grad_norm" = %16
          update @w = %17
          update @seen = %4
        }"#;
    let text = text.replace("LAST", &last.map(|node| format!("{node} !{{update}}")).join("\n"));
    lower(&ir::text::parse(&text).unwrap(), &LowerOptions::of(cpu::TARGET)).unwrap()
}

#[test]
fn a_state_that_every_microbatch_writes_may_be_written_before_the_norm() {
    let norm = "%16 = contract %15, %15 {lhs = a, rhs = a, out = _} : f32[]";
    let program = program([norm, "%17 = add %0, %15 : f32[4]"]);
    let update = program.section(Section::Update);
    let writes_counter = |instruction: &Instruction| {
        let counter = program.states[1].view.bytes();
        instruction.results.iter().any(|result| result.bytes() == counter)
    };
    let written = update.iter().position(writes_counter).unwrap();
    assert!(update[written].of_microbatch && matches!(update[written].kernel, Kernel::Copy));
    let until = until_norm(&program, 0).expect("no weight changes before the norm");
    assert!(written < until && until < update.len());
}

#[test]
fn a_weight_that_changes_before_the_norm_leaves_no_part_of_the_update_to_run_first() {
    let norm = "%16 = contract %17, %17 {lhs = a, rhs = a, out = _} : f32[]";
    assert_eq!(until_norm(&program(["%17 = add %0, %15 : f32[4]", norm]), 0), None);
}
