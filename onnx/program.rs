//! The writing of a program as an ONNX model: its forward pass as a model that other programs run, or all of it for a viewer.
//!
//! - `reach`: the outputs of the program that the file has, and the nodes behind them.
//! - `draft`: the graph under construction, without names; `constants` has its numbers and sizes, `layouts` its changes of dims.
//! - `operators`: the ONNX form of each operator, in one exhaustive match, with one file for each family of operators.
//! - `own`: operators of the compiler that ONNX does not have, in the domain `trainyard`.
//! - `tensors`: rows of the data table and states, with their views.
//! - `finish`: names, types and messages; `sharding`: the layout of the program over devices.
//!
//! The decisions behind the form are in ADR 0033.

mod attention;
mod attribute;
mod batch_norm;
mod bits;
mod constants;
mod contraction;
mod convolution;
mod draft;
mod elementwise;
mod experts;
mod finish;
mod header;
mod indexing;
mod layout;
mod layouts;
mod loss;
mod names;
mod norm;
mod operators;
mod own;
mod pool;
mod random;
mod reach;
mod recurrent;
mod reduction;
mod sharding;
mod source;
mod tensors;

#[cfg(test)]
mod tests;

pub use header::{Header, ValueHeader};

use crate::proto::ModelProto;
use crate::write::{self, WriteError};
use bytes::Bytes;
use draft::Draft;
use ir::{Diagnostic, Level, Module};
use std::collections::BTreeMap;
use std::path::Path;

/// The form of a written program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The forward pass in operators of `ai.onnx`; batch norms use running statistics, dropouts drop nothing.
    Inference,
    /// The forward pass in operators of `ai.onnx`; batch norms use the statistics of the batch, dropouts drop.
    Training,
    /// The whole program, for a viewer. A node without a single ONNX operator becomes one node of the domain `trainyard`.
    Program,
}

/// The treatment of tensors without bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// Such tensors are an error.
    Refuse,
    /// Such tensors become inputs of the graph.
    AsInputs,
}

/// The reason why a program was not written.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// An operator, an output or a tensor cannot be written.
    #[error(transparent)]
    Program(#[from] Diagnostic),
    /// The file cannot be written.
    #[error(transparent)]
    File(#[from] WriteError),
}

/// Writes the forward pass of a program as an ONNX model to `path`.
///
/// `tensors` has new bytes of initializers, by the names in the data table or, for states that are not in the file, by the states'
/// names. The bytes are little-endian and row-major, of the type in the table. All other tensors keep the program's bytes. The
/// file is written as [`crate::Model::write`] does it.
///
/// # Errors
/// The program's level is not imported or training; an operator has no form in ONNX; a tensor has no bytes or too few; the file
/// system fails.
pub fn write(
    module: &Module,
    header: &Header,
    tensors: &BTreeMap<String, Bytes>,
    form: Form,
    path: &Path,
) -> Result<(), ProgramError> {
    let proto = model(module, header, tensors, form, Absent::Refuse)?;
    Ok(save(proto, path)?)
}

/// Returns the messages of a program, as [`write()`] writes them. In [`Form::Program`] the program may be at any level.
///
/// # Errors
/// As [`write()`], without the file system.
pub fn model(
    module: &Module,
    header: &Header,
    tensors: &BTreeMap<String, Bytes>,
    form: Form,
    absent: Absent,
) -> Result<ModelProto, Diagnostic> {
    let is_forward = matches!(module.level, Level::Imported | Level::Training);
    if form != Form::Program && !is_forward {
        return Err(Diagnostic::new(
            "only programs of the levels imported and training can be written as a model, which runs on one device",
        )
        .note("write the program as it is before the pass `spmd`"));
    }
    let reach = reach::Reach::of(module, form)?;
    let mut draft = Draft::new(module, &reach, form, absent, tensors);
    tensors::add_inputs(&mut draft);
    tensors::add_states(&mut draft)?;
    for (id, node) in module.nodes().filter(|(id, _)| reach.has(*id)) {
        draft.at(id);
        let results = operators::write(&mut draft, node)?;
        for (&value, tensor) in node.results.iter().zip(results) {
            draft.define(value, tensor);
        }
    }
    finish::model(draft, header)
}

/// Returns the messages of any program, for a viewer. A forward program at level imported becomes a model that runs, in training
/// form. Any other program is written in [`Form::Program`], where states are inputs and their new values are outputs. Tensors
/// without bytes are inputs.
///
/// # Errors
/// A size cannot be represented in ONNX.
pub fn shown(module: &Module, header: &Header) -> Result<ModelProto, Diagnostic> {
    let write = |form| model(module, header, &BTreeMap::new(), form, Absent::AsInputs);
    let forward = (module.level == Level::Imported).then(|| write(Form::Training).ok()).flatten();
    forward.map_or_else(|| write(Form::Program), Ok)
}

/// Writes messages to a file, as [`write()`] does.
///
/// # Errors
/// The file system; a model that protobuf cannot hold.
pub fn save(proto: ModelProto, path: &Path) -> Result<(), WriteError> {
    write::save(proto, path)
}

/// Returns the bytes of a file with these messages.
pub fn bytes(proto: &ModelProto) -> Vec<u8> {
    prost::Message::encode_to_vec(proto)
}
