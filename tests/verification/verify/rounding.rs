//! Numbers that differ between correct programs: biases that a batch norm cancels, half precision at kinks, steps that fp16 skips, and
//! weights in half precision.

use ir::{At, Builder, DType, Module, Phase};
use passes::Manager;
use passes::precision::Precision;
use testing::models::{self, Fixture, adamw, done};
use testing::testdata;
use testing::verification::{passing, verify};
use trainyard::pipeline::CompilationPlan;
use trainyard::verification::Mode;
use trainyard::verification::compare::{Difference, Kind};
use trainyard::verification::report::Report;
use trainyard::verification::rounding::{RoundedTo, Rounding};
use trainyard::verification::{Subject, Tested, inputs};

/// Convolutions with biases, each before a batch norm, ReLUs and a max pooling.
const CONVOLUTIONS: Fixture =
    Fixture { file: "../verify/convolutions", bindings: &[], parameters: 10, ..models::RESNET_TRAINMODE };

fn gradient<'a>(report: &'a Report, name: &str) -> &'a Difference {
    let is_it = |difference: &&Difference| difference.kind == Kind::Gradient && difference.name == name;
    report.differences.iter().find(is_it).expect("it is compared")
}

#[test]
fn biases_that_a_batch_norm_cancels_are_compared_with_rounding() {
    let convolutions = testdata("verify/convolutions.onnx");
    for flags in ["--mode cpu", "--mode cpu --optimizer adagrad"] {
        let report = passing(&convolutions, flags);
        for bias in ["0.bias", "4.bias"] {
            let bias = gradient(&report, bias);
            assert!(bias.error > report.tolerance, "{report}");
            assert!(bias.rounding.expect("rounding was measured").is_all, "{report}");
        }
        assert_eq!(report.explained(), 2, "{report}");
        assert!(report.to_string().contains("zero except for rounding, which causes"), "{report}");
        assert!(
            report.to_string().ends_with("above 1e-5, except 2 errors that rounding alone explains\n"),
            "{report}"
        );
    }
    // A tolerance that the user gives is used unchanged.
    let report = done(verify(&convolutions, "--mode cpu --tolerance 1e-5"));
    assert!(!report.passed && report.explained() == 0, "{report}");
    // In f64 there is almost no rounding, and none is measured.
    let report = passing(&convolutions, "");
    assert!(report.differences.iter().all(|difference| difference.rounding.is_none()), "{report}");
    // PyTorch's numbers are f32 here.
    let numbers = testdata("verify/convolutions.npz");
    let report = passing(&convolutions, &format!("--against {}", numbers.display()));
    assert!(gradient(&report, "0.bias").error > report.tolerance, "{report}");
}

/// All other numbers have the tolerance of f32.
#[test]
fn moments_in_fewer_digits_are_compared_with_the_rounding_of_their_own_type() {
    let model = testdata("models/gpt2.dynamo.onnx");
    for mode in ["cpu", "typed"] {
        let report = passing(&model, &format!("--mode {mode} --optimizer adamw:moments=bf16"));
        let above = |difference: &&Difference| difference.error > report.tolerance;
        let rounded: Vec<&Difference> = report.differences.iter().filter(above).collect();
        assert_eq!(report.tolerance, 1e-5, "{report}");
        assert!(rounded.len() > 20 && rounded.iter().all(|one| one.kind == Kind::Optimizer), "{report}");
        assert!(rounded.iter().all(|one| one.error < 1.0 / 256.0), "{report}");
        passing(&model, &format!("--mode {mode} --optimizer adamw:moments=8bit"));
    }
}

#[test]
fn half_precision_at_kinks_is_compared_with_rounding() {
    for flags in ["--bf16 --mode cpu", "--fp16 --mode cpu", "--bf16 --mode typed", "--fp16 --mode typed"] {
        let report = passing(&testdata("verify/convolutions.onnx"), flags);
        let weight = gradient(&report, "0.weight");
        assert!(weight.error > report.tolerance, "{report}");
        assert!(!weight.rounding.expect("rounding was measured").is_all, "{report}");
    }
}

