//! Tests of level lowered: the float types that kernels may read and write, and the faults that are still faults.

use ir::{Module, text, verify};

/// A program at a level with a norm whose bf16 operand is read directly, and a product that is written as f32.
fn program(level: &str) -> String {
    format!(
        r#"trainyard-ir 1
module @m {level} {{
  func @train(
    %0 "x" batched : bf16[4, 8],
    %1 "scale" : f32[8],
    %2 "w" : f32[8, 8],
  ) {{
    %3, %4 = rms_norm %0, %1 {{eps = 1e-6}} : bf16[4, 8], f32[4] !{{fwd}}
    %5 = cast %2 {{to = bf16}} : bf16[8, 8] !{{fwd}}
    %6 = contract %3, %5 {{lhs = ab, rhs = bc, out = ac}} : f32[4, 8] !{{fwd}}
  }}
  output "y" = %6
}}
"#
    )
}

/// Returns the verifier's messages, one per line.
fn verdict(text: &str) -> String {
    let module: Module = text::parse_unchecked(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    match verify::verify(&module) {
        Ok(()) => "ok".into(),
        Err(faults) => faults.into_iter().map(|fault| fault.message).collect::<Vec<_>>().join("\n"),
    }
}

#[test]
fn kernels_cast_as_they_read_and_write() {
    assert_eq!(verdict(&program("lowered")), "ok");
    let below = verdict(&program("placed"));
    assert!(below.contains("rms_norm") && below.contains("contract"), "{below}");
}

#[test]
fn a_lowered_program_reads_back_as_it_was() {
    let module = text::parse(&program("lowered")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(text::print(&module), program("lowered"));
    text::parse(&program("training")).expect_err("below level lowered the types follow from the operators");
}

#[test]
fn dims_follow_from_the_operators_all_the_same() {
    let text = program("lowered");
    let wide = text.replace(": f32[4, 8] !{fwd}", ": f32[4, 9] !{fwd}");
    assert_eq!(
        verdict(&wide),
        "`%6 = contract %3, %5`: result 0 is f32[4, 9], and the operator gives bf16[4, 8]"
    );
    text::parse(&wide).expect_err("the parser looks at dims too");
}

#[test]
fn only_floats_are_cast_and_only_halves_are_widened() {
    let text = program("lowered");
    let whole = text.replace(": f32[4, 8] !{fwd}", ": i32[4, 8] !{fwd}");
    assert_eq!(
        verdict(&whole),
        "`%6 = contract %3, %5`: result 0 is i32[4, 8], and the operator gives bf16[4, 8]"
    );
    let wide = text.replace("batched : bf16[4, 8]", "batched : f64[4, 8]");
    assert!(verdict(&wide).starts_with("`%3, %4 = rms_norm %0, %1`: "), "{}", verdict(&wide));
}

#[test]
fn a_lowered_program_is_split_as_a_placed_one() {
    let text = program("lowered mesh [tp=2]").replace("f32[8, 8],\n", "f32[8, 8] {-, tp},\n");
    assert_eq!(
        verdict(&text),
        "`%5 = cast %2`: dim 1 of result 0 is split over nothing and dim 1 of operand 0 over `tp`: a collective must stand between them"
    );
}
