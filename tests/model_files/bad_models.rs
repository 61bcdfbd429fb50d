//! Models that are well-formed files but make no sense: sizes that no machine has, dims of size 0, attributes that nothing honours, outputs
//! that an operator does not have. Each is refused quickly with its reason, without the memory that it asks for. None is compiled to other
//! numbers.

use std::path::Path;

use bytes::Bytes;
use ir::Tensor;
use ir::interp::{self, Missing};
use onnx::Model;
use onnx::proto::*;
use passes::Manager;
use prost::Message;
use trainyard::compilation::Source;
use trainyard::feed::model_spec;
use trainyard::pipeline::CompilationPlan;
use trainyard::training::Programs;

const F32: i32 = 1;
const I64: i32 = 7;

fn node(op_type: &str, input: &[&str], output: &[&str]) -> NodeProto {
    NodeProto {
        input: input.iter().map(|name| name.to_string()).collect(),
        output: output.iter().map(|name| name.to_string()).collect(),
        name: Some(format!("the {op_type}")),
        op_type: Some(op_type.into()),
        ..NodeProto::default()
    }
}

fn ints(node: NodeProto, name: &str, ints: &[i64]) -> NodeProto {
    let attribute = AttributeProto {
        name: Some(name.into()),
        r#type: Some(AttributeType::Ints as i32),
        ints: ints.to_vec(),
        ..AttributeProto::default()
    };
    NodeProto { attribute: [node.attribute, vec![attribute]].concat(), ..node }
}

fn int(node: NodeProto, name: &str, int: i64) -> NodeProto {
    let attribute = AttributeProto {
        name: Some(name.into()),
        r#type: Some(AttributeType::Int as i32),
        i: Some(int),
        ..AttributeProto::default()
    };
    NodeProto { attribute: [node.attribute, vec![attribute]].concat(), ..node }
}

fn value(name: &str, dims: &[i64]) -> ValueInfoProto {
    let dim = |&size: &i64| TensorShapeProtoDimension {
        value: Some(TensorShapeProtoDimensionValue::DimValue(size)),
        denotation: None,
    };
    let shape = TensorShapeProto { dim: dims.iter().map(dim).collect() };
    let tensor = TypeProtoTensor { elem_type: Some(F32), shape: Some(shape) };
    let ty = TypeProto { value: Some(TypeProtoValue::TensorType(tensor)), denotation: None };
    ValueInfoProto { name: Some(name.into()), r#type: Some(ty), ..ValueInfoProto::default() }
}

/// An output without a declared type.
fn output(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: Some(name.into()), ..ValueInfoProto::default() }
}

fn tensor(name: &str, data_type: i32, dims: &[i64], raw: Vec<u8>) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: dims.to_vec(),
        data_type: Some(data_type),
        raw_data: Some(raw.into()),
        ..TensorProto::default()
    }
}

/// A tensor of ones.
fn weight(name: &str, dims: &[i64]) -> TensorProto {
    let count = dims.iter().product::<i64>() as usize;
    tensor(name, F32, dims, 1f32.to_le_bytes().repeat(count))
}

fn numbers(name: &str, numbers: &[i64]) -> TensorProto {
    tensor(name, I64, &[numbers.len() as i64], numbers.iter().flat_map(|n| n.to_le_bytes()).collect())
}

/// A model from `x`, f32[2, 4] unless other dims are given, to `y`, with a weight `w`, f32[4, 3], and other tensors.
struct Given {
    nodes: Vec<NodeProto>,
    tensors: Vec<TensorProto>,
    input: Vec<i64>,
    outputs: Vec<&'static str>,
}

impl Given {
    fn nodes(nodes: Vec<NodeProto>) -> Self {
        Self { nodes, tensors: vec![weight("w", &[4, 3])], input: vec![2, 4], outputs: vec!["y"] }
    }

    fn tensor(mut self, tensor: TensorProto) -> Self {
        self.tensors.retain(|other| other.name != tensor.name);
        self.tensors.push(tensor);
        self
    }

    fn input(self, dims: &[i64]) -> Self {
        Self { input: dims.to_vec(), ..self }
    }

    fn file(self) -> Bytes {
        let graph = GraphProto {
            name: Some("g".into()),
            node: self.nodes,
            initializer: self.tensors,
            input: vec![value("x", &self.input)],
            output: self.outputs.into_iter().map(output).collect(),
            ..GraphProto::default()
        };
        let opset = OperatorSetIdProto { domain: None, version: Some(20) };
        let model = ModelProto {
            ir_version: Some(10),
            opset_import: vec![opset],
            graph: Some(graph),
            ..ModelProto::default()
        };
        model.encode_to_vec().into()
    }

