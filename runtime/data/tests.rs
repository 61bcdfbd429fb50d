//! Tests of the loader as a whole: order, labels, epochs, held-out data, formats, and refusals.

mod columns;
mod folders;
mod json_lines;
mod order;
mod refused;
mod sources;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use ir::DType;
use tempfile::TempDir;

use super::*;

/// Files in a folder that is removed when this is dropped.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> DataSource {
        fs::write(self.path(name), contents).unwrap();
        DataSource::Path(self.path(name))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a safetensors file of (key, type, dims, elements).
    fn arrays(&self, name: &str, arrays: &[(&str, DType, &[u64], &[i64])]) -> DataSource {
        use safetensors::Dtype;
        use safetensors::tensor::TensorView;
        let bytes: Vec<Vec<u8>> = arrays
            .iter()
            .map(|(_, dtype, _, values)| match dtype {
                DType::I64 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
                DType::F32 => values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect(),
                DType::Bool | DType::U8 => values.iter().map(|value| *value as u8).collect(),
                other => panic!("tests write no {other}"),
            })
            .collect();
        let views = arrays.iter().zip(&bytes).map(|((key, dtype, dims, _), bytes)| {
            let dtype = match dtype {
                DType::I64 => Dtype::I64,
                DType::F32 => Dtype::F32,
                DType::U8 => Dtype::U8,
                _ => Dtype::BOOL,
            };
            (*key, TensorView::new(dtype, dims.iter().map(|&dim| dim as usize).collect(), bytes).unwrap())
        });
        self.write(name, safetensors::serialize(views, None).unwrap())
    }
}

fn input(name: &str, dtype: DType, dims: &[u64]) -> InputSpec {
    InputSpec { name: name.to_owned(), dtype, dims: dims.to_vec(), batched: true, vocabulary: None }
}

fn label(dtype: DType, dims: &[u64], classes: u64, ignore_index: Option<i64>) -> LabelSpec {
    LabelSpec { name: "labels".to_owned(), dtype, dims: dims.to_vec(), classes: Some(classes), ignore_index }
}

/// A byte-level language model.
fn language_model(microbatch: u64, sequence: u64, ignore_index: Option<i64>) -> ModelSpec {
    let mut tokens = input("input_ids", DType::I64, &[microbatch, sequence]);
    tokens.vocabulary = Some(256);
    ModelSpec {
        inputs: vec![tokens],
        label: Some(label(DType::I64, &[microbatch, sequence], 256, ignore_index)),
        ..ModelSpec::default()
    }
}

/// A classifier of rows of two floats.
fn classifier(microbatch: u64, ignore_index: Option<i64>) -> ModelSpec {
    let label = label(DType::I64, &[microbatch], 10, ignore_index);
    ModelSpec {
        inputs: vec![input("x", DType::F32, &[microbatch, 2])],
        label: Some(label),
        ..ModelSpec::default()
    }
}

fn integers(batch: &Batch, name: &str) -> Vec<i64> {
    batch.tensors[name].to_i64s().unwrap()
}

fn refusal(spec: &ModelSpec, data: &DataSource, options: &LoaderOptions) -> String {
    Loader::new(spec, data, options).unwrap_err().to_string()
}

fn options() -> LoaderOptions {
    LoaderOptions { held_out: 0.0, ..LoaderOptions::default() }
}

fn overrides(inputs: &[(&str, Source)]) -> BTreeMap<String, Source> {
    inputs.iter().map(|(name, source)| ((*name).to_owned(), source.clone())).collect()
}
