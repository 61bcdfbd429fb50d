//! Compares every optimizer and schedule with PyTorch's numbers (`testdata/optimizers.json`, made by
//! `testdata/scripts/make_optimizer_reference.py`), and checks groups of parameters.

use ir::interp::{self, Missing, Mode};
use ir::{DType, Diagnostic, Module, Tensor};
use passes::optimizer::Algorithm;
use passes::optimizer::schedule::Curve;
use passes::{Manager, PassContext, Pipeline};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A step whose gradients are its inputs.
const PROGRAM: &str = r#"trainyard-ir 1
module @given training {
  state @w : f64[3, 4] parameter = zeros
  state @b : f64[4] parameter = zeros
  func @train(%0 "w" : f64[3, 4], %1 "b" : f64[4], %2 = @w, %3 = @b) {
    %4 = accumulate %0 : f64[3, 4] !{update}
    %5 = accumulate %1 : f64[4] !{update}
    %6 = reduce %5 {kind = sum, dims = [0], keep = false} : f64[] !{update}
  }
  output "loss" = %6
  output "grad.w" = %4
  output "grad.b" = %5
}
"#;

fn with_optimizer(pass: &str) -> Result<Module, Vec<Diagnostic>> {
    with_optimizer_of(PROGRAM, pass)
}

/// Returns a program with an optimizer.
pub(crate) fn with_optimizer_of(program: &str, pass: &str) -> Result<Module, Vec<Diagnostic>> {
    let mut module = ir::text::parse(program).expect("the text is a program");
    let pipeline: Pipeline = pass.parse().map_err(|error| vec![Diagnostic::new(error)])?;
    let ran = Manager::default().run(&pipeline, &mut module, &mut PassContext::default(), |_, _, _| {});
    ran.map(|_| module).map_err(|failure| failure.diagnostics)
}

fn reference() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/optimizers.json");
    let text = std::fs::read_to_string(path).expect("the numbers are there");
    serde_json::from_str(&text).expect("they are JSON")
}

fn numbers(value: &Value) -> Vec<f64> {
    let numbers = value.as_array().expect("a list").iter();
    numbers.map(|number| number.as_f64().expect("a number")).collect()
}

fn tensor(name: &str, values: &Value) -> Tensor {
    let sizes = if name == "w" { vec![3, 4] } else { vec![4] };
    Tensor::float(DType::F64, sizes, numbers(&values[name]))
}

#[track_caller]
fn near(what: &str, given: &[f64], expected: &[f64]) {
    assert_eq!(given.len(), expected.len(), "{what}");
    for (given, expected) in given.iter().zip(expected) {
        assert!(
            (given - expected).abs() <= 1e-13 * expected.abs().max(1.0),
            "{what}: {given}, not {expected}"
        );
    }
}

/// Runs the steps of one run, and compares its rates and parameters.
fn compare(run: &Value, reference: &Value) {
    let pass = run["pass"].as_str().expect("a pass");
    let module = with_optimizer(pass).unwrap_or_else(|errors| panic!("{pass}: {errors:?}"));
    let mut states = interp::initial_states(&module, 0, Missing::Refuse).expect("they are zeros");
    for name in ["w", "b"] {
        states.insert(module.state(name).expect("a parameter"), tensor(name, &reference["initial"]));
    }
    let recorded = numbers(&reference["recorded"]);
    let mut compared = 0;
    for (step, gradients) in reference["gradients"].as_array().expect("a list").iter().enumerate() {
        let inputs: BTreeMap<String, Tensor> =
            ["w", "b"].map(|name| (name.to_string(), tensor(name, gradients))).into();
        let outputs = interp::step(&module, Mode::Exact, &mut states, &[inputs]).expect("the program runs");
        near(
            &format!("{pass}: rate of step {step}"),
            &[outputs["lr"][0].item()],
            &numbers(&run["rates"])[step..=step],
        );
        let Some(at) = recorded.iter().position(|&recorded| recorded == step as f64) else { continue };
        for name in ["w", "b"] {
            let given = states[&module.state(name).expect("a parameter")].floats().to_vec();
            near(
                &format!("{pass}: {name} after step {step}"),
                &given,
                &numbers(&run["parameters"][at][name]),
            );
            compared += 1;
        }
    }
    assert_eq!(compared, 6, "{pass}");
}

#[test]
fn every_optimizer_and_schedule_steps_as_pytorchs_do() {
    let reference = reference();
    let runs = reference["runs"].as_array().expect("a list");
    let passes: Vec<&str> = runs.iter().filter_map(|run| run["pass"].as_str()).collect();
    // PyTorch has no Lion, and its Adafactor differs: `less_state.rs` tests both.
    let others = ["lion", "adafactor"];
    for name in Algorithm::ALL.map(|(_, name)| name).iter().filter(|name| !others.contains(name)) {
        assert!(passes.iter().any(|pass| pass.contains(&format!("({name},"))), "no run of {name}");
    }
    for name in Curve::ALL.iter().filter(|(curve, _)| *curve != Curve::Constant).map(|(_, name)| name) {
        assert!(passes.iter().any(|pass| pass.contains(&format!(", {name},"))), "no run of {name}");
    }
    runs.iter().for_each(|run| compare(run, &reference));
}

fn error(pass: &str) -> String {
    error_of(pass)
}

/// Returns the errors of an optimizer that is refused.
pub(crate) fn error_of(pass: &str) -> String {
    let errors = with_optimizer(pass).expect_err("it is refused");
    errors.iter().map(|error| format!("{} | {}", error.message, error.notes.join(" | "))).collect()
}

#[test]
fn a_group_that_no_parameter_is_of_is_refused() {
    assert_eq!(
        error("optimizer(group=\"h.*:lr=0.1\")"),
        "no trained parameter matches the pattern `h.*` of a group | trained parameters are, for example, w, b"
    );
    with_optimizer("optimizer(group=\"*:lr=0.1\", group=\"b:weight-decay=0.5\")").expect("both fit");
}

#[test]
fn a_decay_that_does_not_fit_into_its_schedule_is_refused() {
    assert_eq!(
        error("optimizer(sgd, wsd, warmup=5, decay=6, steps=10)"),
        "a warm-up of 5 steps and a decay of 6 do not fit into the 10 steps of the schedule | "
    );
    assert!(error("optimizer(sgd, wsd, warmup=10, steps=10)").contains("ends before its warm-up"));
    with_optimizer("optimizer(sgd, wsd, warmup=9, steps=10)").expect("the last step is left for the decay");
    assert!(error("optimizer(adagrad, eps=-1)").contains("eps is -1"));
}
