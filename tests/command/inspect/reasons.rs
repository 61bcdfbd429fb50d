//! The reasons why a model cannot be trained: operators that are missing, dims without a size, no loss, a broken file.

use expect_test::expect;
use trainyard::failure::Failure;

use super::{check, inspect, json, models};

#[test]
fn all_operators_that_are_missing_are_told_at_once() {
    check(
        &["odd/unknown-op.onnx"],
        expect![[r#"
        odd/unknown-op.onnx: cannot be imported, for 2 reasons
          made by  make_odd_models; IR version 10; operator sets ai.onnx 20, com.example 1
          takes    x f32[2, 4]
          gives    indices i64[2, ?]
          holds    0 tensors (0 B), 2 nodes: 1 NonZero, 1 com.example.Frobnicate
        error: operator Frobnicate is not supported
          --> odd/unknown-op.onnx, node "/custom/Frobnicate" (com.example.Frobnicate, opset 1)

        error: operator NonZero is not supported
          --> odd/unknown-op.onnx, node "/NonZero" (NonZero, opset 20)
    "#]],
    );
}

#[test]
fn dims_that_have_no_size_are_named_and_the_rest_is_shown() {
    check(
        &["models/mlp.dynamo-dyn.onnx"],
        expect![[r#"
            models/mlp.dynamo-dyn.onnx: can be trained when its dims are bound
              made by  pytorch 2.15.0+cu132; IR version 10; operator sets ai.onnx 20
              takes    x f32[batch, 64]
              gives    logits f32[batch, 10]
              holds    6 tensors (67.3 KiB), 5 nodes: 3 Gemm, 2 Relu

            6 parameters, 17,226 elements trained
              m.net.0.weight  f32[128, 64]  listed by the exporter; weight of a contraction, node "node_linear" (Gemm, opset 20)
              m.net.0.bias    f32[128]      listed by the exporter; bias, node "node_linear" (Gemm, opset 20)
              m.net.2.weight  f32[64, 128]  listed by the exporter; weight of a contraction, node "node_linear_1" (Gemm, opset 20)
              m.net.2.bias    f32[64]       listed by the exporter; bias, node "node_linear_1" (Gemm, opset 20)
              m.net.4.weight  f32[10, 64]   listed by the exporter; weight of a contraction, node "node_linear_2" (Gemm, opset 20)
              m.net.4.bias    f32[10]       listed by the exporter; bias, node "node_linear_2" (Gemm, opset 20)

            patterns found: none
            forward program: 8 nodes: 3 add, 3 contract, 2 relu


            dims without a size: `batch`; for more details, bind the dims: --bind batch=SIZE
        "#]],
    );
    let bound = json(&["models/mlp.dynamo-dyn.onnx", "--bind", "batch=4"]);
    assert_eq!((&bound["support"], &bound["step"]["batch"]), (&"trainable".into(), &4.into()));
}

#[test]
fn where_sizes_are_needed_to_import_they_are_asked_for() {
    check(
        &["models/gpt2.dynamo-dyn.onnx"],
        expect![[r#"
            models/gpt2.dynamo-dyn.onnx: can be trained when its dims are bound
              made by  pytorch 2.15.0+cu132; IR version 10; operator sets ai.onnx 20
              takes    input_ids i64[batch, seq]
              gives    logits f32[batch, seq, 512]
              holds    56 tensors (1.80 MiB), 161 nodes: 29 Reshape, 14 Concat, 12 Add, 12 Mul, 11 Transpose, 10 Unsqueeze, 9 Slice, 8 Gemm, 6 Shape, 5 Expand, 5 LayerNormalization, 5 MatMul, 4 GatherND, 3 Where, 2 And, 2 Equal, 2 Gather, 2 IsNaN, 2 Max, 2 Pow, 2 Range, 2 Softmax, 2 Split, 2 Squeeze, 2 Sub, 2 Tanh, 1 Cast, 1 CumSum, 1 LessOrEqual, 1 Not

            dims without a size: `batch`, `seq`; for more details, bind the dims: --bind batch=SIZE,seq=SIZE
            error: the slice needs the size of dim 1 of i64[batch, seq], which is not bound
              --> models/gpt2.dynamo-dyn.onnx, node "node_slice_1" (Slice, opset 20)
              = bind the size with --bind NAME=SIZE

            error: sizes that are not bound are read as values
              --> models/gpt2.dynamo-dyn.onnx, node "node_add_14" (Add, opset 20)
              = bind the sizes with --bind NAME=SIZE
        "#]],
    );
    let bound = json(&["models/gpt2.dynamo-dyn.onnx", "--bind", "batch=2,seq=16"]);
    assert_eq!((&bound["support"], &bound["parameters"]["count"]), (&"trainable".into(), &28.into()));
}

#[test]
fn sizes_that_are_too_small_are_not_taken_for_a_model_that_cannot_be_imported() {
    check(
        &["odd/pooled.onnx"],
        expect![[r#"
            odd/pooled.onnx: can be trained when its dims are bound
              made by  make_odd_models; IR version 10; operator sets ai.onnx 20
              takes    x f32[batch, 3, height, width]
              gives    logits f32[batch, 5]
              holds    2 tensors (76 B), 4 nodes: 2 MaxPool, 1 MatMul, 1 ReduceMax

            dims without a size: `batch`, `height`, `width`; for more details, bind the dims: --bind batch=SIZE,height=SIZE,width=SIZE
            error: max_pool: dim 2 must be bound, since windows do not keep its size: f32[batch, 3, height, width]
              --> odd/pooled.onnx, node "/MaxPool_0" (MaxPool, opset 20)
              = bind the sizes with --bind NAME=SIZE
        "#]],
    );
    check(
        &["odd/pooled.onnx", "--bind", "batch=2,height=2,width=8"],
        expect![[r#"
        odd/pooled.onnx: cannot be imported, for 1 reason
          made by  make_odd_models; IR version 10; operator sets ai.onnx 20
          takes    x f32[batch, 3, height, width]
          gives    logits f32[batch, 5]
          holds    2 tensors (76 B), 4 nodes: 2 MaxPool, 1 MatMul, 1 ReduceMax
        error: max_pool: dim 2 has 1 elements with its pads, fewer than a window of 2: f32[2, 3, 1, 4]
          --> odd/pooled.onnx, node "/MaxPool_1" (MaxPool, opset 20)
    "#]],
    );
    let bound = json(&["odd/pooled.onnx", "--bind", "batch=2,height=8,width=8"]);
    assert_eq!(bound["support"], "trainable");
    let own_loss = json(&["odd/pooled.onnx", "--loss", "model"]);
    assert_eq!(own_loss["support"], "undecided");
}

#[test]
fn a_batch_that_does_not_stand_first_is_not_taken_for_steps() {
    check(
        &["odd/batch-second.onnx", "--bind", "seq=5,batch=3"],
        expect![[r#"
        odd/batch-second.onnx: cannot be imported, for 1 reason
          made by  make_odd_models; IR version 10; operator sets ai.onnx 20
          takes    x f32[seq, batch, 4]
          gives    logits f32[seq, batch, 7]
          holds    1 tensor (112 B), 1 node: 1 MatMul
        error: the batch is dim 1 of f32[seq, batch, 4]; it must be dim 0, which counts the samples
          --> odd/batch-second.onnx, input "x"
          = export the model with the batch first (batch_first=True, or a transpose in the model)
    "#]],
    );
}

/// The only reason why a model cannot be trained.
fn reason(arguments: &[&str]) -> String {
    let found = json(arguments);
    assert_eq!(found["support"], "importable", "{found}");
    let [reason] = &found["reasons"].as_array().expect("a list")[..] else { panic!("{found}") };
    reason["message"].as_str().expect("text").to_owned()
}

#[test]
fn a_model_without_parameters_cannot_be_trained_whether_its_dims_are_bound_or_not() {
    for sizes in [&[][..], &["--bind", "n=2"]] {
        let arguments = [&["odd/no-parameters.onnx"], sizes].concat();
        assert_eq!(reason(&arguments), "the loss depends on no parameter, so there is nothing to train");
    }
}

#[test]
fn inputs_without_a_common_batch_are_refused_as_by_compile() {
    let reason = reason(&["odd/two-batches.onnx", "--loss", "mse"]);
    let expected =
        "the model's inputs and labels have no common batch dim: dim 0 counts the samples, and it is ";
    assert!(reason.starts_with(expected), "{reason}");
    let place = testing::workplace::Workplace::new(crate::TRAINYARD);
    let ended =
        place.run("compile testdata/odd/two-batches.onnx --loss mse --train synthetic --steps 1 -o run");
    assert!(ended.errors().contains(expected), "{}", ended.errors());
}

#[test]
fn scale_and_bias_of_a_norm_with_more_dims_are_parameters() {
    let found = json(&["odd/wide-norm.onnx", "--loss", "mse"]);
    assert_eq!(
        (&found["parameters"]["count"], &found["parameters"]["trained"]),
        (&2.into(), &24.into()),
        "{found}"
    );
}

#[test]
fn what_keeps_a_model_from_being_trained_is_told_with_its_parameters() {
    check(
        &["models/mlp.dynamo.onnx", "--loss", "model"],
        expect![[r#"
            models/mlp.dynamo.onnx: can be imported but not trained, for 1 reason
              made by  pytorch 2.15.0+cu132; IR version 10; operator sets ai.onnx 20
              takes    x f32[8, 64]
              gives    logits f32[8, 10]
              holds    6 tensors (67.3 KiB), 5 nodes: 3 Gemm, 2 Relu

            6 parameters, 17,226 elements trained
              m.net.0.weight  f32[128, 64]  listed by the exporter; weight of a contraction, node "node_linear" (Gemm, opset 20)
              m.net.0.bias    f32[128]      listed by the exporter; bias, node "node_linear" (Gemm, opset 20)
              m.net.2.weight  f32[64, 128]  listed by the exporter; weight of a contraction, node "node_linear_1" (Gemm, opset 20)
              m.net.2.bias    f32[64]       listed by the exporter; bias, node "node_linear_1" (Gemm, opset 20)
              m.net.4.weight  f32[10, 64]   listed by the exporter; weight of a contraction, node "node_linear_2" (Gemm, opset 20)
              m.net.4.bias    f32[10]       listed by the exporter; bias, node "node_linear_2" (Gemm, opset 20)

            patterns found: none
            forward program: 8 nodes: 3 add, 3 contract, 2 relu

            error: the model has no loss: no output is a float scalar that depends on inputs and parameters
              = its outputs are `logits` f32[8, 10]
              = use --loss cross-entropy, mse or bce
        "#]],
    );
}

#[test]
fn broken_and_hostile_files_are_refused_with_their_reasons() {
    for model in models("odd") {
        match inspect(&[&model]).output() {
            Ok(output) => assert!(!output.text.is_empty()),
            Err(Failure::User(reasons)) => assert!(!reasons.is_empty(), "{model}"),
            Err(Failure::Fault(fault)) => panic!("{model}: {fault:?}"),
        }
    }
    check(
        &["odd/cyclic.onnx"],
        expect![[r#"
        error: 2 nodes form a cycle: node "/loop/Mul" (Mul, opset 20) -> node "/loop/Add" (Add, opset 20) -> back to the first
          --> odd/cyclic.onnx
    "#]],
    );
    check(
        &["nowhere.onnx"],
        expect![[r#"
        error: cannot read the file: No such file or directory (os error 2)
          --> nowhere.onnx
    "#]],
    );
}
