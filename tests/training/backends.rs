//! A backend that no file of the driver names, the interpreter in `testing`: a job compiles for its target, and its ranks train as those of
//! the processor do.

use crate::TRAINYARD;
use crate::ranks::worst;
use cpu::Processor;
use ir::Tensor;
use ir::interp::{Missing, initial_states};
use ir::machine::Preset;
use passes::Manager;
use ranks::{Opening, Platform};
use testing::interpreter::Interpreters;
use testing::models::{self, done};
use testing::training::train;
use testing::workplace::Workplace;
use trainyard::cli::{Cli, Command};
use trainyard::compiler::{self, Facts, Job, On};
use trainyard::verification::execute::Tensors;
use trainyard::verification::inputs;

/// The losses of two steps, and the states after them.
struct Trained {
    losses: Vec<f64>,
    states: Tensors,
}

/// Compiles a model of `testdata/models` for a backend, as `trainyard compile MODEL FLAGS` does, and runs two steps.
fn trained(backend: &dyn Platform, model: &str, flags: &str) -> Trained {
    let path = models::path(&format!("{model}.onnx"));
    let file = path.display().to_string();
    let words = ["trainyard", "compile", &file].into_iter().chain(flags.split_whitespace());
    let cli = Cli::parse_with_config(words).unwrap_or_else(|error| panic!("{error:?}"));
    let Command::Compile(compile) = cli.command else { panic!("not a compile") };
    let on = On { target: backend.target(), ..On::described(Preset::Cpu.device()) };
    let facts = Facts { on, cluster: None, global_batch: None };
    let job = Job::resolve(path, &compile.settings.compile, facts);
    let manager = Manager::default();
    let imported = done(compiler::import(&job));
    let forward = done(compiler::forward(&job, imported, &manager, &mut |_, _, _| {}));
    let step = done(forward.step(&job, &mut |_, _, _| {}).map_err(|stopped| stopped.failure));
    let programs = done(step.lower(&job)).programs;
    assert_eq!(programs.training.first().target, backend.target().name());
    let mut ranks = backend.open(programs.all(), Opening::default()).expect("the ranks are opened");
    let module = &step.compilation.training;
    for (id, value) in done(initial_states(module, 0, Missing::Draw)) {
        ranks.write_named_state(&module.states[id].name, &value.to_bytes()).expect("it is a state");
    }
    let mut losses = vec![];
    for seed in 0..2 {
        let given = done(inputs::draw(&step.compilation.forward, seed, step.microbatches));
        let bytes = |(name, tensor): (&String, &Tensor)| (name.clone(), tensor.to_bytes());
        let given: Vec<_> = given.iter().map(|inputs| inputs.iter().map(bytes).collect()).collect();
        let outputs = ranks.step_named(&given).expect("a step");
        let (ty, loss) = &outputs["loss"];
        losses.push(Tensor::from_bytes(ty, &loss[0]).expect("a loss").item());
    }
    let mut states = Tensors::new();
    for slot in ranks.states() {
        let bytes = ranks.read_named_state(&slot.name).expect("it is a state");
        states.insert(slot.name, Tensor::from_bytes(&slot.ty, &bytes).expect("it is whole"));
    }
    Trained { losses, states }
}

/// Checks that the interpreter trains a model as the processor does. Gradient descent does not amplify rounding.
fn check(model: &str, flags: &str) {
    let flags = format!("{flags} --optimizer momentum --lr 0.01");
    let [given, expected] =
        [&Interpreters as &dyn Platform, &Processor::PORTABLE].map(|backend| trained(backend, model, &flags));
    let what = format!("{model} {flags}");
    for (given, expected) in given.losses.iter().zip(&expected.losses) {
        assert!((given - expected).abs() <= 1e-5, "{what}: the loss is {given}, and not {expected}");
    }
    let states = worst(&what, 1e-5, &given.states, &expected.states);
    println!("{what}: losses {:?}, states within {states:.1e}", given.losses);
}

#[test]
fn an_mlp_trains_by_the_interpreter_in_microbatches_and_on_ranks() {
    check("mlp.dynamo", "");
    check("mlp.dynamo-dyn", "--microbatch 4 --global-batch 12");
    check("mlp.dynamo-dyn", "--microbatch 4 --global-batch 16 --mesh dp=2,tp=2 --zero 3");
}

#[test]
fn a_convolutional_network_trains_by_the_interpreter() {
    check("resnet.legacy-trainmode", "");
}

#[test]
fn a_gpt_trains_by_the_interpreter_on_a_mesh_and_in_a_pipeline() {
    check("../gpt2-bytes", "--microbatch 1");
    check("../gpt2-fresh", "--microbatch 1 --mesh dp=2,tp=2 --sequence-parallel");
    check("../gpt2-fresh", "--microbatch 1 --global-batch 2 --mesh pp=2");
}

/// Losses of the driver's own loop, with an evaluation and checkpoints between the steps.
#[test]
fn the_training_loop_runs_on_a_backend_that_the_command_line_does_not_know() {
    let losses = |backend: &dyn Platform| -> Vec<f64> {
        let place = Workplace::with_text(TRAINYARD, 8_000);
        let flags = "--microbatch 1 --mesh dp=2 --save-every 8 --optimizer momentum --lr 0.01";
        done(train(backend, &place, flags, |_| {}, &|_, device| device));
        assert_eq!(place.checkpoints("run"), [8, 16]);
        place.metrics("run").iter().map(|step| step["loss"].as_f64().expect("a loss")).collect()
    };
    let [given, expected] = [&Interpreters as &dyn Platform, &Processor::PORTABLE].map(losses);
    assert_eq!(given.len(), 16);
    for (given, expected) in given.iter().zip(&expected) {
        assert!((given - expected).abs() <= 1e-4, "{given}, and not {expected}");
    }
}

/// Weights that grow without bound give numbers that are not finite. The run ends, and its error names the operator that made the first
/// one: a NaN in f32, and an infinity where the interpreter computes in f64 and rounds.
#[test]
fn the_interpreter_names_the_operator_that_makes_the_first_number_that_is_not_finite() {
    for backend in [&Interpreters as &dyn Platform, &Processor::PORTABLE] {
        let place = Workplace::with_text(TRAINYARD, 8_000);
        let flags = "--microbatch 1 --optimizer sgd --lr 1e20";
        let failure = train(backend, &place, flags, |_| {}, &|_, device| device).expect_err("it diverges");
        let told = &failure.diagnostics()[0].message;
        let first = r#"`attention` of node "node_scaled_dot_product_attention" (MatMul, opset 20) made "#;
        assert!(told.starts_with("the loss of step 2 is NaN: ") && told.contains(first), "{told}");
    }
}