/// The differences of a program whose reported gradient of one tensor is multiplied by `factor`, after rounding has explained some.
fn with_wrong_gradient(name: &str, factor: f64, compute: DType, tolerance: f64) -> Vec<Difference> {
    let (source, plan) = CONVOLUTIONS.source(CONVOLUTIONS.batch, adamw());
    let plan = CompilationPlan { precision: Precision { compute, ..Precision::default() }, ..plan };
    let compilation = done(Subject::compile(&source, plan.clone(), &Manager::default(), |_, _, _| {}));
    let subject = done(Subject::new(plan, compilation, 0, Default::default()));
    let microbatches = done(inputs::draw(&subject.compilation.forward, 0, 1));
    let reference = done(subject.reference(&source));
    let expected = done(subject.run_reference(&reference, &microbatches));
    let mut module = subject.compilation.training.clone();
    multiply_output(&mut module, &format!("grad.{name}"), factor);
    let tested = Tested { module: &module, cut: true };
    let execution = done(subject.run(tested, Mode::On(cpu::TARGET), &microbatches));
    let mut differences = done(subject.compare(&execution, true, (&reference, &expected)));
    let mut rounding = Rounding::new(&source, &subject, &microbatches, RoundedTo::Asked);
    done(rounding.explain(&mut differences, tolerance, |difference| difference.name.clone()));
    differences
}

fn multiply_output(module: &mut Module, name: &str, factor: f64) {
    let at = module.outputs.iter().position(|output| output.name == name).expect("it is trained");
    let mut b = Builder::new(module, "test");
    b.at(At::End(Phase::Update));
    let gradient = b.module().outputs[at].value;
    let wrong = b.build(gradient * factor).expect("a gradient is a float");
    b.tables().outputs[at].value = wrong;
    b.finish();
}

#[test]
fn rounding_does_not_explain_a_wrong_gradient() {
    let fails = |name: &str, differences: &[Difference], tolerance: f64| {
        let is_it = |one: &&Difference| one.kind == Kind::Gradient && one.name == name;
        differences.iter().find(is_it).expect("it is compared").fails(tolerance)
    };
    for (name, compute, factor, tolerance) in [
        ("0.weight", DType::F32, 1.001, 1e-5),
        ("1.weight", DType::F32, 1.001, 1e-5),
        ("0.weight", DType::BF16, -1.0, 5e-2),
        // The gradient of the bias is zero but for rounding; here it is wrong by the size of other gradients.
        ("0.bias", DType::F32, 1e5, 1e-5),
    ] {
        let differences = with_wrong_gradient(name, factor, compute, tolerance);
        assert!(fails(name, &differences, tolerance), "{name} in {compute}: {differences:?}");
        let others = differences.iter().filter(|one| one.kind == Kind::Gradient && one.name != name);
        assert!(others.into_iter().all(|one| !one.fails(tolerance)), "{name} in {compute}: {differences:?}");
    }
}

#[test]
fn fp16_takes_a_loss_scale_at_which_no_gradient_overflows() {
    // At the first scale of a run, 65536, the gradients overflow.
    let report = passing(&testdata("models/resnet.legacy-trainmode.onnx"), "--fp16 --mode cpu");
    assert_eq!(report.smaller_loss_scale, Some(32768.0), "{report}");
    assert!(!report.overflows);
    assert!(
        report.to_string().contains("loss scale 32768: the gradients overflow f16 at a larger loss scale"),
        "{report}"
    );
    let report = passing(&testdata("models/mlp.dynamo.onnx"), "--fp16 --mode cpu");
    assert_eq!(report.smaller_loss_scale, None, "{report}");
}

#[test]
fn models_with_weights_in_half_are_verified_in_every_mode() {
    for model in ["verify/bf16.onnx", "models/gpt2-fp16.dynamo.onnx"] {
        for flags in
            ["", "--mode typed", "--mode cpu", "--mode cpu --bf16", "--mode cpu --optimizer momentum"]
        {
            passing(&testdata(model), flags);
        }
    }
}
