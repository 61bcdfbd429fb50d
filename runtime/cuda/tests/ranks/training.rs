//! Whole steps: gradients that stay partial over microbatches, optimizer states that are split, buffers carried.

use crate::compare::{on_ranks, parse, same_as_on_one_device};
use ir::Module;
use program::lower::LowerOptions;

/// A step with a split parameter, a gradient that is reduced once a step, and a buffer that is carried from microbatch
/// to microbatch.
#[test]
pub(crate) fn states_and_sums_over_microbatches_are_kept_by_rank() {
    same_as_on_one_device(&parse(
        r#"trainyard-ir 1
        module @m placed mesh [dp=2, tp=2] {
          state @w : f64[6, 4] {tp, -} parameter = normal 0.5
          state @v : f64[6, 4] {tp, dp} optimizer = zeros
          state @seen : f64[4] buffer = zeros
          func @train(%0 = @w, %1 = @v, %2 = @seen, %3 "x" : f64[8, 6] {dp, tp}) {
            %4 = contract %3, %0 {lhs = ab, rhs = bc, out = ac} : f64[8, 4] {dp, -} partial(sum tp)
            %5 = all_reduce %4 : f64[8, 4] {dp, -}
            %6 = reduce %5 {kind = sum, dims = [0], keep = false} : f64[4] partial(sum dp)
            %7 = all_reduce %6 : f64[4]
            %8 = add %2, %7 : f64[4]
            %9 = tanh %8 : f64[4]
            %10 = mul %5, %9 : f64[8, 4] {dp, -}
            %11 = contract %3, %10 {lhs = ab, rhs = ac, out = bc} : f64[6, 4] {tp, -} partial(sum dp) !{bwd}
            %12 = accumulate %11 : f64[6, 4] {tp, -} partial(sum dp) !{update}
            %13 = reduce_scatter %12 : f64[6, 4] {tp, dp} !{update}
            %14 = splat {value = 0.5} : f64[] !{update}
            %15 = mul %1, %14 : f64[6, 4] {tp, dp} !{update}
            %16 = add %13, %15 : f64[6, 4] {tp, dp} !{update}
            %17 = all_gather %16 : f64[6, 4] {tp, -} !{update}
            %18 = mul %17, %14 : f64[6, 4] {tp, -} !{update}
            %19 = sub %0, %18 : f64[6, 4] {tp, -} !{update}
          }
          output "seen" = %2
          output "summed" = %17
          update @w = %19
          update @v = %16
          update @seen = %8
        }"#,
    ));
}

/// Adam on one weight over dp=4: the moments' sharding, and the nodes of the last phases, say who keeps which part.
fn zero(dtype: &str, moments: &str, [backward, update]: [&str; 2]) -> Module {
    let text = format!(
        r#"trainyard-ir 1
        module @m placed mesh [dp=4] {{
          state @w : f32[8, 6] parameter = normal 0.5
          state @m : f32[8, 6]{moments} optimizer = zeros
          state @v : f32[8, 6]{moments} optimizer = zeros
          func @train(%0 = @w, %1 = @m, %2 = @v, %3 "x" : f32[12, 8] {{dp, -}}) {{
            %4 = contract %3, %0 {{lhs = ab, rhs = bc, out = ac}} : f32[12, 6] {{dp, -}}
            %5 = tanh %4 : f32[12, 6] {{dp, -}}
            %6 = contract %3, %5 {{lhs = ab, rhs = ac, out = bc}} : f32[8, 6] partial(sum dp) !{{bwd}}
            {backward}
            %10 = splat {{value = 0.1}} : f64[] !{{update}}
            %11 = splat {{value = 0.01}} : f64[] !{{update}}
            %12 = splat {{value = 1.0}} : f64[] !{{update}}
            {update}
          }}
          update @w = %20
          update @m = %21
          update @v = %22
        }}"#
    );
    parse(&text.replace("f32", dtype))
}

const ADAM: &str = "%10, %11, %12 {beta1 = 0.9, beta2 = 0.99, eps = 1e-6, decoupled = true}";

fn stages(dtype: &str) -> [Module; 3] {
    let stage_0 = format!(
        "%13 = accumulate %6 : f32[8, 6] partial(sum dp) !{{update}}
        %14 = all_reduce %13 : f32[8, 6] !{{update}}
        %20, %21, %22 = adam %0, %14, %1, %2, {ADAM} : f32[8, 6], f32[8, 6], f32[8, 6] !{{update}}"
    );
    let split = "f32[8, 6] {dp, -}";
    let shard = format!(
        "%15 = all_slice %0 : {split} !{{update}}
        %16, %21, %22 = adam %15, %14, %1, %2, {ADAM} : {split}, {split}, {split} !{{update}}
        %20 = all_gather %16 : f32[8, 6] !{{update}}"
    );
    let stage_1 = format!(
        "%13 = accumulate %6 : f32[8, 6] partial(sum dp) !{{update}}
        %14 = reduce_scatter %13 : {split} !{{update}}\n{shard}"
    );
    let scattered = format!("%13 = reduce_scatter %6 : {split} !{{bwd}}");
    let stage_2 = format!("%14 = accumulate %13 : {split} !{{update}}\n{shard}");
    let split = " {dp, -}";
    [("", ["", &stage_0]), (split, ["", &stage_1]), (split, [&scattered, &stage_2])]
        .map(|(moments, nodes)| zero(dtype, moments, nodes))
}

#[test]
pub(crate) fn optimizer_states_and_gradients_are_split_as_zero_does() {
    stages("f64").iter().for_each(same_as_on_one_device);
}

#[test]
fn every_stage_of_zero_gives_the_same_bits_with_one_microbatch() {
    let runs = stages("f32").map(|module| on_ranks(&module, &LowerOptions::of(cpu::TARGET), 1));
    assert!(runs[0] == runs[1] && runs[1] == runs[2]);
    let [_, one, two] = stages("f32").map(|module| on_ranks(&module, &LowerOptions::of(cpu::TARGET), 3));
    assert_ne!(one, runs[1], "three microbatches are not one");
    let w = |run: &[(ir::interp::StateValues, _)]| run[1].0.values().next().unwrap().floats().to_vec();
    let difference = w(&one).iter().zip(w(&two)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(difference < 1e-5, "{difference}");
}
