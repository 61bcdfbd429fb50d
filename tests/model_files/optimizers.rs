//! One step of the optimizers compared with ONNX's (`ai.onnx.preview.training`), on the numbers of ONNX's own node tests.
//!
//! The interpreter runs one step of a program from the test's states, with the test's gradients. ONNX's formulas are the same as ours, with
//! `norm_coefficient` as the weight decay that is added to the gradient, except where the step count `T` enters. All seven tests have `T = 0`,
//! at which the differences vanish. These are the differences, at which a test with another `T` would fail:
//!
//! - Adagrad's rate is `R / (1 + T·decay_factor)`. Here a schedule lowers the rate.
//! - ONNX's Adam corrects no bias at `T = 0`. Later it scales the rate by `√(1-βᵀ)/(1-αᵀ)`, which leaves `epsilon` unscaled. Here moments
//!   begin at zero and are corrected from the first step on, as in the paper. So these tests run a late step, at which the correction has
//!   vanished. `norm_coefficient_post`, a factor on the new parameter, is not supported, and is zero in the tests.
//! - Momentum weighs gradients by `beta` if `T > 0` (1 minus PyTorch's dampening). That is not supported.

use crate::archive;
use ir::interp::{self, Missing, Mode, StateValues};
use ir::{Builder, DType, Initializer, Module, Role, StateId, Tensor, Type};
use onnx::proto::{AttributeProto, ModelProto, NodeProto, TensorProto};
use passes::optimizer::{Algorithm, Decay, Moments, Optimizer};
use passes::{PassContext, Transform, autodiff};
use prost::Message;
use std::collections::BTreeMap;
use std::path::Path;

/// ONNX's operators, each with its tests.
const TESTS: [(&str, &[&str]); 3] = [
    ("Adagrad", &["adagrad", "adagrad_multiple"]),
    ("Adam", &["adam", "adam_multiple"]),
    ("Momentum", &["momentum", "momentum_multiple", "nesterov_momentum"]),
];
/// The allowed relative error of f32 numbers.
const RELATIVE: f64 = 5e-7;
/// A number of steps after which Adam's corrections have vanished: 0.95 to this power is 10⁻²²³.
const LATE: f64 = 10_000.0;

/// A test's node and its tensors by name.
struct Case {
    node: NodeProto,
    tensors: BTreeMap<String, TensorProto>,
}

impl Case {
    fn new(files: &archive::Files) -> Self {
        let graph = ModelProto::decode(files["model.onnx"].clone()).expect("a model").graph.expect("a graph");
        let list = |kind: &'static str| (0..).map_while(move |i| files.get(&format!("0/{kind}_{i}.pb")));
        let inputs = graph.input.iter().zip(list("input"));
        let outputs = graph.output.iter().zip(list("output"));
        let named = inputs.chain(outputs).map(|(value, bytes)| {
            (value.name().to_owned(), TensorProto::decode(bytes.clone()).expect("a tensor"))
        });
        Self { tensors: named.collect(), node: graph.node.into_iter().next().expect("a node") }
    }

    fn attribute(&self, name: &str) -> Option<&AttributeProto> {
        self.node.attribute.iter().find(|attribute| attribute.name() == name)
    }

    fn float(&self, name: &str) -> f64 {
        f64::from(self.attribute(name).map_or(0.0, AttributeProto::f))
    }

    fn floats(&self, name: &str) -> Tensor {
        let bytes = self.tensors[name].raw_data.as_deref().expect("raw floats");
        let sizes = self.tensors[name].dims.iter().map(|&size| size as u64).collect::<Vec<_>>();
        Tensor::from_bytes(&Type::of(DType::F32, &sizes), bytes).expect("whole floats")
    }

