//! Tests of the verifier on programs with stages: planted faults, and the message for each.

use ir::{EVERY_STAGE, Module, Op, Phase, text, verify};

/// Two stages that pass a value forward and its gradient back. Stage 1 computes the gradient of its weight in a separate phase.
const STEP: &str = r#"trainyard-ir 1
    module @m training {
      pipeline "zb-h1" microbatches 2 stages [0, 1] {
        rank F0.0 F0.1 B0.0 W0.0 B0.1 W0.1
        rank F1.0 B1.0 F1.1 B1.1 W1.0 W1.1
      }
      state @w : f32[4] parameter = zeros
      state @v : f32[4] parameter stage 1 = zeros
      state @step : i64[] counter every stage = zeros
      func @train(%0 "x" batched : f32[2, 4], %1 = @w, %2 = @v, %3 = @step) {
        %4 = mul %0, %1 : f32[2, 4]
        %5 = transfer %4 : f32[2, 4] !{fwd, stage 1}
        %6 = mul %5, %2 : f32[2, 4] !{fwd, stage 1}
        %7 = exp %6 : f32[2, 4] !{bwd, stage 1}
        %8 = mul %7, %2 : f32[2, 4] !{bwd, stage 1}
        %9 = transfer %8 : f32[2, 4] !{bwd}
        %10 = mul %9, %0 : f32[2, 4] !{bwd}
        %11 = mul %7, %5 : f32[2, 4] !{weight, stage 1}
        %12 = reduce %11 {kind = sum, dims = [0], keep = false} : f32[4] !{weight, stage 1}
        %13 = reduce %10 {kind = sum, dims = [0], keep = false} : f32[4] !{weight}
        %14 = accumulate %12 : f32[4] !{update, stage 1}
        %15 = accumulate %13 : f32[4] !{update}
        %16 = add %1, %15 : f32[4] !{update}
        %17 = add %2, %14 : f32[4] !{update, stage 1}
        %18 = splat {value = 1.0} : i64[] !{update, every stage}
        %19 = add %3, %18 : i64[] !{update, every stage}
        %20 = splat {value = 1.0} : f32[] !{update, every stage}
      }
      output "loss" = %20
      update @w = %16
      update @v = %17
      update @step = %19
    }"#;

/// Returns the step with a change of its text.
fn changed(from: &str, to: &str) -> Module {
    assert!(STEP.contains(from), "{from}");
    text::parse(&STEP.replacen(from, to, 1)).unwrap_or_else(|error| panic!("{error}"))
}

fn verdict(module: &Module) -> String {
    match verify::verify(module) {
        Ok(()) => "ok".into(),
        Err(faults) => faults.into_iter().map(|fault| fault.message).collect::<Vec<_>>().join("\n"),
    }
}

#[test]
fn a_whole_step_is_accepted_and_its_text_reads_back() {
    let module = text::parse(STEP).unwrap();
    assert_eq!(verdict(&module), "ok");
    assert_eq!(text::parse(&text::print(&module)).unwrap(), module);
}

#[test]
fn a_node_reads_another_stage_through_a_transfer_alone() {
    assert_eq!(
        verdict(&changed("%6 = mul %5, %2", "%6 = mul %4, %2")),
        "`%6 = mul %4, %2`: reads %4: f32[2, 4] of stage 0 on stage 1 without a transfer"
    );
    // A node that has lost the mark of its stage.
    let lost = changed("%8 = mul %7, %2 : f32[2, 4] !{bwd, stage 1}", "%8 = mul %7, %2 : f32[2, 4] !{bwd}");
    assert_eq!(
        verdict(&lost),
        "`%8 = mul %7, %2`: reads %7: f32[2, 4] of stage 1 on stage 0 without a transfer\n\
         `%8 = mul %7, %2`: reads %2: f32[4] of stage 1 on stage 0 without a transfer\n\
         `%9 = transfer %8`: a transfer must read a value of one stage on another stage"
    );
}

#[test]
fn a_value_of_every_stage_depends_on_no_single_one() {
    let module =
        changed("%16 = add %1, %15 : f32[4] !{update}", "%16 = add %1, %15 : f32[4] !{update, every stage}");
    let said = verdict(&module);
    assert!(said.starts_with("`%16 = add %1, %15`: reads %1: f32[4] of stage 0 on every stage"), "{said}");
}

#[test]
fn the_stage_of_a_state_makes_its_new_value() {
    assert_eq!(
        verdict(&changed("update @w = %16", "update @w = %17")),
        "state `w` is on stage 0, and its new value %17: f32[4] on stage 1"
    );
}

#[test]
fn a_stage_is_one_of_the_table() {
    let mut module = text::parse(STEP).unwrap();
    module.states.values_mut().next().unwrap().stage = 2;
    assert!(verdict(&module).contains("state `w` is on stage 2, and there are 2 stages"));
    module.states.values_mut().next().unwrap().stage = EVERY_STAGE;
    assert!(verdict(&module).contains("its new value"));
}

#[test]
fn backward_reads_nothing_of_weight() {
    let mut module = text::parse(STEP).unwrap();
    // A node in backward of stage 1 reads a gradient of the weight, which is computed in phase weight.
    let of = |module: &Module, name: &str| {
        let named = module.nodes().find(|(_, node)| node.op.name() == name && node.phase.is_gradient());
        named.map(|(id, node)| (id, node.results[0])).unwrap()
    };
    let (exp, _) = of(&module, "exp");
    let late = module.nodes().find(|(_, node)| node.phase == Phase::Weight).unwrap().1.results[0];
    let mut b = ir::Builder::new(&mut module, "fault");
    b.set_operand(exp, 0, late);
    b.finish();
    let said = verdict(&module);
    assert!(said.contains("before it is defined"), "{said}");
}

