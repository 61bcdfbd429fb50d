//! Tests with records of small graphs, in the form in which exporters write them.

mod detached;
mod matched;
mod separated;

use crate::Model;
use crate::model::samples::{load, model};
use crate::proto::{GraphProto, ModelProto, NodeProto, StringStringEntryProto, TensorProto};
use ir::Claim;

fn entry(key: &str, value: &str) -> StringStringEntryProto {
    StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) }
}

/// Makes a node with this traced call.
fn traced(node: NodeProto, operator: &str, arguments: &str) -> NodeProto {
    let result = node.output[0].clone();
    let text = format!(
        "%{result} : [num_users=1] = call_function[target=torch.ops.aten.{operator}.default](args = ({arguments}), kwargs = {{}})"
    );
    NodeProto { metadata_props: vec![entry(super::traced::KEY, &text)], ..node }
}

/// Makes an f32 initializer of equal elements, except for the last one.
fn floats(name: &str, dims: &[i64], number: f32, last: f32) -> TensorProto {
    let count = dims.iter().product::<i64>() as usize;
    let mut bytes = number.to_le_bytes().repeat(count);
    let end = bytes.len() - 4;
    bytes[end..].copy_from_slice(&last.to_le_bytes());
    TensorProto {
        name: Some(name.into()),
        dims: dims.to_vec(),
        data_type: Some(1),
        raw_data: Some(bytes.into()),
        ..TensorProto::default()
    }
}

fn ones(name: &str, dims: &[i64]) -> TensorProto {
    floats(name, dims, 1.0, 1.0)
}

/// Makes a model of PyTorch with this list of parameters. An empty list stands for the legacy exporter.
fn exported(nodes: Vec<NodeProto>, tensors: Vec<TensorProto>, listed: &[(&str, &str, &str)]) -> ModelProto {
    let mut file = model(nodes);
    file.producer_name = Some("pytorch".into());
    let list: String =
        listed.iter().map(|(symbol, kind, name)| format!("{symbol}: {kind} target='{name}'\n")).collect();
    let graph = file.graph.take().expect("a sample has a graph");
    let metadata_props = if listed.is_empty() { vec![] } else { vec![entry(super::signature::KEY, &list)] };
    file.graph = Some(GraphProto { initializer: tensors, metadata_props, ..graph });
    file
}

fn loaded(file: &ModelProto) -> Model {
    load(file).expect("the model loads")
}

fn claim(model: &Model, name: &str) -> Option<Claim> {
    crate::recorded::claim(model, model.graph.tensor(name).unwrap_or_else(|| panic!("{name} is there")))
}
