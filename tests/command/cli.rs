//! The command line as a user meets it: the accepted flags, the effect of config files, and the answer to every mistake.

mod completions;
mod config_file;
mod contradictions;
mod groups;

use std::fmt::Write as _;
use std::path::PathBuf;

use data::{DataSource, Source};
use expect_test::{Expect, expect};
use ir::DType;
use passes::initialize::Rule;
use passes::optimizer::schedule::{Curve, Schedule};
use passes::optimizer::{Algorithm, Decay, Moments};
use trainyard::cli::{Cli, Command, Compile, ParseError};
use trainyard::config::{Length, Resume, Settings};
use trainyard::diagnostics::{Severity, render};

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
        Ok(Cli { command: Command::Compile(compile), .. }) => *compile,
        Ok(other) => panic!("not a compile: {other:?}"),
        Err(error) => panic!("{}", text_of(error)),
    }
}

/// The text that the user reads.
fn text_of(error: ParseError) -> String {
    match error {
        ParseError::Usage(error) => error.render().to_string(),
        ParseError::Settings(errors) | ParseError::Rules(errors) => render(Severity::Error, &errors, false),
    }
}

fn check_error(arguments: &str, expected: Expect) {
    let error = parse(arguments).expect_err("the command line is wrong");
    expected.assert_eq(&text_of(error));
}

/// Checks the first line of the error for each of many wrong values.
fn check_errors(all_arguments: &[&str], expected: Expect) {
    let mut text = String::new();
    for arguments in all_arguments {
        let error = parse(&format!("compile m.onnx {arguments}")).expect_err(arguments);
        let _ = writeln!(text, "{}", text_of(error).lines().next().unwrap_or_default());
    }
    expected.assert_eq(&text);
}

