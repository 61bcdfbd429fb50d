//! `model.safetensors`: the tensors of the author's module under their names and in their layouts, so that
//! `load_state_dict` takes the file. A tensor of the file that is in no `state_dict` keeps its name and layout.

use super::{FileTensors, by_name, exported};
use crate::compilation::{Compilation, Source};
use crate::state_dict::assemble;
use ir::{DType, Diagnostic};
use onnx::{ElementType, Tensor};
use runtime::checkpoint::RawTensor;
use safetensors::tensor::TensorView;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

/// Writes the tensors under a temporary name and renames the file. Returns the keys of the author's `state_dict` for which
/// there is no value.
pub(super) fn write(
    path: &Path,
    source: &Source,
    compilation: &Compilation,
    tensors: &FileTensors,
) -> Result<Vec<String>, Vec<Diagnostic>> {
    let failed = |why: String| vec![Diagnostic::new(format!("cannot write {}: {why}", path.display()))];
    let (named, absent) = named(source, compilation, tensors);
    let mut views = Vec::new();
    for (name, tensor) in &named {
        let sizes = tensor.sizes.iter().map(|&size| size as usize).collect();
        let view = TensorView::new(stored(tensor.dtype), sizes, &tensor.bytes);
        views.push((name.as_str(), view.map_err(|error| failed(error.to_string()))?));
    }
    // The mark of PyTorch's own writer: matrices lie as PyTorch has them.
    let is_pytorch = !source.imported.state_dict.entries.is_empty();
    let mark = is_pytorch.then(|| HashMap::from([("format".to_owned(), "pt".to_owned())]));
    let partial = path.with_extension(format!("safetensors.partial-{}", std::process::id()));
    let written = safetensors::serialize_to_file(views, mark, &partial).map_err(|error| error.to_string());
    let renamed = written.and_then(|()| {
        let sync = || fs::File::open(&partial)?.sync_all().and_then(|()| fs::rename(&partial, path));
        sync().map_err(|error: std::io::Error| error.to_string())
    });
    renamed.map(|()| absent).map_err(|why| {
        // Half a file is of no use; if it cannot be removed either, the first error says more.
        let _ = fs::remove_file(&partial);
        failed(why)
    })
}

/// The tensors by their names, and the keys of the author's `state_dict` that are not among them.
fn named(
    source: &Source,
    compilation: &Compilation,
    tensors: &FileTensors,
) -> (BTreeMap<String, RawTensor>, Vec<String>) {
    let state_dict = &source.imported.state_dict;
    let in_file = by_name(&source.model);
    let current = |name: &str| {
        let tensor = in_file.get(name)?;
        let bytes = tensors.get(name).or(tensor.present())?;
        RawTensor::new(dtype(tensor)?, tensor.dims.iter().map(|&size| size as u64).collect(), bytes.clone())
    };
    let mut named = BTreeMap::new();
    let mut absent = state_dict.absent.clone();
    for entry in &state_dict.entries {
        match assemble(entry, current) {
            Some(tensor) => drop(named.insert(entry.name.clone(), tensor)),
            None => absent.push(entry.name.clone()),
        }
    }
    let names = state_dict.names();
    for report in exported(compilation).filter(|report| !names.contains_key(report.data.as_str())) {
        // A copy that the exporter made of a tensor that has a name of the author's.
        let is_copy = report.tied.as_ref().is_some_and(|tie| names.contains_key(tie.data.as_str()));
        let bytes = tensors.get(&report.data).filter(|_| !is_copy);
        let value = bytes.zip(report.ty.sizes());
        let value = value.and_then(|(bytes, sizes)| RawTensor::new(report.ty.dtype, sizes, bytes.clone()));
        if let Some(value) = value {
            named.entry(report.data.clone()).or_insert(value);
        }
    }
    (named, absent)
}

/// The element type of a tensor of the file; `None` if there is no such type in a file of safetensors.
fn dtype(tensor: &Tensor) -> Option<DType> {
    Some(match tensor.dtype {
        ElementType::F64 => DType::F64,
        ElementType::F32 => DType::F32,
        ElementType::F16 => DType::F16,
        ElementType::Bf16 => DType::BF16,
        ElementType::I64 => DType::I64,
        ElementType::I32 => DType::I32,
        ElementType::I16 => DType::I16,
        ElementType::I8 => DType::I8,
        ElementType::U64 => DType::U64,
        ElementType::U32 => DType::U32,
        ElementType::U16 => DType::U16,
        ElementType::U8 => DType::U8,
        ElementType::Bool => DType::Bool,
        _ => return None,
    })
}

fn stored(dtype: DType) -> safetensors::Dtype {
    use safetensors::Dtype;
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U64 => Dtype::U64,
        DType::U32 => Dtype::U32,
        DType::U16 => Dtype::U16,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}
