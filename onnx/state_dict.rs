//! The `state_dict` of the author's PyTorch module: each of its tensors, as a composition of tensors of the file.
//!
//! Exporters transpose weights, rename them, and join the weights of a recurrent layer in ONNX's order of gates. The description
//! here is used in both directions: an export composes the author's tensors, and a file with the author's names and layouts is
//! decomposed into the tensors of the model's file.
//!
//! Names come from the exporter's record if there is one, otherwise from the tensors that kept their names and from the module
//! paths of the nodes that read the other tensors.

mod recurrent;
mod renamed;

#[cfg(test)]
mod tests;

use ir::View;
use std::collections::{BTreeMap, BTreeSet};

use crate::record::is_generated;
use crate::{Graph, Model, Tensor, TensorSource};

/// The tensors of the author's module, as far as the file tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StateDict {
    /// The tensors whose values the file holds. Each name occurs once. Empty for models that are not from PyTorch.
    pub entries: Vec<StateDictEntry>,
    /// Keys of the author's `state_dict` for which the file holds no value.
    pub absent: Vec<String>,
}

/// A tensor of the author's module.
#[derive(Clone, Debug, PartialEq)]
pub struct StateDictEntry {
    /// The key in `state_dict`.
    pub name: String,
    /// The parts, concatenated along dim 0. Never empty; a tensor without dims has one part.
    pub parts: Vec<TensorPart>,
}

/// A part of a tensor of the author's module.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorPart {
    /// The tensor of the file that holds the part.
    pub tensor: String,
    /// The view from the file's tensor to the part.
    pub view: View,
}

/// The exporter's record of the author's tensors. Empty for files without a record.
#[derive(Clone, Debug, Default)]
struct Recorded {
    /// Every key of `state_dict`, including those without a value in the file.
    keys: Vec<String>,
    /// The tensors that the record describes.
    entries: Vec<StateDictEntry>,
    /// Tensors of the file that hold an author's tensor in an unknown layout.
    unknown: BTreeSet<String>,
    /// For each recurrent node, by its name, the weights of its traced call: for every layer and direction `weight_ih`,
    /// `weight_hh`, and with biases `bias_ih` and `bias_hh`.
    recurrent: BTreeMap<String, Vec<String>>,
}

impl Recorded {
    fn of(model: &Model) -> Self {
        let record = &model.record;
        let keys: BTreeSet<&String> = record.keys.iter().collect();
        let tensors = record.tensors.iter().filter(|(_, recorded)| keys.contains(&recorded.name));
        let views =
            tensors.filter_map(|(tensor, recorded)| Some((tensor, &recorded.name, recorded.view.clone()?)));
        // If several tensors hold a tied parameter, the one with its name comes first.
        let (own, others): (Vec<_>, Vec<_>) = views.partition(|(tensor, name, _)| tensor == name);
        let entries = own.into_iter().chain(others);
        let entries = entries.map(|(tensor, name, view)| StateDictEntry::whole(name, tensor, view)).collect();
        let recurrent = model.graph.nodes.iter().filter(|node| recurrent::is_recurrent(node));
        let recurrent = recurrent.map(|node| (node.name.clone(), record.weights_of(node)));
        let recurrent = recurrent.filter(|(_, names)| !names.is_empty()).collect();
        let unknown = record.tensors.iter().filter(|(_, recorded)| recorded.view.is_none());
        let unknown = unknown.map(|(tensor, _)| tensor.clone()).collect();
        Self { keys: record.keys.clone(), entries, unknown, recurrent }
    }
}

impl StateDictEntry {
    /// Makes an entry that is a view of one tensor of the file.
    pub fn whole(name: impl Into<String>, tensor: impl Into<String>, view: View) -> Self {
        Self { name: name.into(), parts: vec![TensorPart { tensor: tensor.into(), view }] }
    }
}

impl StateDict {
    /// Finds the author's tensors of a model.
    pub fn of(model: &Model) -> Self {
        Self::recorded(model, Recorded::of(model))
    }

    fn recorded(model: &Model, recorded: Recorded) -> Self {
        let mut found = EntryCollector::new(&model.graph, recorded.entries);
        found.used.extend(recorded.unknown);
        if model.producer.to_lowercase().starts_with("pytorch") {
            let keys: BTreeSet<&str> = recorded.keys.iter().map(String::as_str).collect();
            let is_key = |name: &str| {
                let known = keys.is_empty() || keys.contains(name);
                known && !is_generated(name) && !name.contains('/')
            };
            recurrent::find(&mut found, &recorded.recurrent);
            renamed::find(&mut found, is_key);
            for tensor in &model.graph.tensors {
                if tensor.source == TensorSource::Initializer && is_key(&tensor.name) {
                    found.add(StateDictEntry::whole(&tensor.name, &tensor.name, View::new()));
                }
            }
            found.add_merged(is_key);
        }
        let EntryCollector { entries, names, .. } = found;
        let absent = recorded.keys.into_iter().filter(|key| !names.contains(key)).collect();
        Self { entries, absent }
    }

