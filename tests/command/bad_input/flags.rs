//! Flags and keys that do not exist, contradict each other, or cannot be followed.

use expect_test::expect;

use super::{FRESH, place, refused};

#[test]
fn all_unknown_keys_of_a_config_are_listed_with_the_nearest() {
    let place = place();
    place.write("trainyard.toml", b"stesp = 5\nmicro_batch = 4\nlr = \"high\"\nweight-dekay = 0.1\n");
    refused(
        &place,
        &format!("{FRESH} --config trainyard.toml -o run"),
        expect![[r#"
        error: unknown key `stesp`
          --> trainyard.toml:1
          = the nearest known key is `steps`

        error: unknown key `micro_batch`
          --> trainyard.toml:2
          = the nearest known key is `microbatch`

        error: `lr` wants a number, not the string "high"
          --> trainyard.toml:3

        error: unknown key `weight-dekay`
          --> trainyard.toml:4
          = the nearest known key is `weight-decay`
    "#]],
    );
}

#[test]
fn flags_that_cannot_be_followed_are_refused() {
    let place = place();
    for (flags, expected) in [
        (
            "--step 5",
            expect![[r#"
            error: unexpected argument '--step' found

              tip: a similar argument exists: '--steps'

            Usage: trainyard compile --microbatch <N> --train <DATA> --output <DIR> --steps <N> <MODEL.onnx>

            For more information, try '--help'.
        "#]],
        ),
        (
            "--lr fast",
            expect![[r#"
            error: invalid value 'fast' for '--lr <X>': `fast` is not a finite number, 0 or more

            For more information, try '--help'.
        "#]],
        ),
        (
            "--steps 5 --epochs 1",
            expect![[r#"
            error: the argument '--steps <N>' cannot be used with '--epochs <N>'

            Usage: trainyard compile --microbatch <N> --train <DATA> --output <DIR> --steps <N> <MODEL.onnx>

            For more information, try '--help'.
        "#]],
        ),
        (
            "--global-batch 33",
            expect![[r#"
            error: the global batch 33 is not a multiple of the microbatch 32
              = the nearest multiples: --global-batch 32 or 64
              = or --microbatch 11 or 33
        "#]],
        ),
        (
            "--seq 32",
            expect![[r#"
            error: --seq 32: the model was exported for sequences of 16
              = export the model with a dynamic sequence, or remove --seq
        "#]],
        ),
        (
            "--bind sequence=32",
            expect![[r#"
            error: --bind sequence: the model has no named dims
              --> testdata/gpt2-fresh.onnx
              = a batch of fixed size can be changed with --bind batch=SIZE
        "#]],
        ),
        (
            "--bind batch=16",
            expect![[r#"
            error: --microbatch 32 contradicts --bind batch=16
              = give only one of these flags
        "#]],
        ),
        (
            "--freeze h.7.*",
            expect![[r#"
                error: no parameter matches `h.7.*`
                  = parameters are, for example, transformer.h.0.ln_1.weight, transformer.h.0.ln_1.bias, transformer.h.0.attn.c_attn.weight, transformer.h.0.attn.c_proj.weight, transformer.h.0.mlp.c_fc.weight
            "#]],
        ),
        (
            "--freeze *",
            expect![[r#"
            error: the loss depends on no parameter, so there is nothing to train
              = `trainyard inspect` lists the parameters that were found, and why
        "#]],
        ),
        (
            "--loss model",
            expect![[r#"
            error: the model has no loss: no output is a float scalar that depends on inputs and parameters
              = its outputs are `logits` f32[32, 16, 128]
              = use --loss cross-entropy, mse or bce
        "#]],
        ),
        (
            "--input mask=ones",
            expect![[r#"
            error: the model has no input `mask`; its inputs are `input_ids`
        "#]],
        ),
        (
            "--weights nothing.safetensors",
            expect![[r#"
            error: cannot read `nothing.safetensors`: No such file or directory (os error 2)
        "#]],
        ),
        (
            "--weights text.txt",
            expect![[r#"
            error: `text.txt` is damaged: a header of 8316305066397353738 bytes does not fit into the file's 10000 bytes: was it truncated?
        "#]],
        ),
        (
            "--resume=nothing",
            expect![[r#"
            error: there is no checkpoint to resume from in `nothing/checkpoints`
        "#]],
        ),
    ] {
        refused(&place, &format!("{FRESH} -o run {flags}"), expected);
    }
    refused(
        &place,
        "compile testdata/gpt2-fresh.onnx --steps 5 --seq 16",
        expect![[r#"
            error: --steps does not apply without --train
              = give training data: --train corpus.txt, or --train synthetic to try the model
        "#]],
    );
    refused(
        &place,
        "train testdata/gpt2-fresh.onnx",
        expect![[r#"
        error: unrecognized subcommand 'train'

        Usage: trainyard <COMMAND>

        For more information, try '--help'.
    "#]],
    );
}
