//! The exporter's record: facts about the author's module that PyTorch's exporters leave in a file.
//!
//! The dynamo exporter lists the parameters and buffers of the module, and writes into each node the call from which it was made.
//! The legacy exporter keeps the names of initializers that are used unchanged. From both, `restore` adds the parameters that the
//! exporter merged or dropped to the file. Then the file has an initializer for each of them, and later readers and writers of the
//! file need no special case. The other facts of the record describe the tensors ([`Record`]).
//!
//! The contents of a file are untrusted: a record that does not fit the graph is ignored.

mod identity;
mod merged;
pub(crate) mod names;
mod packed;
mod separate;
mod signature;
mod sites;
pub(crate) mod traced;

#[cfg(test)]
mod tests;

pub(crate) use names::is_generated;
pub(crate) use traced::TracedCall;

use crate::ElementType;
use crate::proto::{GraphProto, ModelProto, NodeProto, StringStringEntryProto, TensorProto};
use ir::{View, ViewStep};
use signature::{Kind, Signature};
use sites::Layout;
use std::collections::{BTreeMap, BTreeSet};

/// The facts about the author's module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Whether the file has the exporter's list of parameters and buffers.
    pub is_listed: bool,
    /// The author's tensors that initializers hold, by the names of the initializers.
    pub tensors: BTreeMap<String, RecordedTensor>,
    /// The keys of the module's `state_dict`.
    pub keys: Vec<String>,
    /// The names of the listed tensors, by their symbols in traced calls.
    pub(crate) symbols: BTreeMap<String, String>,
    /// Listed parameters that no initializer holds: folded, unused, or a second name of a tied parameter.
    pub lost: Vec<String>,
    /// Listed parameters that are tied to another one, each with the name under which the file holds it.
    pub tied: BTreeMap<String, String>,
    /// Initializers that each hold several listed parameters.
    pub(crate) packed: BTreeSet<String>,
    /// Initializers that the exporter made for its own formula.
    pub(crate) made: BTreeSet<String>,
    /// Tensors that the exporter merged although their elements differ, each with the tensor with which it was merged: tied
    /// parameters, or copies of a layer.
    pub(crate) merged: BTreeMap<String, String>,
    /// Initializers that were shared by several equal tensors, each with the names of the other tensors.
    pub(crate) separated: BTreeMap<String, Vec<String>>,
}

/// A tensor of the author's module that an initializer holds.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedTensor {
    /// The name in the module: a key of PyTorch's `state_dict`.
    pub name: String,
    /// Whether the tensor is a parameter; otherwise it is a buffer.
    pub is_parameter: bool,
    /// The view from the initializer to the author's tensor; `None` if the record does not tell.
    pub view: Option<View>,
}

/// Adds the exporter's merged and dropped parameters to the file, and returns the other facts of the record. With `untied`,
/// tensors that were merged only because their bytes are equal are separated as well.
pub(crate) fn restore(model: &mut ModelProto, untied: bool) -> Record {
    let is_pytorch = model.producer_name().starts_with("pytorch");
    let Some(graph) = &mut model.graph else { return Record::default() };
    let text = find(&graph.metadata_props, signature::KEY).map(str::to_owned).unwrap_or_default();
    let signature = Signature::parse(&text);
    if signature.is_empty() {
        let mut record = Record::default();
        if is_pytorch {
            identity::separate(graph, untied, &mut record);
        }
        record.separated = merged::separate(graph, untied);
        return record;
    }
    let sites = sites::find(graph, &signature);
    let packed = packed::find(graph, &signature);
    let mut record = Record { is_listed: true, packed: packed.tensors, ..Record::default() };
    record.made = packed.initial_states;
    record.keys = signature.keys.iter().map(|key| key.to_string()).collect();
    record.symbols = signature.symbols().map(|(symbol, name)| (symbol.to_owned(), name.to_owned())).collect();
    separate::apply(graph, &sites, &signature, &mut record);
    let found = separate::transposed(graph, &record, &record.not_held(&signature, &packed.parameters));
    record.tensors.extend(found);
    let lost = record.not_held(&signature, &packed.parameters);
    record.tied = separate::other_names(graph, &signature, &lost);
    let lost =
        signature.names.iter().filter(|name| lost.contains(*name) && !record.tied.contains_key(**name));
    record.lost = lost.map(|name| name.to_string()).collect();
    record
}

impl Record {
    /// Returns the listed parameters that no initializer holds, neither alone nor packed.
    fn not_held<'s>(&self, signature: &Signature<'s>, packed: &BTreeSet<&str>) -> BTreeSet<&'s str> {
        let held: BTreeSet<&str> = self.tensors.values().map(|recorded| &recorded.name[..]).collect();
        let parameters = signature.tensors().filter(|tensor| tensor.kind == Kind::Parameter);
        let names = parameters.map(|tensor| tensor.name);
        names.filter(|name| !held.contains(name) && !packed.contains(name)).collect()
    }
}

fn find<'p>(entries: &'p [StringStringEntryProto], key: &str) -> Option<&'p str> {
    entries.iter().find(|entry| entry.key() == key).map(StringStringEntryProto::value)
}

fn metadata<'p>(node: &'p NodeProto, key: &str) -> Option<&'p str> {
    find(&node.metadata_props, key)
}

fn int_attribute(node: &NodeProto, name: &str) -> Option<i64> {
    node.attribute.iter().find(|attribute| attribute.name() == name).and_then(|attribute| attribute.i)
}

fn is_float(tensor: &TensorProto) -> bool {
    ElementType::from_code(tensor.data_type()).is_some_and(ElementType::is_float)
}

/// Returns the number of elements; 0 if the dims are invalid.
fn count(tensor: &TensorProto) -> u64 {
    let sizes = tensor.dims.iter().map(|&size| u64::try_from(size).unwrap_or(0));
    sizes.fold(1, u64::saturating_mul)
}

/// Returns the view from an initializer to the author's tensor.
fn view(tensor: &TensorProto, layout: Layout) -> Option<View> {
    match layout {
        Layout::Same => Some(View::new()),
        Layout::Transposed if tensor.dims.len() == 2 => {
            Some(View::from_iter([ViewStep::Transpose([1, 0].into_iter().collect())]))
        }
        Layout::Vector if tensor.dims.len() == 1 => Some(View::new()),
        Layout::Vector => Some(View::from_iter([ViewStep::Reshape([count(tensor)].into_iter().collect())])),
        Layout::Transposed | Layout::Unknown => None,
    }
}

/// Returns the name if it is free, otherwise the name followed by a number.
fn free_name(taken: &BTreeSet<String>, name: String) -> String {
    let numbered = (2..).map(|n| format!("{name}.{n}"));
    let mut names = std::iter::once(name.clone()).chain(numbered);
    names.find(|name| !taken.contains(name)).unwrap_or(name)
}

/// Returns the names of the graph's initializers, inputs and values.
fn taken_names(graph: &GraphProto) -> BTreeSet<String> {
    let tensors = graph.initializer.iter().map(TensorProto::name);
    let inputs = graph.input.iter().chain(&graph.output).map(|value| value.name());
    let values = graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str));
    tensors.chain(inputs).chain(values).map(str::to_owned).collect()
}
