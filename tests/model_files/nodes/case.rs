//! One test: its model, its data and its outcome.
//!
//! The tests give all tensors as inputs. Exporters write some of these tensors (shapes, axes, numbers of classes) as constants, and a static
//! program needs their values. So a test first runs with all its inputs as inputs; if it cannot be imported, with all but the first as tensors of the
//! file; and then with all of them as tensors of the file.

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
    /// The name: ONNX's without `test_`.
    pub(crate) name: String,
    /// The model.
    pub(crate) model: ModelProto,
    /// Inputs with the outputs that they give.
    pub(crate) sets: Vec<Set>,
    /// The absolute difference from the expected output that is allowed, in addition to a relative one.
    pub(crate) absolute: f64,
}

/// Inputs and outputs, in the model's order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Set {
    pub(crate) inputs: Vec<Bytes>,
    pub(crate) outputs: Vec<Bytes>,
}

/// The outcome of a test.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// The outputs are right.
    Passed,
    /// Left out by the rule of this name.
    Excluded(&'static str),
    /// The fault.
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

    /// Runs the test on all its data, whatever the rules say. An error names the fault.
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
                // The first error, of the unchanged model, says more than those of the changed model.
                Err(reason) => first = first.or(Some(reason)),
            }
        }
        Err(first.unwrap_or_default())
    }

    /// The program. The inputs that are not `given` are tensors of the file.
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

/// The mode of a test. Integers that are computed from floats jump where the floats are rounded. Such a test runs in the precision in which
/// ONNX computed its numbers; all others run in f64.
fn mode(inputs: &[Tensor], outputs: &[Tensor]) -> Mode {
    let rounds = inputs.iter().any(|input| input.dtype.is_float())
        && outputs.iter().any(|output| output.dtype.is_integer());
    if rounds { Mode::Typed } else { Mode::Exact }
}

/// The message of the first problem.
fn first(problems: &[Diagnostic]) -> String {
    problems.first().map_or_else(String::new, |problem| problem.message.clone())
}

/// Decodes a tensor of the test.
pub(crate) fn decode(bytes: &Bytes) -> Result<TensorProto, String> {
    TensorProto::decode(bytes.clone()).map_err(|error| error.to_string())
}

/// The tensors, as the loader reads them from a model.
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

/// The type that a tensor declares.
fn declared_type(proto: &TensorProto, tensor: &Tensor) -> TypeProto {
    let dim = |&size: &usize| TensorShapeProtoDimension {
        value: Some(TensorShapeProtoDimensionValue::DimValue(size as i64)),
        denotation: None,
    };
    let shape = TensorShapeProto { dim: tensor.sizes.iter().map(dim).collect() };
    let ty = TypeProtoTensor { elem_type: proto.data_type, shape: Some(shape) };
    TypeProto { value: Some(TypeProtoValue::TensorType(ty)), denotation: None }
}
