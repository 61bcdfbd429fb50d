//! The parts of a model file that a program does not hold: the origin of the file, and descriptions.

use crate::model::Model;
use crate::proto::{StringStringEntryProto, ValueInfoProto};
use std::collections::BTreeMap;

/// The parts of a model file that a program does not hold. The default is the header of a file without a source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    /// The program that made the source file.
    pub producer_name: Option<String>,
    /// The version of that program.
    pub producer_version: Option<String>,
    /// The namespace of the model, in reversed domain order.
    pub domain: Option<String>,
    /// The version of the model.
    pub model_version: Option<i64>,
    /// The description of the model.
    pub doc_string: Option<String>,
    /// The metadata of the model.
    pub metadata: Vec<StringStringEntryProto>,
    /// The name of the graph; `None` for the name of the program.
    pub graph_name: Option<String>,
    /// The description of the graph.
    pub graph_doc_string: Option<String>,
    /// The metadata of the graph, such as the exporter's list of parameters.
    pub graph_metadata: Vec<StringStringEntryProto>,
    /// Descriptions of inputs and outputs, by name.
    pub values: BTreeMap<String, ValueHeader>,
}

/// The description of an input or an output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValueHeader {
    /// The description as text.
    pub doc_string: Option<String>,
    /// The metadata.
    pub metadata: Vec<StringStringEntryProto>,
}

impl Header {
    /// Returns the header of a file.
    pub fn of(model: &Model) -> Self {
        let proto = &model.proto;
        let graph = proto.graph.as_ref();
        let described = graph.into_iter().flat_map(|graph| graph.input.iter().chain(&graph.output));
        Self {
            producer_name: proto.producer_name.clone(),
            producer_version: proto.producer_version.clone(),
            domain: proto.domain.clone(),
            model_version: proto.model_version,
            doc_string: proto.doc_string.clone(),
            metadata: proto.metadata_props.clone(),
            graph_name: graph.and_then(|graph| graph.name.clone()),
            graph_doc_string: graph.and_then(|graph| graph.doc_string.clone()),
            graph_metadata: graph.map(|graph| graph.metadata_props.clone()).unwrap_or_default(),
            values: described.map(|value| (value.name().to_owned(), ValueHeader::of(value))).collect(),
        }
    }
}

impl ValueHeader {
    fn of(value: &ValueInfoProto) -> Self {
        Self { doc_string: value.doc_string.clone(), metadata: value.metadata_props.clone() }
    }
}
