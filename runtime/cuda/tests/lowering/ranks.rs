//! Parts of states that are read and written in place.

use program::Target;
use program::lower::{LowerOptions, lower};
use program::{Instruction, Microbatches, Program, Section, UpdateTime};
use std::sync::Arc;

/// Returns a program for two devices that update parts of a weight of these sizes, cut along a dim. `more` makes the value `%8` after the
/// addition; it is then an output.
fn program(sizes: [u64; 2], dim: usize, more: &str, target: Target) -> Program {
    let [rows, columns] = sizes;
    let split = ["{dp, -}", "{-, dp}"][dim];
    let ty = format!("f32[{rows}, {columns}]");
    let output = if more.is_empty() { "" } else { "output \"more\" = %8" };
    let text = format!(
        r#"trainyard-ir 1
        module @m placed mesh [dp=2] {{
          state @w : {ty} parameter = zeros
          func @train(%0 = @w, %1 "x" batched : f32[2, {rows}, {columns}] {{dp, -, -}}) {{
            %2 = reduce %1 {{kind = sum, dims = [0], keep = false}} : {ty} partial(sum dp) !{{bwd}}
            %3 = accumulate %2 : {ty} partial(sum dp) !{{update}}
            %4 = reduce_scatter %3 : {ty} {split} !{{update}}
            %5 = all_slice %0 : {ty} {split} !{{update}}
            %6 = add %5, %4 : {ty} {split} !{{update}}
            {more}
            %7 = all_gather %6 : {ty} !{{update}}
          }}
          {output}
          update @w = %7
        }}"#
    );
    let module = ir::text::parse(&text).unwrap_or_else(|error| panic!("{error}"));
    let options = LowerOptions { microbatches: Microbatches::One, ..LowerOptions::of(target) };
    lower(&module, &options).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the additions and the collectives after the reduction, with their names.
fn update(program: &Program) -> Vec<(String, &Instruction)> {
    let all = program.section(Section::Update).iter().map(|instruction| (instruction.name(), instruction));
    all.filter(|(name, _)| ["all_slice", "add", "all_gather", "copy"].contains(&name.as_str())).collect()
}

#[test]
fn a_part_of_a_weight_is_updated_where_it_belongs_in_the_weight() {
    // Rows of a weight, and columns of a weight with a single row.
    for (sizes, dim) in [([8, 3], 0), ([1, 8], 1)] {
        let program = Arc::new(program(sizes, dim, "", cpu::TARGET));
        let [(add, addition), (gather, gathered)] = &update(&program)[..] else { panic!("{program}") };
        assert_eq!((&**add, &**gather), ("add", "all_gather"));
        let weight = &program.states[0].view;
        let part = &addition.operands[0];
        assert_eq!((part.base, &part), (weight.base, &&addition.results[0]));
        assert_eq!((&gathered.operands[0], &gathered.results[0]), (part, weight));
        assert_eq!(
            (addition.in_place.as_slice(), gathered.in_place.as_slice()),
            (&[(0, 0)][..], &[(0, 0)][..])
        );
        // The second device has the second half.
        let places = [0, 1].map(|rank| {
            let own = program.on_rank(rank);
            update(&own)[0].1.operands[0].bytes()
        });
        let half = weight.bytes().end / 2;
        assert_eq!(places, [0..half, half..2 * half]);
    }
}

#[test]
fn the_old_weight_is_kept_while_it_is_read() {
    let program = program([8, 3], 0, "%8 = exp %0 : f32[8, 3] !{update}", cpu::TARGET);
    let weight = &program.states[0].view;
    let (_, addition) = update(&program)[0];
    assert_eq!(addition.operands[0].base, weight.base, "{program}");
    assert!(addition.results[0].base != weight.base, "{program}");
}

#[test]
fn a_part_that_others_see_through_a_view_has_a_place_of_its_own() {
    let more = "%9 = transpose %6 {permutation = [1, 0]} : f32[3, 8] {-, dp} !{update}
            %8 = exp %9 : f32[3, 8] {-, dp} !{update}";
    let program = program([8, 3], 0, more, cpu::TARGET);
    let (_, gathered) = update(&program).into_iter().find(|(name, _)| name == "all_gather").unwrap();
    assert!(gathered.in_place.is_empty(), "{program}");
}

#[test]
fn columns_are_gathered_from_a_place_of_their_own() {
    let program = program([8, 4], 1, "", cpu::TARGET);
    let gathered = update(&program).into_iter().find(|(name, _)| name == "all_gather").unwrap().1;
    assert!(gathered.in_place.is_empty(), "{program}");
}

#[test]
fn gpus_copy_their_parts() {
    let program = program([8, 3], 0, "", cuda::TARGET);
    let names: Vec<String> = update(&program).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["all_slice", "add", "all_gather"], "{program}");
}

