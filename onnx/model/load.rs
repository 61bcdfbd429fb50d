//! Loading of a model: map, decode, check, build.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message;

use super::build::Builder;
use super::{Graph, Model, header, order};
use crate::checksum;
use crate::error::{LoadError, Problem, Problems};
use crate::proto::{ModelProto, expansion};
use crate::record;
use crate::tensor::{ExternalFiles, TensorBytes, data};

/// The most bytes of structs for each byte of the file (small nodes take 15 times their size).
const STRUCTS_PER_BYTE: usize = 32;
/// The bytes of structs that any file may take in addition, so that small files are never refused.
const STRUCTS_FREE: usize = 16 << 20;

impl Model {
    /// Loads the model at `path`. The file is mapped, and its tensors stay mapped: the file must not be changed in place while the
    /// model exists. The error has every problem that was found.
    pub fn load(path: &Path) -> Result<Model, LoadError> {
        Self::load_with(path, false)
    }

    /// Loads a model as [`Self::load`] does. With `untied`, tensors that the exporter merged because their bytes are equal are
    /// separated even where the file does not say to which parameters they belonged.
    pub fn load_with(path: &Path, untied: bool) -> Result<Model, LoadError> {
        let fail = |problems| LoadError { path: Some(path.to_owned()), problems };
        let file = files::map(path)
            .map_err(|error| fail(vec![Problem::new(format!("cannot read the file: {error}"))]))?;
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let mut model = read(file, Some(folder), untied).map_err(fail)?;
        model.path = Some(path.to_owned());
        Ok(model)
    }

    /// Loads a model from memory. External data is read from `folder`; without it all external data is absent.
    pub fn from_bytes(file: Bytes, folder: Option<&Path>) -> Result<Model, LoadError> {
        read(file, folder.map(Path::to_owned), false).map_err(|problems| LoadError { path: None, problems })
    }

    /// Returns the missing files of external data, each with the number of tensors that it holds.
    pub fn missing_files(&self) -> BTreeMap<&str, usize> {
        let mut missing = BTreeMap::new();
        for tensor in &self.graph.tensors {
            if let TensorBytes::Absent { location, .. } = &tensor.bytes {
                *missing.entry(location.as_str()).or_default() += 1;
            }
        }
        missing
    }

    /// Returns the original messages of the file.
    pub fn proto(&self) -> &ModelProto {
        &self.proto
    }
}

fn read(file: Bytes, folder: Option<PathBuf>, untied: bool) -> Result<Model, Vec<Problem>> {
    let mut proto = decode(file).map_err(|problem| vec![problem])?;
    let mut files = ExternalFiles::new(folder);
    let changed = checksum::open(&mut proto, &mut files)?;
    let record = record::restore(&mut proto, untied);
    let mut problems = Problems::default();
    let ir_version = header::check_ir_version(&proto, &mut problems);
    let opsets = header::imports(&proto.opset_import, "the model's header", &mut problems);
    let graph = match &proto.graph {
        Some(graph) => {
            let mut builder = Builder::new(&proto.functions, &opsets, &mut files, &mut problems);
            let graph = builder.model_graph(graph, &opsets);
            let (broken, complete) = (std::mem::take(&mut builder.broken), !builder.exhausted());
            if complete { order::check_and_sort(graph, &broken, &mut problems) } else { graph }
        }
        None => {
            problems.push(Problem::new("the file has no graph"));
            Graph::default()
        }
    };
    if !problems.is_empty() {
        return Err(problems.into_list());
    }
    let producer =
        [&proto.producer_name, &proto.producer_version].map(|text| text.as_deref().unwrap_or_default());
    Ok(Model {
        path: None,
        ir_version,
        producer: producer.join(" ").trim().to_owned(),
        opsets,
        metadata: data::metadata(&proto.metadata_props),
        graph,
        warnings: header::warnings(&proto).into_iter().chain(changed).chain(files.warnings()).collect(),
        record,
        asked: BTreeSet::new(),
        proto,
        files,
    })
}

/// Decodes the messages, after estimating the memory that they will take.
fn decode(file: Bytes) -> Result<ModelProto, Problem> {
    let not_onnx = |why: String| {
        let note = "an ONNX model is a protobuf file; was it cut off, or is it a Git LFS pointer?";
        Problem::new(format!("the file is not an ONNX model: {why}")).note(note)
    };
    if file.is_empty() {
        return Err(not_onnx("it is empty".to_owned()));
    }
    let structs = expansion(&file).map_err(not_onnx)?.struct_bytes;
    if structs > file.len().saturating_mul(STRUCTS_PER_BYTE).saturating_add(STRUCTS_FREE) {
        let message = format!("the {} bytes of the file would need {structs} bytes of memory", file.len());
        return Err(not_onnx(message));
    }
    ModelProto::decode(file).map_err(|error| not_onnx(error.to_string()))
}
