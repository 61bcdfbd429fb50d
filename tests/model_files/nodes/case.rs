//! One test: its model and data, and what becomes of it.
//!
//! The tests give everything as inputs, also what an exporter writes as constants (shapes, axes, numbers of classes),
//! which a static program needs. So a test runs with all inputs as inputs, else with all but the first as tensors of
//! the file, else with all as such: the first of these that can be imported.

use super::{compare, rules};
use crate::archive::Files;
use bytes::Bytes;
use ir::interp::{self, Missing, Mode};
use ir::{DType, Diagnostic, Tensor, Type};
use onnx::proto::{
    GraphProto, ModelProto, TensorProto, TensorShapeProto, TensorShapeProtoDimension,
    TensorShapeProtoDimensionValue, TypeProto, TypeProtoTensor, TypeProtoValue,
};
use onnx::{ImportOptions, Model};
use prost::Message;
use std::collections::BTreeMap;

/// A test.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Its name: ONNX's without `test_`.
    pub(crate) name: String,
    /// The model.
    pub(crate) model: ModelProto,
    /// Inputs with the outputs that they give.
    pub(crate) sets: Vec<Set>,
    /// How far an output may be from what it must be, beside a share of that.
    pub(crate) absolute: f64,
}

/// Inputs and outputs in the order of the model's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Set {
    pub(crate) inputs: Vec<Bytes>,
    pub(crate) outputs: Vec<Bytes>,
}

/// What became of a test.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// Its outputs are as they must be.
    Passed,
    /// Left out by the rule of this name.
    Excluded(&'static str),
    /// What is wrong.
    Failed(String),
}

impl Case {
    /// The test of these files.
    pub(crate) fn new(name: String, files: &Files) -> Result<Self, String> {
        let model = files.get("model.onnx").ok_or_else(|| format!("{name} has no model"))?;
        let model = ModelProto::decode(model.clone()).map_err(|error| format!("{name}: {error}"))?;
        let list = |set: usize, kind: &str| -> Vec<Bytes> {
            (0..).map_while(|i| files.get(&format!("{set}/{kind}_{i}.pb")).cloned()).collect()
        };
        let sets = (0..).map(|i| Set { inputs: list(i, "input"), outputs: list(i, "output") });
        let sets: Vec<Set> = sets.take_while(|set| !set.outputs.is_empty()).collect();
        if sets.is_empty() {
            Err(format!("{name} has no data"))
        } else {
            Ok(Self { name, model, sets, absolute: compare::ABSOLUTE })
        }
    }

    /// The graph.
    pub(crate) fn graph(&self) -> &GraphProto {
        self.model.graph.as_ref().expect("a test's model has a graph")
    }

    /// Runs the test on all its data.
    pub(crate) fn run(&self) -> Outcome {
        if let Some(rule) = rules::excluding(self) {
            return Outcome::Excluded(rule);
        }
        match self.check() {
            Ok(()) => Outcome::Passed,
            Err(reason) => Outcome::Failed(reason),
        }
    }

