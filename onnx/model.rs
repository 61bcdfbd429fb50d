//! A loaded and checked model.
//!
//! Invariants of a [`Model`] that [`Model::load`] returned:
//! - no node calls a function of the model: all calls are inlined, and inner values are renamed;
//! - `Constant` nodes have become tensors; the bytes of a tensor have the length that its dims and type require;
//! - each value that is read has exactly one definition, and no value hides a value of an outer graph;
//! - nodes are ordered so that definitions come before uses.

mod attribute;
mod build;
mod calls;
mod constant;
mod decode;
mod graph;
mod header;
mod load;
mod order;
mod scope;
mod types;

#[cfg(test)]
mod file_tests;
#[cfg(test)]
mod function_tests;
#[cfg(test)]
mod graph_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
pub(crate) mod samples;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::error::Problem;
use crate::proto::ModelProto;
use crate::record::Record;
use crate::tensor::ExternalFiles;

pub use attribute::{Attribute, SparseTensor};
pub use graph::{Graph, Node};
pub use types::{Dim, TensorType, Value, ValueType};

/// A model file: its graph, ready for the import, and the original messages, for writing the file again.
#[derive(Clone, Debug)]
pub struct Model {
    /// The path of the file, if the model was loaded from a file.
    pub path: Option<PathBuf>,
    /// The version of the file format, 3 to 14.
    pub ir_version: i64,
    /// The program that wrote the file, with its version.
    pub producer: String,
    /// The operator sets that the file uses: domain (empty for `ai.onnx`) and version.
    pub opsets: BTreeMap<String, i64>,
    /// The file's `metadata_props`.
    pub metadata: BTreeMap<String, String>,
    /// The graph.
    pub graph: Graph,
    /// Tensors that the user wants trained, by the file's names.
    pub asked: BTreeSet<String>,
    /// Warnings about ignored parts of the file.
    pub warnings: Vec<Problem>,
    /// The exporter's record of the author's module.
    pub record: Record,
    /// The messages of the file, plus an initializer for each parameter that the exporter had merged or dropped. [`Model::write`]
    /// starts from them.
    pub(crate) proto: ModelProto,
    /// The external data files, mapped.
    pub(crate) files: ExternalFiles,
}
