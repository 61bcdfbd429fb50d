//! Files with faults: each error has its place and its numbers.

use expect_test::expect;

use super::{check, translated};

#[test]
fn text_that_is_not_json_is_told_with_its_place() {
    check(
        "{\n  \"fp16\": {\"enabled\": true},\n}",
        "",
        expect![[r#"
        error: not JSON: key must be a string
          --> ds.json:3:1
          = DeepSpeed itself also takes Hjson: here, comments and commas before a closing bracket are errors
    "#]],
    );
    check(
        "{\n  // a comment\n  \"seed\": 1\n}",
        "",
        expect![[r#"
        error: not JSON: key must be a string
          --> ds.json:2:3
          = DeepSpeed itself also takes Hjson: here, comments and commas before a closing bracket are errors
    "#]],
    );
    check(
        "[]",
        "",
        expect![[r#"
        error: a config in JSON is an object, not a list
          --> ds.json:1
    "#]],
    );
    check(
        "{\"seed\": 1,\n \"seed\": 2}",
        "",
        expect![[r#"
        error: the key `seed` is given twice
          --> ds.json:2
          = remove one of them
    "#]],
    );
}

#[test]
fn wrong_types_are_listed_with_their_lines() {
    check(
        r#"{
          "train_batch_size": "32",
          "gradient_accumulation_steps": 1.5,
          "train_micro_batch_size_per_gpu": 0,
          "fp16": true,
          "bf16": {"enabled": "true"},
          "optimizer": {"type": "Adam", "params": {"lr": [1e-3], "betas": 0.9, "eps": "small"}},
          "zero_optimization": {"stage": 2.5, "offload_optimizer": "cpu"}
        }"#,
        "",
        expect![[r#"
            error: `train_batch_size` wants a whole number from 1, not the string "32"
              --> ds.json:2

            error: `gradient_accumulation_steps` wants a whole number from 1, not the number 1.5
              --> ds.json:3

            error: `train_micro_batch_size_per_gpu` wants a whole number from 1, not the number 0
              --> ds.json:4

            error: `fp16` wants an object, not true
              --> ds.json:5

            error: `bf16.enabled` wants true or false, not the string "true"
              --> ds.json:6

            error: `optimizer.params.lr` wants a number, not a list
              --> ds.json:7

            error: `optimizer.params.betas` wants a list of numbers, not the number 0.9
              --> ds.json:7

            error: `optimizer.params.eps` wants a number, not the string "small"
              --> ds.json:7

            error: `zero_optimization.stage` wants a whole number, not the number 2.5
              --> ds.json:8

            error: `zero_optimization.offload_optimizer` wants an object, not the string "cpu"
              --> ds.json:8
        "#]],
    );
}

#[test]
fn values_that_a_flag_refuses_are_told_with_their_keys() {
    check(
        r#"{
          "optimizer": {"type": "Adam", "params": {"lr": -1, "betas": [0.9], "weight_decay": 1e999}},
          "gradient_clipping": -1,
          "fp16": {"enabled": true, "initial_scale_power": 200},
          "data_types": {"grad_accum_dtype": "fp8"},
          "zero_optimization": {"stage": 4}
        }"#,
        "",
        expect![[r#"
            error: `optimizer.params.lr`: `-1` is not a finite number, 0 or more
              --> ds.json:2

            error: `optimizer.params.weight_decay`: `1e999` is not a finite number, 0 or more
              --> ds.json:2

            error: `optimizer.params.betas` wants two numbers, not 1
              --> ds.json:2
              = the usual ones: "betas": [0.9, 0.999]

            error: `fp16.initial_scale_power`: initial: `1606938044258990300000000000000000000000000000000000000000000` is not a number of the type f32
              --> ds.json:4

            error: `data_types.grad_accum_dtype`: there is no type `fp8`
              --> ds.json:5
              = there are fp32, fp16 and bf16

            error: `zero_optimization.stage`: `4` is not a ZeRO stage: 0, 1 (optimizer states are sharded), 2 (gradients too) or 3 (parameters too)
              --> ds.json:6

            error: `gradient_clipping`: `-1` is not a finite number above 0
              --> ds.json:3
        "#]],
    );
    check(
        r#"{"optimizer": {"type": "Adam", "params": {"betas": [0.9, 1.0]}}, "scheduler": {"type": "WarmupDecayLR",
            "params": {"warmup_num_steps": 100, "total_num_steps": 100}}}"#,
        "",
        expect![[r#"
            error: `optimizer.type`: beta2: `1.0` is not a number from 0 to below 1
              --> ds.json:1

            error: `scheduler.type`: the warm-up of 100 steps is as long as the schedule's 100 steps or longer
              --> ds.json:1
        "#]],
    );
}

#[test]
fn batch_sizes_that_contradict_each_other_are_shown() {
    let three = r#"{
      "train_micro_batch_size_per_gpu": 4,
      "gradient_accumulation_steps": 2,
      "train_batch_size": 32
    }"#;
    check(
        three,
        "",
        expect![[r#"
        error: `train_batch_size` 32 is not `train_micro_batch_size_per_gpu` 4 x `gradient_accumulation_steps` 2 x 1 data rank = 8
          --> ds.json:4
          = 4 data ranks would fit: --mesh dp=4
          = or leave out one of the keys, or give `train_batch_size` 8
    "#]],
    );
    assert!(translated(three, "--mesh dp=4", None).contains("--global-batch=32"));
    assert!(translated(three, "", Some(4)).contains("--global-batch=32"));
    check(
        three,
        "--mesh dp=3",
        expect![[r#"
        error: `train_batch_size` 32 is not `train_micro_batch_size_per_gpu` 4 x `gradient_accumulation_steps` 2 x 3 data ranks = 24
          --> ds.json:4
          = 4 data ranks would fit: --mesh dp=4
          = or leave out one of the keys, or give `train_batch_size` 24
    "#]],
    );
    check(
        r#"{"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3}"#,
        "--mesh dp=5",
        expect![[r#"
        error: `train_batch_size` 24 is not a multiple of `train_micro_batch_size_per_gpu` 3 x 5 data ranks = 15
          --> ds.json:1
          = 8 data ranks would fit: --mesh dp=8
          = or leave out one of the keys, or give `train_batch_size` 15
    "#]],
    );
    check(
        r#"{"train_batch_size": 24, "gradient_accumulation_steps": 5}"#,
        "",
        expect![[r#"
        error: `train_batch_size` 24 is not a multiple of `gradient_accumulation_steps` 5 x 1 data rank
          --> ds.json:1
          = each data rank takes the same number of samples; change `train_batch_size`, or --mesh
    "#]],
    );
    let huge = r#"{"train_micro_batch_size_per_gpu": 9007199254740992, "gradient_accumulation_steps": 9007199254740992}"#;
    check(
        huge,
        "",
        expect![[r#"
        error: `train_micro_batch_size_per_gpu`: `9007199254740992` is not a whole number from 1 to 4294967295
          --> ds.json:1

        error: `gradient_accumulation_steps`: `81129638414606681695789005144064` is not a whole number from 1 to 4294967295
          --> ds.json:1
    "#]],
    );
}

#[test]
fn rules_that_do_not_exist_here_are_refused_with_those_that_do() {
    check(
        r#"{
          "optimizer": {"type": "Lamb", "params": {"lr": 0.011, "max_coeff": 0.3}},
          "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.004, "cycle_max_lr": 0.015}}
        }"#,
        "",
        expect![[r#"
            error: `optimizer.type`: there is no optimizer `Lamb`
              --> ds.json:2
              = of DeepSpeed's there are Adam, AdamW, OneBitAdam, ZeroOneAdam, SGD, Adagrad, Lion
              = or give one on the command line, which wins: --optimizer sgd, momentum, nesterov, adagrad, adafactor, lion, adam, adamw

            error: `scheduler.type`: there is no schedule `OneCycle`
              --> ds.json:3
              = there are WarmupLR, WarmupDecayLR, WarmupCosineLR; the nearest is `WarmupLR`
              = or give a schedule on the command line, which wins: --lr-schedule cosine:warmup=100
        "#]],
    );
    check(
        r#"{"fp16": {"enabled": true}, "bf16": {"enabled": true}}"#,
        "",
        expect![[r#"
        error: `fp16.enabled` and `bf16.enabled` exclude each other
          --> ds.json:1
          = a step computes in one type: switch one off
    "#]],
    );
}

#[test]
fn unknown_keys_are_listed_with_the_nearest() {
    check(
        r#"{
          "train_bach_size": 8,
          "zero_optimization": {"stage": 0, "stage3_param_persitance_threshold": 1e5},
          "optimizer": {"type": "Adam", "params": {"learning_rate": 1}},
          "zero_optimization.stage": 3,
          "_comment\n": "mine"
        }"#,
        "",
        expect![[r#"
            ds.json stands for --optimizer=adamw --weight-decay=0
            ds.json has keys that are not honoured:
              train_bach_size: unknown; the nearest known key is `train_batch_size`
              zero_optimization.stage3_param_persitance_threshold: unknown; the nearest known key is `stage3_param_persistence_threshold`
              optimizer.params.learning_rate: unknown; the nearest known key is `amsgrad`
              zero_optimization.stage: unknown; the nearest known key is `zero_optimization`
              _comment\n: unknown; the nearest known key is `comet`
        "#]],
    );
}

#[test]
fn devices_of_offloading_are_checked() {
    let of =
        |device: &str| format!(r#"{{"zero_optimization": {{"offload_param": {{"device": "{device}"}}}}}}"#);
    check(
        &of("nvme"),
        "",
        expect![[r#"
        error: `zero_optimization.offload_param.device`: nvme needs `zero_optimization.offload_param.nvme_path`
          --> ds.json:1
          = it names the folder of the file
    "#]],
    );
    check(
        &of("gpu"),
        "",
        expect![[r#"
        error: `zero_optimization.offload_param.device`: there is no device "gpu"
          --> ds.json:1
          = there are none, cpu and nvme
    "#]],
    );
    check(
        r#"{"torch_autocast": {"enabled": true, "dtype": "fp8"}}"#,
        "",
        expect![[r#"
        error: `torch_autocast.dtype`: there is no type `fp8`
          --> ds.json:1
          = there are fp32, fp16 and bf16
    "#]],
    );
    check(
        r#"{"train_batch_size": 32, "gradient_accumulation_steps": 4}"#,
        "--global-batch 30",
        expect![[r#"
            error: --global-batch 30 is not a multiple of `gradient_accumulation_steps` 4 x 1 data rank
              --> ds.json:1
              = each data rank takes the same number of samples; change --global-batch, or --mesh
        "#]],
    );
}
