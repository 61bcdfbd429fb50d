//! Tests with files on disk: the test data, and external data.

use std::fs;
use std::path::{Path, PathBuf};

use prost::Message;

use super::samples::*;
use super::*;
use crate::error::LoadError;
use crate::proto::{DataLocation, ModelProto, StringStringEntryProto, TensorProto};
use crate::tensor::{ElementType, TensorBytes};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata").join(name)
}

fn refused(name: &str) -> String {
    Model::load(&testdata(name)).expect_err(name).to_string()
}

#[test]
fn every_export_of_the_test_data_loads() {
    let names = fs::read_dir(testdata("models")).unwrap().map(|entry| entry.unwrap().path());
    let models: Vec<PathBuf> =
        names.filter(|path| path.extension().is_some_and(|end| end == "onnx")).collect();
    assert!(models.len() >= 10, "{models:?}");
    for path in models {
        let model = Model::load(&path).unwrap();
        assert!(!model.graph.nodes.is_empty() && !model.graph.inputs.is_empty(), "{}", path.display());
        assert!(model.producer.starts_with("pytorch"), "{}: {}", path.display(), model.producer);
    }
}

#[test]
fn gpt2_is_read_with_its_types_and_module_paths() {
    let model = Model::load(&testdata("models/gpt2.dynamo-dyn.onnx")).unwrap();
    assert_eq!((model.ir_version, model.opsets[""]), (10, 20));
    let input = model.graph.inputs[0].ty.tensor().unwrap();
    assert_eq!(input.dtype, ElementType::I64);
    assert!(input.dims.as_ref().unwrap().iter().all(|dim| matches!(dim, Dim::Named(_))), "{input}");
    let scoped =
        model.graph.nodes.iter().filter(|node| node.metadata.contains_key("pkg.torch.onnx.name_scopes"));
    assert!(scoped.count() > 50);
    assert!(model.graph.nodes.iter().all(|node| node.op_type != "Constant"));
}

#[test]
fn weights_that_are_not_shipped_are_absent_and_no_error() {
    let model = Model::load(&testdata("models/gpt3-175b-noweights.onnx")).unwrap();
    let absent =
        model.graph.tensors.iter().filter(|tensor| matches!(tensor.bytes, TensorBytes::Absent { .. }));
    assert!(absent.count() > 1000);
    let problem = model.graph.tensor("m.transformer.wpe.weight").unwrap().floats().unwrap_err();
    assert!(problem.message.contains("which does not exist"), "{problem}");
}

#[test]
fn broken_and_hostile_files_are_refused_with_what_is_wrong() {
    assert!(refused("odd/truncated.onnx").contains("is not an ONNX model"));
    assert!(refused("odd/cyclic.onnx").contains("form a cycle"));
    assert!(refused("odd/escape-external.onnx").contains("leaves the model's folder"));
    assert!(refused("odd/huge-dims.onnx").contains("larger than any memory"));
    assert!(refused("odd/undefined-input.onnx").contains("no node or tensor defines input"));
    assert!(refused("odd/duplicate-name.onnx").contains("is defined twice"));
    assert!(refused("odd/external-short.onnx").contains("this file has 100 bytes"));
    assert!(refused("odd/no-such-file.onnx").contains("cannot read the file"));
    assert!(refused("odd").contains("is a directory"));
}

#[test]
fn odd_but_valid_files_load() {
    for name in ["external-ok", "function", "constants-only", "tied-legacy", "missing-dims", "unknown-op"] {
        if let Err(error) = Model::load(&testdata(&format!("odd/{name}.onnx"))) {
            panic!("{name}: {error}");
        }
    }
    let external = Model::load(&testdata("odd/external-ok.onnx")).unwrap();
    assert!(external.graph.tensors.iter().all(|tensor| tensor.present().is_some()));
}

/// Writes a model beside a file `data` of 16 bytes; the initializer `w` (f32[2]) lies in it as `entries` say. Loads the model.
fn external(folder: &Path, entries: &[(&str, &str)]) -> Result<Model, LoadError> {
    let entry = |&(key, value): &(&str, &str)| StringStringEntryProto {
        key: Some(key.into()),
        value: Some(value.into()),
    };
    let weight = TensorProto {
        raw_data: None,
        data_location: Some(DataLocation::External as i32),
        external_data: entries.iter().map(entry).collect(),
        ..tensor("w", &[2], &[])
    };
    let mut model: ModelProto = model(vec![node("Add", &["x", "w"], &["y"])]);
    model.graph.as_mut().unwrap().initializer = vec![weight];
    fs::write(folder.join("data"), (0..16).collect::<Vec<u8>>()).unwrap();
    fs::write(folder.join("model.onnx"), model.encode_to_vec()).unwrap();
    Model::load(&folder.join("model.onnx"))
}

