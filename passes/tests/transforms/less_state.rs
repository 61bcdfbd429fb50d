//! Compares Lion, Adafactor and Adam in 8 bits with numbers that a script computes in f64 from their papers (`testdata/less_state.json`,
//! made by `testdata/scripts/make_less_state_reference.py`), and checks the settings that they refuse.

use crate::optimizers::{error_of, with_optimizer_of};
use ir::interp::{self, Missing, Mode, StateValues};
use ir::{DType, Module, Role, Tensor};
use passes::Pass;
use passes::optimizer::{Algorithm, Moments, Optimizer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// The largest error, relative to the largest number of a tensor.
const TOLERANCE: f64 = 1e-6;

/// Numbers between -1 and 1 by SplitMix64, cubed, as the script draws them.
struct Draws(u64);

impl Draws {
    fn number(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let z = z ^ (z >> 31);
        let x = 2.0 * ((z >> 11) as f64 / (1u64 << 53) as f64) - 1.0;
        x * x * x
    }

    fn tensor(&mut self, sizes: &[usize]) -> Tensor {
        let elements = (0..sizes.iter().product::<usize>()).map(|_| self.number()).collect();
        Tensor::float(DType::F64, sizes.to_vec(), elements)
    }
}

/// Returns the names and sizes of a run's parameters, in the order in which they are drawn.
fn shapes(run: &Value) -> Vec<(String, Vec<usize>)> {
    let pair = |pair: &Value| {
        let sizes = pair[1].as_array().expect("sizes").iter();
        let sizes = sizes.map(|size| size.as_u64().expect("a size") as usize).collect();
        (pair[0].as_str().expect("a name").to_owned(), sizes)
    };
    run["shapes"].as_array().expect("shapes").iter().map(pair).collect()
}

/// Returns a step whose gradients are its inputs.
fn program(shapes: &[(String, Vec<usize>)]) -> String {
    let ty = |sizes: &[usize]| format!("f64{sizes:?}");
    let count = shapes.len();
    let mut text = String::from("trainyard-ir 1\nmodule @given training {\n");
    let (mut inputs, mut sums, mut outputs) = (vec![], String::new(), String::new());
    for (i, (name, sizes)) in shapes.iter().enumerate() {
        text += &format!("  state @{name} : {} parameter = zeros\n", ty(sizes));
        inputs.push(format!("%{i} \"{name}\" : {}", ty(sizes)));
        sums += &format!("    %{} = accumulate %{i} : {} !{{update}}\n", 2 * count + i, ty(sizes));
        outputs += &format!("  output \"grad.{name}\" = %{}\n", 2 * count + i);
    }
    inputs.extend(shapes.iter().enumerate().map(|(i, (name, _))| format!("%{} = @{name}", count + i)));
    let loss = 3 * count;
    text += &format!("  func @train({}) {{\n{sums}", inputs.join(", "));
    text += &format!("    %{loss} = splat {{value = 0}} : f64[] !{{update}}\n  }}\n");
    text + &format!("  output \"loss\" = %{loss}\n{outputs}}}\n")
}

#[track_caller]
fn near(what: &str, given: &Tensor, expected: &Value, samples: usize) {
    let given = given.numbers();
    let every = given.len().div_ceil(samples);
    let expected_samples: Vec<f64> = expected["samples"]
        .as_array()
        .expect("samples")
        .iter()
        .map(|number| number.as_f64().expect("a number"))
        .collect();
    let sampled: Vec<f64> = given.iter().copied().step_by(every).collect();
    assert_eq!(sampled.len(), expected_samples.len(), "{what}");
    let largest = given.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    for (given, expected) in sampled.iter().zip(&expected_samples) {
        assert!((given - expected).abs() <= TOLERANCE * largest, "{what}: {given}, not {expected}");
    }
    let (sum, expected) = (given.iter().sum::<f64>(), expected["sum"].as_f64().expect("a sum"));
    let close = TOLERANCE * largest * given.len() as f64;
    assert!((sum - expected).abs() <= close, "{what}: the sum is {sum}, not {expected}");
}

/// Returns the states with their values before step 0.
fn start(module: &Module, shapes: &[(String, Vec<usize>)], draws: &mut Draws) -> StateValues {
    let mut states = interp::initial_states(module, 0, Missing::Refuse).expect("they are zeros");
    for (name, sizes) in shapes {
        states.insert(module.state(name).expect("a parameter"), draws.tensor(sizes));
    }
    states
}

/// Runs the steps of one run and compares parameters and states; returns the names of the compared states.
fn compare(run: &Value, reference: &Value) -> Vec<String> {
    let pass = run["pass"].as_str().expect("a pass");
    let shapes = shapes(run);
    let module =
        with_optimizer_of(&program(&shapes), pass).unwrap_or_else(|errors| panic!("{pass}: {errors:?}"));
    let mut draws = Draws(reference["seed"].as_u64().expect("a seed"));
    let samples = reference["samples"].as_u64().expect("a number of samples") as usize;
    let mut states = start(&module, &shapes, &mut draws);
    let mut records = run["records"].as_array().expect("records").iter().peekable();
    let mut compared = vec![];
    for step in 1..=reference["steps"].as_u64().expect("a number of steps") {
        let inputs: BTreeMap<String, Tensor> =
            shapes.iter().map(|(name, sizes)| (name.clone(), draws.tensor(sizes))).collect();
        interp::step(&module, Mode::Exact, &mut states, &[inputs]).expect("the program runs");
        let Some(record) = records.next_if(|record| record["step"].as_u64() == Some(step)) else { continue };
        for (name, expected) in record["values"].as_object().expect("values") {
            let state = module.state(name).unwrap_or_else(|| panic!("{pass}: no state `{name}`"));
            near(&format!("{pass}: {name} after step {step}"), &states[&state], expected, samples);
            compared.push(name.clone());
        }
    }
    assert!(records.next().is_none(), "{pass}: a step was not run");
    let kept = module.states.values().filter(|state| state.name != "step").count();
    compared.sort();
    compared.dedup();
    assert_eq!(compared.len(), kept, "{pass}: {compared:?}");
    compared
}

#[test]
fn optimizers_with_less_state_step_as_their_papers_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/less_state.json");
    let text = std::fs::read_to_string(path).expect("the numbers are there");
    let reference: Value = serde_json::from_str(&text).expect("they are JSON");
    let runs = reference["runs"].as_array().expect("runs");
    let compared: Vec<String> = runs.iter().flat_map(|run| compare(run, &reference)).collect();
    for state in [
        "lion.m(w)",
        "adafactor.r(w)",
        "adafactor.c(w)",
        "adafactor.v(b)",
        "adafactor.m(w)",
        "adam_8bit.m(w)",
        "adam_8bit.v.largest(k)",
        "adam.m(b)",
    ] {
        assert!(compared.iter().any(|name| name == state), "{state}");
    }
}