#[test]
fn a_part_that_two_weights_share_has_a_place_of_its_own() {
    let text = r#"trainyard-ir 1
        module @m placed mesh [dp=2] {
          state @w : f32[8] parameter = zeros
          state @v : f32[8] parameter = zeros
          func @train(%0 = @w, %1 = @v, %2 "x" batched : f32[2, 8] {dp, -}) {
            %3 = reduce %2 {kind = sum, dims = [0], keep = false} : f32[8] partial(sum dp) !{bwd}
            %4 = accumulate %3 : f32[8] partial(sum dp) !{update}
            %5 = reduce_scatter %4 : f32[8] {dp} !{update}
            %6 = exp %5 : f32[8] {dp} !{update}
            %7, %8 = all_gather %6, %6 : f32[8], f32[8] !{update}
          }
          update @w = %7
          update @v = %8
        }"#;
    let module = ir::text::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let options = LowerOptions { microbatches: Microbatches::One, ..LowerOptions::of(cpu::TARGET) };
    let program = lower(&module, &options).unwrap_or_else(|error| panic!("{error}"));
    let (_, gathered) = update(&program).into_iter().find(|(name, _)| name == "all_gather").unwrap();
    assert!(gathered.in_place.is_empty(), "{program}");
}

#[test]
fn a_part_of_a_state_that_microbatches_update_is_that_of_the_beginning() {
    let text = r#"trainyard-ir 1
        module @m placed mesh [dp=2] {
          state @seen : f32[8] buffer = zeros
          func @train(%0 = @seen, %1 "x" batched : f32[2, 8] {dp, -}) {
            %2 = all_slice %0 : f32[8] {dp} !{prepare}
            %3 = reduce %1 {kind = sum, dims = [0], keep = false} : f32[8] partial(sum dp)
            %4 = all_reduce %3 : f32[8]
            %5 = add %0, %4 : f32[8]
            %6 = exp %2 : f32[8] {dp}
          }
          output "part" = %6
          update @seen = %5
        }"#;
    let module = ir::text::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let program = lower(&module, &LowerOptions::of(cpu::TARGET)).unwrap_or_else(|error| panic!("{error}"));
    let names: Vec<String> = program.section(Section::Prepare).iter().map(Instruction::name).collect();
    assert_eq!(names, ["all_slice"], "{program}");
}

/// Backward makes the gradient of the weight first, and then reads a part of the weight.
#[test]
fn an_early_update_waits_for_the_readers_of_a_part() {
    let text = r#"trainyard-ir 1
        module @m placed mesh [dp=2] {
          state @w : f32[8] parameter = zeros
          func @train(%0 = @w, %1 "x" batched : f32[2, 8] {dp, -}) {
            %2 = mul %1, %0 : f32[2, 8] {dp, -}
            %3 = reduce %2 {kind = sum, dims = [0], keep = false} : f32[8] partial(sum dp) !{bwd}
            %4 = all_reduce %3 : f32[8] !{bwd}
            %5 = all_slice %0 : f32[8] {dp} !{bwd}
            %6 = exp %5 : f32[8] {dp} !{bwd}
            %7 = reduce %6 {kind = sum, dims = [0], keep = false} : f32[] partial(sum dp) !{bwd}
            %8 = accumulate %4 : f32[8] !{update}
            %9 = add %0, %8 : f32[8] !{update}
            %10 = accumulate %7 : f32[] partial(sum dp) !{update}
            %11 = all_reduce %10 : f32[] !{update}
          }
          output "more" = %11
          update @w = %9
        }"#;
    let module = ir::text::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let (microbatches, update_time) = (Microbatches::One, UpdateTime::Early);
    let options =
        LowerOptions { microbatches, update: update_time, unfused: true, ..LowerOptions::of(cpu::TARGET) };
    let program = lower(&module, &options).unwrap_or_else(|error| panic!("{error}"));
    let [(name, addition)] = &update(&program)[..] else { panic!("{program}") };
    assert_eq!((&**name, &addition.results[0]), ("add", &program.states[0].view), "{program}");
}

