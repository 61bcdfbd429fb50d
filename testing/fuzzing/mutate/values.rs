//! Changes of the types that a graph declares for its values.

use super::super::choices::Choices;
use super::integer;
use super::tensors::TYPES;
use onnx::proto::{
    GraphProto, TensorShapeProto, TensorShapeProtoDimension, TensorShapeProtoDimensionValue, TypeProto,
    TypeProtoTensor, TypeProtoValue, ValueInfoProto,
};

/// The number of an element type, often f32.
pub(super) fn element_type(choices: &mut Choices) -> i32 {
    TYPES[choices.below(TYPES.len())].0
}

/// A value of these sizes.
pub(super) fn tensor_value(name: Option<String>, elem_type: Option<i32>, dims: &[i64]) -> ValueInfoProto {
    let dim = |&size: &i64| TensorShapeProtoDimension {
        value: Some(TensorShapeProtoDimensionValue::DimValue(size)),
        denotation: None,
    };
    let shape = Some(TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let value = Some(TypeProtoValue::TensorType(TypeProtoTensor { elem_type, shape }));
    ValueInfoProto { name, r#type: Some(TypeProto { value, denotation: None }), ..ValueInfoProto::default() }
}

/// The element type and the sizes of a value that is a tensor; `None` for a size that is no number.
pub(super) fn sizes(value: &ValueInfoProto) -> Option<(Option<i32>, Vec<Option<i64>>)> {
    let Some(TypeProtoValue::TensorType(tensor)) = value.r#type.as_ref()?.value.as_ref() else { return None };
    let size = |dim: &TensorShapeProtoDimension| match dim.value {
        Some(TensorShapeProtoDimensionValue::DimValue(size)) => Some(size),
        _ => None,
    };
    Some((tensor.elem_type, tensor.shape.as_ref()?.dim.iter().map(size).collect()))
}

fn tensor_type(value: &mut ValueInfoProto) -> Option<&mut TypeProtoTensor> {
    match value.r#type.as_mut()?.value.as_mut()? {
        TypeProtoValue::TensorType(tensor) => Some(tensor),
        _ => None,
    }
}

/// One change of the type of one of these values.
pub(super) fn change(values: &mut [ValueInfoProto], choices: &mut Choices) {
    let Some(value) = choices.of_mut(values) else { return };
    if choices.once_in(16) {
        value.r#type = None;
        return;
    }
    let Some(tensor) = tensor_type(value) else { return };
    if choices.once_in(4) {
        tensor.elem_type = Some(element_type(choices));
        return;
    }
    let dims = &mut tensor.shape.get_or_insert_default().dim;
    let dim = TensorShapeProtoDimension { value: dim_value(choices), denotation: None };
    match choices.below(5) {
        0 => dims.insert(choices.below(dims.len() + 1), dim),
        1 => drop(dims.pop()),
        2 => tensor.shape = None,
        _ => choices.change(dims, |old| *old = dim.clone()),
    }
}

fn dim_value(choices: &mut Choices) -> Option<TensorShapeProtoDimensionValue> {
    match choices.below(8) {
        0 => None,
        1 | 2 => {
            Some(TensorShapeProtoDimensionValue::DimParam(["batch", "seq", ""][choices.below(3)].to_owned()))
        }
        _ => Some(TensorShapeProtoDimensionValue::DimValue(integer(choices))),
    }
}

/// Replaces one size by another in all values and tensors, so that nodes that read them may still fit.
pub(super) fn resize(graph: &mut GraphProto, choices: &mut Choices) {
    let values = || graph.input.iter().chain(&graph.output).chain(&graph.value_info);
    let known: Vec<i64> = values().filter_map(sizes).flat_map(|(_, dims)| dims).flatten().collect();
    let Some(&old) = choices.of(&known) else { return };
    let new = dim_value(choices);
    let all = graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info);
    for dim in
        all.filter_map(tensor_type).flat_map(|tensor| &mut tensor.shape).flat_map(|shape| &mut shape.dim)
    {
        if dim.value == Some(TensorShapeProtoDimensionValue::DimValue(old)) {
            dim.value = new.clone();
        }
    }
    let Some(TensorShapeProtoDimensionValue::DimValue(new)) = new else { return };
    for tensor in &mut graph.initializer {
        if tensor.dims.contains(&old) {
            tensor.dims.iter_mut().filter(|dim| **dim == old).for_each(|dim| *dim = new);
            super::tensors::fill(tensor, choices);
        }
    }
}
