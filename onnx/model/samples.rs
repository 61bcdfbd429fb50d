//! Small models in memory, for tests.

use bytes::Bytes;
use prost::Message;

use super::Model;
use crate::error::{LoadError, Problem};
use crate::proto::*;
use crate::tensor::ElementType;

/// Encodes a model and loads it.
pub(crate) fn load(model: &ModelProto) -> Result<Model, LoadError> {
    Model::from_bytes(Bytes::from(model.encode_to_vec()), None)
}

/// Returns the problems of a model that does not load.
pub(crate) fn problems(model: &ModelProto) -> Vec<Problem> {
    load(model).expect_err("the model should not load").problems
}

/// Returns the text of the only problem of a model.
pub(crate) fn only_problem(model: &ModelProto) -> String {
    let problems = problems(model);
    assert_eq!(problems.len(), 1, "{problems:#?}");
    problems[0].to_string()
}

/// Makes a model of IR 10 and opset 20 from `x` to `y`, both f32[2].
pub(crate) fn model(node: Vec<NodeProto>) -> ModelProto {
    let graph = GraphProto {
        name: Some("g".into()),
        node,
        input: vec![value("x", ElementType::F32, &[2])],
        output: vec![value("y", ElementType::F32, &[2])],
        ..Default::default()
    };
    ModelProto {
        ir_version: Some(10),
        opset_import: vec![opset("", 20)],
        graph: Some(graph),
        ..Default::default()
    }
}

/// Makes a model with functions of the domain `local`.
pub(crate) fn model_with(node: Vec<NodeProto>, functions: Vec<FunctionProto>) -> ModelProto {
    let mut model = model(node);
    model.opset_import.push(opset("local", 1));
    model.functions = functions;
    model
}

pub(crate) fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) }
}

/// Makes a node that is named after its operator and its first output.
pub(crate) fn node(op_type: &str, input: &[&str], output: &[&str]) -> NodeProto {
    NodeProto {
        input: input.iter().map(|name| name.to_string()).collect(),
        output: output.iter().map(|name| name.to_string()).collect(),
        name: Some(format!("{op_type}.{}", output[0])),
        op_type: Some(op_type.into()),
        ..Default::default()
    }
}

/// Makes a call of a function of the domain `local`.
pub(crate) fn call(function: &str, input: &[&str], output: &[&str]) -> NodeProto {
    NodeProto { domain: Some("local".into()), ..node(function, input, output) }
}

pub(crate) fn function(name: &str, input: &[&str], output: &[&str], node: Vec<NodeProto>) -> FunctionProto {
    FunctionProto {
        name: Some(name.into()),
        domain: Some("local".into()),
        input: input.iter().map(|name| name.to_string()).collect(),
        output: output.iter().map(|name| name.to_string()).collect(),
        node,
        opset_import: vec![opset("", 18)],
        ..Default::default()
    }
}

pub(crate) fn with(node: NodeProto, attribute: AttributeProto) -> NodeProto {
    NodeProto { attribute: [node.attribute, vec![attribute]].concat(), ..node }
}

pub(crate) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        r#type: Some(AttributeType::Int as i32),
        i: Some(value),
        ..Default::default()
    }
}

/// Makes an attribute that refers to an attribute of the surrounding function.
pub(crate) fn reference(name: &str, to: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        r#type: Some(kind as i32),
        ref_attr_name: Some(to.into()),
        ..Default::default()
    }
}

pub(crate) fn graph_attribute(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        r#type: Some(AttributeType::Graph as i32),
        g: Some(Box::new(graph)),
        ..Default::default()
    }
}

/// Makes the body of an If: no inputs, one output without a type.
pub(crate) fn body(node: Vec<NodeProto>, output: &str) -> GraphProto {
    let output = ValueInfoProto { name: Some(output.into()), ..Default::default() };
    GraphProto { name: Some("body".into()), node, output: vec![output], ..Default::default() }
}

pub(crate) fn value(name: &str, dtype: ElementType, dims: &[i64]) -> ValueInfoProto {
    let dim = |&size: &i64| TensorShapeProtoDimension {
        value: Some(TensorShapeProtoDimensionValue::DimValue(size)),
        denotation: None,
    };
    let shape = TensorShapeProto { dim: dims.iter().map(dim).collect() };
    let tensor = TypeProtoTensor { elem_type: Some(dtype.code()), shape: Some(shape) };
    let ty = TypeProto { value: Some(TypeProtoValue::TensorType(tensor)), denotation: None };
    ValueInfoProto { name: Some(name.into()), r#type: Some(ty), ..Default::default() }
}

/// Makes a tensor of f32 in `raw_data`.
pub(crate) fn tensor(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: dims.to_vec(),
        data_type: Some(ElementType::F32.code()),
        raw_data: Some(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into()),
        ..Default::default()
    }
}
