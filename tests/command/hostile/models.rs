//! ONNX files that are built node by node.

use onnx::proto::*;
use prost::Message;

pub(crate) const F32: i32 = 1;
const I64: i32 = 7;

/// A model: its nodes, the tensors that it holds, and one input and output.
pub(crate) struct File {
    pub(crate) nodes: Vec<NodeProto>,
    pub(crate) tensors: Vec<TensorProto>,
    pub(crate) input: ValueInfoProto,
    pub(crate) output: ValueInfoProto,
}

impl File {
    /// The bytes of the file.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let graph = GraphProto {
            name: Some("g".into()),
            node: self.nodes,
            initializer: self.tensors,
            input: vec![self.input],
            output: vec![self.output],
            ..GraphProto::default()
        };
        let opset = OperatorSetIdProto { domain: None, version: Some(20) };
        let model = ModelProto {
            ir_version: Some(10),
            opset_import: vec![opset],
            graph: Some(graph),
            ..ModelProto::default()
        };
        model.encode_to_vec()
    }
}

/// A node named after its operator.
pub(crate) fn node(op_type: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        input: inputs.iter().map(|name| name.to_string()).collect(),
        output: vec![output.into()],
        name: Some(format!("/{op_type}")),
        op_type: Some(op_type.into()),
        ..NodeProto::default()
    }
}

/// A value of f32 with these dims, each a number or a name.
pub(crate) fn value(name: &str, dims: &[&str]) -> ValueInfoProto {
    let size = |dim: &&str| match dim.parse() {
        Ok(size) => TensorShapeProtoDimensionValue::DimValue(size),
        Err(_) => TensorShapeProtoDimensionValue::DimParam(dim.to_string()),
    };
    let dim = |dim| TensorShapeProtoDimension { value: Some(size(dim)), denotation: None };
    let shape = TensorShapeProto { dim: dims.iter().map(dim).collect() };
    let tensor = TypeProtoTensor { elem_type: Some(F32), shape: Some(shape) };
    let ty = TypeProto { value: Some(TypeProtoValue::TensorType(tensor)), denotation: None };
    ValueInfoProto { name: Some(name.into()), r#type: Some(ty), ..ValueInfoProto::default() }
}

/// A tensor of numbers that are all 0.1.
pub(crate) fn weight(name: &str, dims: &[i64]) -> TensorProto {
    let count = dims.iter().product::<i64>() as usize;
    tensor(name, F32, dims, 0.1f32.to_le_bytes().repeat(count))
}

/// A vector of integers.
pub(crate) fn integers(name: &str, numbers: &[i64]) -> TensorProto {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    tensor(name, I64, &[numbers.len() as i64], bytes)
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
