//! The inputs of the graph, and its initializers: rows of the data table, and states that views cut out of them.
//!
//! In [`Form::Program`] states are inputs, and their values after the step are outputs. In a model the bytes of a row are those
//! given for its name, or the program's.

use super::constants::proto;
use super::draft::{Draft, Source, TensorId};
use super::{Absent, Form, attribute};
use crate::error::quoted;
use crate::proto::TensorProto;
use crate::recorded::written_claim;
use bytes::Bytes;
use ir::{
    Blob, Claim, DataId, Diagnostic, Dim, Dims, Initializer, Level, Role, State, Tensor, Type, ViewStep,
};

/// The most bytes of a constant that becomes a node, unless it is an initializer of the file.
const SMALL: usize = 1024;

/// Adds the inputs, and in [`Form::Program`] the states.
pub(super) fn add_inputs(draft: &mut Draft) {
    let module = draft.module;
    let reach = draft.reach;
    let keeps_all = module.level == Level::Imported || draft.form == Form::Program;
    for input in module.inputs.iter().filter(|input| keeps_all || reach.has_value(input.value)) {
        let tensor = add_input(draft, input.name.clone(), module.ty(input.value).clone());
        draft.define(input.value, Some(tensor));
    }
    if draft.form == Form::Program {
        for state in module.states.values() {
            let tensor = add_input(draft, state.name.clone(), state.ty.clone());
            draft.define(state.input, Some(tensor));
        }
    }
}

fn add_input(draft: &mut Draft, name: String, ty: Type) -> TensorId {
    let tensor = draft.tensor(Source::Named(name), Some(ty));
    draft.inputs.push(tensor);
    tensor
}

/// Adds the states that a model reads.
///
/// # Errors
/// A state has no bytes.
pub(super) fn add_states(draft: &mut Draft) -> Result<(), Diagnostic> {
    if draft.form == Form::Program {
        return Ok(());
    }
    let (module, reach) = (draft.module, draft.reach);
    for state in module.states.values().filter(|state| reach.has_value(state.input)) {
        let tensor = match state.initializer.data() {
            // Experts have individual values, although they were initialised from the same tensor of the file.
            Some(data) if !is_own(draft, state) => {
                let row = row(draft, data)?;
                viewed(draft, row, &draft.module.data[data].ty, state)?
            }
            _ => own(draft, state)?,
        };
        draft.define(state.input, Some(tensor));
    }
    Ok(())
}

/// Whether a state is written under its own name: bytes are given for the state itself, or no view of the file's tensor gives its value. A
/// state may have the name of the tensor that it views; bytes under this name are those of the tensor.
fn is_own(draft: &Draft, state: &State) -> bool {
    let views_its_name = |data: DataId| draft.module.data[data].name == state.name && !state.view.is_empty();
    let has_bytes = draft.bytes.contains_key(&state.name);
    has_bytes && !state.initializer.data().is_some_and(views_its_name)
        || matches!(state.initializer, Initializer::Noisy { .. })
}

/// Adds a state that is not in the file as an initializer with its name.
fn own(draft: &mut Draft, state: &State) -> Result<TensorId, Diagnostic> {
    let bytes = match (draft.bytes.get(&state.name), &state.initializer, state.ty.sizes()) {
        (Some(bytes), _, _) => Some(bytes.clone()),
        (None, Initializer::Zeros | Initializer::Splat(_), Some(sizes)) => {
            let number = match state.initializer {
                Initializer::Splat(bits) => f64::from_bits(bits),
                _ => 0.0,
            };
            let sizes = sizes.into_iter().map(|size| size as usize).collect();
            Some(Bytes::from(Tensor::splat(state.ty.dtype, sizes, number).to_bytes()))
        }
        (None, _, _) => None,
    };
    let claim = if state.role == Role::Parameter { Claim::Parameter } else { Claim::Buffer };
    initializer(draft, &state.name, &state.ty, bytes, Some(claim).filter(|_| state.ty.dtype.is_float()))
}

