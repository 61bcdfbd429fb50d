//! Mixtures of experts against numpy's numbers (`testdata/experts.json`, made by `testdata/scripts/make_expert_reference.py`).

use ir::interp::{self, Missing, Mode};
use ir::{DType, Module, Tensor};
use passes::{Manager, PassContext, Pipeline};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A feed-forward block with a residual connection, on tokens whose positions are trained.
const PROGRAM: &str = r#"trainyard-ir 1
module @block imported {
  state @positions : f32[6, 4] parameter = zeros
  state @up.weight : f32[4, 8] parameter = zeros
  state @up.bias : f32[8] parameter = zeros
  state @down.weight : f32[8, 4] parameter = zeros
  state @down.bias : f32[4] parameter = zeros
  func @forward(%0 "x" batched : f32[2, 6, 4], %1 = @positions, %2 = @up.weight, %3 = @up.bias, %4 = @down.weight, %5 = @down.bias) {
    %6 = add %0, %1 : f32[2, 6, 4] !{fwd}
    %7 = contract %6, %2 {lhs = amk, rhs = kn, out = amn} : f32[2, 6, 8] !{fwd}
    %8 = add %7, %3 : f32[2, 6, 8] !{fwd}
    %9 = silu %8 : f32[2, 6, 8] !{fwd}
    %10 = contract %9, %4 {lhs = amk, rhs = kn, out = amn} : f32[2, 6, 4] !{fwd}
    %11 = add %10, %5 : f32[2, 6, 4] !{fwd}
    %12 = add %11, %6 : f32[2, 6, 4] !{fwd}
  }
  output "y" = %12
}
"#;

fn numbers(value: &Value) -> Vec<f64> {
    let numbers = value.as_array().expect("a list").iter();
    numbers.map(|number| number.as_f64().expect("a number")).collect()
}

/// The step of a mixture.
fn compiled(moe: &str) -> Module {
    let mut module = ir::text::parse(PROGRAM).expect("the text is a program");
    let passes = format!("{moe} loss(mse) autodiff optimizer(sgd, lr=1)");
    let pipeline: Pipeline = passes.parse().unwrap_or_else(|error| panic!("{passes}: {error}"));
    let ran = Manager::default().run(&pipeline, &mut module, &mut PassContext::default(), |_, _, _| {});
    ran.unwrap_or_else(|failure| panic!("{moe}: {:?}", failure.diagnostics));
    module
}

#[track_caller]
fn near(what: &str, given: &[f64], expected: &[f64]) {
    assert_eq!(given.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(1e-3, |largest: f64, number| largest.max(number.abs()));
    for (given, expected) in given.iter().zip(expected) {
        assert!((given - expected).abs() <= 1e-6 * largest, "{what}: {given}, not {expected}");
    }
}

#[test]
fn mixtures_have_numpys_outputs_losses_and_gradients() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/experts.json");
    let text = std::fs::read_to_string(path).expect("the numbers are there");
    let reference: Value = serde_json::from_str(&text).expect("they are JSON");
    for run in reference["runs"].as_array().expect("a list") {
        let moe = run["moe"].as_str().expect("options");
        let module = compiled(&format!("moe({moe}, seed={})", reference["seed"]));
        let mut states = interp::initial_states(&module, 0, Missing::Refuse).expect("they are drawn");
        for (name, values) in reference["states"].as_object().expect("states") {
            let id = module.state(name).unwrap_or_else(|| panic!("{moe}: no state {name}"));
            let sizes = states[&id].sizes.clone();
            states.insert(id, Tensor::float(DType::F32, sizes, numbers(values)));
        }
        let before = states.clone();
        let sizes = vec![2, 6, 4];
        let input =
            |name: &str| Tensor::float(DType::F32, sizes.clone(), numbers(&reference["inputs"][name]));
        let inputs: BTreeMap<String, Tensor> =
            ["x", "labels"].map(|name| (name.to_string(), input(name))).into();
        let outputs = interp::step(&module, Mode::Exact, &mut states, &[inputs]).expect("the program runs");
        let output = |name: &str| outputs[name][0].floats().to_vec();
        near(&format!("{moe}: y"), &output("y"), &numbers(&run["y"]));
        near(&format!("{moe}: loss"), &output("loss"), &[run["loss"].as_f64().expect("a number")]);
        for metric in ["balance", "busiest", "dropped"] {
            let name = format!("metric.moe.{metric}");
            assert_eq!(outputs.contains_key(&name), run[metric].is_f64(), "{moe}: {metric}");
            if let Some(expected) = run[metric].as_f64() {
                near(&format!("{moe}: {metric}"), &output(&name), &[expected]);
            }
        }
        for (name, gradient) in run["gradients"].as_object().expect("gradients") {
            let id = module.state(name).expect("a state");
            let pairs = before[&id].floats().iter().zip(states[&id].floats());
            // SGD with the rate 1.
            let given: Vec<f64> = pairs.map(|(before, after)| before - after).collect();
            near(&format!("{moe}: gradient of {name}"), &given, &numbers(gradient));
        }
    }
}