    /// The text that a user reads: every reason, or that the model is ready to be trained.
    fn outcome(self) -> String {
        let problems = match Model::from_bytes(self.file(), None) {
            Err(error) => error.problems,
            Ok(model) => match compile(model) {
                Err(problems) => problems,
                Ok(_) => return "ready".into(),
            },
        };
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }
}

/// The training program. Errors: the messages for the user about the model.
fn compile(model: Model) -> Result<ir::Module, Vec<ir::Diagnostic>> {
    let source = Source::import(Path::new("model.onnx"), model, &Default::default());
    let source = source.map_err(|failure| failure.diagnostics())?;
    let compiled = source.compile(&CompilationPlan::default(), &Manager::default(), |_, _, _| {});
    let compiled = compiled.map_err(|failure| {
        assert_eq!(failure.exit_code(), 2, "{:?}", failure.diagnostics());
        failure.diagnostics()
    })?;
    let programs = Programs::lower(&compiled, 1, cpu::TARGET).map_err(|failure| failure.diagnostics())?;
    let spec = model_spec(&compiled.forward).map_err(|problem| vec![problem])?;
    let options = data::LoaderOptions::default();
    let loader = data::Loader::new(&spec, &data::DataSource::Synthetic, &options);
    loader.map_err(|error| vec![ir::Diagnostic::new(error.to_string())])?;
    assert!(programs.peak() < 1 << 30, "{} bytes are planned", programs.peak());
    Ok(compiled.training)
}

fn refused(given: Given, expected: &str) {
    let outcome = given.outcome();
    assert!(outcome.contains(expected), "{expected:?} is not in\n{outcome}");
}

/// The product of `from` with the weight.
fn product(from: &str) -> NodeProto {
    node("MatMul", &[from, "w"], &["y"])
}

const HUGE: i64 = 1 << 62;

#[test]
fn the_model_that_the_others_break_is_ready() {
    assert_eq!(Given::nodes(vec![product("x")]).outcome(), "ready");
}

#[test]
fn sizes_that_no_machine_has_are_refused_where_they_arise() {
    let memory = "larger than any memory";
    refused(Given::nodes(vec![product("x")]).input(&[HUGE, 4]), memory);
    refused(Given::nodes(vec![product("x")]).input(&[1 << 50, 4]), memory);
    let made = |op_type: &str, shape: &[i64]| {
        let nodes = vec![node(op_type, &["x", "shape"], &["made"]), product("made")];
        Given::nodes(nodes).input(&[1, 4]).tensor(numbers("shape", shape))
    };
    refused(made("Expand", &[HUGE, 4]), memory);
    refused(made("Tile", &[HUGE / 8, 1]), memory);
    for pads in [[i64::MIN, 0, 0, 0], [i64::MIN, 0, i64::MIN, 0], [i64::MAX, 0, i64::MAX, 0]] {
        assert_ne!(made("Pad", &pads).outcome(), "ready");
    }
    assert_ne!(made("Tile", &[HUGE, 4]).outcome(), "ready");
    refused(made("Pad", &[HUGE, 0, HUGE, 0]), memory);
    refused(made("Reshape", &[HUGE, 4]), "f32[1, 4] cannot be reshaped to");
    let constant = vec![node("ConstantOfShape", &["shape"], &["made"]), product("made")];
    refused(Given::nodes(constant).tensor(numbers("shape", &[HUGE, 4])), memory);
    let scalar = |name: &str, number: i64| TensorProto { dims: vec![], ..numbers(name, &[number]) };
    let range = vec![node("Range", &["from", "to", "by"], &["made"]), node("Gather", &["w", "made"], &["y"])];
    let range =
        Given::nodes(range).tensor(scalar("from", 0)).tensor(scalar("to", HUGE)).tensor(scalar("by", 1));
    refused(range, memory);
    let conv = ints(node("Conv", &["x", "kernel"], &["y"]), "pads", &[HUGE; 4]);
    let conv = Given::nodes(vec![conv]).input(&[1, 1, 4, 4]).tensor(weight("kernel", &[1, 1, 1, 1]));
    assert_ne!(conv.outcome(), "ready");
    let claimed = TensorProto { dims: vec![HUGE, HUGE], ..weight("w", &[4, 3]) };
    refused(Given::nodes(vec![product("x")]).tensor(claimed), "whose product is larger than any memory");
}

#[test]
fn dims_of_size_0_are_refused() {
    let empty =
        |input: &[i64], w: &[i64]| Given::nodes(vec![product("x")]).input(input).tensor(weight("w", w));
    refused(empty(&[0, 4], &[4, 3]), "`x` has dims [0, 4], and therefore no elements");
    refused(empty(&[2, 0], &[0, 3]), "`x` has dims [2, 0], and therefore no elements");
    refused(empty(&[2, 4], &[4, 0]), "no output can be the logits");
}