/// Adds a row of the data table.
///
/// # Errors
/// The row has no bytes, or a wrong number of bytes.
pub(super) fn row(draft: &mut Draft, data: DataId) -> Result<TensorId, Diagnostic> {
    if let Some(&known) = draft.rows.get(&data) {
        return Ok(known);
    }
    let row = &draft.module.data[data];
    let bytes = draft.bytes.get(&row.name).or(row.bytes()).cloned();
    let is_code = matches!(row.blob, Blob::Inline(_)) || row.claim == Some(Claim::Literal);
    let tensor = match bytes {
        // By this difference the import distinguishes constants of the code from parameters.
        Some(bytes) if is_code && bytes.len() <= SMALL && Some(bytes.len() as u64) == row.ty.bytes() => {
            let value = attribute::tensor("value", proto(&row.ty, bytes));
            let tensor = draft.push("Constant", &[], [value]);
            draft.tensors[tensor.index()].source = Source::Named(row.name.clone());
            draft.tensors[tensor.index()].ty = Some(row.ty.clone());
            tensor
        }
        bytes => initializer(draft, &row.name, &row.ty, bytes, row.claim)?,
    };
    draft.rows.insert(data, tensor);
    Ok(tensor)
}

fn initializer(
    draft: &mut Draft,
    name: &str,
    ty: &Type,
    bytes: Option<Bytes>,
    claim: Option<Claim>,
) -> Result<TensorId, Diagnostic> {
    let Some(bytes) = bytes else {
        return match draft.absent {
            Absent::AsInputs => Ok(add_input(draft, name.to_owned(), ty.clone())),
            Absent::Refuse => {
                Err(Diagnostic::new(format!("the tensor {} has no bytes to write", quoted(name)))
                    .note("give the weights with --weights FILE.safetensors"))
            }
        };
    };
    if ty.bytes() != Some(bytes.len() as u64) {
        let (name, needed) = (quoted(name), ty.bytes().unwrap_or(0));
        return Err(Diagnostic::new(format!(
            "{} bytes are given for the tensor {name}, and its type {ty} needs {needed}",
            bytes.len()
        )));
    }
    let tensor = draft.tensor(Source::Named(name.to_owned()), Some(ty.clone()));
    let metadata_props = claim.map(written_claim).into_iter().collect();
    draft.initializers.push((tensor, TensorProto { metadata_props, ..proto(ty, bytes) }));
    Ok(tensor)
}

/// Writes a state as a view of the file's tensor.
fn viewed(
    draft: &mut Draft,
    mut tensor: TensorId,
    file: &Type,
    state: &State,
) -> Result<TensorId, Diagnostic> {
    let (mut dims, mut dtype) = (file.dims.clone(), file.dtype);
    for step in &state.view {
        match step {
            ViewStep::Reshape(sizes) => {
                let to: Dims = sizes.iter().copied().map(Dim::known).collect();
                tensor = draft.reshape(tensor, &dims, &to)?;
                dims = to;
            }
            ViewStep::Transpose(permutation) => {
                let permutation: Vec<usize> = permutation.iter().map(|&dim| dim as usize).collect();
                tensor = draft.transpose(tensor, &permutation);
                dims = permutation.iter().map(|&dim| dims[dim].clone()).collect();
            }
            ViewStep::Slice { dim, start, length } => {
                let (start, end) = (super::draft::size(*start)?, super::draft::size(start + length)?);
                tensor = draft.slice(tensor, *dim, start, end, 1);
                dims[*dim as usize] = Dim::known(*length);
            }
            ViewStep::Pad { dim, after } => {
                let size = dims[*dim as usize].size().unwrap_or(0) + after;
                tensor = draft.pad(tensor, dtype, *dim, [0, *after], 0.0)?;
                dims[*dim as usize] = Dim::known(size);
            }
            ViewStep::Cast(to) => {
                tensor = draft.cast(tensor, dtype, *to);
                dtype = *to;
            }
            ViewStep::Repeat(count) => {
                let mut repeats = vec![Dim::known(1); dims.len()];
                repeats[0] = Dim::known(*count);
                let repeats = draft.shape(&repeats)?;
                tensor = draft.push("Tile", &[tensor, repeats], []);
                dims[0] = Dim::known(dims[0].size().unwrap_or(0) * count);
            }
        }
    }
    Ok(tensor)
}
