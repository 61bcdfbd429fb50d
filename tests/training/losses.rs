//! Losses in the model's file, compared with PyTorch's on the whole batch: in any microbatches, on ranks, with any number of labels in
//! them.

use crate::TRAINYARD;
use expect_test::expect;
use testing::models::losses::{check_losses, losses, machine, numbers, optimizers};
use testing::models::{self, Fixture, adamw, done, path, split};
use testing::records;
use testing::workplace::Workplace;
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::Mode;
use trainyard::verification::{Subject, against};

#[test]
fn a_clamped_mask_trains_as_in_pytorch_in_any_microbatches_and_on_ranks() {
    check(&models::CLAMPED_LOSS, false);
}

/// The mean of losses divided by the mean of a mask equals the sum divided by the sum.
#[test]
fn a_quotient_of_means_trains_as_in_pytorch_in_any_microbatches_and_on_ranks() {
    check(&models::QUOTIENT_LOSS, false);
}

#[test]
fn losses_with_counts_of_their_own_train_as_in_pytorch_in_any_microbatches_and_on_ranks() {
    check(&models::PARTED_LOSS, true);
}

#[test]
fn a_sum_over_samples_trains_as_in_pytorch_in_any_microbatches_and_on_ranks() {
    check(&models::SUMMED_LOSS, false);
}

#[test]
fn a_sum_divided_by_the_batch_trains_as_in_pytorch_in_any_microbatches_and_on_ranks() {
    check(&models::BATCH_LOSS, false);
}

#[test]
fn losses_that_are_means_train_as_in_pytorch_in_any_microbatches_and_on_ranks() {
    check(&models::JOINED_LOSS, true);
}

/// Ranks share a microbatch, so a loss of any form is that of the whole batch. Several microbatches get a warning.
#[test]
fn a_loss_of_unknown_form_is_exact_in_one_microbatch_on_ranks() {
    let fixture = &models::ROOT_LOSS;
    for mesh in ["", "mesh=dp:2"] {
        let spmd = if mesh.is_empty() { Default::default() } else { split(mesh) };
        let subject =
            fixture.compiled(8, CompilationPlan { optimizer: adamw(), spmd, ..CompilationPlan::default() });
        assert_eq!(subject.compilation.doubt(1), None);
        assert!(subject.compilation.doubt(2).is_some());
        check_step(fixture, &subject, 1);
    }
}

