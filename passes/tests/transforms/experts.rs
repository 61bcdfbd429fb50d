//! Compares mixtures of experts with numpy's numbers (`testdata/experts.json`, made by `testdata/scripts/make_expert_reference.py`).

use ir::interp::{self, Missing, Mode};
use ir::{DType, Module, Op, Tensor, ValueId};
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

fn run(passes: &str, module: &mut Module) {
    let pipeline: Pipeline = passes.parse().unwrap_or_else(|error| panic!("{passes}: {error}"));
    let ran = Manager::default().run(&pipeline, module, &mut PassContext::default(), |_, _, _| {});
    ran.unwrap_or_else(|failure| panic!("{passes}: {:?}", failure.diagnostics));
}

/// Returns the step of a mixture whose router bias moves at a rate, if one is given.
fn compiled(moe: &str, rate: Option<f64>) -> Module {
    let mut module = ir::text::parse(PROGRAM).expect("the text is a program");
    let bias = rate.map(|rate| format!("router_bias(rate={rate})")).unwrap_or_default();
    run(&format!("{moe} loss(mse) autodiff {bias} optimizer(sgd, lr=1)"), &mut module);
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
        let module = compiled(&format!("moe({moe}, seed={})", reference["seed"]), run["rate"].as_f64());
        let mut states = interp::initial_states(&module, 0, Missing::Refuse).expect("they are drawn");
        for (name, values) in reference["states"].as_object().expect("states") {
            let id = module.state(name).unwrap_or_else(|| panic!("{moe}: no state {name}"));
            let sizes = states[&id].sizes.clone();
            states.insert(id, Tensor::float(DType::F32, sizes, numbers(values)));
        }
        let bias = module.state("router.bias");
        assert_eq!(bias.is_some(), run["bias"].is_array(), "{moe}: the bias");
        if let Some(bias) = bias {
            states.insert(bias, Tensor::float(DType::F32, vec![4], numbers(&run["bias"])));
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
        for metric in ["balance", "dropped"] {
            let name = format!("metric.moe.{metric}");
            assert_eq!(outputs.contains_key(&name), run[metric].is_f64(), "{moe}: {metric}");
            if let Some(expected) = run[metric].as_f64() {
                near(&format!("{moe}: {metric}"), &output(&name), &[expected]);
            }
        }
        if run["load"].is_array() {
            near(&format!("{moe}: load"), &output("load.router"), &numbers(&run["load"]));
        }
        if let Some(bias) = bias {
            near(&format!("{moe}: bias"), states[&bias].floats(), &numbers(&run["bias_after"]));
        }
        for (name, gradient) in run["gradients"].as_object().expect("gradients") {
            let id = module.state(name).expect("a state");
            let pairs = before[&id].floats().iter().zip(states[&id].floats());
            // With SGD at the rate 1, the difference is the gradient.
            let given: Vec<f64> = pairs.map(|(before, after)| before - after).collect();
            near(&format!("{moe}: gradient of {name}"), &given, &numbers(gradient));
        }
    }
}

/// Returns a program of four samples with a mixture, split over a mesh. Its outputs are the experts that tokens choose and the tokens in
/// slots.
fn routed(moe: &str, mesh: &str) -> Module {
    let mut module = ir::text::parse(&PROGRAM.replace("[2, 6", "[4, 6")).expect("the text is a program");
    run(moe, &mut module);
    let routes: Vec<ValueId> = module
        .nodes()
        .filter(|(_, node)| matches!(node.op, Op::TopK(_) | Op::ScatterElements(_)))
        .map(|(_, node)| node.results[0])
        .collect();
    for (number, route) in routes.into_iter().enumerate() {
        module.add_output(format!("route.{number}"), route);
    }
    let mesh = if mesh.is_empty() { String::new() } else { format!("spmd(mesh={mesh}) collectives") };
    run(&format!("loss(mse) autodiff optimizer(sgd, lr=1) {mesh}"), &mut module);
    module
}

#[test]
fn tokens_meet_the_same_experts_and_are_dropped_alike_on_every_mesh() {
    for moe in [
        "moe(experts=4, capacity=0.5)",
        "moe(switch, experts=4, capacity=0.75)",
        "moe(gshard, experts=4, capacity=0.5)",
        "moe(expert-choice, experts=4, capacity=1)",
        "moe(experts=4, top=3, capacity=0.5, groups=2/2, sigmoid)",
    ] {
        let whole = routed(moe, "");
        let start: BTreeMap<String, Tensor> = interp::initial_states(&whole, 0, Missing::Refuse)
            .expect("they are drawn")
            .into_iter()
            .map(|(id, tensor)| {
                let count = tensor.len();
                let values = (0..count).map(|i| ((i * 37 + count) % 101) as f64 / 50.0 - 1.0).collect();
                let tensor = if tensor.dtype.is_float() {
                    Tensor::float(tensor.dtype, tensor.sizes, values)
                } else {
                    tensor
                };
                (whole.states[id].name.clone(), tensor)
            })
            .collect();
        let step = |module: &Module| {
            let of_state = |(id, state): (_, &ir::State)| (id, start[&state.name].clone());
            let mut states = module.states.iter().map(of_state).collect();
            let numbers = |shift: usize| {
                let values = (0..96).map(|i| ((i * 53 + shift) % 89) as f64 / 30.0 - 1.5).collect();
                Tensor::float(DType::F32, vec![4, 6, 4], values)
            };
            let inputs: BTreeMap<String, Tensor> = [("x", numbers(0)), ("labels", numbers(7))]
                .map(|(name, tensor)| (name.to_string(), tensor))
                .into();
            interp::step(module, Mode::Exact, &mut states, &[inputs]).expect("the program runs")
        };
        let expected = step(&whole);
        let routes: Vec<&String> = expected.keys().filter(|name| name.starts_with("route.")).collect();
        assert!(!routes.is_empty());
        let drops = expected.get("metric.moe.dropped").is_none_or(|dropped| dropped[0].item() > 0.0);
        assert!(drops, "{moe} drops no token");
        for mesh in ["dp:2", "dp:4", "ep:2", "ep:4", "tp:2", "dp:2*ep:2", "ep:2*tp:2"] {
            let given = step(&routed(moe, mesh));
            for &route in &routes {
                assert_eq!(given[route][0].ints(), expected[route][0].ints(), "{moe} on {mesh}: {route}");
            }
            near(&format!("{moe} on {mesh}: y"), given["y"][0].floats(), expected["y"][0].floats());
        }
    }
}
