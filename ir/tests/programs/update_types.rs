//! Tests of the types of updates: every wrong operand is named in the error.

use expect_test::{Expect, expect};
use ir::Type;
use ir::ops::optimizer::{Adam, Adam8bit, Lion};
use ir::ops::{Float, Inference, Operator};

/// Parses a type such as `f32[8]`.
fn ty(text: &str) -> Type {
    let program = format!(
        "trainyard-ir 1\nmodule @m imported {{\n  func @forward(%0 \"x\" : {text}) {{\n  }}\n  output \"y\" = %0\n}}"
    );
    let module = ir::text::parse(&program).unwrap_or_else(|error| panic!("{error}"));
    module.ty(module.inputs[0].value).clone()
}

fn check(rule: &dyn Fn(&Inference) -> Result<Vec<Type>, ir::TypeError>, operands: &str, expected: Expect) {
    let operands: Vec<Type> = operands.split("; ").map(ty).collect();
    let found = match rule(&Inference { operands: &operands, declared: &[] }) {
        Ok(types) => types.iter().map(Type::to_string).collect::<Vec<_>>().join("; "),
        Err(error) => error.to_string(),
    };
    expected.assert_eq(&found);
}

const SCALARS: &str = "f64[]; f64[]; f64[]";

#[test]
fn moments_of_adam_have_one_type() {
    let (beta1, beta2, eps) = (Float::new(0.9), Float::new(0.95), Float::new(1e-8));
    let adam = Adam { beta1, beta2, eps, decoupled: true };
    let check = |operands: &str, expected| check(&|types| adam.infer(types), operands, expected);
    check(&format!("f32[8]; f32[8]; bf16[8]; bf16[8]; {SCALARS}"), expect!["f32[8]; bf16[8]; bf16[8]"]);
    check(
        &format!("f32[8]; f32[8]; bf16[8]; f32[8]; {SCALARS}"),
        expect!["operand 3 is f32[8], not bf16[8]"],
    );
    check(
        &format!("f32[8]; f32[8]; f32[8]; bf16[8]; {SCALARS}"),
        expect!["operand 3 is bf16[8], not f32[8]"],
    );
    check(
        &format!("f64[8]; f64[8]; bf16[8]; bf16[8]; {SCALARS}"),
        expect!["moments of a parameter of f64 cannot be bf16"],
    );
    check(&format!("f32[8]; f32[4]; f32[8]; f32[8]; {SCALARS}"), expect!["operand 1 is f32[4], not f32[8]"]);
    check(
        "f32[8]; f32[8]; f32[8]; f32[8]; f64[]; f32[]; f64[]",
        expect!["operand 5 is f32[], not a scalar f64"],
    );
    check("f64[8]; f64[8]", expect!["takes 7 to 9 operands, not 2"]);
}

#[test]
fn states_of_adam_in_8_bits_are_those_of_its_blocks() {
    let (beta1, beta2, eps) = (Float::new(0.9), Float::new(0.95), Float::new(1e-8));
    let of = |block| Adam8bit { beta1, beta2, eps, decoupled: true, block };
    let check = |block, operands: &str, expected| {
        check(&|types| of(block).infer(types), operands, expected);
    };
    let good = "u8[3, 8]; f32[3, 2]; u8[3, 8]; f32[3, 2]";
    check(
        4,
        &format!("f32[3, 8]; f32[3, 8]; {good}; {SCALARS}"),
        expect!["f32[3, 8]; u8[3, 8]; f32[3, 2]; u8[3, 8]; f32[3, 2]"],
    );
    check(0, &format!("f32[3, 8]; f32[3, 8]; {good}; {SCALARS}"), expect!["blocks have no element"]);
    let wide = "u8[3, 8]; f32[3, 3]; u8[3, 8]; f32[3, 2]";
    check(
        4,
        &format!("f32[3, 8]; f32[3, 8]; {wide}; {SCALARS}"),
        expect!["operand 3 is f32[3, 3], not f32[3, 2]"],
    );
    check(
        4,
        &format!("f32[3, 8]; f32[3, 8]; {good}; f64[]; f64[]; i64[]"),
        expect!["operand 8 is i64[], not a scalar f64"],
    );
    check(
        4,
        &format!("f32[n, 2]; f32[n, 2]; {good}; {SCALARS}"),
        expect!["blocks need the sizes of all dims"],
    );
    let huge = "f32[18446744073709551615, 2]";
    check(4, &format!("{huge}; {huge}; {good}; {SCALARS}"), expect!["a row of blocks is too large"]);
}

#[test]
fn a_rule_with_one_state_takes_no_more() {
    let lion = Lion { beta1: Float::new(0.9), beta2: Float::new(0.99) };
    let check = |operands: &str, expected| check(&|types| lion.infer(types), operands, expected);
    check("f16[8]; f16[8]; f16[8]; f64[]; f64[]; f16[]; bool[]", expect!["f16[8]; f16[8]"]);
    check("f16[8]; f16[8]; bf16[8]; f64[]; f64[]", expect!["operand 2 is bf16[8], not f16[8]"]);
    check("i64[8]; i64[8]; i64[8]; f64[]; f64[]", expect!["the parameter is i64[8], not floats"]);
    check("f16[8]; f16[8]; f16[8]; f64[]; f64[]; f32[]", expect!["operand 5 is f32[], not a scalar f16"]);
}
