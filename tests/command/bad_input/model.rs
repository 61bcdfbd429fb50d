//! Models that are broken, hostile, or too large.

use crate::TRAINYARD;
use std::path::Path;

use expect_test::{Expect, expect};

use super::{failed, place, refused};
use testing::workplace::{Ended, Workplace};

/// As `refused`, for a model that is trained on data that needs no file.
#[track_caller]
fn model_refused(model: &str, expected: Expect) {
    refused(
        &Workplace::new(TRAINYARD),
        &format!("compile testdata/{model} --train synthetic --steps 1 -o run"),
        expected,
    );
}

#[test]
fn a_model_that_is_cut_off_is_refused() {
    model_refused(
        "odd/truncated.onnx",
        expect![[r#"
        error: the file is not an ONNX model: a field at byte 29 announces 568540 bytes, and 284258 bytes are left
          --> testdata/odd/truncated.onnx
          = an ONNX model is a protobuf file; was it cut off, or is it a Git LFS pointer?
    "#]],
    );
}

#[test]
fn a_model_with_a_cycle_is_refused() {
    model_refused(
        "odd/cyclic.onnx",
        expect![[r#"
        error: 2 nodes form a cycle: node "/loop/Mul" (Mul, opset 20) -> node "/loop/Add" (Add, opset 20) -> back to the first
          --> testdata/odd/cyclic.onnx
    "#]],
    );
}

#[test]
fn a_model_with_operands_of_the_wrong_type_is_refused() {
    model_refused(
        "odd/wrong-type.onnx",
        expect![[r#"
        error: add: takes two operands of one type, not f32[2, 4] and i64[2, 4]
          --> testdata/odd/wrong-type.onnx, node "/Add" (Add, opset 20)
    "#]],
    );
}

#[test]
fn external_data_outside_the_models_folder_is_refused() {
    model_refused(
        "odd/escape-external.onnx",
        expect![[r#"
        error: tensor "weight" external data location "../../etc/passwd" leaves the model's folder by `..`
          --> testdata/odd/escape-external.onnx, tensor "weight" (f32[4, 8])
    "#]],
    );
}

#[test]
fn external_data_that_is_too_short_is_refused() {
    model_refused(
        "odd/external-short.onnx",
        expect![[r#"
        error: tensor "weight" has external data in bytes 0 to 128 of "external-short.bin", and this file has 100 bytes
          --> testdata/odd/external-short.onnx, tensor "weight" (f32[4, 8])
    "#]],
    );
}

#[test]
fn a_tensor_larger_than_any_memory_is_refused() {
    model_refused(
        "odd/huge-dims.onnx",
        expect![[r#"
        error: tensor "weight" has dims [4294967296, 4294967296, 4], whose product is larger than any memory
          --> testdata/odd/huge-dims.onnx, tensor "weight"
    "#]],
    );
}

#[test]
fn an_input_without_a_shape_is_refused() {
    model_refused(
        "odd/missing-dims.onnx",
        expect![[r#"
        error: the file declares no shape for the input
          --> testdata/odd/missing-dims.onnx, input "x"
          = export the model with tensors of known shapes as inputs
    "#]],
    );
}

#[test]
fn a_value_that_nothing_defines_is_refused() {
    model_refused(
        "odd/undefined-input.onnx",
        expect![[r#"
        error: no node or tensor defines input "nowhere"
          --> testdata/odd/undefined-input.onnx, node "/Add" (Add, opset 20)
    "#]],
    );
}

#[test]
fn a_value_that_is_defined_twice_is_refused() {
    model_refused(
        "odd/duplicate-name.onnx",
        expect![[r#"
        error: value "y" is defined twice, first by node "/first/Relu" (Relu, opset 20)
          --> testdata/odd/duplicate-name.onnx, node "/second/Tanh" (Tanh, opset 20)
    "#]],
    );
}

#[test]
fn all_operators_that_are_not_known_are_in_one_report() {
    model_refused(
        "odd/unknown-op.onnx",
        expect![[r#"
        error: operator Frobnicate is not supported
          --> testdata/odd/unknown-op.onnx, node "/custom/Frobnicate" (com.example.Frobnicate, opset 1)

        error: operator NonZero is not supported
          --> testdata/odd/unknown-op.onnx, node "/NonZero" (NonZero, opset 20)
    "#]],
    );
}

#[test]
fn dims_without_a_size_are_listed() {
    model_refused(
        "odd/constants-only.onnx",
        expect![[r#"
            error: the model's inputs have a dim without a size: `N`
              --> testdata/odd/constants-only.onnx
              = give each dim a size: --bind N=SIZE
              = or --microbatch SIZE for `N`
        "#]],
    );
    model_refused(
        "models/gpt2.dynamo-dyn.onnx",
        expect![[r#"
            error: the model's inputs have dims without a size: `batch`, `seq`
              --> testdata/models/gpt2.dynamo-dyn.onnx
              = give each dim a size: --bind batch=SIZE,seq=SIZE
              = or --microbatch SIZE for `batch`, --seq SIZE for `seq`
        "#]],
    );
}

#[test]
fn what_is_no_model_is_refused() {
    let place = place();
    refused(
        &place,
        "compile nothing.onnx",
        expect![[r#"
        error: cannot read the file: No such file or directory (os error 2)
          --> nothing.onnx
    "#]],
    );
    refused(
        &place,
        "compile testdata",
        expect![[r#"
            error: cannot read the file: is a directory
              --> testdata
        "#]],
    );
    refused(
        &place,
        "compile text.txt",
        expect![[r#"
        error: the file is not an ONNX model: wire type 6 at byte 118 does not occur in ONNX
          --> text.txt
          = an ONNX model is a protobuf file; was it cut off, or is it a Git LFS pointer?
    "#]],
    );
    place.write("empty.onnx", b"");
    refused(
        &place,
        "compile empty.onnx",
        expect![[r#"
        error: the file is not an ONNX model: it is empty
          --> empty.onnx
          = an ONNX model is a protobuf file; was it cut off, or is it a Git LFS pointer?
    "#]],
    );
}

#[test]
fn a_file_whose_external_data_is_gone_is_trained_from_new_weights_alone() {
    let place = Workplace::new(TRAINYARD);
    place.write("model.onnx", &place.read("testdata/odd/external-ok.onnx"));
    refused(
        &place,
        "compile model.onnx --train synthetic --steps 1 -o run",
        expect![[r#"
            error: the weights of `first.weight`, `second.weight` are missing
              --> odd
              = the model's file does not contain these weights; give them with --weights FILE.safetensors
              = or start from scratch with --init gpt2, kaiming or normal:std=0.02
              = `external-ok.bin`, to which the model's file refers for 2 tensors, is not beside it
        "#]],
    );
    place.succeed("compile model.onnx -o compiled");
    place.succeed("compile model.onnx --train synthetic --steps 1 --init kaiming -o run");
}

#[test]
fn more_memory_than_there_is_is_refused_before_anything_is_drawn() {
    let place = Workplace::new(TRAINYARD);
    let limited = "ulimit -v 8050000; exec \"$0\" \"$@\"";
    let flags =
        "compile testdata/models/gpt3-175b-noweights.onnx --train synthetic --steps 1 --init gpt2 -o run";
    let mut command = place.command_of(Path::new("sh"), "-c");
    command.arg(limited).arg(TRAINYARD).args(flags.split_whitespace());
    let before = place.contents();
    let mut ended = Ended::of(command.output().expect("sh can be started"));
    // The free memory differs from run to run, because it depends on the memory that the process has mapped.
    let (_, rest) = ended.stderr.split_once("this machine has ").expect("the free memory is told");
    let free = rest.split(' ').next().expect("a number").to_owned();
    assert!((7.0..7.7).contains(&free.parse().expect("a number")), "{free} GiB");
    ended.stderr = ended.stderr.replace(&format!("has {free} GiB"), "has 7 GiB");
    failed(
        &ended,
        expect![[r#"
            error: the program `main_graph` needs 2.5 TiB (650.5 GiB weights, 1.3 TiB optimizer, 652.9 GiB activations and gradients, 32.4 KiB constants); this machine has 7 GiB free
              = the largest results of a microbatch: 2.3 GiB by `contract` of node "node_linear" (MatMul, opset 20), 2.3 GiB by `gather_grad` of node "node_embedding" (Gather, opset 20), 2.2 GiB by `contract` of node "node_view_1248" (Reshape, opset 20)
              = no other flags that were tried make it fit
        "#]],
    );
    assert!(before == place.contents());
}

#[test]
fn a_name_that_no_checkpoint_can_hold_is_refused_before_the_first_step() {
    let place = place();
    let model = place.read("testdata/models/mlp.dynamo.onnx");
    let (name, reserved) = (b"m.net.0.bias", b"__metadata__");
    let mut renamed = model.clone();
    for at in 0..=model.len() - name.len() {
        if model[at..].starts_with(name) {
            renamed[at..at + name.len()].copy_from_slice(reserved);
        }
    }
    assert_ne!(renamed, model);
    place.write("renamed.onnx", &renamed);
    refused(
        &place,
        "compile renamed.onnx --train synthetic --steps 1 -o run",
        expect![[r#"
        error: a tensor with the name `__metadata__` cannot be saved
          = checkpoints and model.safetensors are safetensors files, and this format reserves the name
          = give the parameter another name, and export the model again
    "#]],
    );
}

/// A field of a protobuf message that holds bytes: its number, its length, the bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(bytes.len()).expect("it is short")], bytes].concat()
}

#[test]
fn data_of_the_file_that_the_export_would_lack_are_told_before_the_first_step() {
    let place = place();
    // Protobuf messages that follow each other are one message. This adds a tensor to the graph that no node reads.
    let location = [field(1, b"location"), field(2, b"gone.bin")].concat();
    let tensor = [vec![0x08, 4, 0x10, 1], field(8, b"unread"), field(13, &location), vec![0x70, 1]].concat();
    let graph = field(7, &field(5, &tensor));
    place.write("model.onnx", &[place.read("testdata/models/mlp.dynamo.onnx"), graph].concat());
    refused(
        &place,
        "compile model.onnx --train synthetic --steps 1 -o run",
        expect![[r#"
        error: the data file "gone.bin" does not exist
          --> tensor "unread" (f32[4])
          = model.onnx, which is written after the last step, holds all tensors of the file
    "#]],
    );
    place.write("gone.bin", &[0; 16]);
    place.succeed("compile model.onnx --train synthetic --steps 1 -o run");
}
