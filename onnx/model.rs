//! A model, loaded and checked.
//!
//! Invariants of a [`Model`] that [`Model::load`] returned:
//! - no node calls a function of the model: all are inlined, inner values renamed;
//! - `Constant` nodes are tensors; tensor bytes are as long as dims and type say;
//! - each value has one definition, none hides one of a graph around it, and every value that is read has one;
//! - nodes stand in an order in which definitions come before uses.

mod attribute;
mod build;
mod calls;
mod constant;
mod decode;
mod external;
mod graph;
mod header;
mod load;
mod order;
mod scope;
mod tensor_data;
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

pub use attribute::{Attribute, SparseTensor};
pub(crate) use external::ExternalFiles;
pub use graph::{Graph, Node};
pub use types::{Dim, TensorType, Value, ValueType};

/// A model file: its graph, ready to import, and the original messages, to write it back.
#[derive(Clone, Debug)]
pub struct Model {
    /// The file it came from.
    pub path: Option<PathBuf>,
    /// The version of the file format, 3 to 14.
    pub ir_version: i64,
    /// The program that wrote the file, with its version.
    pub producer: String,
    /// The operator sets it is written against: domain (empty for `ai.onnx`) and version.
    pub opsets: BTreeMap<String, i64>,
    /// The file's `metadata_props`.
    pub metadata: BTreeMap<String, String>,
    /// The graph.
    pub graph: Graph,
    /// Tensors that the user wants trained, by the file's names.
    pub asked: BTreeSet<String>,
    /// The parts of the file that were left aside, and why.
    pub warnings: Vec<Problem>,
    /// The exporter's record of the author's module.
    pub record: Record,
    /// The messages of the file, with an initializer for each parameter that the exporter had merged or dropped;
    /// [`Model::write`] starts from them.
    pub(crate) proto: ModelProto,
    /// The external data files, mapped.
    pub(crate) files: ExternalFiles,
}