#[test]
fn compile_says_what_is_minimised_and_warns_of_microbatches_that_do_not_make_it() {
    let place = Workplace::new(TRAINYARD);
    let told = |model: &str, flags: &str| {
        let ended =
            place.succeed(&format!("compile testdata/models/{model}.dynamo.onnx {flags} --force -o run"));
        let about = |line: &&str| !line.contains(" parameters in ") && !line.starts_with("memory: ");
        ended.stderr.lines().filter(about).collect::<Vec<_>>().join("\n")
    };
    expect![[r#"
        trained: 4 of the 9 float tensors that the model reads; 4 by the exporter's list of parameters; not trained: 5 by the exporter's list of parameters
        loss: output `loss` (its name): cross-entropy (mean over the labels that count) (`ce`) + 0.1 · sum / weight from the data (`mse`) + a term of parameters alone"#]].assert_eq(&told("parted-loss", "--microbatch 2 --global-batch 8"));
    expect![[r#"
        mesh: dp=2, 2 ranks as threads, 1 x 8 samples each
        trained: 4 of the 4 float tensors that the model reads; 4 by the exporter's list of parameters
        loss: output `loss` (its name): a value of another form"#]]
    .assert_eq(&told("root-loss", "--microbatch 8 --mesh dp=2"));
    expect![[r#"
        warning: the loss `loss` of several microbatches may differ from the loss of the whole batch
          = it is not a sum or a mean over the samples, and not a quotient of such sums
          = the losses of microbatches are averaged, and terms that are sums are added
          = a single microbatch is exact: set --microbatch to the whole global batch, on as many data ranks as needed
        trained: 4 of the 4 float tensors that the model reads; 4 by the exporter's list of parameters
        loss: output `loss` (its name): a value of another form"#]]
    .assert_eq(&told("root-loss", "--microbatch 2 --global-batch 8"));
}

#[test]
fn a_step_reports_the_other_scalars_of_the_model() {
    let place = Workplace::new(TRAINYARD);
    let flags = "--train synthetic --microbatch 2 --global-batch 8 --steps 2 -o run";
    place.succeed(&format!("compile testdata/models/parted-loss.dynamo.onnx {flags}"));
    for line in place.metrics("run") {
        let [loss, ce, mse] = ["loss", "ce", "mse"].map(|key| line[key].as_f64().expect("a number"));
        assert!(ce > 0.0 && mse > 0.0 && loss > ce + 0.1 * mse, "{line}");
    }
}

/// The sum and the weight of a loss are on the stages that compute them.
#[test]
fn an_evaluation_in_stages_has_the_loss_of_one_device() {
    let place = Workplace::new(TRAINYARD);
    let before = |model: &str, data: &str, mesh: &str| {
        let flags = format!(
            "--train {data} --eval {data} --microbatch 4 --global-batch 8 --steps 0 --force -o run {mesh}"
        );
        let ended = place.succeed(&format!("compile testdata/models/{model}.dynamo.onnx {flags}"));
        let line = ended.stderr.lines().find_map(|line| line.strip_prefix("before step 0: eval loss "));
        line.and_then(|loss| loss.parse::<f64>().ok())
            .unwrap_or_else(|| panic!("{model} {mesh}: {}", ended.stderr))
    };
    let pipelines = ["--mesh pp=2", "--mesh pp=2,dp=2 --schedule gpipe", "--mesh pp=3 --schedule 1f1b"];
    // PyTorch's number for 14 samples.
    for mesh in ["", pipelines[0], pipelines[1]] {
        let loss = before("joined-loss", "testdata/models/joined-loss.eval.npz", mesh);
        assert!((loss - 1.717187).abs() < 2e-6, "{mesh}: {loss}");
    }
    for model in ["parted-loss", "clamped-loss", "quotient-loss", "smoothed-loss", "summed-loss"] {
        let fields = records::fields(model).expect("samples are lines");
        place.write("data.jsonl", records::lines(&fields, 22, 3).as_bytes());
        let whole = before(model, "data.jsonl", "");
        for mesh in pipelines {
            let loss = before(model, "data.jsonl", mesh);
            assert!((loss - whole).abs() < 2e-6, "{model} {mesh}: {loss}, not {whole}");
        }
    }
}

#[test]
fn an_evaluation_reports_the_loss_without_label_smoothing() {
    let place = Workplace::new(TRAINYARD);
    let flags = "compile testdata/models/mlp.dynamo.onnx --init kaiming --train testdata/digits.csv.gz \
                 --eval testdata/digits.csv.gz --microbatch 64 --steps 1 --lr 0";
    for (run, more) in
        [("plain", ""), ("smoothed", "--label-smoothing 0.3"), ("split", "--label-smoothing 0.3 --mesh tp=2")]
    {
        place.succeed(&format!("{flags} {more} -o {run}"));
    }
    let number = |run: &str, key: &str| place.metrics(run)[0][key].as_f64().expect("a number");
    for run in ["smoothed", "split"] {
        assert!((number(run, "eval_loss") - number("plain", "eval_loss")).abs() < 1e-6);
        assert!((number(run, "loss") - number("plain", "loss")).abs() > 1e-2);
    }
}

#[test]
fn a_prediction_is_compared_with_labels_of_its_shape() {
    let place = Workplace::new(TRAINYARD);
    for loss in ["mse", "bce"] {
        let flags = format!("--loss {loss} --train synthetic --microbatch 8 --steps 30 --lr 1e-2 -o {loss}");
        let ended = place.succeed(&format!("compile testdata/models/mlp.dynamo.onnx {flags}"));
        assert!(ended.stderr.contains("output `logits` and the labels"), "{}", ended.stderr);
        let config = String::from_utf8(place.read(&format!("{loss}/config.toml"))).expect("text");
        assert!(config.contains(&format!("loss = \"{loss}\"")), "{config}");
        place.succeed(&format!("verify testdata/models/mlp.dynamo.onnx --loss {loss} --mode cpu"));
    }
}

/// Further scalars are reported over the whole batch, and are not trained.
#[test]
fn the_parts_of_a_loss_are_reported_over_all_microbatches() {
    let fixture = &models::PARTED_LOSS;
    let text = std::fs::read_to_string(path("parted-loss.train.json")).expect("the fixture is there");
    let json: serde_json::Value = serde_json::from_str(&text).expect("the fixture is JSON");
    for batch in [8, 4, 2, 1] {
        let subject = fixture.subject(batch, adamw());
        let numbers = numbers(fixture, &subject, "train");
        let module = &subject.compilation.training;
        let label = done(against::label_name(module));
        let inputs = done(against::microbatches(module, &numbers, label.as_deref()));
        assert_eq!(inputs.len() as u64, 8 / batch);
        let step = done(machine(module, Mode::Exact, inputs.len(), &subject.start).step(&inputs));
        for (name, expected) in ["metric.ce", "metric.mse"].iter().zip(json["parts_f64"].as_array().unwrap())
        {
            let apart = (step.outputs[*name][0].item() - expected.as_f64().unwrap()).abs();
            assert!(apart < 1e-9, "{name} in {} microbatches is {apart:e} off", 8 / batch);
        }
    }
}

/// Checks that losses, and the gradients of the step, are PyTorch's of the whole batch, within 1e-6. `classes`: whether the loss has
/// several classes.
fn check(fixture: &Fixture, classes: bool) {
    for batch in [8, 4, 2, 1] {
        for mesh in ["", "mesh=dp:2"] {
            if mesh.contains("dp") && batch == 1 {
                continue;
            }
            let plan = |whole: bool| {
                let mut plan = CompilationPlan { optimizer: adamw(), ..CompilationPlan::default() };
                plan.autodiff.whole = whole;
                if !mesh.is_empty() {
                    plan.spmd = split(mesh);
                }
                plan
            };
            let subject = fixture.compiled(batch, plan(false));
            assert_eq!(subject.compilation.doubt(4), None);
            assert_eq!(subject.compilation.training.output("loss.1.sum").is_some(), classes);
            check_step(fixture, &subject, 8 / batch);
            if batch == 8 {
                check_step(fixture, &fixture.compiled(batch, plan(true)), 1);
            }
        }
    }
}

fn check_step(fixture: &Fixture, subject: &Subject, microbatches: u64) {
    let numbers = numbers(fixture, subject, "train");
    for mode in [Mode::Exact, Mode::On(cpu::TARGET)] {
        let outcome = done(against::run(subject, &numbers, mode));
        assert_eq!(outcome.microbatches.len() as u64, microbatches);
        let bound = if mode == Mode::Exact { fixture.bounds.gradients } else { fixture.bounds.gradients_cpu };
        assert!(outcome.differences.len() > 3);
        for difference in &outcome.differences {
            let what = format!("{} in {microbatches} microbatches, mode {}", fixture.file, mode.name());
            assert!(difference.error <= bound, "{what}: {difference:?}");
        }
    }
    for (name, _, bounds) in optimizers(&fixture.bounds, Mode::Exact).into_iter().take(1) {
        check_losses(fixture, subject, Mode::Exact, &format!("losses_{name}_f64"), bounds);
        // An f32 number has seven digits.
        let key = format!("losses_{name}_f32");
        let largest = losses(fixture, &key).into_iter().fold(1.0, f64::max);
        check_losses(fixture, subject, Mode::On(cpu::TARGET), &key, [1e-6 * largest; 2]);
    }
}
