//! The command line as a user meets it: what is accepted, what config files do, and what every mistake is answered.

use std::fmt::Write as _;
use std::path::PathBuf;

use expect_test::{Expect, expect};
use passes::optimizer::{Algorithm, Decay};
use passes::schedule::{Curve, Schedule};
use trainyard::cli::report::{Severity, render};
use trainyard::cli::{Cli, Command, Compile, ParseError};
use trainyard::config::{DataSource, InitRule, InputSource, Length, PrecisionChoice, Resume, Settings};

/// Parses `trainyard ARGUMENTS`, split at spaces outside single quotes.
fn parse(arguments: &str) -> Result<Cli, ParseError> {
    let parts = arguments.split('\'').enumerate();
    let words = parts.flat_map(|(index, part)| match index % 2 {
        0 => part.split_whitespace().collect(),
        _ => vec![part],
    });
    Cli::parse_with_config(["trainyard"].into_iter().chain(words))
}

fn compile(arguments: &str) -> Compile {
    match parse(&format!("compile model.onnx {arguments}")) {
        Ok(Cli { command: Command::Compile(compile) }) => *compile,
        Ok(other) => panic!("not a compile: {other:?}"),
        Err(error) => panic!("{}", text_of(error)),
    }
}

/// What the user would read.
fn text_of(error: ParseError) -> String {
    match error {
        ParseError::Usage(error) => error.render().to_string(),
        ParseError::Settings(diagnostics) => render(Severity::Error, &diagnostics, false),
    }
}

fn check_error(arguments: &str, expected: Expect) {
    let error = parse(arguments).expect_err("the command line is wrong");
    expected.assert_eq(&text_of(error));
}

/// The first line of each error, for many wrong values at once.
fn check_errors(all_arguments: &[&str], expected: Expect) {
    let mut text = String::new();
    for arguments in all_arguments {
        let error = parse(&format!("compile m.onnx {arguments}")).expect_err(arguments);
        let _ = writeln!(text, "{}", text_of(error).lines().next().unwrap_or_default());
    }
    expected.assert_eq(&text);
}

/// A config file in a folder of its own, which lives as long as the first half.
fn config_file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("trainyard.toml");
    std::fs::write(&path, text).expect("the config file is written");
    (folder, path)
}

fn check_config_error(config: &str, expected: Expect) {
    let (folder, path) = config_file(config);
    let error = parse(&format!("compile m.onnx --config {}", path.display())).expect_err(config);
    let prefix = format!("{}/", folder.path().display());
    expected.assert_eq(&text_of(error).replace(&prefix, ""));
}

fn with_config(config: &str, arguments: &str) -> Settings {
    let (_folder, path) = config_file(config);
    compile(&format!("--config {} {arguments}", path.display())).settings
}

#[test]
fn the_simplest_call_has_documented_defaults() {
    let settings = compile("").settings;
    assert_eq!(settings.optimizer.optimizer, Algorithm::ADAMW);
    assert_eq!(settings.optimizer.decay, Decay::Matrices);
    assert_eq!(settings.optimizer.weight_decay(), 0.01);
    assert_eq!(settings.run.length(), Length::Epochs(1));
    assert_eq!(settings.seed.seed, 0);
    assert!(settings.shapes.bindings().is_empty());
    assert_eq!(settings.out.folder("models/gpt2.v2.onnx".as_ref()), PathBuf::from("gpt2.v2.trainyard"));
}

