//! Tests of the verifier on programs with values on other tiers: planted faults, and the message for each.

use expect_test::{Expect, expect};
use ir::{Module, text, verify};

/// A step whose momentum rests on the host, and whose sum of squares rests in a file.
const STEP: &str = r#"trainyard-ir 1
    module @m training {
      state @w : f32[4] parameter = zeros
      state @u : f32[4] optimizer host = zeros
      state @s : f32[4] optimizer disk = zeros
      func @train(%0 "x" batched : f32[2, 4], %1 = @w, %2 = @u, %3 = @s) {
        %4 = mul %0, %1 : f32[2, 4]
        %5 = reduce %4 {kind = sum, dims = [0, 1], keep = false} : f32[]
        %6 = reduce %0 {kind = sum, dims = [0], keep = false} : f32[4] !{bwd}
        %7 = accumulate %5 : f32[] !{update}
        %8 = accumulate %6 : f32[4] !{update}
        %9 = copy %8 {to = host} : f32[4] !{update}
        %10 = add %2, %9 : f32[4] !{update, on host}
        %11 = copy %3 {to = host} : f32[4] !{update}
        %12 = add %11, %10 : f32[4] !{update, on host}
        %13 = copy %12 {to = disk} : f32[4] !{update}
        %14 = copy %12 {to = device} : f32[4] !{update}
        %15 = sub %1, %14 : f32[4] !{update}
      }
      output "loss" = %7
      update @w = %15
      update @u = %10
      update @s = %13
    }"#;

fn verdict(module: &Module) -> String {
    match verify::verify(module) {
        Ok(()) => "ok".into(),
        Err(faults) => faults.into_iter().map(|fault| fault.message).collect::<Vec<_>>().join("\n"),
    }
}

/// Checks the verifier's messages for the step with a change of its text.
fn check(from: &str, to: &str, expected: Expect) {
    assert!(STEP.contains(from), "{from}");
    let module = text::parse(&STEP.replacen(from, to, 1)).unwrap_or_else(|error| panic!("{error}"));
    expected.assert_eq(&verdict(&module));
}

#[test]
fn a_step_on_three_tiers_is_accepted_and_its_text_reads_back() {
    let module = text::parse(STEP).unwrap();
    assert_eq!(verdict(&module), "ok");
    assert_eq!(text::parse(&text::print(&module)).unwrap(), module);
}

#[test]
fn a_node_reads_its_own_memory() {
    check(
        "add %2, %9 : f32[4] !{update, on host}",
        "add %2, %9 : f32[4] !{update}",
        expect![[r#"
        `%10 = add %2, %9`: computes on the device but reads %2: f32[4] on the host; a copy is missing
        `%10 = add %2, %9`: computes on the device but reads %9: f32[4] on the host; a copy is missing
        `%12 = add %11, %10`: computes on the host but reads %10: f32[4] on the device; a copy is missing
        state `u` rests on the host, but its new value is on the device; a copy is missing"#]],
    );
    check(
        "add %2, %9 :",
        "add %2, %8 :",
        expect![
            "`%10 = add %2, %8`: computes on the host but reads %8: f32[4] on the device; a copy is missing"
        ],
    );
    check(
        "add %11, %10",
        "add %3, %10",
        expect![
            "`%12 = add %3, %10`: computes on the host but reads %3: f32[4] on the disk; a copy is missing"
        ],
    );
    check(
        "sub %1, %14",
        "sub %1, %12",
        expect![
            "`%15 = sub %1, %12`: computes on the device but reads %12: f32[4] on the host; a copy is missing"
        ],
    );
}

#[test]
fn a_copy_moves_to_the_next_tier() {
    check(
        "%11 = copy %3 {to = host}",
        "%11 = copy %2 {to = host}",
        expect!["`%11 = copy %2`: copies a value to the host, where the value is already"],
    );
    check(
        "%14 = copy %12 {to = device}",
        "%14 = copy %3 {to = device}",
        expect!["`%14 = copy %3`: copies from the disk to the device without the host between them"],
    );
    check(
        "{to = disk} : f32[4] !{update}",
        "{to = disk} : f32[4] !{update, on host}",
        expect!["`%13 = copy %12`: has the host as its place, but copies have no place"],
    );
}

#[test]
fn a_state_ends_where_it_rests() {
    check(
        "update @s = %13",
        "update @s = %12",
        expect!["state `s` rests on the disk, but its new value is on the host; a copy is missing"],
    );
    check(
        "update @u = %10",
        "update @u = %14",
        expect!["state `u` rests on the host, but its new value is on the device; a copy is missing"],
    );
    check(
        "output \"loss\" = %7",
        "output \"loss\" = %7\n output \"sum\" = %13",
        expect!["output `sum` is on the disk; outputs must be on the device or the host"],
    );
}

#[test]
fn ranks_meet_on_the_device() {
    check(
        "%10 = add %2, %9 : f32[4] !{update, on host}",
        "%10 = all_reduce %9 : f32[4] !{update, on host}",
        expect!["`%10 = all_reduce %9`: is a collective on the host; collectives run on the device"],
    );
}
