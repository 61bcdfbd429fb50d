//! Checksums in models that this program writes, so that it notices when a disk has damaged a file.
//!
//! Each tensor has its type and the checksum of its bytes in its `metadata_props`. A tool that replaces a tensor makes a new one,
//! without a checksum. A tool that converts a tensor in place keeps the entry, whose type then differs. Both are accepted, the
//! second with a warning. The model's `metadata_props` have the checksum of all messages without the tensors' bytes. A tool that
//! changes the graph keeps this entry, so a difference there is only a warning.

use crate::error::{Problem, quoted};
use crate::proto::{DataLocation, ModelProto, StringStringEntryProto, TensorProto, each_tensor};
use crate::tensor::ExternalFiles;
use bytes::Bytes;
use files::Checksum;
use prost::Message;

/// The key of a checksum in `metadata_props`.
const KEY: &str = "trainyard.xxh3";

/// Adds checksums to a model whose tensors are all in its messages.
pub(crate) fn seal(model: &mut ModelProto) {
    each_tensor(model, &mut |tensor| {
        let sum = tensor.raw_data.as_ref().map(|bytes| sum_text(&type_text(tensor), bytes));
        set(&mut tensor.metadata_props, sum);
    });
    let sum = of_graph(model);
    set(&mut model.metadata_props, Some(sum));
}

/// Compares a file's checksums with its contents and removes them from the messages; a written file gets new ones. Returns
/// warnings about tensors that another program converted, and about a graph that another program changed.
///
/// # Errors
/// The tensors whose bytes do not match their checksums.
pub(crate) fn open(model: &mut ModelProto, files: &mut ExternalFiles) -> Result<Vec<Problem>, Vec<Problem>> {
    let Tensors { damaged, converted } = compare_tensors(model, files);
    if !damaged.is_empty() {
        return Err(damaged);
    }
    let changed = changed_graph(model);
    set(&mut model.metadata_props, None);
    each_tensor(model, &mut |tensor| set(&mut tensor.metadata_props, None));
    Ok(warning(&converted).into_iter().chain(changed).collect())
}

/// The tensors that do not match their checksums.
#[derive(Default)]
struct Tensors {
    damaged: Vec<Problem>,
    /// Names of tensors whose type differs from the type in the checksum.
    converted: Vec<String>,
}

fn compare_tensors(model: &mut ModelProto, files: &mut ExternalFiles) -> Tensors {
    let mut found = Tensors::default();
    each_tensor(model, &mut |tensor| {
        let Some(sum) = get(&tensor.metadata_props) else { return };
        let (name, ty) = (quoted(tensor.name.as_deref().unwrap_or_default()), type_text(tensor));
        if sum.split_once(' ').is_none_or(|(_, summed)| summed != ty) {
            found.converted.push(name);
            return;
        }
        let bytes = if tensor.data_location == Some(DataLocation::External as i32) {
            // A missing file is reported where the tensor is needed.
            files.load(tensor).ok()
        } else {
            tensor.raw_data.clone()
        };
        if bytes.is_some_and(|bytes: Bytes| sum_text(&ty, &bytes) != sum) {
            let message =
                format!("tensor {name} is damaged: its bytes do not match the checksum in the file");
            let remedy = format!(
                "write the file again; or, if a program changed the tensor on purpose, remove {KEY} from the \
                 tensor's metadata_props"
            );
            found.damaged.push(Problem::new(message).note(remedy));
        }
    });
    found
}

/// Makes the warning about tensors that cannot be checked.
fn warning(converted: &[String]) -> Option<Problem> {
    let first = converted.first()?;
    let more = match converted.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(
        Problem::new(format!(
            "tensor {first}{more} cannot be checked: the checksum was computed for another type or other \
             dims"
        ))
        .note(format!(
            "if no program converted the tensor, the file is damaged; a program that converts it on \
                 purpose may remove {KEY} from its metadata_props"
        )),
    )
}

fn changed_graph(model: &ModelProto) -> Option<Problem> {
    let sum = get(&model.metadata_props)?;
    (of_graph(model) != sum).then(|| {
        Problem::new("the graph has changed since the file was written: it does not match its checksum").note(
            format!(
                "if no program changed the graph, the file is damaged; a program that changes it on purpose \
                 may remove {KEY} from the model's metadata_props"
            ),
        )
    })
}

/// Returns the number of the element type and the dims of a tensor: `1[2,3]`. The text is part of the file format.
fn type_text(tensor: &TensorProto) -> String {
    let dims: Vec<String> = tensor.dims.iter().map(i64::to_string).collect();
    format!("{}[{}]", tensor.data_type.unwrap_or_default(), dims.join(","))
}

/// Returns the checksum of a tensor and its type: `0123456789abcdef 1[2,3]`. The checksum includes the type, which ties the two
/// together.
fn sum_text(ty: &str, bytes: &[u8]) -> String {
    let mut sum = Checksum::of(ty.as_bytes());
    sum.add(bytes);
    format!("{sum} {ty}")
}

/// Returns the checksum of the messages without the bytes of tensors, inside and outside of the file.
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

    /// Writes the model `y = Neg(w)`, with w f32[2].
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
        assert!(model.warnings[0].to_string().contains("the graph has changed since the file was written"));
    }

    /// The Python package `onnx` does this when it makes a tensor from an array.
    #[test]
    fn a_tensor_that_a_tool_replaced_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let mut model = ModelProto::decode(&*written(folder.path())).unwrap();
        let tensor = &mut model.graph.as_mut().unwrap().initializer[0];
        tensor.raw_data = Some(Bytes::from_static(&[0; 8]));
        tensor.metadata_props.clear();
        assert!(Model::from_bytes(model.encode_to_vec().into(), None).is_ok());
    }

    /// Converters to half precision and quantizers do this.
    #[test]
    fn a_tensor_that_a_tool_converted_in_place_is_taken_with_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let written = ModelProto::decode(&*written(folder.path())).unwrap();
        let load = |dims: &[i64], data_type: i32, bytes: &'static [u8]| {
            let mut model = written.clone();
            let tensor = &mut model.graph.as_mut().unwrap().initializer[0];
            (tensor.dims, tensor.data_type) = (dims.to_vec(), Some(data_type));
            tensor.raw_data = Some(Bytes::from_static(bytes));
            Model::from_bytes(model.encode_to_vec().into(), None)
        };
        for (dims, data_type, bytes) in
            [(&[2][..], 10, &[0; 4][..]), (&[3], 1, &[0; 12]), (&[1, 2], 1, &[0; 8])]
        {
            let warnings = load(dims, data_type, bytes).unwrap().warnings;
            assert!(warnings[0].to_string().contains("tensor \"w\" cannot be checked"), "{warnings:?}");
        }
        assert!(load(&[2], 1, &[0; 8]).is_err());
    }

    /// Files of earlier versions must be readable, so this test notices a change of the checksums. UPDATE_EXPECT=1 writes a new
    /// file.
    #[test]
    fn a_file_that_was_written_before_has_its_sums() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/checksums/model.onnx");
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, written(tempfile::tempdir().unwrap().path())).unwrap();
        }
        let file = fs::read(&path).unwrap();
        let read = Model::from_bytes(file.clone().into(), None).unwrap();
        assert!(read.warnings.is_empty(), "{:?}", read.warnings);
        let model = ModelProto::decode(&*file).unwrap();
        let sums = [&model.graph.unwrap().initializer[0].metadata_props, &model.metadata_props];
        let sums = sums.map(|entries| super::get(entries).unwrap());
        assert_eq!(sums, ["bc5214504f60e921 1[2]", "2ee614a6940ceeac"]);
    }
}
