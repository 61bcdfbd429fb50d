//! Flags that exclude each other, need another flag, or do not fit the mesh.

use super::*;

#[test]
fn flags_that_only_training_uses_are_refused_without_it() {
    check_error(
        "compile m.onnx --steps 5 --resume",
        expect![[r#"
        error: --steps, --resume do not apply without --train
          = give training data: --train corpus.txt, or --train synthetic to try the model
    "#]],
    );
}

#[test]
fn flags_that_contradict_each_other_are_all_listed() {
    let arguments = "compile m.onnx --train t.txt --steps 10 --microbatch 20 --global-batch 48 \
                     --lr 1e-3 --lr-schedule linear:min=0.01";
    check_error(
        arguments,
        expect![[r#"
            error: the global batch 48 is not a multiple of the microbatch 20
              = the nearest multiples: --global-batch 40 or 60
              = or --microbatch 16 or 24

            error: the schedule ends at a learning rate of 0.01, which is above the highest learning rate 0.001
              = min is an absolute learning rate, not a fraction of --lr
        "#]],
    );
    check_error(
        "compile m.onnx --train t.txt --steps 10 --lr-schedule cosine:warmup=10",
        expect![[r#"
        error: the warm-up of 10 steps is as long as the run's 10 steps or longer
          = shorten the warm-up, or give the schedule a length: steps=N
    "#]],
    );
}

#[test]
fn precision_is_said_once() {
    check_errors(
        &["--bf16 --fp16", "--precision fp32 --bf16"],
        expect![[r#"
            error: the argument '--bf16' cannot be used with '--fp16'
            error: the argument '--precision <PRECISION>' cannot be used with '--bf16'
        "#]],
    );
    assert_eq!(compile("").settings.compile.precision.dtype(), DType::F32);
    assert_eq!(compile("--fp16").settings.compile.precision.dtype(), DType::F16);
    let from_file = with_config("precision = \"bf16\"", "--fp16");
    assert_eq!(from_file.compile.precision.dtype(), DType::F16, "the command line wins");
    assert_eq!(with_config("fp16 = true\nloss-scale = 128", ""), compile("--fp16 --loss-scale 128").settings);
    check_error(
        "compile m.onnx --bf16 --loss-scale 128",
        expect![[r#"
            error: --loss-scale does not apply to a step in bf16
              = add --fp16, or remove --loss-scale
        "#]],
    );
    check_config_error(
        "bf16 = true\nfp16 = true",
        expect![[r#"
        error: `bf16` and `fp16` exclude each other
          --> trainyard.toml
    "#]],
    );
}

#[test]
fn axes_of_one_device_are_allowed_and_split_nothing() {
    let parallel =
        compile("--mesh dp.outer=2,tp=1,dp.inner=3,pp=1 --shard w=tp,dp.inner*dp.outer --sequence-parallel")
            .settings
            .compile
            .parallel;
    assert_eq!(parallel.axes(), [("dp.outer".to_owned(), 2), ("dp.inner".to_owned(), 3)]);
    assert_eq!(parallel.data_ranks(), 6);
    assert_eq!(parallel.rules()[0].dims, [vec![], vec!["dp.inner".to_owned(), "dp.outer".to_owned()]]);
    assert_eq!(parallel.shard[0].to_string(), "w=tp,dp.inner*dp.outer");
}

#[test]
fn parallel_flags_without_the_axes_they_need_are_refused() {
    check_error(
        "compile m.onnx --zero 1",
        expect![[r#"
        error: --zero 1 shards states over data ranks, and without --mesh there is no data axis
          = add a data axis: --mesh dp=2; or remove --zero
    "#]],
    );
    check_error(
        "verify m.onnx --mesh tp=2 --zero 3",
        expect![[r#"
        error: --zero 3 shards states over data ranks, and the mesh tp=2 has no data axis
          = add a data axis: --mesh dp=2; or remove --zero
    "#]],
    );
    check_error(
        "inspect m.onnx --mesh dp=2 --sequence-parallel",
        expect![[r#"
        error: --sequence-parallel splits the sequence over tp, and the mesh dp=2 has no tensor axis
          = add a tensor axis: --mesh tp=2; or remove --sequence-parallel
    "#]],
    );
    check_error(
        "compile m.onnx --shard w=tp,-",
        expect![[r#"
        error: --shard 'w=tp,-': without --mesh there is no axis `tp`
          = add the axis: --mesh tp=2
    "#]],
    );
    check_error(
        "compile m.onnx --mesh dp.outer=2,dp.inner=2 --shard w=dp.iner,-",
        expect![[r#"
        error: --shard 'w=dp.iner,-': the mesh dp.outer=2,dp.inner=2 has no axis `dp.iner`
          = the nearest is `dp.inner`
    "#]],
    );
    check_error(
        "compile m.onnx --mesh dp=2,pp=2,cp=4,ep=1",
        expect![[r#"
            error: --mesh cp=4: context parallelism is not supported yet
              = only dp, tp, pp and ep can have more than one device; cp=1 is accepted
        "#]],
    );
}

#[test]
fn a_global_batch_that_the_data_ranks_cannot_share_names_the_nearest_that_they_can() {
    check_error(
        "compile m.onnx --train t.txt --mesh dp=4 --microbatch 5 --global-batch 48",
        expect![[r#"
        error: the global batch 48 is not a multiple of the microbatch 5 on 4 data ranks
          = the nearest multiples: --global-batch 40 or 60
          = or --microbatch 4 or 6
    "#]],
    );
    check_error(
        "compile m.onnx --train t.txt --mesh dp=4 --microbatch 2 --global-batch 6",
        expect![[r#"
        error: the global batch 6 is not a multiple of the microbatch 2 on 4 data ranks
          = the nearest multiples: --global-batch 8
    "#]],
    );
    assert_eq!(
        compile("--mesh dp=4,tp=2 --microbatch 2 --global-batch 24").settings.compile.parallel.data_ranks(),
        4
    );
}