#[test]
fn a_broken_timetable_names_both_stages() {
    let broken = |from, to| {
        let said = verdict(&changed(from, to));
        said.strip_prefix("the timetable is broken: ").unwrap_or_else(|| panic!("{said}")).to_owned()
    };
    // Two tasks swapped.
    let said = broken("rank F1.0 B1.0", "rank B1.0 F1.0");
    assert!(said.contains("B1.0") && said.contains("F1.0"), "{said}");
    // Two lines swapped.
    let lines = broken(
        "rank F0.0 F0.1 B0.0 W0.0 B0.1 W0.1\n        rank F1.0 B1.0 F1.1 B1.1 W1.0 W1.1",
        "rank F1.0 B1.0 F1.1 B1.1 W1.0 W1.1\n        rank F0.0 F0.1 B0.0 W0.0 B0.1 W0.1",
    );
    assert!(lines.contains("F1.0"), "{lines}");
    // Two ranks that wait for each other: each begins with the gradient of the other rank's second microbatch.
    let stuck = broken("rank F1.0 B1.0 F1.1 B1.1 W1.0 W1.1", "rank F1.0 F1.1 B1.0 W1.0 B1.1 W1.1 F0.0");
    assert!(stuck.contains("F0.0"), "{stuck}");
}

#[test]
fn a_step_has_tasks_for_all_its_phases() {
    let module = changed(
        "rank F0.0 F0.1 B0.0 W0.0 B0.1 W0.1\n        rank F1.0 B1.0 F1.1 B1.1 W1.0 W1.1",
        "rank F0.0 F0.1\n        rank F1.0 F1.1",
    );
    assert_eq!(
        verdict(&module),
        "the timetable has no tasks of bwd, and the program has nodes of it\n\
         the timetable has no tasks of weight, and the program has nodes of it"
    );
    let transfers = module.nodes().filter(|(_, node)| matches!(node.op, Op::Transfer(_))).count();
    assert_eq!((transfers, module.pipeline.unwrap().timetable.phases()), (2, vec![Phase::Forward]));
}

/// A step of an asynchronous schedule, in which stage 0 reads an earlier version of its weight.
const STREAM: &str = r#"trainyard-ir 1
    module @step training {
      pipeline pipedream microbatches 1 stages [0, 1] delays [1, 0] {
        rank F0.1 B0.0
        rank F1.0 B1.0
      }
      state @w : f32[4] parameter = zeros
      state @v : f32[4] parameter stage 1 = zeros
      state @w.version.1 : f32[4] version = copy @w
      func @train(%0 "x" batched : f32[2, 4], %1 = @w, %2 = @v, %3 = @w.version.1) {
        %4 = mul %0, %3 : f32[2, 4] !{fwd}
        %5 = transfer %4 : f32[2, 4] !{fwd, stage 1}
        %6 = mul %5, %2 : f32[2, 4] !{bwd, stage 1}
        %7 = transfer %6 : f32[2, 4] !{bwd}
        %8 = reduce %7 {kind = sum, dims = [0], keep = false} : f32[4] !{bwd}
        %9 = reduce %6 {kind = sum, dims = [0], keep = false} : f32[4] !{bwd, stage 1}
        %10 = transfer %1 : f32[4] !{update}
        %11 = accumulate %8 : f32[4] !{update}
        %12 = accumulate %9 : f32[4] !{update, stage 1}
        %13 = add %1, %11 : f32[4] !{update}
        %14 = add %2, %12 : f32[4] !{update, stage 1}
        %15 = splat {value = 1.0} : f32[] !{update, every stage}
      }
      output "loss" = %15
      update @w = %13
      update @v = %14
      update @w.version.1 = %10
    }"#;

#[test]
fn faults_of_a_stream_are_found() {
    let module = text::parse(STREAM).unwrap();
    assert_eq!(verdict(&module), "ok");
    assert_eq!(text::parse(&text::print(&module)).unwrap(), module);
    let said = |from: &str, to: &str| {
        assert!(STREAM.contains(from), "{from}");
        verdict(&text::parse(&STREAM.replacen(from, to, 1)).unwrap_or_else(|error| panic!("{error}")))
    };
    let faults = [
        // Forward reads the newest weight instead of the earlier version.
        (
            "%4 = mul %0, %3",
            "%4 = mul %0, %1",
            "the newest value of a state, where an earlier version is due",
        ),
        // An update waits for the update of the stage before it.
        (
            "%12 = accumulate %9 : f32[4] !{update, stage 1}",
            "%12 = transfer %11 : f32[4] !{update, stage 1}",
            "sends a value of the update from stage 0 to stage 1, which is ahead of it in time",
        ),
        ("delays [1, 0]", "delays [1]", "the table of stages has 1 delays, and there are 2 stages"),
        ("rank F1.0 B1.0", "rank B1.0 F1.0", "rank 1 runs B1.0 before F1.0, from which it reads"),
        (
            "rank F0.1 B0.0",
            "rank F0.2 B0.0",
            "rank 0 runs F0.2 2 steps ahead, but stage 0 reads the weights of 1 update ago, which are not made yet",
        ),
        // A transfer within a stage that does not make a version.
        ("update @w.version.1 = %10", "", "a transfer must read a value of one stage on another stage"),
    ];
    for (from, to, expected) in faults {
        let said = said(from, to);
        assert!(said.contains(expected), "{said}");
    }
}
