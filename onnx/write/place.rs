//! The bytes of tensors in a written model: replaced in the messages, and moved to a data file in large models.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use bytes::Bytes;

use crate::error::{Problem, quoted};
use crate::model::Model;
use crate::proto::{
    AttributeProto, AttributeType, DataLocation, ModelProto, NodeProto, StringStringEntryProto, TensorProto,
    each_tensor,
};
use crate::tensor::{Tensor, TensorBytes, TensorSource};

/// The size below which tensors stay in the model's file.
const SMALL: usize = 1024;
/// The alignment of tensors: a page, as ONNX recommends for mapping.
const ALIGNMENT: u64 = 4096;

/// Returns the model's messages with the new bytes, and with the external data of the original included.
pub(super) fn replaced(
    model: &Model,
    replaced: &BTreeMap<String, Bytes>,
) -> Result<ModelProto, Vec<Problem>> {
    let tensors = by_name(model);
    let check = |(name, bytes): (&String, &Bytes)| check(name, bytes, tensors.get(&name[..]).copied()).err();
    let mut problems: Vec<Problem> = replaced.iter().filter_map(check).collect();
    let (proto, absent) = with_bytes(model, replaced);
    problems.extend(absent);
    if problems.is_empty() { Ok(proto) } else { Err(problems) }
}

/// Returns the problems that [`replaced`] would report for new bytes of the tensors `names`, whatever the bytes.
pub(super) fn problems(model: &Model, names: &BTreeSet<String>) -> Vec<Problem> {
    let tensors = by_name(model);
    let mut problems: Vec<Problem> =
        names.iter().filter_map(|name| replaceable(name, tensors.get(&name[..]).copied()).err()).collect();
    let unknown = names.iter().map(|name| (name.clone(), Bytes::new())).collect();
    problems.extend(with_bytes(model, &unknown).1);
    problems
}

/// Returns the tensors of the main graph by name; the first if several have the same name.
fn by_name(model: &Model) -> BTreeMap<&str, &Tensor> {
    model.graph.tensors.iter().rev().map(|tensor| (&tensor.name[..], tensor)).collect()
}

/// Returns the model's messages with the new bytes, and with the external data of the original included; and a problem for each
/// missing file of data.
fn with_bytes(model: &Model, replaced: &BTreeMap<String, Bytes>) -> (ModelProto, Vec<Problem>) {
    let mut problems = Vec::new();
    let tensors = by_name(model);
    let mut proto = model.proto.clone();
    if let Some(graph) = &mut proto.graph {
        for initializer in &mut graph.initializer {
            if let Some(bytes) = replaced.get(initializer.name.as_deref().unwrap_or_default()) {
                put(initializer, bytes.clone());
            }
        }
        let constants = graph.node.iter_mut().filter(|node| is_constant(node));
        for node in constants {
            let name = node.output.first().cloned().unwrap_or_default();
            if let Some(bytes) = replaced.get(&name)
                && let Some(tensor) = tensors.get(&name[..])
            {
                put_constant(node, tensor, bytes.clone());
            }
        }
    }
    let mut files = model.files.clone();
    each_tensor(&mut proto, &mut |tensor| {
        if tensor.data_location == Some(DataLocation::External as i32) {
            match files.load(tensor) {
                Ok(bytes) => put(tensor, bytes),
                Err(problem) => problems.push(problem),
            }
        }
    });
    (proto, problems)
}

/// Checks that these bytes can be written for this tensor.
fn check(name: &str, bytes: &Bytes, tensor: Option<&Tensor>) -> Result<(), Problem> {
    let tensor = replaceable(name, tensor)?;
    match tensor.dtype.bytes_of(tensor.element_count()) {
        Some(needed) if needed == bytes.len() => Ok(()),
        needed => {
            let why =
                format!("{} bytes are given, and the tensor needs {}", bytes.len(), needed.unwrap_or(0));
            Err(Problem::new(why).at(tensor.label()))
        }
    }
}

/// Returns the tensor, if its bytes can be replaced.
fn replaceable<'a>(name: &str, tensor: Option<&'a Tensor>) -> Result<&'a Tensor, Problem> {
    let Some(tensor) = tensor else {
        return Err(Problem::new(format!("the model has no tensor {} to replace", quoted(name))));
    };
    let refuse = |why: String| Err(Problem::new(why).at(tensor.label()));
    if tensor.source == TensorSource::Inner {
        return refuse("a tensor inside a function or a subgraph cannot be replaced".to_owned());
    }
    if matches!(tensor.bytes, TensorBytes::Strings(_)) {
        return refuse("a tensor of strings cannot be replaced".to_owned());
    }
    Ok(tensor)
}

fn is_constant(node: &NodeProto) -> bool {
    node.op_type.as_deref() == Some("Constant")
        && matches!(node.domain.as_deref(), None | Some("" | "ai.onnx"))
}

/// Replaces the tensor's data by `bytes`, whatever field it was in.
fn put(tensor: &mut TensorProto, bytes: Bytes) {
    let old = std::mem::take(tensor);
    *tensor = TensorProto {
        dims: old.dims,
        data_type: old.data_type,
        name: old.name,
        doc_string: old.doc_string,
        metadata_props: old.metadata_props,
        raw_data: Some(bytes),
        ..TensorProto::default()
    };
}

/// Replaces the value of a `Constant` node by `bytes`, whatever attribute it was in.
fn put_constant(node: &mut NodeProto, tensor: &Tensor, bytes: Bytes) {
    let old = node.attribute.iter_mut().find_map(|attribute| attribute.t.take());
    let mut value = old.map_or_else(TensorProto::default, |old| *old);
    value.dims = tensor.dims.iter().map(|&size| size as i64).collect();
    value.data_type = Some(tensor.dtype.code());
    put(&mut value, bytes);
    node.attribute = vec![AttributeProto {
        name: Some("value".to_owned()),
        r#type: Some(AttributeType::Tensor as i32),
        t: Some(Box::new(value)),
        ..AttributeProto::default()
    }];
}

/// The file with a large model's tensors, and their places in it.
#[derive(Default)]
pub(super) struct DataFile {
    /// The offset and the bytes of each tensor, in order.
    pub(super) tensors: Vec<(u64, Bytes)>,
}

impl DataFile {
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut at = 0;
        for (offset, bytes) in &self.tensors {
            out.write_all(&vec![0; (offset - at) as usize])?;
            out.write_all(bytes)?;
            at = offset + bytes.len() as u64;
        }
        Ok(())
    }
}

/// Moves the large tensors out of the messages to the data file `location`.
pub(super) fn move_out(proto: &mut ModelProto, location: &str) -> DataFile {
    let mut file = DataFile::default();
    let mut end = 0u64;
    each_tensor(proto, &mut |tensor| {
        let Some(bytes) = tensor.raw_data.take_if(|bytes| bytes.len() >= SMALL) else { return };
        let (offset, length) = (end.next_multiple_of(ALIGNMENT), bytes.len() as u64);
        end = offset + length;
        let entries = [
            ("location", location.to_owned()),
            ("offset", offset.to_string()),
            ("length", length.to_string()),
        ];
        let entry = |(key, value): (&str, String)| StringStringEntryProto {
            key: Some(key.to_owned()),
            value: Some(value),
        };
        tensor.external_data = entries.map(entry).to_vec();
        tensor.data_location = Some(DataLocation::External as i32);
        file.tensors.push((offset, bytes));
    });
    file
}