#[test]
fn an_attribute_that_is_not_honoured_is_an_error() {
    let transposed = int(product("x"), "transB", 1);
    refused(Given::nodes(vec![transposed]), "MatMul of opset 20 with `transB` is not supported");
    // Attributes that only later opsets have, or none.
    for (op_type, name) in
        [("Softmax", "log"), ("Relu", "alpha"), ("Gelu", "exact"), ("LayerNormalization", "mode")]
    {
        let inputs: &[&str] = if op_type == "LayerNormalization" { &["made", "scale"] } else { &["made"] };
        let nodes = vec![node("MatMul", &["x", "w"], &["made"]), int(node(op_type, inputs, &["y"]), name, 1)];
        let given = Given::nodes(nodes).tensor(weight("scale", &[3]));
        refused(given, &format!("{op_type} of opset 20 with `{name}` is not supported"));
    }
    let mistyped = ints(node("Softmax", &["x"], &["made"]), "axis", &[1]);
    refused(Given::nodes(vec![mistyped, product("made")]), "attribute \"axis\"");
}

#[test]
fn an_output_that_the_operator_does_not_give_is_an_error_where_it_is_read() {
    let nodes = vec![node("MatMul", &["x", "w"], &["made", "more"]), node("Relu", &["more"], &["y"])];
    refused(Given::nodes(nodes), "output 1 of the node is not supported");
    // An output that no node reads is no fault.
    let nodes = vec![node("MatMul", &["x", "w"], &["made", "more"]), node("Relu", &["made"], &["y"])];
    assert_eq!(Given::nodes(nodes).outcome(), "ready");
}

#[test]
fn an_output_that_is_listed_twice_is_one_output() {
    let mut given = Given::nodes(vec![product("x")]);
    given.outputs = vec!["y", "y"];
    assert_eq!(given.outcome(), "ready");
}

#[test]
fn a_transposed_convolution_is_compiled() {
    let nodes = vec![node("ConvTranspose", &["x", "kernel"], &["y"])];
    let given = Given::nodes(nodes).input(&[1, 1, 3]).tensor(weight("kernel", &[1, 2, 3]));
    assert_eq!(given.outcome(), "ready");
}

#[test]
fn the_length_of_a_vector_of_zeros_has_a_gradient() {
    // x is zero, so the product and its length are zero, and the gradient of the length would be 0/0.
    let lengths = [
        node("ReduceL2", &["product", "one"], &["length"]),
        int(node("LpNormalization", &["product"], &["length"]), "p", 2),
    ];
    for length in lengths {
        let nodes = vec![
            node("MatMul", &["x", "w"], &["product"]),
            length,
            node("Add", &["product", "length"], &["y"]),
        ];
        let file = Given::nodes(nodes).tensor(numbers("one", &[1])).file();
        let model = Model::from_bytes(file, None).expect("the model is sound");
        let module = compile(model).expect("it can be trained");
        let mut states = interp::initial_states(&module, 0, Missing::Refuse).expect("the weights are there");
        let zeros = module.inputs.iter().map(|input| {
            let ty = module.ty(input.value);
            let sizes = ty.sizes().expect("all dims are bound").into_iter().map(|size| size as usize);
            (input.name.clone(), Tensor::splat(ty.dtype, sizes.collect(), 0.0))
        });
        let outputs = interp::step(&module, interp::Mode::Exact, &mut states, &[zeros.collect()]);
        let norm = outputs.expect("a step runs")["grad_norm"][0].item();
        assert!(norm.is_finite(), "the gradient's norm is {norm}");
        assert!(states.values().flat_map(Tensor::numbers).all(f64::is_finite));
    }
}

#[test]
fn a_tensor_of_a_type_that_is_not_built_is_an_error_where_it_is_read() {
    let complex = tensor("w", 14, &[4, 3], vec![0; 96]);
    refused(Given::nodes(vec![product("x")]).tensor(complex), "the element type c64 is not supported");
}

#[test]
fn what_is_missing_or_defined_twice_is_named() {
    let missing = Given { tensors: vec![], ..Given::nodes(vec![product("x")]) };
    refused(missing, "no node or tensor defines input \"w\"");
    refused(Given::nodes(vec![product("x"), product("x")]), "value \"y\" is defined twice");
    let foreign = NodeProto { domain: Some("com.example".into()), ..node("Missing", &["x"], &["made"]) };
    refused(Given::nodes(vec![foreign, product("made")]), "Missing");
}