#[test]
fn settings_with_which_no_step_makes_sense_are_refused() {
    for (pass, why) in [
        ("lion, beta2=1", "beta2 is 1; it must be at least 0 and below 1"),
        ("adafactor, clip-threshold=0", "clip-threshold is 0; it must be above 0"),
        ("adafactor, decay-rate=-1", "decay-rate is -1; it must be a number that is not negative"),
        ("adafactor, relative=yes", "relative: `yes` is not one of on, off"),
        ("adamw, moments=f16", "moments: `f16` is not one of f32, bf16, 8bit"),
        ("adamw, moments=bf16, beta2=0.999", "beta2 is 0.999; moments of bf16 are rounded to 8 bits"),
        ("sgd, moments=bf16", "moments"),
    ] {
        let error = error_of(&format!("optimizer({pass})"));
        assert!(error.contains(why), "{pass}: {error}");
    }
}

#[test]
fn the_text_of_an_optimizer_has_its_words() {
    for (given, printed) in [
        ("lion", "lion, lr=0.001"),
        ("lion, beta1=0.5", "lion, beta1=0.5, lr=0.001"),
        ("adafactor", "adafactor, lr=0.001"),
        ("adafactor, relative=on, eps1=1e-20", "adafactor, eps1=0.00000000000000000001, lr=0.001"),
        ("adafactor, relative=off, beta1=0.9", "adafactor, relative=off, beta1=0.9, lr=0.001"),
        ("adam, moments=bf16", "adam, moments=bf16, lr=0.001"),
        ("adamw, moments=bf16, beta2=0.99", "adamw, moments=bf16, beta2=0.99, lr=0.001"),
        ("adamw, moments=8bit", "adamw, moments=8bit, lr=0.001"),
    ] {
        let pipeline: passes::Pipeline = format!("optimizer({given})").parse().expect("a pipeline");
        assert_eq!(pipeline.to_string(), format!("optimizer({printed})"));
        assert_eq!(pipeline.to_string().parse::<passes::Pipeline>().expect("it reads back"), pipeline);
    }
}

/// The memory estimate for the stages of a pipeline uses the bytes of the states that the pass adds.
#[test]
fn bytes_of_states_are_those_of_the_states() {
    let text = "trainyard-ir 1
        module @m training {
          state @w : f32[64, 768] parameter = zeros
          func @train(%0 \"x\" : f32[64, 768], %1 = @w) {
            %2 = accumulate %0 : f32[64, 768] !{update}
            %3 = splat {value = 0} : f32[] !{update}
          }
          output \"loss\" = %3
          output \"grad.w\" = %2
        }";
    let rules = Algorithm::ALL.into_iter().map(|(rule, _)| rule);
    let with_moments = |rule| match rule {
        Algorithm::Adam { beta1, eps, decoupled, .. } => Moments::ALL
            .map(|(moments, _)| Algorithm::Adam { beta1, beta2: 0.95, eps, decoupled, moments })
            .to_vec(),
        rule => vec![rule],
    };
    for algorithm in rules.flat_map(with_moments) {
        let pass = Pass::from(Optimizer { algorithm, ..Optimizer::default() }).to_string();
        let module = with_optimizer_of(text, &pass).unwrap_or_else(|errors| panic!("{pass}: {errors:?}"));
        let states = module.states.values().filter(|state| state.role == Role::Optimizer);
        let bytes: u64 = states.filter_map(|state| state.ty.bytes()).sum();
        assert_eq!(bytes / (64 * 768), algorithm.state_bytes(), "{algorithm:?}: {bytes} bytes");
    }
}