    /// The update rule, and the names of the states that it keeps for a parameter, in ONNX's order.
    fn algorithm(&self) -> (Algorithm, &'static [&'static str]) {
        let [alpha, beta, eps] = ["alpha", "beta", "epsilon"].map(|name| self.float(name));
        match self.node.op_type() {
            "Adagrad" => (Algorithm::Adagrad { eps }, &["adagrad.sum"]),
            "Adam" => {
                let adam = Algorithm::Adam {
                    beta1: alpha,
                    beta2: beta,
                    eps,
                    decoupled: false,
                    moments: Moments::Full,
                };
                (adam, &["adam.m", "adam.v"])
            }
            "Momentum" => {
                let mode = self.attribute("mode").and_then(|mode| mode.s.as_deref()).expect("a mode");
                let nesterov = mode == b"nesterov";
                assert!(nesterov || mode == b"standard");
                (Algorithm::Sgd { momentum: alpha, nesterov }, &["sgd.velocity"])
            }
            other => panic!("{other} is no optimizer"),
        }
    }

    /// Runs the step and compares the new parameters and states.
    fn check(&self) {
        assert_eq!(self.tensors[&self.node.input[1]].raw_data.as_deref(), Some(&[0; 8][..]), "T is not 0");
        assert_eq!(self.float("norm_coefficient_post"), 0.0);
        let (algorithm, kept) = self.algorithm();
        // After R and T come all parameters, then all gradients, and then all states of each kind.
        let count = self.node.output.len() / (1 + kept.len());
        let (parameters, rest) = self.node.input[2..].split_at(count);
        let (gradients, given) = rest.split_at(count);
        let mut module = program(parameters.iter().map(|name| self.floats(name).ty()).collect());
        let optimizer = Optimizer {
            algorithm,
            lr: self.floats(&self.node.input[0]).item(),
            weight_decay: self.float("norm_coefficient"),
            decay: Decay::All,
            ..Optimizer::default()
        };
        optimizer.run(&mut module, &mut PassContext::default()).expect("an optimizer");
        let mut states = interp::initial_states(&module, 0, Missing::Refuse).expect("states");
        let step = module.state("step").expect("a counter");
        states.insert(step, Tensor::splat(DType::I64, vec![], LATE - 1.0));
        // The states of the program in the order of the inputs and of the outputs.
        let own = |kind: &str, i: usize| match kind {
            "" => parameter(i),
            kind => format!("{kind}({})", parameter(i)),
        };
        let names = || [""].iter().chain(kept).flat_map(|kind| (0..count).map(move |i| own(kind, i)));
        let id = |name: &str| -> StateId { module.state(name).unwrap_or_else(|| panic!("no state {name}")) };
        for (name, input) in names().zip(parameters.iter().chain(given)) {
            states.insert(id(&name), self.floats(input));
        }
        let feed = (0..count).map(|i| (gradient(i), self.floats(&gradients[i]))).collect();
        interp::step(&module, Mode::Exact, &mut states, &[feed]).expect("a step");
        assert_eq!(names().count(), self.node.output.len());
        for (name, output) in names().zip(&self.node.output) {
            self.compare(&states, id(&name), output);
        }
    }

    fn compare(&self, states: &StateValues, id: StateId, output: &str) {
        let (new, expected) = (&states[&id], self.floats(output));
        assert_eq!(new.sizes, expected.sizes, "{output}");
        for (&new, &expected) in new.floats().iter().zip(expected.floats()) {
            assert!((new - expected).abs() <= RELATIVE * expected.abs(), "{output}: {new}, not {expected}");
        }
    }
}

fn parameter(i: usize) -> String {
    format!("parameter.{i}")
}

fn gradient(i: usize) -> String {
    format!("gradient.{i}")
}

/// A program whose loss is the sum of products of parameters with inputs. So the inputs are the gradients.
fn program(types: Vec<Type>) -> Module {
    let mut module = Module::new("optimizer");
    let inputs: Vec<_> =
        (0..).zip(&types).map(|(i, ty)| module.add_input(gradient(i), ty.clone(), false)).collect();
    let mut b = Builder::new(&mut module, "test");
    let mut loss = b.scalar(DType::F32, 0.0).expect("a scalar");
    for (i, (ty, input)) in types.into_iter().zip(inputs).enumerate() {
        let state = b.tables().add_state(parameter(i), ty, Role::Parameter, Initializer::Zeros);
        let parameter = b.module().states[state].input;
        let product = b.build(parameter * input).expect("of one type");
        let sum = b.sum(product, &[0]).expect("a vector");
        loss = b.build(loss + sum).expect("scalars");
    }
    let weight = b.scalar(DType::F32, 1.0).expect("a scalar");
    b.finish();
    module.add_output("loss.sum", loss);
    module.add_output("loss.weight", weight);
    let decision = autodiff::decide(&module).expect("a loss");
    autodiff::apply(&mut module, &Default::default(), &decision).expect("gradients");
    module
}

#[test]
fn a_step_of_each_optimizer_gives_the_numbers_of_onnx() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/onnx-node-tests.tar.gz");
    let tests =
        archive::unpack(&std::fs::read(path).expect("the tests can be read")).expect("a whole archive");
    let mut found: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, files) in &tests {
        let model = ModelProto::decode(files["model.onnx"].clone()).expect("a model");
        if model.opset_import.iter().any(|set| set.domain() == "ai.onnx.preview.training") {
            let case = Case::new(files);
            found.entry(case.node.op_type().to_owned()).or_default().push(name);
            case.check();
        }
    }
    let all = TESTS.map(|(operator, tests)| (operator.to_owned(), tests.to_vec()));
    assert_eq!(found, BTreeMap::from(all));
}