#[test]
fn structured_values_are_read_into_types() {
    let settings = compile(
        "--bind batch=8,seq=128 --train synthetic --resume=old --init normal:std=0.5 --optimizer adam:beta2=0.95 \
         --lr-schedule cosine:warmup=20,min=1e-4,steps=600 --input mask=ones --input pos=positions \
         --input px=pixels --input y=data/y.npz --ignore-index -1 --freeze wte* --freeze wpe* --steps 600",
    )
    .settings;
    let bindings: Vec<_> = settings.shapes.bindings().into_iter().collect();
    assert_eq!(bindings, [("batch".to_owned(), 8), ("seq".to_owned(), 128)]);
    assert_eq!(settings.data.train, Some(DataSource::Synthetic));
    assert_eq!(settings.run.resume, Some(Resume::Folder("old".into())));
    assert_eq!(settings.run.length(), Length::Steps(600));
    assert_eq!(settings.initial.init, Some(InitRule::Normal { std: 0.5 }));
    assert_eq!(
        settings.optimizer.optimizer,
        Algorithm::Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8, decoupled: false }
    );
    assert_eq!(settings.optimizer.weight_decay(), 0.0);
    let schedule = Schedule { curve: Curve::Cosine, warmup: 20, min: 1e-4, steps: 600 };
    assert_eq!(settings.optimizer.lr_schedule, schedule);
    assert_eq!(settings.optimizer.freeze, ["wte*", "wpe*"]);
    assert_eq!(settings.loss.ignore_index, Some(-1));
    let sources: Vec<_> = settings.data.input.into_iter().map(|input| input.source).collect();
    let file = InputSource::File("data/y.npz".into());
    assert_eq!(sources, [InputSource::Ones, InputSource::Positions, InputSource::Key("pixels".into()), file]);
}

#[test]
fn resume_without_a_folder_takes_that_of_the_output() {
    assert_eq!(compile("--train t.txt --resume -o run").settings.run.resume, Some(Resume::Output));
}