/// A config file in a folder of its own. The folder exists as long as the first half of the result.
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
    assert_eq!(settings.compile.optimizer.optimizer, Algorithm::ADAMW);
    assert_eq!(settings.compile.optimizer.decay, Decay::Matrices);
    assert_eq!(settings.compile.optimizer.weight_decay(), 0.01);
    assert_eq!(settings.run.length(), Length::Epochs(1));
    assert_eq!(settings.compile.seed.seed, 0);
    assert!(settings.compile.shapes.bindings().is_empty());
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
    let bindings: Vec<_> = settings.compile.shapes.bindings().into_iter().collect();
    assert_eq!(bindings, [("batch".to_owned(), 8), ("seq".to_owned(), 128)]);
    assert_eq!(settings.data.train, Some(DataSource::Synthetic));
    assert_eq!(settings.run.resume, Some(Resume::Folder("old".into())));
    assert_eq!(settings.run.length(), Length::Steps(600));
    assert_eq!(settings.compile.init.init, Some(Rule::Normal { std: 0.5 }));
    assert_eq!(
        settings.compile.optimizer.optimizer,
        Algorithm::Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8, decoupled: false, moments: Moments::Full }
    );
    assert_eq!(settings.compile.optimizer.weight_decay(), 0.0);
    let schedule = Schedule { curve: Curve::Cosine, warmup: 20, min: 1e-4, steps: 600, decay: 0 };
    assert_eq!(settings.compile.optimizer.lr_schedule, schedule);
    assert_eq!(settings.compile.optimizer.freeze, ["wte*", "wpe*"]);
    assert_eq!(settings.compile.loss.ignore_index, Some(-1));
    let sources: Vec<_> = settings.data.input.into_iter().map(|input| input.source).collect();
    let file = Source::File("data/y.npz".into());
    assert_eq!(sources, [Source::Ones, Source::Positions, Source::Key("pixels".into()), file]);
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
            "--tokenizer=",
            "--seed -1",
            "--init xavier",
            "--init normal",
            "--init normal:sdt=1",
            "--init gpt2:std=1",
            "--optimizer rmsprop",
            "--optimizer sgd:beta1=0.9",
            "--optimizer adam:beta1=1",
            "--optimizer adam:moments=f16",
            "--optimizer adamw:moments=bf16,beta2=0.999",
            "--optimizer adafactor:relative=yes",
            "--optimizer adafactor:clip-threshold=0",
            "--optimizer lion:eps=1",
            "--optimizer adam:beta1",
            "--optimizer adam:beta1=0.5,beta1=0.5",
            "--optimizer adam:eps=0",
            "--optimizer nesterov:momentum=0",
            "--optimizer adagrad:momentum=0.9",
            "--lr NaN",
            "--lr=-1",
            "--clip 0",
            "--lr-schedule step",
            "--lr-schedule constant:min=0.1",
            "--lr-schedule linear:warmup=50,steps=50",
            "--lr-schedule cosine:decay=5",
            "--lr-schedule wsd:warmup=5,decay=6,steps=10",
            "--label-smoothing 1.5",
            "--input mask",
            "--device tpu",
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
            error: invalid value '' for '--tokenizer <FILE|bytes>': the name of the tokenizer is empty; give a tokenizer.json, or `bytes`
            error: invalid value '-1' for '--seed <N>': `-1` is not a whole number from 0 to 9223372036854775807
            error: invalid value 'xavier' for '--init <RULE>': `xavier` is not a rule for new weights; there are gpt2, kaiming, normal:std=X
            error: invalid value 'normal' for '--init <RULE>': `normal` is not a rule for new weights; `normal` has a standard deviation: normal:std=0.02
            error: invalid value 'normal:sdt=1' for '--init <RULE>': `normal:sdt=1` is not a rule for new weights; `normal` has a standard deviation: normal:std=0.02
            error: invalid value 'gpt2:std=1' for '--init <RULE>': `gpt2:std=1` is not a rule for new weights; there are gpt2, kaiming, normal:std=X
            error: invalid value 'rmsprop' for '--optimizer <NAME[:KEY=X,…]>': `rmsprop` is not a optimizer; there are sgd, momentum, nesterov, adagrad, adafactor, lion, adam, adamw
            error: invalid value 'sgd:beta1=0.9' for '--optimizer <NAME[:KEY=X,…]>': `sgd` has no setting `beta1`; it has momentum
            error: invalid value 'adam:beta1=1' for '--optimizer <NAME[:KEY=X,…]>': beta1: `1` is not a number from 0 to below 1
            error: invalid value 'adam:moments=f16' for '--optimizer <NAME[:KEY=X,…]>': moments: `f16` is not one of f32, bf16, 8bit
            error: invalid value 'adamw:moments=bf16,beta2=0.999' for '--optimizer <NAME[:KEY=X,…]>': beta2 is 0.999; moments of bf16 are rounded to 8 bits, and stay as they are with a beta2 above 0.99609375; give a smaller beta2, such as 0.95, or moments=f32
            error: invalid value 'adafactor:relative=yes' for '--optimizer <NAME[:KEY=X,…]>': relative: `yes` is not one of on, off
            error: invalid value 'adafactor:clip-threshold=0' for '--optimizer <NAME[:KEY=X,…]>': clip-threshold: `0` is not a finite number above 0
            error: invalid value 'lion:eps=1' for '--optimizer <NAME[:KEY=X,…]>': `lion` has no setting `eps`; it has beta1, beta2
            error: invalid value 'adam:beta1' for '--optimizer <NAME[:KEY=X,…]>': `beta1` in `adam:beta1` is not of the form key=value
            error: invalid value 'adam:beta1=0.5,beta1=0.5' for '--optimizer <NAME[:KEY=X,…]>': `beta1` is given twice in `adam:beta1=0.5,beta1=0.5`
            error: invalid value 'adam:eps=0' for '--optimizer <NAME[:KEY=X,…]>': eps: `0` is not a finite number above 0
            error: invalid value 'nesterov:momentum=0' for '--optimizer <NAME[:KEY=X,…]>': nesterov's rule needs a momentum above 0
            error: invalid value 'adagrad:momentum=0.9' for '--optimizer <NAME[:KEY=X,…]>': `adagrad` has no setting `momentum`; it has eps
            error: invalid value 'NaN' for '--lr <X>': `NaN` is not a finite number, 0 or more
            error: invalid value '-1' for '--lr <X>': `-1` is not a finite number, 0 or more
            error: invalid value '0' for '--clip <X>': `0` is not a finite number above 0
            error: invalid value 'step' for '--lr-schedule <NAME[:KEY=X,…]>': `step` is not a schedule; there are constant, linear, cosine, wsd
            error: invalid value 'constant:min=0.1' for '--lr-schedule <NAME[:KEY=X,…]>': `constant` has no setting `min`; it has warmup
            error: invalid value 'linear:warmup=50,steps=50' for '--lr-schedule <NAME[:KEY=X,…]>': the warm-up of 50 steps is as long as the schedule's 50 steps or longer
            error: invalid value 'cosine:decay=5' for '--lr-schedule <NAME[:KEY=X,…]>': `cosine` has no setting `decay`; it has warmup, min, steps
            error: invalid value 'wsd:warmup=5,decay=6,steps=10' for '--lr-schedule <NAME[:KEY=X,…]>': a warm-up of 5 steps and a decay of 6 steps do not fit into the schedule's 10 steps
            error: invalid value '1.5' for '--label-smoothing <X>': `1.5` is not a number from 0 to below 1
            error: invalid value 'mask' for '--input <NAME=SOURCE>': `mask` is not of the form NAME=SOURCE, such as position_ids=positions
            error: invalid value 'tpu' for '--device <DEVICE>'
            error: invalid value 'dp' for '--mesh <AXIS=SIZE,…>': `dp` is not of the form axis=size, such as dp=2
            error: invalid value 'dp=0' for '--mesh <AXIS=SIZE,…>': axis `dp`: `0` is not a whole number from 1 to 4294967295
            error: invalid value 'dp=two' for '--mesh <AXIS=SIZE,…>': axis `dp`: `two` is not a whole number from 1 to 4294967295
            error: invalid value 'dp=2,,tp=2' for '--mesh <AXIS=SIZE,…>': `` is not of the form axis=size, such as dp=2
            error: invalid value 'dp=2,tp=4,dp=3' for '--mesh <AXIS=SIZE,…>': axis `dp` is given twice: with 2 and with 3 devices; suffixes distinguish two axes: dp.outer, dp.inner
            error: invalid value 'db=2' for '--mesh <AXIS=SIZE,…>': `db` is not an axis; axes are dp, tp, pp, ep, cp, each also with a suffix (dp.outer); the nearest is `dp`
            error: invalid value 'tensor=2' for '--mesh <AXIS=SIZE,…>': `tensor` is not an axis; axes are dp, tp, pp, ep, cp, each also with a suffix (dp.outer); the nearest is `tp`
            error: invalid value 'dp.=2' for '--mesh <AXIS=SIZE,…>': `dp.` is not an axis; axes are dp, tp, pp, ep, cp, each also with a suffix (dp.outer); the nearest is `dp`
            error: invalid value 'dp.a b=2' for '--mesh <AXIS=SIZE,…>': `dp.a b` is not an axis; axes are dp, tp, pp, ep, cp, each also with a suffix (dp.outer); the nearest is `dp`
            error: invalid value 'dp=100000,tp=100000' for '--mesh <AXIS=SIZE,…>': the mesh has more than 4294967295 devices
            error: invalid value '4' for '--zero <0..3>': `4` is not a ZeRO stage: 0, 1 (optimizer states are sharded), 2 (gradients too) or 3 (parameters too)
            error: invalid value 'on' for '--zero <0..3>': `on` is not a ZeRO stage: 0, 1 (optimizer states are sharded), 2 (gradients too) or 3 (parameters too)
            error: invalid value 'w' for '--shard <PATTERN=DIMS>': `w` is not a sharding; write PATTERN=DIMS, such as 'h.*.weight=-,tp'
            error: invalid value '=tp' for '--shard <PATTERN=DIMS>': `=tp` is not a sharding; write PATTERN=DIMS, such as 'h.*.weight=-,tp'
            error: invalid value 'w=tp,,-' for '--shard <PATTERN=DIMS>': `tp,,-` has an empty dim; write `-` for a dim that no axis splits, such as -,tp
            error: invalid value 'w=tp,dp*tp' for '--shard <PATTERN=DIMS>': axis `tp` is given twice in `tp,dp*tp`
            error: invalid value 'w=-,hidden' for '--shard <PATTERN=DIMS>': `hidden` is not an axis; axes are dp, tp, pp, ep, cp, each also with a suffix (dp.outer); the nearest is `dp`
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

              tip: a similar argument exists: '--train-also'

            Usage: trainyard inspect --train-also <PATTERN> <MODEL.onnx|DIR>

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
fn each_subcommand_has_help_with_examples() {
    for subcommand in ["compile", "inspect", "opt", "verify", "completions"] {
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
    for subcommand in ["compile", "inspect", "opt", "verify", "completions"] {
        let Err(ParseError::Usage(help)) = parse(&format!("{subcommand} --help")) else {
            panic!("{subcommand}")
        };
        let help = help.render().to_string();
        let examples = help.split("Examples:").nth(1).unwrap_or_default();
        for line in examples.lines().filter_map(|line| line.trim().strip_prefix("trainyard ")) {
            // The example's config file does not exist here.
            let line = line.replace("--config trainyard.toml", "");
            // The shell handles the redirection of the output to a file.
            let line = line.split(" > ").next().unwrap_or_default();
            if let Err(error) = parse(line) {
                panic!("trainyard {line}\n{}", text_of(error));
            }
            tried += 1;
        }
    }
    assert!(tried >= 12, "only {tried} examples were found");
}
