//! Tests the places of collectives in lowered programs, and an order that is refused.

use super::super::plain::{ACCELERATOR, PROCESSOR};
use super::super::{LowerOptions, lower};
use super::*;
use crate::Target;
use crate::{Microbatches, Part, Program};

/// Lowers a program of two devices along `dp` with these lines.
fn lowered(lines: &str, tables: &str, microbatches: Microbatches) -> Program {
    let text = format!("trainyard-ir 1\nmodule @m placed mesh [dp=2] {{\n{lines}\n{tables}\n}}");
    let module = ir::text::parse(&text).unwrap_or_else(|error| panic!("{error}"));
    lower(&module, &LowerOptions { microbatches, unfused: true, ..LowerOptions::of(PROCESSOR) })
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the names of a part's instructions.
fn names(program: &Program, part: Part) -> Vec<String> {
    program.part(part).into_iter().map(|(_, instruction)| instruction.name()).collect()
}

/// Two weights, whose gradients are reduced in the update. Backward makes the gradient of `v` first, from `exp`, and then the gradient of
/// `w`, from `tanh`.
const TWO_WEIGHTS: &str = r#"
  state @w : f32[4] parameter = zeros
  state @v : f32[4] parameter = zeros
  func @train(%0 = @w, %1 = @v, %2 "x" batched : f32[8, 4] {dp, -}) {
    %3 = mul %2, %0 : f32[8, 4] {dp, -} !{fwd}
    %4 = mul %3, %1 : f32[8, 4] {dp, -} !{fwd}
    %5 = reduce %4 {kind = sum, dims = [0, 1], keep = false} : f32[] partial(sum dp) !{fwd}
    %6 = all_reduce %5 : f32[] !{fwd}
    %7 = exp %3 : f32[8, 4] {dp, -} !{bwd}
    %8 = reduce %7 {kind = sum, dims = [0], keep = false} : f32[4] partial(sum dp) !{bwd}
    %9 = tanh %4 : f32[8, 4] {dp, -} !{bwd}
    %10 = reduce %9 {kind = sum, dims = [0], keep = false} : f32[4] partial(sum dp) !{bwd}
    %11 = accumulate %10 : f32[4] partial(sum dp) !{update}
    %12 = accumulate %8 : f32[4] partial(sum dp) !{update}
    %13 = all_reduce %12 : f32[4] !{update}
    %14 = all_reduce %11 : f32[4] !{update}
    %15 = add %0, %14 : f32[4] !{update}
    %16 = add %1, %13 : f32[4] !{update}
  }"#;
const UPDATES: &str = "  output \"loss\" = %6\n  update @w = %15\n  update @v = %16";

#[test]
fn a_gradient_is_reduced_as_soon_as_backward_has_made_it() {
    for microbatches in [Microbatches::One, Microbatches::Many] {
        let program = lowered(TWO_WEIGHTS, UPDATES, microbatches);
        let made = |name: &str| vec![name.to_owned(), "reduce".into()];
        let forward: Vec<String> = ["mul", "mul", "reduce", "all_reduce"].map(String::from).into();
        assert_eq!(names(&program, Part::Microbatch), [forward, made("exp")].concat());
        assert_eq!(names(&program, Part::RestOfMicrobatch), made("tanh"));
        let all_reduce = || vec!["all_reduce".to_owned()];
        let adds = vec!["add".to_owned(); 2];
        assert_eq!(names(&program, Part::Update), [all_reduce(), made("tanh"), all_reduce(), adds].concat());
    }
}

#[test]
fn a_loss_is_there_before_the_update_begins() {
    // Here the loss is made at the end of backward.
    let lines =
        TWO_WEIGHTS.replace("%6 = all_reduce %5 : f32[] !{fwd}", "%6 = neg %2 : f32[8, 4] {dp, -} !{fwd}");
    let lines = lines.replace("    %11 = acc", "    %17 = all_reduce %5 : f32[] !{bwd}\n    %11 = acc");
    let program = lowered(&lines, &UPDATES.replace("%6", "%17"), Microbatches::Many);
    assert_eq!(names(&program, Part::RestOfMicrobatch), [""; 0]);
    assert!(names(&program, Part::Microbatch).contains(&"all_reduce".to_owned()));
}

/// Lowers a model with weights of these sizes, each gathered just before its use: its first 8 numbers are added to the result.
fn gathered(sizes: &[u64]) -> Program {
    let (mut states, mut parameters, mut nodes) = (String::new(), String::new(), String::new());
    let mut last = format!("%{}", sizes.len());
    for (index, size) in sizes.iter().enumerate() {
        let at = 100 + 10 * index;
        states += &format!("  state @w{index} : f32[{size}] {{dp}} parameter = zeros\n");
        parameters += &format!("%{index} = @w{index}, ");
        nodes += &format!("    %{at} = all_gather %{index} : f32[{size}] !{{fwd}}\n");
        nodes +=
            &format!("    %{} = slice %{at} {{dim = 0, start = 0, step = 1}} : f32[8] !{{fwd}}\n", at + 1);
        nodes += &format!("    %{} = add {last}, %{} : f32[2, 8] {{dp, -}} !{{fwd}}\n", at + 2, at + 1);
        last = format!("%{}", at + 2);
    }
    let lines = format!(
        "{states}  func @train({parameters}%{} \"x\" batched : f32[2, 8] {{dp, -}}) {{\n{nodes}  }}",
        sizes.len()
    );
    lowered(&lines, &format!("  output \"y\" = {last}"), Microbatches::One)
}

/// Returns, in order, the number of weights of each gather, and 0 for each addition.
fn order(program: &Program) -> Vec<usize> {
    let weights = |instruction: &crate::Instruction| match instruction.kernel {
        Kernel::Collective(_) => instruction.results.len(),
        _ => 0,
    };
    program.section(Section::Microbatch).iter().map(weights).collect()
}

#[test]
fn a_weight_is_gathered_while_as_many_numbers_before_it_are_used() {
    // Weights of one size: each travels while the weight before it is used.
    assert_eq!(order(&gathered(&[8; 4])), [1, 1, 0, 1, 0, 1, 0, 0]);
    // A weight of three times the size travels while the three weights before it are used.
    assert_eq!(order(&gathered(&[8, 8, 8, 24])), [3, 1, 0, 0, 0, 0]);
    // A small weight after a large one travels while the large one is used.
    assert_eq!(order(&gathered(&[32, 32, 8])), [1, 1, 0, 1, 0, 0]);
}

#[test]
fn small_weights_travel_together_until_they_are_as_large_as_the_largest() {
    // Groups of 8 + 8 + 8, of 8 + 16, and of 24.
    assert_eq!(order(&gathered(&[8, 8, 8, 8, 16, 24])), [3, 2, 0, 0, 0, 1, 0, 0, 0]);
}

/// Two gradients that are reduced in every microbatch, as ZeRO 2 does.
const SCATTERED: &str = r#"
  state @w : f32[4] {dp} parameter = zeros
  state @v : f32[4] {dp} parameter = zeros
  func @train(%0 = @w, %1 = @v, %2 "x" batched : f32[8, 4] {dp, -}) {
    %3 = exp %2 : f32[8, 4] {dp, -} !{bwd}
    %4 = reduce %3 {kind = sum, dims = [0], keep = false} : f32[4] partial(sum dp) !{bwd}
    %5 = reduce_scatter %4 : f32[4] {dp} !{bwd}
    %6 = tanh %2 : f32[8, 4] {dp, -} !{bwd}
    %7 = reduce %6 {kind = sum, dims = [0], keep = false} : f32[4] partial(sum dp) !{bwd}
    %8 = reduce_scatter %7 : f32[4] {dp} !{bwd}
    %9 = accumulate %5 : f32[4] {dp} !{update}
    %10 = accumulate %8 : f32[4] {dp} !{update}
    %11 = add %0, %9 : f32[4] {dp} !{update}
    %12 = add %1, %10 : f32[4] {dp} !{update}
  }"#;

#[test]
fn a_sum_waits_behind_the_next_reduction() {
    let program = lowered(SCATTERED, "  update @w = %11\n  update @v = %12", Microbatches::Many);
    let expected =
        ["exp", "reduce", "reduce_scatter", "tanh", "reduce", "reduce_scatter", "accumulate", "accumulate"];
    assert_eq!(names(&program, Part::Microbatch), expected);
}

#[test]
fn operands_of_a_collective_keep_their_memory_while_it_may_run() {
    let program = lowered(SCATTERED, "  update @w = %11\n  update @v = %12", Microbatches::Many);
    let instructions = program.section(Section::Microbatch);
    let operand = instructions[2].operands[0].bytes();
    // `tanh`, `reduce` and the second reduction run beside the first.
    for beside in &instructions[3..6] {
        let taken = beside.results.iter().map(|result| result.bytes());
        let mut meets = taken.filter(|result| result.start < operand.end && operand.start < result.end);
        assert_eq!(meets.next(), None, "{beside}");
    }
}

#[test]
fn an_order_that_changes_a_result_is_refused() {
    let text = format!("trainyard-ir 1\nmodule @m placed mesh [dp=2] {{\n{TWO_WEIGHTS}\n{UPDATES}\n}}");
    let module = ir::text::parse(&text).unwrap();
    let options =
        LowerOptions { microbatches: Microbatches::One, unfused: true, ..LowerOptions::of(PROCESSOR) };
    let live = ir::analysis::live_nodes(&module);
    let mut drafts = Drafts::new(&module, &options, &live, None).unwrap();
    for &node in module.order() {
        drafts.of_item(&super::super::fuse::Item::Node(node)).unwrap();
    }
    drafts.instructions.sort_by_key(|draft| draft.section);
    let mut moves = Moves::new(&drafts);
    moves.check().unwrap();
    let reduction = drafts.instructions.iter().rposition(|draft| exchange(draft).is_some()).unwrap();
    moves.put(reduction, 0);
    let refusal = moves.check().unwrap_err().to_string();
    assert!(refusal.contains("runs before one that it depends on"), "{refusal}");
}

/// Lowers a model with weights of these sizes on the host, each fetched just before its use.
fn fetched(sizes: &[u64], target: Target) -> Program {
    let (mut states, mut parameters, mut nodes) = (String::new(), String::new(), String::new());
    let mut last = format!("%{}", sizes.len());
    for (index, size) in sizes.iter().enumerate() {
        let at = 100 + 10 * index;
        states += &format!("  state @w{index} : f32[{size}] parameter host = zeros\n");
        parameters += &format!("%{index} = @w{index}, ");
        nodes += &format!("    %{at} = copy %{index} {{to = device}} : f32[{size}] !{{fwd}}\n");
        nodes +=
            &format!("    %{} = slice %{at} {{dim = 0, start = 0, step = 1}} : f32[8] !{{fwd}}\n", at + 1);
        nodes += &format!("    %{} = add {last}, %{} : f32[2, 8] !{{fwd}}\n", at + 2, at + 1);
        last = format!("%{}", at + 2);
    }
    let inputs = format!("%{} \"x\" batched : f32[2, 8]", sizes.len());
    let text = format!(
        "trainyard-ir 1\nmodule @m training {{\n{states}  func @train({parameters}{inputs}) {{\n{nodes}  }}\n  output \"y\" = {last}\n}}"
    );
    let module = ir::text::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let options = LowerOptions { unfused: true, ..LowerOptions::of(target) };
    lower(&module, &options).unwrap_or_else(|error| panic!("{error}"))
}

/// The second weight is fetched while the first is used. The large one is fetched while weights of as many bytes are used.
#[test]
fn a_value_is_fetched_while_those_before_it_are_used() {
    let program = fetched(&[1024, 1024, 2048, 1024], ACCELERATOR);
    assert_eq!(names(&program, Part::Microbatch).join(" "), "copy copy copy add add copy add add");
    let program = fetched(&[1024, 1024, 2048, 1024], PROCESSOR);
    assert_eq!(names(&program, Part::Microbatch).join(" "), "copy add copy add copy add copy add");
}