    /// Returns the author's names of each tensor of the file, in the order of the entries.
    pub fn names(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut names: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for entry in &self.entries {
            for part in &entry.parts {
                let known = names.entry(&part.tensor).or_default();
                if known.last() != Some(&entry.name.as_str()) {
                    known.push(&entry.name);
                }
            }
        }
        names
    }
}

/// The entries found so far.
struct EntryCollector<'g> {
    graph: &'g Graph,
    /// The file's tensors, by name.
    tensors: BTreeMap<&'g str, &'g Tensor>,
    entries: Vec<StateDictEntry>,
    /// The names of the entries.
    names: BTreeSet<String>,
    /// The tensors of the file that are used in entries.
    used: BTreeSet<String>,
}

impl<'g> EntryCollector<'g> {
    fn new(graph: &'g Graph, entries: Vec<StateDictEntry>) -> Self {
        let tensors = graph.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let mut found =
            Self { graph, tensors, entries: vec![], names: BTreeSet::new(), used: BTreeSet::new() };
        entries.into_iter().for_each(|entry| found.add(entry));
        found
    }

    /// Adds an entry, unless its name is already used.
    fn add(&mut self, entry: StateDictEntry) {
        if self.names.insert(entry.name.clone()) {
            self.used.extend(entry.parts.iter().map(|part| part.tensor.clone()));
            self.entries.push(entry);
        }
    }

    /// Adds the tensors that the legacy exporter merged with an equal tensor: an Identity of that tensor has their name.
    fn add_merged(&mut self, is_key: impl Fn(&str) -> bool) {
        for node in self.graph.nodes.iter().filter(|node| node.op_type == "Identity") {
            let (Some(from), Some(name)) = (node.input(0), node.output(0)) else { continue };
            let is_result = self.graph.outputs.iter().any(|output| output.name == name);
            let merged = self.tensors.get(from).filter(|tensor| tensor.source == TensorSource::Initializer);
            if merged.is_some() && is_key(name) && !is_result {
                self.add(StateDictEntry::whole(name, from, View::new()));
            }
        }
    }

    /// Whether two tensors of the file have the same bytes.
    fn are_equal(&self, one: &str, other: &str) -> bool {
        let bytes = |name: &str| self.tensors.get(name).and_then(|tensor| tensor.present());
        bytes(one).is_some() && bytes(one) == bytes(other)
    }

    /// Whether the module in a tensor's name has submodules with tensors.
    fn has_modules_below(&self, name: &str) -> bool {
        let Some((module, _)) = name.rsplit_once('.') else { return true };
        let rest =
            |other: &&str| other.strip_prefix(module)?.strip_prefix('.').map(|rest| rest.contains('.'));
        self.tensors.keys().any(|other| rest(other) == Some(true))
    }

    /// Whether a matrix is the transpose of a named matrix, because the exporter wrote a tied parameter twice.
    fn is_transposed_copy(&self, tensor: &Tensor) -> bool {
        let (&[rows, columns], Some(bytes)) = (&tensor.dims[..], tensor.present()) else { return false };
        let Some(width) = tensor.dtype.bytes_of(1) else { return false };
        let is_named = |other: &&&Tensor| {
            other.source == TensorSource::Initializer
                && !is_generated(&other.name)
                && other.dtype == tensor.dtype
        };
        self.tensors.values().filter(is_named).filter(|other| other.dims == [columns, rows]).any(|other| {
            let Some(others) = other.present() else { return false };
            let place = |at: usize| at * width..(at + 1) * width;
            (0..rows * columns)
                .all(|at| bytes[place(at)] == others[place(at % columns * rows + at / columns)])
        })
    }

    /// Returns the float initializer that a node reads at `input`, if no entry uses it.
    fn unnamed(&self, node: &crate::Node, input: usize) -> Option<&'g Tensor> {
        let tensor = *self.tensors.get(node.input(input)?)?;
        let free = tensor.dtype.is_float()
            && tensor.source == TensorSource::Initializer
            && !self.used.contains(&tensor.name);
        free.then_some(tensor)
    }
}
