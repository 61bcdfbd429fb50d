//! The keys of a config file, the flags that overrule them, and the answers to mistakes in the file.

use super::*;
use clap::Args;

#[test]
fn a_config_file_gives_the_same_settings_as_the_flags() {
    let from_file = with_config(
        "bind = \"batch=8\"\ntrain = \"corpus.txt\"\nsteps = 0x10\nlr = 3e-3\nfreeze = [\"a\", \"b\"]\n\
         train-only = \"c\"\nuntied = true\nprint-changed = false\nignore-index = -7\nresume = true\nlr-schedule = \"linear\"",
        "",
    );
    let flags = "--bind batch=8 --train corpus.txt --steps 16 --lr 3e-3 --freeze a --freeze b --train-only c \
                 --untied --ignore-index=-7 --resume --lr-schedule linear";
    assert_eq!(from_file, compile(flags).settings);
}

/// The program of a run depends on its steps, so the commands that train nothing take them without data.
#[test]
fn commands_that_train_nothing_take_the_steps_of_a_run() {
    let (_folder, path) = config_file("train = \"synthetic\"\nsteps = 3\nsave-every = 1");
    for subcommand in ["inspect", "verify"] {
        for flags in ["--steps 5".to_owned(), format!("--config {}", path.display())] {
            let parsed = parse(&format!("{subcommand} model.onnx {flags}"));
            let steps = match parsed
                .unwrap_or_else(|error| panic!("{subcommand} {flags}: {}", text_of(error)))
                .command
            {
                Command::Inspect(inspect) => inspect.steps,
                Command::Verify(verify) => verify.steps,
                other => panic!("{other:?}"),
            };
            assert_eq!(steps, Some(if flags.starts_with("--steps") { 5 } else { 3 }));
        }
    }
}

#[test]
fn numbers_in_a_config_file_may_be_written_in_every_way_of_toml() {
    let config = "train = 'größe.txt'\nmicrobatch = 1_000\nsteps = 0b11\nlr = 1_0.5e-1\nclip = 2";
    let settings = with_config(config, "");
    assert_eq!(settings.compile.shapes.microbatch, Some(1000));
    assert_eq!(settings.run.length(), Length::Steps(3));
    assert_eq!(settings.compile.optimizer.lr, 1.05);
    assert_eq!(settings.compile.optimizer.clip, Some(2.0));
}