/// Returns a program that reduces the gradient of a weight and adds it to the weight. `more` may read the addends `%4` and makes the value
/// `%8`, which is an output.
fn reduced(more: &str, microbatches: Microbatches, target: Target) -> Program {
    let output = if more.is_empty() { "" } else { "output \"more\" = %8" };
    let text = format!(
        r#"trainyard-ir 1
        module @m placed mesh [dp=2] {{
          state @w : f32[2048] parameter = zeros
          func @train(%0 = @w, %1 "x" batched : f32[8, 2048] {{dp, -}}) {{
            %2 = exp %1 : f32[8, 2048] {{dp, -}} !{{bwd}}
            %3 = reduce %2 {{kind = sum, dims = [0], keep = false}} : f32[2048] partial(sum dp) !{{bwd}}
            %4 = accumulate %3 : f32[2048] partial(sum dp) !{{update}}
            %5 = all_reduce %4 : f32[2048] !{{update}}
            {more}
            %9 = add %0, %5 : f32[2048] !{{update}}
          }}
          {output}
          update @w = %9
        }}"#
    );
    lowered(&text, microbatches, target)
}

fn lowered(text: &str, microbatches: Microbatches, target: Target) -> Program {
    let module = ir::text::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let options = LowerOptions { microbatches, ..LowerOptions::of(target) };
    lower(&module, &options).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns for each `all_reduce` of a program whether each result lies in the place of its operand.
fn reduced_in_place(program: &Program) -> Vec<Vec<bool>> {
    let all = Section::ALL.iter().flat_map(|(section, _)| program.section(*section));
    let in_place = |instruction: &Instruction| {
        let pairs = instruction.operands.iter().zip(&instruction.results).enumerate();
        let is_same = |(index, (operand, result))| {
            let is_same = operand == result;
            assert_eq!(is_same, instruction.in_place.contains(&(index as u32, index as u32)), "{program}");
            is_same
        };
        pairs.map(is_same).collect()
    };
    all.filter(|instruction| instruction.name() == "all_reduce").map(in_place).collect()
}

const STEPS: [Microbatches; 2] = [Microbatches::One, Microbatches::Many];
const TARGETS: [Target; 2] = [cpu::TARGET, cuda::TARGET];

#[test]
fn a_gradient_is_reduced_in_the_place_of_its_sum() {
    for (microbatches, target) in STEPS.into_iter().flat_map(|step| TARGETS.map(|target| (step, target))) {
        let program = reduced("", microbatches, target);
        assert_eq!(reduced_in_place(&program), [[true]], "{program}");
        // On a GPU, rows of the batch may be reduced with scratch. Nothing else has the size of the gradient.
        let planned = program.memory.lower_bound - program.memory.states;
        assert!(planned < 10 * 8192, "{program}");
    }
}

/// The collective still runs while the addition reads its operand.
#[test]
fn an_operand_that_is_read_later_keeps_its_place() {
    let more = "%6 = neg %4 : f32[2048] partial(sum dp) !{update}
            %8 = all_reduce %6 : f32[2048] !{update}";
    for (microbatches, target) in STEPS.into_iter().flat_map(|step| TARGETS.map(|target| (step, target))) {
        let program = reduced(more, microbatches, target);
        assert_eq!(reduced_in_place(&program), [[false], [true]], "{program}");
    }
}

#[test]
fn an_operand_that_is_reduced_twice_keeps_its_place() {
    let more = "%8 = all_reduce %4 : f32[2048] !{update}";
    for microbatches in STEPS {
        // As two collectives, the second one is the last reader.
        let program = reduced(more, microbatches, cpu::TARGET);
        assert_eq!(reduced_in_place(&program), [[false], [true]], "{program}");
        // As one collective, both read the operand at once.
        let together = "%8, %7 = all_reduce %4, %4 : f32[2048], f32[2048] !{update}";
        let program = reduced(together, microbatches, cpu::TARGET);
        assert_eq!(reduced_in_place(&program), [vec![false, false], vec![true]], "{program}");
    }
}

#[test]
fn an_operand_that_every_microbatch_reduces_keeps_its_place() {
    let text = r#"trainyard-ir 1
        module @m placed mesh [dp=2] {
          state @v : f32[2, 2048] {dp, -} parameter = zeros
          func @train(%0 = @v, %1 "x" batched : f32[8, 2048] {dp, -}) {
            %2 = reduce %0 {kind = sum, dims = [0], keep = false} : f32[2048] partial(sum dp) !{prepare}
            %3 = all_reduce %2 : f32[2048] !{fwd}
            %4 = reduce %1 {kind = sum, dims = [0], keep = false} : f32[2048] partial(sum dp) !{fwd}
            %5 = all_reduce %4 : f32[2048] !{fwd}
            %6 = add %3, %5 : f32[2048] !{fwd}
          }
          output "y" = %6
        }"#;
    for target in TARGETS {
        let [one, many] = STEPS.map(|microbatches| reduced_in_place(&lowered(text, microbatches, target)));
        assert_eq!([one, many], [[[true], [true]], [[false], [true]]]);
    }
}
