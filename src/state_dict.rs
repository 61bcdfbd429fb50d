//! The author's tensors: tensors of the author's module are put together from tensors of the model's file, and taken apart into them, as
//! [`onnx::StateDict`] describes.

use bytes::Bytes;
use checkpoint::{Checkpoint, RawTensor, TensorFile, Weights, weights_of};
use ir::{DType, Diagnostic, Module, State, Type, ViewStep};
use onnx::{Imported, StateDict, StateDictEntry};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Puts a tensor of the author's module together. `tensor` gives tensors of the model's file. `None` if one of them is missing, or does not
/// fit the description.
pub fn assemble(entry: &StateDictEntry, tensor: impl Fn(&str) -> Option<RawTensor>) -> Option<RawTensor> {
    let mut whole: Option<RawTensor> = None;
    for part in &entry.parts {
        let part = tensor(&part.tensor)?.view(&part.view)?;
        whole = Some(match whole {
            None => part,
            Some(before) => joined(before, &part)?,
        });
    }
    whole
}

/// The type and sizes of the tensor that [`assemble`] makes, without making it. `None` if [`assemble`] returns `None`.
pub fn assembled_type(
    entry: &StateDictEntry,
    tensor: impl Fn(&str) -> Option<RawTensor>,
) -> Option<(DType, Vec<u64>)> {
    let mut whole: Option<(DType, Vec<u64>)> = None;
    for part in &entry.parts {
        let of_file = tensor(&part.tensor)?;
        if part.view.iter().any(|step| matches!(step, ViewStep::Cast(_))) {
            return None;
        }
        let sizes = ir::view::sizes(&part.view, &of_file.sizes)?;
        match &mut whole {
            None => whole = Some((of_file.dtype, sizes)),
            Some((dtype, first)) => {
                let fits = *dtype == of_file.dtype && first.get(1..)? == sizes.get(1..)?;
                *first.first_mut().filter(|_| fits)? += sizes[0];
            }
        }
    }
    whole
}

/// Two tensors, concatenated along dim 0.
fn joined(mut first: RawTensor, second: &RawTensor) -> Option<RawTensor> {
    let fits = first.dtype == second.dtype && first.sizes.get(1..)? == second.sizes.get(1..)?;
    if !fits {
        return None;
    }
    first.sizes[0] += second.sizes[0];
    first.bytes = [first.bytes, second.bytes.clone()].concat().into();
    Some(first)
}

/// Reads the values of parameters and buffers from a file: under the names of the model's file, under module paths, or
/// under the names and in the layouts of the author's module.
///
/// # Errors
/// As [`checkpoint::load_weights`].
pub fn load_weights(path: &Path, module: &Module, imported: &Imported) -> Result<Weights, Diagnostic> {
    let mut file = Checkpoint::tensors(path)?;
    if !file.holds_states() {
        take_apart(&mut file, module, &imported.state_dict)?;
    }
    weights_of(&file, module, &imported.aliases)
}

/// Replaces tensors of the author's module by the tensors of the model's file that they are made of. A tensor of the model's file is left
/// alone if the file already has it, or if the author's tensors do not cover it.
fn take_apart(file: &mut TensorFile, module: &Module, state_dict: &StateDict) -> Result<(), Diagnostic> {
    let rows: Rows =
        module.data.values().filter_map(|data| Some((data.name.as_str(), data.ty.sizes()?))).collect();
    let of_state = |state: &State| state.initializer.data().map(|data| module.data[data].name.as_str());
    let of_states: BTreeSet<&str> = module.states.values().filter_map(of_state).collect();
    let entries: BTreeMap<&str, &StateDictEntry> =
        state_dict.entries.iter().map(|entry| (entry.name.as_str(), entry)).collect();
    let mut used = BTreeSet::new();
    for (name, names) in state_dict.names() {
        let is_wanted = of_states.contains(name) && file.ty(name).is_none();
        let Some(sizes) = rows.get(name).filter(|_| is_wanted) else { continue };
        let mut target = Target { name, sizes, value: None, elements: 0 };
        for author in &names {
            let Some(ty) = file.ty(author) else { continue };
            let bytes = file.read(author)?;
            let value = bytes.zip(ty.sizes());
            let value = value.and_then(|(bytes, sizes)| RawTensor::new(ty.dtype, sizes, bytes));
            value.and_then(|value| target.put(entries[author], &value, &rows));
        }
        if let Some((ty, bytes)) = target.complete() {
            file.insert(name, &ty, bytes);
            used.extend(names);
        }
    }
    // A name that is also a tensor of the model's file is looked up under that name.
    used.into_iter().filter(|name| !rows.contains_key(name)).for_each(|name| file.remove(name));
    Ok(())
}

/// The sizes of the model's tensors, by name.
type Rows<'m> = BTreeMap<&'m str, Vec<u64>>;

/// A tensor of the model's file, while its parts are copied into it.
struct Target<'a> {
    name: &'a str,
    sizes: &'a [u64],
    value: Option<(DType, Bytes)>,
    /// The number of elements that were copied.
    elements: u64,
}

impl Target<'_> {
    /// Copies the parts that a tensor of the author's module has of this tensor. `None` if the value has other sizes than the description,
    /// or another type than the values before.
    fn put(&mut self, entry: &StateDictEntry, value: &RawTensor, rows: &Rows) -> Option<()> {
        let sizes =
            entry.parts.iter().map(|part| ir::view::sizes(&part.view, rows.get(part.tensor.as_str())?));
        let sizes: Vec<Vec<u64>> = sizes.collect::<Option<_>>()?;
        let rows_of = |sizes: &Vec<u64>| sizes.first().copied().unwrap_or(1);
        let mut whole = sizes.first()?.clone();
        if let Some(first) = whole.first_mut() {
            *first = sizes.iter().map(rows_of).sum();
        }
        if value.sizes != whole || self.value.as_ref().is_some_and(|(dtype, _)| *dtype != value.dtype) {
            return None;
        }
        let mut start = 0;
        for (part, sizes) in entry.parts.iter().zip(&sizes) {
            let length = rows_of(sizes);
            if part.tensor == self.name {
                let cut = ViewStep::Slice { dim: 0, start, length };
                let own = if sizes.is_empty() { value.clone() } else { value.clone().view(&[cut])? };
                let before = self.value.as_ref().map(|(_, bytes)| bytes);
                let bytes = ir::view::put_back(&part.view, self.sizes, value.dtype, before, own.bytes)?;
                self.value = Some((value.dtype, bytes));
                self.elements += sizes.iter().product::<u64>();
            }
            start += length;
        }
        Some(())
    }

    /// The tensor, if all its elements were copied.
    fn complete(self) -> Option<(Type, Bytes)> {
        let (dtype, bytes) = self.value?;
        (self.elements >= self.sizes.iter().product()).then(|| (Type::of(dtype, self.sizes), bytes))
    }
}
