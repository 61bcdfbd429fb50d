//! The operators of a step in half precision.

use super::{json, read};
use expect_test::expect;

#[test]
fn nodes_in_half_and_in_f32_are_counted_by_operator() {
    let text = read(&["models/mlp.dynamo.onnx", "--microbatch", "4", "--bf16"]);
    let section: Vec<&str> = text.lines().skip_while(|line| *line != "precision").take(3).collect();
    expect![[r#"
        precision
          bf16  3 add, 8 contract, 1 cross_entropy, 1 cross_entropy_grad, 2 relu, 2 relu_grad
          f32   2 cast, 3 reduce"#]]
    .assert_eq(&section.join("\n"));
    assert!(!read(&["models/mlp.dynamo.onnx", "--microbatch", "4"]).contains("\nprecision\n"));
}

/// The scores of a router compute in f32: in half, other experts would be chosen.
#[test]
fn products_of_routers_are_in_f32() {
    let found = json(&["models/mixtral.dynamo.onnx", "--microbatch", "4", "--fp16"]);
    let precision = &found["precision"];
    assert_eq!(precision["half"], "f16");
    // Two layers, each with one product of its router.
    assert_eq!(precision["in_f32"]["contract"], 2, "{precision}");
    assert!(precision["in_half"]["contract"].as_u64() > Some(20), "{precision}");
}