#[test]
fn external_data_is_a_slice_of_a_file_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = |entries: &[(&str, &str)]| {
        let model = external(folder.path(), entries).unwrap();
        model.graph.tensors[0].bytes.clone()
    };
    let slice = |range: std::ops::Range<u8>| TensorBytes::Present(range.collect::<Vec<u8>>().into());
    assert_eq!(bytes(&[("location", "data"), ("offset", "4"), ("length", "8")]), slice(4..12));
    assert_eq!(bytes(&[("location", "./data")]), slice(0..8));
    let absent = TensorBytes::Absent { location: "gone/data".into(), offset: 0, length: 8 };
    assert_eq!(bytes(&[("location", "gone/data")]), absent);
}

#[test]
fn external_data_that_does_not_fit_or_leaves_the_folder_is_refused() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), [0; 16]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    let refused = |entries: &[(&str, &str)]| external(folder.path(), entries).unwrap_err().to_string();
    assert!(refused(&[]).contains("without a `location`"));
    assert!(refused(&[("location", "")]).contains("is not a path"));
    assert!(refused(&[("location", "../data")]).contains("leaves the model's folder by `..`"));
    assert!(refused(&[("location", "sub/../data")]).contains("leaves the model's folder by `..`"));
    assert!(refused(&[("location", "/etc/passwd")]).contains("is absolute"));
    assert!(refused(&[("location", "C:\\data")]).contains("is absolute"));
    assert!(refused(&[("location", "sub")]).contains("is a directory"));
    assert!(
        refused(&[("location", "data"), ("offset", "9")])
            .contains("bytes 9 to 17 of \"data\", and this file has 16")
    );
    assert!(
        refused(&[("location", "data"), ("offset", "-1")]).contains("offset \"-1\", which is not a number")
    );
    assert!(refused(&[("location", "data"), ("length", "4")]).contains("4 bytes of external data"));
    let overflow = refused(&[("location", "data"), ("offset", "18446744073709551615")]);
    assert!(overflow.contains("out of range"), "{overflow}");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(outside.path().join("secret"), folder.path().join("link")).unwrap();
        std::os::unix::fs::symlink(outside.path(), folder.path().join("folder")).unwrap();
        assert!(refused(&[("location", "link")]).contains("outside the model's folder"));
        assert!(refused(&[("location", "folder/secret")]).contains("outside the model's folder"));
    }
}

#[test]
fn tensors_of_a_loaded_file_lie_in_its_map() {
    let model = Model::load(&testdata("models/mlp.dynamo.onnx")).unwrap();
    let mut addresses: Vec<usize> = model
        .graph
        .tensors
        .iter()
        .filter_map(|tensor| tensor.present())
        .map(|bytes| bytes.as_ptr() as usize)
        .collect();
    addresses.sort_unstable();
    let length = fs::metadata(testdata("models/mlp.dynamo.onnx")).unwrap().len() as usize;
    assert!(addresses.last().unwrap() - addresses[0] < length);
    let proto = model.proto().graph.as_ref().unwrap().initializer[0].raw_data.clone().unwrap();
    assert!(addresses.contains(&(proto.as_ptr() as usize)));
}

#[cfg(unix)]
#[test]
fn links_of_a_hubs_cache_are_followed_and_told() {
    let cache = tempfile::tempdir().unwrap();
    let [blobs, snapshot] =
        ["models--a/blobs", "models--a/snapshots/abc/onnx"].map(|name| cache.path().join(name));
    for folder in [&blobs, &snapshot, &cache.path().join("models--b/blobs")] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::copy(testdata("odd/external-ok.onnx"), blobs.join("1111")).unwrap();
    fs::copy(testdata("odd/external-ok.bin"), blobs.join("2222")).unwrap();
    let link = |name: &str, target: &str| {
        let path = snapshot.join(name);
        let _ = fs::remove_file(&path);
        std::os::unix::fs::symlink(Path::new(target), path).unwrap();
    };
    link("model.onnx", "../../../blobs/1111");
    link("external-ok.bin", "../../../blobs/2222");
    let path = snapshot.join("model.onnx");
    let model = Model::load(&path).unwrap();
    assert!(model.missing_files().is_empty());
    let warnings: Vec<String> = model.warnings.iter().map(|warning| warning.message.clone()).collect();
    assert!(
        warnings.iter().any(|warning| warning.contains("are read from") && warning.contains("blobs/2222")),
        "{warnings:?}"
    );
    // Blobs of another cache, and a folder of blobs that belongs to no cache.
    fs::copy(blobs.join("2222"), cache.path().join("models--b/blobs/2222")).unwrap();
    link("external-ok.bin", "../../../../models--b/blobs/2222");
    assert!(Model::load(&path).unwrap_err().to_string().contains("outside the model's folder"));
    fs::remove_file(snapshot.join("external-ok.bin")).unwrap();
    let missing = Model::load(&path).unwrap();
    assert_eq!(missing.missing_files().keys().copied().collect::<Vec<_>>(), ["external-ok.bin"]);
}