#[test]
fn every_wrong_value_is_answered_with_what_would_be_right() {
    check_errors(
        &[
            "--bind batch",
            "--bind batch=0",
            "--bind batch=8,batch=4",
            "--microbatch 0",
            "--microbatch 99999999999",
            "--train=",
            "--tokenizer gpt4",
            "--seed -1",
            "--init xavier",
            "--init normal",
            "--init normal:sdt=1",
            "--init gpt2:std=1",
            "--optimizer lion",
            "--optimizer sgd:beta1=0.9",
            "--optimizer adam:beta1=1",
            "--optimizer adam:beta1",
            "--optimizer adam:beta1=0.5,beta1=0.5",
            "--optimizer adam:eps=0",
            "--optimizer nesterov:momentum=0",
            "--lr NaN",
            "--lr=-1",
            "--clip 0",
            "--lr-schedule step",
            "--lr-schedule constant:min=0.1",
            "--lr-schedule linear:warmup=50,steps=50",
            "--label-smoothing 1.5",
            "--input mask",
            "--device cuda",
            "--mesh dp",
            "--mesh dp=0",
            "--mesh dp=two",
            "--mesh dp=2,,tp=2",
            "--mesh dp=2,tp=4,dp=3",
            "--mesh db=2",
            "--mesh tensor=2",
            "--mesh dp.=2",
            "--mesh 'dp.a b=2'",
            "--mesh dp=100000,tp=100000",
            "--zero 4",
            "--zero on",
            "--shard w",
            "--shard =tp",
            "--shard w=tp,,-",
            "--shard w=tp,dp*tp",
            "--shard w=-,hidden",
            "--precision fp8",
            "--grad-dtype f64",
        ],
        expect![[r#"
            error: invalid value 'batch' for '--bind <DIM=SIZE,…>': `batch` is not of the form dim=size, such as batch=8
            error: invalid value 'batch=0' for '--bind <DIM=SIZE,…>': dim `batch`: `0` is not a whole number from 1 to 4294967295
            error: invalid value 'batch=8,batch=4' for '--bind <DIM=SIZE,…>': dim `batch` is bound twice: to 8 and to 4
            error: invalid value '0' for '--microbatch <N>': `0` is not a whole number from 1 to 4294967295
            error: invalid value '99999999999' for '--microbatch <N>': `99999999999` is not a whole number from 1 to 4294967295
            error: invalid value '' for '--train <DATA>': the name of the data is empty; give a file or `synthetic`
            error: invalid value 'gpt4' for '--tokenizer <TOKENIZER>'
            error: invalid value '-1' for '--seed <N>': `-1` is not a whole number from 0 to 9223372036854775807
            error: invalid value 'xavier' for '--init <RULE>': `xavier` is no rule for new weights; there are gpt2, kaiming, normal:std=X
            error: invalid value 'normal' for '--init <RULE>': `normal` needs its deviation: normal:std=0.02
            error: invalid value 'normal:sdt=1' for '--init <RULE>': `normal` has no setting `sdt`; it has std
            error: invalid value 'gpt2:std=1' for '--init <RULE>': `gpt2` has no setting `std`; it has none
            error: invalid value 'lion' for '--optimizer <NAME[:KEY=X,…]>': `lion` is no optimizer; there are sgd, momentum, nesterov, adam, adamw
            error: invalid value 'sgd:beta1=0.9' for '--optimizer <NAME[:KEY=X,…]>': `sgd` has no setting `beta1`; it has momentum
            error: invalid value 'adam:beta1=1' for '--optimizer <NAME[:KEY=X,…]>': beta1: `1` is not a number from 0 to below 1
            error: invalid value 'adam:beta1' for '--optimizer <NAME[:KEY=X,…]>': `beta1` in `adam:beta1` is not of the form key=value
            error: invalid value 'adam:beta1=0.5,beta1=0.5' for '--optimizer <NAME[:KEY=X,…]>': `beta1` stands twice in `adam:beta1=0.5,beta1=0.5`
            error: invalid value 'adam:eps=0' for '--optimizer <NAME[:KEY=X,…]>': eps: `0` is not a finite number above 0
            error: invalid value 'nesterov:momentum=0' for '--optimizer <NAME[:KEY=X,…]>': nesterov's rule needs a momentum above 0
            error: invalid value 'NaN' for '--lr <X>': `NaN` is not a finite number, 0 or more
            error: invalid value '-1' for '--lr <X>': `-1` is not a finite number, 0 or more
            error: invalid value '0' for '--clip <X>': `0` is not a finite number above 0
            error: invalid value 'step' for '--lr-schedule <NAME[:KEY=X,…]>': `step` is no schedule; there are constant, linear, cosine
            error: invalid value 'constant:min=0.1' for '--lr-schedule <NAME[:KEY=X,…]>': `constant` has no setting `min`; it has warmup
            error: invalid value 'linear:warmup=50,steps=50' for '--lr-schedule <NAME[:KEY=X,…]>': the warm-up of 50 steps leaves none of the schedule's 50 steps
            error: invalid value '1.5' for '--label-smoothing <X>': `1.5` is not a number from 0 to below 1
            error: invalid value 'mask' for '--input <NAME=SOURCE>': `mask` is not of the form NAME=SOURCE, such as position_ids=positions
            error: invalid value 'cuda' for '--device <DEVICE>'
            error: invalid value 'dp' for '--mesh <AXIS=SIZE,…>': `dp` is not of the form axis=size, such as dp=2
            error: invalid value 'dp=0' for '--mesh <AXIS=SIZE,…>': axis `dp`: `0` is not a whole number from 1 to 4294967295
            error: invalid value 'dp=two' for '--mesh <AXIS=SIZE,…>': axis `dp`: `two` is not a whole number from 1 to 4294967295
            error: invalid value 'dp=2,,tp=2' for '--mesh <AXIS=SIZE,…>': `` is not of the form axis=size, such as dp=2
            error: invalid value 'dp=2,tp=4,dp=3' for '--mesh <AXIS=SIZE,…>': axis `dp` stands twice: with 2 and with 3 devices; suffixes tell two apart: dp.outer, dp.inner
            error: invalid value 'db=2' for '--mesh <AXIS=SIZE,…>': `db` is no axis; there are dp, tp, pp, ep, cp, each also with a suffix (dp.outer); the nearest is `dp`
            error: invalid value 'tensor=2' for '--mesh <AXIS=SIZE,…>': `tensor` is no axis; there are dp, tp, pp, ep, cp, each also with a suffix (dp.outer); the nearest is `tp`
            error: invalid value 'dp.=2' for '--mesh <AXIS=SIZE,…>': `dp.` is no axis; there are dp, tp, pp, ep, cp, each also with a suffix (dp.outer); the nearest is `dp`
            error: invalid value 'dp.a b=2' for '--mesh <AXIS=SIZE,…>': `dp.a b` is no axis; there are dp, tp, pp, ep, cp, each also with a suffix (dp.outer); the nearest is `dp`
            error: invalid value 'dp=100000,tp=100000' for '--mesh <AXIS=SIZE,…>': the mesh has more than 4294967295 devices
            error: invalid value '4' for '--zero <0..3>': `4` is not 0, 1 (optimizer states are shared), 2 (gradients too) or 3 (parameters too)
            error: invalid value 'on' for '--zero <0..3>': `on` is not 0, 1 (optimizer states are shared), 2 (gradients too) or 3 (parameters too)
            error: invalid value 'w' for '--shard <PATTERN=DIMS>': `w` is not of the form PATTERN=DIMS, such as 'h.*.weight=-,tp'
            error: invalid value '=tp' for '--shard <PATTERN=DIMS>': `=tp` is not of the form PATTERN=DIMS, such as 'h.*.weight=-,tp'
            error: invalid value 'w=tp,,-' for '--shard <PATTERN=DIMS>': `tp,,-` has a dim without an axis; `-` stands for none, as in -,tp
            error: invalid value 'w=tp,dp*tp' for '--shard <PATTERN=DIMS>': axis `tp` stands twice in `tp,dp*tp`
            error: invalid value 'w=-,hidden' for '--shard <PATTERN=DIMS>': `hidden` is no axis; there are dp, tp, pp, ep, cp, each also with a suffix (dp.outer); the nearest is `dp`
            error: invalid value 'fp8' for '--precision <PRECISION>'
            error: invalid value 'f64' for '--grad-dtype <DTYPE>'
        "#]],
    );
}

#[test]
fn an_unknown_flag_names_the_nearest() {
    check_error(
        "compile m.onnx --step 5",
        expect![[r#"
        error: unexpected argument '--step' found

          tip: a similar argument exists: '--steps'

        Usage: trainyard compile --steps <N> <MODEL.onnx>

        For more information, try '--help'.
    "#]],
    );
}

#[test]
fn a_flag_of_another_subcommand_does_not_exist_here() {
    check_error(
        "inspect m.onnx --train t.txt",
        expect![[r#"
        error: unexpected argument '--train' found

          tip: a similar argument exists: '--train-only'

        Usage: trainyard inspect --train-only <PATTERN> <MODEL.onnx|DIR>

        For more information, try '--help'.
    "#]],
    );
}

#[test]
fn steps_and_epochs_exclude_each_other() {
    check_error(
        "compile m.onnx --train t.txt --steps 5 --epochs 1",
        expect![[r#"
        error: the argument '--steps <N>' cannot be used with '--epochs <N>'

        Usage: trainyard compile --train <DATA> --steps <N> <MODEL.onnx>

        For more information, try '--help'.
    "#]],
    );
}

#[test]
fn flags_that_only_training_uses_are_refused_without_it() {
    check_error(
        "compile m.onnx --steps 5 --resume",
        expect![[r#"
        error: --steps, --resume do nothing without --train
          = say what to train on: --train corpus.txt, or --train synthetic to try the model
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
            error: a global batch of 48 is no whole number of microbatches of 20
              = the nearest that is: --global-batch 40 or 60
              = or --microbatch 16 or 24

            error: the schedule ends at 0.01, above the learning rate 0.001
              = min is an absolute rate, not a share of --lr
        "#]],
    );
    check_error(
        "compile m.onnx --train t.txt --steps 10 --lr-schedule cosine:warmup=10",
        expect![[r#"
        error: the warm-up of 10 steps leaves none of the run's 10
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
    assert_eq!(compile("").settings.precision.choice(), PrecisionChoice::Fp32);
    assert_eq!(compile("--fp16").settings.precision.choice(), PrecisionChoice::Fp16);
    let from_file = with_config("precision = \"bf16\"", "--fp16");
    assert_eq!(from_file.precision.choice(), PrecisionChoice::Fp16, "the command line wins");
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
        error: --zero 1 shares states over data ranks, and without --mesh there is no data axis
          = add one: --mesh dp=2; or leave --zero away
    "#]],
    );
    check_error(
        "verify m.onnx --mesh tp=2 --zero 3",
        expect![[r#"
        error: --zero 3 shares states over data ranks, and the mesh tp=2 has no data axis
          = add one: --mesh dp=2; or leave --zero away
    "#]],
    );
    check_error(
        "inspect m.onnx --mesh dp=2 --sequence-parallel",
        expect![[r#"
        error: --sequence-parallel splits over tp, and the mesh dp=2 has no tensor axis
          = add one: --mesh tp=2; or leave --sequence-parallel away
    "#]],
    );
    check_error(
        "compile m.onnx --shard w=tp,-",
        expect![[r#"
        error: --shard 'w=tp,-': without --mesh there is no axis `tp`
          = add it: --mesh tp=2
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
        error: --mesh pp=2: pipeline parallelism is not there yet
          = what can have more than one device is dp and tp; pp=1 may stand

        error: --mesh cp=4: context parallelism is not there yet
          = what can have more than one device is dp and tp; cp=1 may stand
    "#]],
    );
}

#[test]
fn a_global_batch_that_the_data_ranks_cannot_share_names_the_nearest_that_they_can() {
    check_error(
        "compile m.onnx --train t.txt --mesh dp=4 --microbatch 5 --global-batch 48",
        expect![[r#"
        error: a global batch of 48 is no whole number of microbatches of 5 on 4 data ranks
          = the nearest that is: --global-batch 40 or 60
          = or --microbatch 4 or 6
    "#]],
    );
    check_error(
        "compile m.onnx --train t.txt --mesh dp=4 --microbatch 2 --global-batch 6",
        expect![[r#"
        error: a global batch of 6 is no whole number of microbatches of 2 on 4 data ranks
          = the nearest that is: --global-batch 8
    "#]],
    );
    assert_eq!(
        compile("--mesh dp=4,tp=2 --microbatch 2 --global-batch 24").settings.parallel.data_ranks(),
        4
    );
}

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

#[test]
fn numbers_in_a_config_file_may_be_written_in_every_way_of_toml() {
    let config = "train = 'größe.txt'\nmicrobatch = 1_000\nsteps = 0b11\nlr = 1_0.5e-1\nclip = 2";
    let settings = with_config(config, "");
    assert_eq!(settings.shapes.microbatch, Some(1000));
    assert_eq!(settings.run.length(), Length::Steps(3));
    assert_eq!(settings.optimizer.lr, 1.05);
    assert_eq!(settings.optimizer.clip, Some(2.0));
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
    assert_eq!(settings.optimizer.lr, 0.25);
    assert_eq!(settings.optimizer.freeze, ["b"]);
    assert_eq!(settings.seed.seed, 9);
}

#[test]
fn a_config_file_of_a_run_serves_the_other_subcommands() {
    let (_folder, path) = config_file("train = \"corpus.txt\"\nmicrobatch = 4\noptimizer = \"sgd\"");
    for subcommand in ["inspect m.onnx", "verify m.onnx"] {
        let cli = parse(&format!("{subcommand} --config {}", path.display()))
            .unwrap_or_else(|e| panic!("{}", text_of(e)));
        let (shapes, optimizer) = match cli.command {
            Command::Inspect(inspect) => (inspect.shapes, inspect.optimizer),
            Command::Verify(verify) => (verify.shapes, verify.optimizer),
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

            error: `device`: `gpu` is none of auto, cpu
              --> trainyard.toml:10

            error: `clip`: `-1.0` is not a finite number above 0
              --> trainyard.toml:11

            error: `bind`: `batch` is not of the form dim=size, such as batch=8
              --> trainyard.toml:12

            error: `train` wants a string, not the date 2020-01-01
              --> trainyard.toml:13

            error: `optimizer` is a section; a config file has none
              --> trainyard.toml:15
              = write each key at the top of the file, named as its flag: lr = 0.001

            error: `data` is a section; a config file has none
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

#[test]
fn settings_are_written_as_a_config_that_reads_back_equal() {
    for flags in [
        "",
        "--train synthetic --steps 0 --seed 9223372036854775807 --device cpu",
        "--bind a=1,b=2 --microbatch 4 --global-batch 8 --train t.txt --eval e.txt --eval-every 5 --tokenizer bytes \
         --seq 64 --labels-from given --ignore-index=-1 --input a=ones --input b=x/y.npz --epochs 3 --save-every 7 \
         --init normal:std=1e-30 --weights w.safetensors --optimizer adam:beta1=0.123456789012345,eps=1e-300 \
         --lr 0.1 --lr-schedule cosine:warmup=3,min=0.05,steps=17 --weight-decay 0 --decay all --clip 1 --freeze x* \
         --train-only y --train-only z --untied --loss next-token --label-smoothing 0.1",
        "--mesh dp.outer=2,dp.inner=1,tp=4 --zero 3 --sequence-parallel --shard a*=-,dp.outer*tp --shard b==tp --bf16",
        "--precision fp16 --grad-dtype bf16 --mesh tp=1",
        "--optimizer nesterov:momentum=0.8 --lr-schedule linear:warmup=2 --dropout off",
        "--optimizer momentum --init gpt2 --lr-schedule constant:warmup=5 --loss model --dropout 0.25",
    ] {
        let settings = compile(flags).settings;
        let toml = settings.to_toml().unwrap_or_else(|error| panic!("{flags}: {error}"));
        assert_eq!(with_config(&toml, ""), settings, "{flags}\n{toml}");
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
        device = "auto"
    "#]]
    .assert_eq(&settings.to_toml().expect("all paths are UTF-8"));
}

#[test]
fn each_subcommand_has_help_with_examples() {
    for subcommand in ["compile", "inspect", "opt", "verify"] {
        let Err(ParseError::Usage(help)) = parse(&format!("{subcommand} --help")) else {
            panic!("{subcommand}")
        };
        assert!(!help.use_stderr());
        let help = help.render().to_string();
        assert!(help.contains(&format!("trainyard {subcommand} ")), "{help}");
        assert!(help.contains("Examples:"), "{help}");
    }
}

#[test]
fn the_examples_in_the_help_are_accepted() {
    let mut tried = 0;
    for subcommand in ["compile", "inspect", "opt", "verify"] {
        let Err(ParseError::Usage(help)) = parse(&format!("{subcommand} --help")) else {
            panic!("{subcommand}")
        };
        let help = help.render().to_string();
        let examples = help.split("Examples:").nth(1).unwrap_or_default();
        for line in examples.lines().filter_map(|line| line.trim().strip_prefix("trainyard ")) {
            // The example's config file is not there.
            let line = line.replace("--config trainyard.toml", "");
            if let Err(error) = parse(&line) {
                panic!("trainyard {line}\n{}", text_of(error));
            }
            tried += 1;
        }
    }
    assert!(tried >= 12, "only {tried} examples were found");
}
