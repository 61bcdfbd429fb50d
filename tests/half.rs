//! Half precision on the CPU backend: near the interpreter that rounds each value, and near fp32 where a model is trained.

#[allow(dead_code)] // each test file uses a part of it
mod models;
#[path = "run/workplace.rs"]
#[allow(dead_code)] // each test file uses a part of it
mod workplace;

use ir::{DType, Tensor};
use models::{Fixture, adamw, done};
use passes::precision::Precision;
use trainyard::cli::verify::Mode;
use trainyard::pipeline::Plan;
use trainyard::verification::compare::{FLOOR, largest};
use trainyard::verification::execute::Execution;
use trainyard::verification::{Tested, inputs};
use workplace::Workplace;

#[test]
fn gpt2_in_half_is_what_the_interpreter_rounds() {
    check(&models::GPT2_DYNAMO);
}

#[test]
fn llama_in_half_is_what_the_interpreter_rounds() {
    check(&models::LLAMA_DYNAMO);
}

#[test]
fn bert_in_half_is_what_the_interpreter_rounds() {
    check(&models::BERT_DYNAMO);
}

/// The loss is within 1e-3 of the interpreter's, and gradients point where its do.
fn check(fixture: &Fixture) {
    for compute in [DType::BF16, DType::F16] {
        let precision = Precision { compute, ..Precision::default() };
        let plan = Plan { optimizer: adamw(), precision, ..Plan::default() };
        let subject = fixture.compiled(fixture.batch, plan);
        let module = &subject.compilation.training;
        let microbatches = done(inputs::draw(module, 5, 2));
        let [cpu, typed] = [Mode::Cpu, Mode::Typed]
            .map(|mode| done(subject.run(Tested { module, cut: true }, mode, &microbatches)));
        let what = format!("{} in {compute}", fixture.file);
        let [ours, theirs] = [&cpu, &typed].map(|run| run.loss().expect("a step has a loss"));
        assert!((ours - theirs).abs() <= 1e-3 * theirs.abs(), "{what}: a loss of {ours}, not of {theirs}");
        check_gradients(&what, &cpu, &typed);
    }
}

/// Gradients have a cosine of 0.999 at least, but for those that are zero but for rounding.
fn check_gradients(what: &str, cpu: &Execution, typed: &Execution) {
    let is_gradient = |name: &str| name.starts_with("grad.");
    let (cpu, typed) = (cpu.last_outputs(is_gradient), typed.last_outputs(is_gradient));
    assert!(cpu.keys().eq(typed.keys()), "{what}");
    let floor = FLOOR * largest(typed.values());
    let above = || typed.iter().filter(|(_, gradient)| largest([*gradient].into_iter()) > floor);
    assert!(above().count() + 4 >= typed.len() && above().count() > 15, "{what}: little is left to compare");
    for (name, gradient) in above() {
        let cosine = cosine(&cpu[name], gradient);
        assert!(cosine >= 0.999, "{what}: `{name}` has a cosine of {cosine}");
    }
}

fn cosine(a: &Tensor, b: &Tensor) -> f64 {
    let (a, b) = (a.numbers(), b.numbers());
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt()
}

/// The README's model on the README's text, at a rate at which rounding does not grow into another run.
const RUN: &str = "compile testdata/gpt2-bytes.onnx --train testdata/kjv.txt --eval eval.txt --microbatch 4 --steps 200 \
                   --lr 1e-3 --lr-schedule cosine:warmup=20 --optimizer adamw:beta2=0.95 --weight-decay 0.1 --clip 1";

#[test]
#[ignore = "longer"] // three runs of 200 steps
fn a_model_of_bytes_learns_as_much_in_half_precision() {
    let place = Workplace::new();
    place.write("eval.txt", &place.read("testdata/kjv.txt")[..2000]);
    let [plain, bf16, fp16] = ["fp32", "bf16", "fp16"].map(|precision| {
        place.succeed(&format!("{RUN} --precision {precision} -o {precision}"));
        let metrics = place.metrics(precision);
        assert_eq!(metrics.len(), 200);
        let loss = |step: &serde_json::Value| step["loss"].as_f64().expect("a loss");
        assert!(loss(&metrics[199]) < 0.8 * loss(&metrics[0]), "{precision} does not learn");
        let end = metrics[180..].iter().map(loss).sum::<f64>() / 20.0;
        println!("{precision}: {end}");
        end
    });
    for (name, loss) in [("bf16", bf16), ("fp16", fp16)] {
        assert!((loss - plain).abs() <= 0.01 * plain, "{name} ends at {loss}, fp32 at {plain}");
    }
}