#[test]
fn numbers_too_large_or_not_finite_in_a_config_file_are_refused() {
    let huge = "9".repeat(60);
    check_config_error(
        &format!("microbatch = {huge}\nlr = nan\nclip = inf\nseed = -1"),
        expect![[r#"
            error: `microbatch`: `999999999999999999999999999999999999999999999999999999999999` is not a whole number from 1 to 4294967295
              --> trainyard.toml:1

            error: `lr`: `nan` is not a finite number, 0 or more
              --> trainyard.toml:2

            error: `clip`: `inf` is not a finite number above 0
              --> trainyard.toml:3

            error: `seed`: `-1` is not a whole number from 0 to 9223372036854775807
              --> trainyard.toml:4
        "#]],
    );
}

#[test]
fn the_command_line_wins_over_the_config_file() {
    let config = "train = \"corpus.txt\"\nepochs = 3\nlr = 0.5\nfreeze = [\"a\"]\nseed = 9";
    let settings = with_config(config, "--steps 5 --lr 0.25 --freeze b");
    assert_eq!(settings.run.length(), Length::Steps(5));
    assert_eq!(settings.compile.optimizer.lr, 0.25);
    assert_eq!(settings.compile.optimizer.freeze, ["b"]);
    assert_eq!(settings.compile.seed.seed, 9);
}

#[test]
fn a_config_file_of_a_run_serves_the_other_subcommands() {
    let (_folder, path) = config_file("train = \"corpus.txt\"\nmicrobatch = 4\noptimizer = \"sgd\"");
    for subcommand in ["inspect m.onnx", "verify m.onnx"] {
        let cli = parse(&format!("{subcommand} --config {}", path.display()))
            .unwrap_or_else(|e| panic!("{}", text_of(e)));
        let (shapes, optimizer) = match cli.command {
            Command::Inspect(inspect) => (inspect.compile.shapes, inspect.compile.optimizer),
            Command::Verify(verify) => (verify.compile.shapes, verify.compile.optimizer),
            other => panic!("not asked for: {other:?}"),
        };
        assert_eq!(shapes.microbatch, Some(4), "{subcommand}");
        assert_eq!(optimizer.optimizer, Algorithm::Sgd { momentum: 0.0, nesterov: false }, "{subcommand}");
    }
}

#[test]
fn all_unknown_keys_and_wrong_types_are_listed_with_their_lines() {
    let config = "# a comment\nstepz = 5\nlr = \"fast\"\nlearning_rate = 1\nglobal_batch = 4\nforce = \"yes\"\nseed = 1.5\n\
                  microbatch = [4]\nfreeze = [1]\ndevice = \"gpu\"\nclip = -1.0\nbind = \"batch\"\ntrain = 2020-01-01\n\
                  \n[optimizer]\nlr = 1.0\n[data]\n";
    check_config_error(
        config,
        expect![[r#"
            error: unknown key `stepz`
              --> trainyard.toml:2
              = the nearest known key is `steps`

            error: `lr` wants a number, not the string "fast"
              --> trainyard.toml:3

            error: unknown key `learning_rate`
              --> trainyard.toml:4
              = the nearest known key is `weights`

            error: unknown key `global_batch`
              --> trainyard.toml:5
              = the nearest known key is `global-batch`

            error: `force` wants true or false, not the string "yes"
              --> trainyard.toml:6

            error: `seed`: `1.5` is not a whole number from 0 to 9223372036854775807
              --> trainyard.toml:7

            error: `microbatch` wants a number, not a list
              --> trainyard.toml:8

            error: `freeze` wants a list of strings, or one string, not the number 1
              --> trainyard.toml:9

            error: `device`: `gpu` is not one of auto, cpu, cpu-amx, cpu-avx512-bf16, cuda
              --> trainyard.toml:10

            error: `clip`: `-1.0` is not a finite number above 0
              --> trainyard.toml:11

            error: `bind`: `batch` is not of the form dim=size, such as batch=8
              --> trainyard.toml:12

            error: `train` wants a string, not the date 2020-01-01
              --> trainyard.toml:13

            error: `optimizer` is a section, and a config file has only keys and [[group]] tables
              --> trainyard.toml:15
              = write each key at the top of the file, named as its flag: lr = 0.001

            error: `data` is a section, and a config file has only keys and [[group]] tables
              --> trainyard.toml:17
              = write each key at the top of the file, named as its flag: lr = 0.001
        "#]],
    );
}

#[test]
fn keys_that_exclude_each_other_are_refused() {
    check_config_error(
        "steps = 5\nepochs = 1\ntrain = \"t.txt\"",
        expect![[r#"
        error: `steps` and `epochs` exclude each other
          --> trainyard.toml
    "#]],
    );
}

#[test]
fn a_config_file_that_is_not_toml_or_not_there_is_refused() {
    check_config_error(
        "lr = 1\nlr = 2\n",
        expect![[r#"
        error: not TOML: duplicate key
          --> trainyard.toml:2
    "#]],
    );
    check_config_error(
        "lr = \n",
        expect![[r#"
        error: not TOML: string values must be quoted, expected literal string
          --> trainyard.toml:1
    "#]],
    );
    check_error(
        "compile m.onnx --config /no/such/trainyard.toml",
        expect![[r#"
        error: cannot read the config file: No such file or directory (os error 2)
          --> /no/such/trainyard.toml
    "#]],
    );
}

/// Flags of one call, which stand in no config.
const OF_CALL: &str =
    "--profile --print-after autodiff --print-changed --dump d --output out --force --memory-plan plan.json";

/// A flag of one call that needs data.
const RESUME: &str = "--resume=a@3";

#[test]
fn settings_are_written_as_a_config_and_a_command_that_read_back_equal() {
    let all = [
        "",
        "--train synthetic --steps 0 --seed 9223372036854775807 --device cpu --threads 2",
        "--bind a=1,b=2 --microbatch 4 --global-batch 8 --train t.txt --eval e.txt --eval-every 5 --tokenizer bytes \
         --seq 64 --labels-from given --ignore-index=-1 --input a=ones --input b=x/y.npz --epochs 3 --save-every 7 \
         --init normal:std=1e-30 --weights w.safetensors --optimizer adam:beta1=0.123456789012345,eps=1e-300 \
         --lr 0.1 --lr-schedule cosine:warmup=3,min=0.05,steps=17 --weight-decay 0 --decay all --clip 1 --freeze x* \
         --train-only y --train-only z --untied --loss next-token --label-smoothing 0.1",
        "--mesh dp.outer=2,dp.inner=1,tp=4 --zero 3 --sequence-parallel --shard a*=-,dp.outer*tp --shard b==tp --bf16",
        "--precision fp16 --grad-dtype bf16 --mesh tp=1 --loss-scale 1.1e-3",
        "--fp16 --loss-scale dynamic:initial=4294967296,interval=7,hysteresis=1,min=0.1",
        "--optimizer nesterov:momentum=0.8 --lr-schedule linear:warmup=2 --dropout off",
        "--optimizer adagrad:eps=1e-5 --lr-schedule wsd:warmup=2,decay=3,min=1e-4,steps=9 --tokenizer a/tokenizer.json \
         --train t.txt --group x*:lr=0.1 --group 'onnx::y:lr=2,weight-decay=0.5'",
        "--lr-schedule wsd --optimizer momentum --init gpt2 --loss model --dropout 0.25",
        "--mesh pp=2 --schedule interleaved:chunks=3 --cut a* --timeout 30 --cluster c.toml --recompute selective --moe experts=4,top=2",
        "--compress-activations masks,bf16 --compress-least 1KiB --update early --train-also t* --memory 2GiB",
        "--memory device=1GiB,host=2GiB --offload optimizer --offload-least 1MiB",
        "--mesh dp=2 --compress-gradients bf16 --compress-gradients-after 5 --train t.txt --eval e.txt --eval-every 3 \
         --patience 2 --export best --keep 4",
    ];
    let flags = Settings::augment_args(clap::Command::new("flags"));
    for flag in flags.get_arguments().filter_map(clap::Arg::get_long) {
        let is_given = |flags: &&str| {
            flags.split_whitespace().any(|word| word.split('=').next() == Some(&format!("--{flag}")))
        };
        assert!(all.iter().chain([&OF_CALL, &RESUME]).any(is_given), "--{flag} is in none of these");
    }
    for flags in all {
        let settings = compile(flags).settings;
        let toml = settings.to_toml().unwrap_or_else(|error| panic!("{flags}: {error}"));
        assert_eq!(with_config(&toml, ""), settings, "{flags}\n{toml}");
        // The command has the flags of one call too.
        let resume = if flags.contains("--train ") { RESUME } else { "" };
        let settings = compile(&format!("{flags} {OF_CALL} {resume}")).settings;
        let command =
            settings.command("model.onnx".as_ref()).unwrap_or_else(|error| panic!("{flags}: {error}"));
        let words =
            command.strip_prefix("trainyard compile model.onnx").expect("the command compiles the model");
        assert_eq!(compile(words).settings, settings, "{command}");
    }
}

#[test]
fn a_written_config_shows_the_defaults() {
    let settings = compile("--train t.txt --resume --force").settings;
    expect![[r#"
        train = "t.txt"
        seed = 0
        optimizer = "adamw:beta1=0.9,beta2=0.999,eps=1e-8"
        lr = 0.001
        lr-schedule = "constant:warmup=0"
        decay = "matrices"
        untied = false
        loss = "auto"
        label-smoothing = 0.0
        zero = 0
        sequence-parallel = false
        timeout = 600
        device = "auto"
    "#]]
    .assert_eq(&settings.to_toml().expect("all paths are UTF-8"));
}
