//! Runs with DeepSpeed's JSON as their config.

use expect_test::expect;
use testing::workplace::Workplace;

use crate::TRAINYARD;

/// A config in the form of DeepSpeed's examples: two data ranks with two microbatches of two samples each.
const CONFIG: &str = r#"{
  "train_batch_size": 8,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 2,
  "steps_per_print": 10,
  "optimizer": {
    "type": "AdamW",
    "params": {"lr": 3.1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
  },
  "scheduler": {
    "type": "WarmupLR",
    "params": {"warmup_min_lr": 0, "warmup_max_lr": 3.1e-3, "warmup_num_steps": 3, "warmup_type": "linear"}
  },
  "gradient_clipping": 0.7,
  "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12, "loss_scale_window": 2},
  "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8, "overlap_comm": true},
  "activation_checkpointing": {"number_checkpoints": 2}
}"#;

/// The flags with the same meaning.
const FLAGS: &str = "--microbatch 2 --global-batch 8 --optimizer adamw:beta1=0.9,beta2=0.95,eps=1e-8 --lr 3.1e-3 \
                     --weight-decay 0.1 --lr-schedule constant:warmup=3 --clip 0.7 --fp16 \
                     --loss-scale dynamic:initial=4096,interval=2,hysteresis=2,min=1 --zero 2 --recompute full";

const TRAIN: &str = "compile testdata/gpt2-fresh.onnx --train text.txt --mesh dp=2";

#[test]
fn a_run_from_deepspeeds_json_has_the_bits_of_its_flags_and_resumes_without_the_file() {
    let place = Workplace::with_text(TRAINYARD, 8_000);
    place.write("ds.json", CONFIG.as_bytes());
    let ended = place.succeed(&format!("{TRAIN} --config ds.json --steps 4 -o json"));
    let notes: String = ended.stderr.lines().take(5).map(|line| format!("{line}\n")).collect();
    expect![[r#"
        ds.json stands for --global-batch=8 --microbatch=2 --lr=3.1e-3 --weight-decay=0.1 --optimizer=adamw:beta1=0.9,beta2=0.95,eps=1e-8 --lr-schedule=constant:warmup=3 --fp16 --loss-scale=dynamic:initial=4096,interval=2,hysteresis=2,min=1 --zero=2 --recompute=full --clip=0.7
        ds.json has keys that are not honoured:
          steps_per_print: progress is shown by time and not by steps
          zero_optimization.reduce_bucket_size: the compiler groups collectives itself, in buckets of 25 MiB
          activation_checkpointing.number_checkpoints: a value is kept between every two blocks of the model
    "#]].assert_eq(&notes);
    place.succeed(&format!("{TRAIN} {FLAGS} --steps 4 -o flags"));
    let config =
        |run: &str| String::from_utf8(place.read(&format!("{run}/config.toml"))).expect("TOML is UTF-8");
    assert_eq!(config("json"), config("flags"));
    let losses = |run: &str| -> Vec<u64> {
        place.metrics(run).iter().map(|line| line["loss"].as_f64().expect("a loss").to_bits()).collect()
    };
    assert_eq!(losses("json"), losses("flags"));
    assert!(place.states("json", 4) == place.states("flags", 4), "the states differ");

    std::fs::remove_file(place.path("ds.json")).expect("the file can be removed");
    for run in ["json", "flags"] {
        let command = format!(
            "compile testdata/gpt2-fresh.onnx --config {run}/config.toml --steps 6 --resume -o {run}"
        );
        place.succeed(&command);
    }
    assert_eq!(losses("json").len(), 6);
    assert_eq!(losses("json"), losses("flags"));
    assert!(place.states("json", 6) == place.states("flags", 6), "the states differ");
}

#[test]
fn a_batch_that_contradicts_the_mesh_is_refused_before_anything_is_written() {
    let place = Workplace::with_text(TRAINYARD, 8_000);
    place.write("ds.json", CONFIG.as_bytes());
    let before = place.contents();
    let ended =
        place.run("compile testdata/gpt2-fresh.onnx --train text.txt --mesh dp=4 --config ds.json -o run");
    expect![[r#"
        error: `train_batch_size` 8 is not `train_micro_batch_size_per_gpu` 2 x `gradient_accumulation_steps` 2 x 4 data ranks = 16
          --> ds.json:2
          = 2 data ranks would fit: --mesh dp=2
          = or leave out one of the keys, or give `train_batch_size` 16
    "#]].assert_eq(&ended.errors());
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(before == place.contents());
}

#[test]
fn inspect_and_verify_read_the_file_too() {
    let place = Workplace::with_text(TRAINYARD, 8_000);
    place.write("ds.JSON", CONFIG.as_bytes());
    let inspected = place.succeed("inspect testdata/gpt2-fresh.onnx --mesh dp=2 --config ds.JSON");
    assert!(inspected.stderr.starts_with("ds.JSON stands for --global-batch=8 "), "{}", inspected.stderr);
    let verified = place.succeed("verify testdata/gpt2-fresh.onnx --mesh dp=2 --config ds.JSON");
    assert!(verified.stderr.contains("zero_optimization.reduce_bucket_size: "), "{}", verified.stderr);
}
