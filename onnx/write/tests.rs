//! Tests that write models and read them again.

use std::fs;
use std::path::PathBuf;

use prost::Message;

use super::*;
use crate::model::samples::*;
use crate::proto::TensorProto;
use crate::tensor::TensorBytes;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata").join(name)
}

fn floats(values: &[f32]) -> Bytes {
    values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into()
}

fn replacing(name: &str, bytes: Bytes) -> BTreeMap<String, Bytes> {
    BTreeMap::from([(name.to_owned(), bytes)])
}

#[test]
fn a_model_written_without_changes_is_the_same_model() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["models/gpt2.dynamo.onnx", "models/mlp.legacy.onnx", "odd/function.onnx"] {
        let model = Model::load(&testdata(name)).unwrap();
        let path = folder.path().join("model.onnx");
        model.write(&path, &BTreeMap::new()).unwrap();
        let again = Model::load(&path).unwrap();
        assert_eq!(again.proto, model.proto, "{name}");
        assert_eq!(again.graph, model.graph, "{name}");
    }
}

#[test]
fn data_that_are_not_there_are_told_before_anything_is_written() {
    let mut proto = Model::load(&testdata("odd/external-ok.onnx")).unwrap().proto;
    let graph = proto.graph.as_mut().unwrap();
    let is_external = |tensor: &&mut TensorProto| !tensor.external_data.is_empty();
    let mut names = Vec::new();
    for external in graph.initializer.iter_mut().filter(is_external) {
        names.push(external.name.clone().unwrap());
        let mut entries = external.external_data.iter_mut();
        entries.find(|entry| entry.key.as_deref() == Some("location")).unwrap().value =
            Some("gone.bin".to_owned());
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let model = load(&proto).unwrap();
    let problems = |names: &[&str]| {
        model
            .check_write(&names.iter().map(|&name| name.to_owned()).collect())
            .err()
            .map(|error| error.to_string())
    };
    let told = problems(&[]).expect("the data are not there");
    assert!(told.contains("the data file \"gone.bin\" does not exist"), "{told}");
    assert_eq!(problems(&names), None);
    let unknown = [&names[..], &["no such"]].concat();
    assert!(problems(&unknown).unwrap().contains("the model has no tensor \"no such\" to replace"));
}

#[test]
fn new_bytes_replace_an_initializer_and_leave_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let model = Model::load(&testdata("models/mlp.dynamo.onnx")).unwrap();
    let old = model.graph.tensors.iter().find(|tensor| tensor.dims.len() == 2).unwrap();
    let values: Vec<f32> = (0..old.element_count()).map(|at| at as f32).collect();
    model.write(&path, &replacing(&old.name, floats(&values))).unwrap();
    let again = Model::load(&path).unwrap();
    for (before, after) in model.graph.tensors.iter().zip(&again.graph.tensors) {
        assert_eq!((&before.name, &before.dims), (&after.name, &after.dims));
        assert_eq!(before == after, before.name != old.name);
    }
    assert_eq!(again.graph.tensor(&old.name).unwrap().floats().unwrap()[3], 3.0);
    assert_eq!((again.graph.nodes, again.metadata), (model.graph.nodes, model.metadata));
}

#[test]
fn typed_data_and_constant_nodes_are_replaced_by_raw_data() {
    let mut proto = model(vec![
        with(
            node("Constant", &[], &["c"]),
            crate::proto::AttributeProto {
                name: Some("value_floats".into()),
                floats: vec![1.0, 2.0],
                ..Default::default()
            },
        ),
        node("Op", &["x", "c", "w"], &["y"]),
    ]);
    let mut weight = tensor("w", &[2], &[]);
    (weight.raw_data, weight.float_data) = (None, vec![3.0, 4.0]);
    proto.graph.as_mut().unwrap().initializer = vec![weight];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let new = BTreeMap::from([("c".to_owned(), floats(&[5.0, 6.0])), ("w".to_owned(), floats(&[7.0, 8.0]))]);
    load(&proto).unwrap().write(&path, &new).unwrap();
    let again = Model::load(&path).unwrap().graph;
    assert_eq!(again.tensor("c").unwrap().floats().unwrap(), [5.0, 6.0]);
    assert_eq!(again.tensor("w").unwrap().floats().unwrap(), [7.0, 8.0]);
    assert_eq!(again.nodes[0].op_type, "Op");
}

#[test]
fn a_large_model_keeps_its_tensors_in_a_file_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let model = Model::load(&testdata("models/mlp.dynamo.onnx")).unwrap();
    model.write_with(&path, &BTreeMap::new(), Form::OfFile, 20_000).unwrap();
    assert!(fs::metadata(&path).unwrap().len() < 20_000);
    assert!(fs::metadata(folder.path().join("model.onnx.data")).unwrap().len() > 50_000);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    let again = Model::load(&path).unwrap();
    assert_eq!(again.graph, model.graph);

    // The external data are then written back into one file.
    let whole = folder.path().join("whole.onnx");
    again.write(&whole, &BTreeMap::new()).unwrap();
    assert_eq!(Model::load(&whole).unwrap().graph, model.graph);
}

#[test]
fn what_cannot_be_replaced_is_refused_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let model = Model::load(&testdata("models/mlp.dynamo.onnx")).unwrap();
    let name = model.graph.tensors[0].name.clone();
    let error = model.write(&path, &replacing("ghost", Bytes::new())).unwrap_err().to_string();
    assert!(error.contains("the model has no tensor \"ghost\" to replace"), "{error}");
    let error = model.write(&path, &replacing(&name, Bytes::from_static(&[0; 3]))).unwrap_err().to_string();
    assert!(error.contains("3 bytes are given, and the tensor needs"), "{error}");
    let absent = Model::load(&testdata("models/gpt3-175b-noweights.onnx")).unwrap();
    let WriteError::Tensors(problems) = absent.write(&path, &BTreeMap::new()).unwrap_err() else { panic!() };
    assert!(problems.len() > 1000 && problems[0].message.contains("does not exist"), "{:?}", problems[0]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_failure_leaves_the_old_file_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::load(&testdata("models/mlp.dynamo.onnx")).unwrap();
    // A folder has the name of the target, so that renaming fails after everything was written.
    let path = folder.path().join("model.onnx");
    fs::create_dir_all(path.join("inside")).unwrap();
    let error = model.write(&path, &BTreeMap::new()).unwrap_err();
    assert!(matches!(error, WriteError::Io { .. }), "{error}");
    assert!(path.join("inside").is_dir());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let nowhere = folder.path().join("gone/model.onnx");
    assert!(model.write(&nowhere, &BTreeMap::new()).unwrap_err().to_string().contains("gone/model.onnx"));
}

#[test]
fn a_model_can_be_written_over_the_file_it_was_read_from() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    fs::copy(testdata("models/mlp.dynamo.onnx"), &path).unwrap();
    let model = Model::load(&path).unwrap();
    let name =
        model.graph.tensors.iter().find(|tensor| matches!(tensor.bytes, TensorBytes::Present(_))).unwrap();
    let zeros = Bytes::from(vec![0; name.present().unwrap().len()]);
    model.write(&path, &replacing(&name.name, zeros.clone())).unwrap();
    assert_eq!(Model::load(&path).unwrap().graph.tensor(&name.name).unwrap().present(), Some(&zeros));
    assert_eq!(
        model.proto.encoded_len(),
        Model::load(&testdata("models/mlp.dynamo.onnx")).unwrap().proto.encoded_len()
    );
}
