//! Checksums in a model that was written here, so that a file that a disk damaged is not trained further.
//!
//! Each tensor has the sum of its own bytes in its `metadata_props`: a tool that replaces a tensor makes a new one, without
//! a sum. The model's `metadata_props` have the sum of all messages without the tensors' bytes; a tool that changes the
//! graph keeps that entry, so that a difference there is a warning.

use crate::error::{Problem, quoted};
use crate::model::ExternalFiles;
use crate::proto::{DataLocation, ModelProto, StringStringEntryProto, TensorProto, each_tensor};
use bytes::Bytes;
use files::Checksum;
use prost::Message;

/// The key of a sum.
const KEY: &str = "trainyard.xxh3";

/// Puts sums into a model whose tensors are all in its messages.
pub(crate) fn seal(model: &mut ModelProto) {
    each_tensor(model, &mut |tensor| {
        let sum = tensor.raw_data.as_ref().map(|bytes| of_tensor(tensor, bytes));
        set(&mut tensor.metadata_props, sum);
    });
    let sum = of_graph(model);
    set(&mut model.metadata_props, Some(sum));
}

/// Compares a file's sums with its contents and takes them out of the messages; a file that is written gets new ones. Returns
/// a warning on a graph that is not the one that was written.
///
/// # Errors
/// The tensors whose bytes do not have the sum that they were written with.
pub(crate) fn open(
    model: &mut ModelProto,
    files: &mut ExternalFiles,
) -> Result<Option<Problem>, Vec<Problem>> {
    let damaged = damaged_tensors(model, files);
    if !damaged.is_empty() {
        return Err(damaged);
    }
    let changed = changed_graph(model);
    set(&mut model.metadata_props, None);
    each_tensor(model, &mut |tensor| set(&mut tensor.metadata_props, None));
    Ok(changed)
}

fn damaged_tensors(model: &mut ModelProto, files: &mut ExternalFiles) -> Vec<Problem> {
    let mut damaged = Vec::new();
    each_tensor(model, &mut |tensor| {
        let Some(sum) = get(&tensor.metadata_props) else { return };
        let bytes = match tensor.data_location == Some(DataLocation::External as i32) {
            // A file that is not there is told where the tensor is needed.
            true => files.load(tensor).ok(),
            false => tensor.raw_data.clone(),
        };
        if bytes.is_some_and(|bytes: Bytes| of_tensor(tensor, &bytes) != sum) {
            let name = quoted(tensor.name.as_deref().unwrap_or_default());
            let message = format!(
                "tensor {name} is damaged: its bytes do not have the checksum that they were written with"
            );
            let remedy = format!(
                "write the file anew; or, if a program changed the tensor on purpose, remove {KEY} from its metadata_props"
            );
            damaged.push(Problem::new(message).note(remedy));
        }
    });
    damaged
}

fn changed_graph(model: &ModelProto) -> Option<Problem> {
    let sum = get(&model.metadata_props)?;
    (of_graph(model) != sum).then(|| {
        Problem::new("the graph is not the one that was written: its checksum is another")
            .note(format!("if no program changed it on purpose, the file is damaged; such a program removes {KEY} from metadata_props"))
    })
}

/// The sum of a tensor: of its element type and dims too.
fn of_tensor(tensor: &TensorProto, bytes: &[u8]) -> String {
    let mut sum = Checksum::default();
    sum.add(format!("{:?}{:?}", tensor.data_type, tensor.dims).as_bytes());
    sum.add(bytes);
    sum.to_string()
}

/// The sum of the messages as they are with every tensor's bytes left out, wherever those are.
fn of_graph(model: &ModelProto) -> String {
    let mut model = model.clone();
    set(&mut model.metadata_props, None);
    each_tensor(&mut model, &mut |tensor| {
        if tensor.raw_data.is_some() || tensor.data_location == Some(DataLocation::External as i32) {
            (tensor.raw_data, tensor.data_location) = (None, None);
            tensor.external_data.clear();
        }
    });
    Checksum::of(&model.encode_to_vec()).to_string()
}

fn get(entries: &[StringStringEntryProto]) -> Option<String> {
    entries.iter().find(|entry| entry.key.as_deref() == Some(KEY))?.value.clone()
}

fn set(entries: &mut Vec<StringStringEntryProto>, sum: Option<String>) {
    entries.retain(|entry| entry.key.as_deref() != Some(KEY));
    entries.extend(sum.map(|sum| StringStringEntryProto { key: Some(KEY.to_owned()), value: Some(sum) }));
}

#[cfg(test)]
mod tests {
    use crate::Model;
    use crate::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto};
    use bytes::Bytes;
    use prost::Message;
    use std::collections::BTreeMap;
    use std::fs;

    /// `y = Neg(w)`, w f32[2].
    fn written(folder: &std::path::Path) -> Vec<u8> {
        let text = |text: &str| Some(text.to_owned());
        let weight = TensorProto {
            dims: vec![2],
            data_type: Some(1),
            name: text("w"),
            raw_data: Some(Bytes::from_static(&[0, 0, 128, 63, 0, 0, 0, 64])),
            ..Default::default()
        };
        let node = NodeProto {
            op_type: text("Neg"),
            input: vec!["w".to_owned()],
            output: vec!["y".to_owned()],
            ..Default::default()
        };
        let output = ValueInfoProto { name: text("y"), ..Default::default() };
        let graph = GraphProto {
            name: text("g"),
            node: vec![node],
            initializer: vec![weight],
            output: vec![output],
            ..Default::default()
        };
        let opset = OperatorSetIdProto { version: Some(20), ..Default::default() };
        let model = ModelProto {
            ir_version: Some(10),
            opset_import: vec![opset],
            graph: Some(graph),
            ..Default::default()
        };
        let model = Model::from_bytes(model.encode_to_vec().into(), None).unwrap();
        let path = folder.join("model.onnx");
        model.write(&path, &BTreeMap::new()).unwrap();
        fs::read(path).unwrap()
    }

    #[test]
    fn a_flipped_bit_of_a_tensor_is_refused_and_one_of_the_graph_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let good = written(folder.path());
        let load = |bytes: &[u8]| Model::from_bytes(Bytes::copy_from_slice(bytes), None);
        assert!(load(&good).unwrap().warnings.is_empty());
        let find = |pattern: &[u8]| good.windows(pattern.len()).position(|window| window == pattern).unwrap();
        let mut damaged = good.clone();
        damaged[find(&[0, 0, 128, 63])] ^= 1;
        let error = load(&damaged).unwrap_err().to_string();
        assert!(error.contains("tensor \"w\" is damaged"), "{error}");
        let mut renamed = good.clone();
        renamed[find(b"Neg")..][..3].copy_from_slice(b"Abs");
        let model = load(&renamed).unwrap();
        assert!(model.warnings[0].to_string().contains("the graph is not the one that was written"));
    }

    /// As the Python package `onnx` does it when a tensor is made from an array.
    #[test]
    fn a_tensor_that_a_tool_replaced_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let mut model = ModelProto::decode(&*written(folder.path())).unwrap();
        let tensor = &mut model.graph.as_mut().unwrap().initializer[0];
        tensor.raw_data = Some(Bytes::from_static(&[0; 8]));
        tensor.metadata_props.clear();
        assert!(Model::from_bytes(model.encode_to_vec().into(), None).is_ok());
    }
}
