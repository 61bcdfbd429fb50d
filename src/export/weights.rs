//! `model.safetensors`: the tensors of the author's module under their names and in their layouts, so that
//! `load_state_dict` takes the file. A tensor of the file that is in no `state_dict` keeps its name and layout.

use super::{FileTensors, by_name, exported};
use crate::compilation::{Compilation, Source};
use crate::state_dict::{assemble, assembled_type};
use checkpoint::{RawTensor, TensorLayout, TensorRow};
use files::Replacement;
use ir::{Diagnostic, View};
use onnx::StateDictEntry;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Writes the tensors under a temporary name and renames the file. Returns the keys of the author's `state_dict` for which
/// there is no value.
pub(super) fn write(
    path: &Path,
    source: &Source,
    compilation: &Compilation,
    tensors: &FileTensors,
) -> Result<Vec<String>, Vec<Diagnostic>> {
    let in_file = by_name(&source.model);
    let current = |name: &str| {
        let tensor = in_file.get(name)?;
        let bytes = tensors.get(name).or(tensor.present())?;
        let sizes = tensor.dims.iter().map(|&size| size as u64).collect();
        RawTensor::new(tensor.dtype.dtype()?, sizes, bytes.clone())
    };
    let (named, absent) = named(source, compilation, tensors, &current);
    // The mark that PyTorch's own writer sets: matrices have PyTorch's layout.
    let is_pytorch = !source.imported.state_dict.entries.is_empty();
    let words: &[(&str, &str)] = if is_pytorch { &[("format", "pt")] } else { &[] };
    let rows = named.iter().map(|(name, stored)| TensorRow { name: name.clone(), ..stored.row.clone() });
    write_tensors(path, rows.collect(), words, |name| named[name].bytes())?;
    Ok(absent)
}

/// Writes a file of safetensors with these words in its header. `bytes` gives the bytes of a tensor by its name.
pub(super) fn write_tensors<'t>(
    path: &Path,
    rows: Vec<TensorRow>,
    words: &[(&str, &str)],
    bytes: impl Fn(&str) -> Cow<'t, [u8]>,
) -> Result<(), Vec<Diagnostic>> {
    let failed = |why: String| vec![Diagnostic::new(format!("cannot write {}: {why}", path.display()))];
    let layout = TensorLayout::new(rows, words)
        .map_err(|name| failed(format!("the safetensors format reserves the name `{name}`")))?;
    let write = || {
        let mut file = Replacement::begin(path)?;
        layout.write(&mut file, |row| Ok::<_, io::Error>(bytes(&row.name)))?;
        file.publish()
    };
    write().map_err(|error: io::Error| failed(error.to_string()))
}

/// A tensor of the file that is going to be written. It is put together only when its turn comes, because a transposed matrix is a copy.
struct Stored<'a> {
    row: TensorRow,
    entry: Cow<'a, StateDictEntry>,
    current: &'a dyn Fn(&str) -> Option<RawTensor>,
}

impl Stored<'_> {
    fn bytes(&self) -> Cow<'static, [u8]> {
        let tensor =
            assemble(&self.entry, self.current).expect("the description fits, as its type was found");
        Cow::Owned(tensor.bytes.into())
    }
}

/// The tensors by their names, and the keys of the author's `state_dict` that are not among them.
fn named<'a>(
    source: &'a Source,
    compilation: &Compilation,
    tensors: &FileTensors,
    current: &'a dyn Fn(&str) -> Option<RawTensor>,
) -> (BTreeMap<String, Stored<'a>>, Vec<String>) {
    let state_dict = &source.imported.state_dict;
    let stored = |entry: Cow<'a, StateDictEntry>| {
        let (dtype, dims) = assembled_type(&entry, current)?;
        Some(Stored { row: TensorRow { name: entry.name.clone(), dtype, dims }, entry, current })
    };
    let mut named = BTreeMap::new();
    let mut absent = state_dict.absent.clone();
    for entry in &state_dict.entries {
        match stored(Cow::Borrowed(entry)) {
            Some(tensor) => drop(named.insert(entry.name.clone(), tensor)),
            None => absent.push(entry.name.clone()),
        }
    }
    let names = state_dict.names();
    for report in exported(compilation).filter(|report| !names.contains_key(report.data.as_str())) {
        // The exporter copied a tensor that has a name in the author's `state_dict`.
        let is_copy = report.tied.as_ref().is_some_and(|tie| names.contains_key(tie.data.as_str()));
        if !is_copy && tensors.contains_key(&report.data) && !named.contains_key(&report.data) {
            let entry = StateDictEntry::whole(&report.data, &report.data, View::new());
            named.extend(stored(Cow::Owned(entry)).map(|tensor| (report.data.clone(), tensor)));
        }
    }
    (named, absent)
}