    /// Runs the test on all its data, whatever the rules say. An error says what is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.sets.iter().try_for_each(|set| self.run_set(set))
    }

    fn run_set(&self, set: &Set) -> Result<(), String> {
        let inputs = set.inputs.iter().map(decode).collect::<Result<Vec<_>, _>>()?;
        let outputs = set.outputs.iter().map(decode).collect::<Result<Vec<_>, _>>()?;
        let (inputs, outputs) = (tensors(&inputs)?, tensors(&outputs)?);
        let mut first = None;
        for constant in [inputs.len(), 1, 0] {
            match self.module(set, &inputs, &|i| i < constant) {
                Ok(module) => return self.compare(&module, &inputs, &outputs),
                // What is wrong with the model as it stands says more than what is wrong with it changed.
                Err(reason) => first = first.or(Some(reason)),
            }
        }
        Err(first.unwrap_or_default())
    }

    /// The program, the inputs that are not `given` being tensors of the file.
    pub(crate) fn module(
        &self,
        set: &Set,
        inputs: &[Tensor],
        given: &dyn Fn(usize) -> bool,
    ) -> Result<ir::Module, String> {
        let mut model = self.model.clone();
        let graph = model.graph.as_mut().ok_or("it has no graph")?;
        let declared = std::mem::take(&mut graph.input);
        for (i, mut input) in declared.into_iter().enumerate() {
            let tensor = inputs.get(i).ok_or("it has more inputs than data")?;
            if given(i) {
                input.r#type = Some(declared_type(&decode(&set.inputs[i])?, tensor));
                graph.input.push(input);
            } else {
                graph.initializer.push(TensorProto { name: input.name, ..decode(&set.inputs[i])? });
            }
        }
        let model = Model::from_bytes(Bytes::from(model.encode_to_vec()), None);
        let model = model.map_err(|error| first(&error.problems))?;
        let imported =
            onnx::import(&model, &ImportOptions::default()).map_err(|problems| first(&problems))?;
        ir::verify::verify(&imported.module).map_err(|problems| first(&problems))?;
        Ok(imported.module)
    }

    fn compare(&self, module: &ir::Module, inputs: &[Tensor], outputs: &[Tensor]) -> Result<(), String> {
        let message = |error: Diagnostic| error.message;
        let mut states = interp::initial_states(module, 0, Missing::Refuse).map_err(message)?;
        let names = self.graph().input.iter().map(|input| input.name().to_owned());
        let microbatch: BTreeMap<String, Tensor> = names.zip(inputs.iter().cloned()).collect();
        let given =
            interp::step(module, mode(inputs, outputs), &mut states, &[microbatch]).map_err(message)?;
        for (output, expected) in self.graph().output.iter().zip(outputs) {
            let given = given.get(output.name()).and_then(|given| given.first());
            compare::check(given.ok_or("an output is missing")?, expected, self.absolute)?;
        }
        Ok(())
    }
}

/// Integers that are computed from floats jump where these round, so that the precision of these decides: such a test is
/// run in the precision that ONNX computed its numbers in, any other in f64.
fn mode(inputs: &[Tensor], outputs: &[Tensor]) -> Mode {
    let rounds = inputs.iter().any(|input| input.dtype.is_float())
        && outputs.iter().any(|output| output.dtype.is_integer());
    if rounds { Mode::Typed } else { Mode::Exact }
}

/// What the first problem says.
fn first(problems: &[Diagnostic]) -> String {
    problems.first().map_or_else(String::new, |problem| problem.message.clone())
}

/// A tensor of the test's.
pub(crate) fn decode(bytes: &Bytes) -> Result<TensorProto, String> {
    TensorProto::decode(bytes.clone()).map_err(|error| error.to_string())
}

/// The tensors as the loader reads them in a model.
pub(crate) fn tensors(protos: &[TensorProto]) -> Result<Vec<Tensor>, String> {
    let named =
        |(i, proto): (usize, &TensorProto)| TensorProto { name: Some(i.to_string()), ..proto.clone() };
    let graph = GraphProto {
        name: Some("tensors".into()),
        initializer: protos.iter().enumerate().map(named).collect(),
        ..GraphProto::default()
    };
    let opset = onnx::proto::OperatorSetIdProto { domain: None, version: Some(20) };
    let model = ModelProto {
        ir_version: Some(10),
        opset_import: vec![opset],
        graph: Some(graph),
        ..ModelProto::default()
    };
    let model = Model::from_bytes(Bytes::from(model.encode_to_vec()), None);
    let model = model.map_err(|error| first(&error.problems))?;
    let read = |i: usize| {
        let tensor = model.graph.tensor(&i.to_string()).ok_or("a tensor is missing")?;
        let dtype: DType = tensor.dtype.name().parse()?;
        let sizes: Vec<u64> = tensor.dims.iter().map(|&size| size as u64).collect();
        let bytes = tensor.present().ok_or("a tensor has no bytes")?;
        Tensor::from_bytes(&Type::of(dtype, &sizes), bytes).ok_or_else(|| "a tensor is not whole".to_string())
    };
    (0..protos.len()).map(read).collect()
}

/// The type that a tensor has.
fn declared_type(proto: &TensorProto, tensor: &Tensor) -> TypeProto {
    let dim = |&size: &usize| TensorShapeProtoDimension {
        value: Some(TensorShapeProtoDimensionValue::DimValue(size as i64)),
        denotation: None,
    };
    let shape = TensorShapeProto { dim: tensor.sizes.iter().map(dim).collect() };
    let ty = TypeProtoTensor { elem_type: proto.data_type, shape: Some(shape) };
    TypeProto { value: Some(TypeProtoValue::TensorType(ty)), denotation: None }
}
