//! Tensors that an optimiser of ONNX files merged because their elements are equal, in files without a record.
//!
//! The norms and biases of a fresh model are ones and zeros, and so are the second factors of low-rank layers. OnnxSlim, onnxsim
//! and ONNX Runtime keep one initializer for all of them. A layer that the author calls twice also reads its tensors twice. To
//! which module a use belongs is decided by the tensor's role in the node, the module in the node's name, the other tensors of the
//! node, and the layers before and after it. Tensors with other elements are equal because they are the same parameter.

use super::identity::is_initial;
use super::names::{is_author_name, legacy_module_path};
use super::{count, free_name, is_float, taken_names};
use crate::proto::{GraphProto, NodeProto, TensorProto};
use std::collections::{BTreeMap, BTreeSet};

/// Gives each module that uses a shared initializer its own copy. With `untied` each use gets a copy. Returns the initializers,
/// each with the names of its copies.
pub(super) fn separate(graph: &mut GraphProto, untied: bool) -> BTreeMap<String, Vec<String>> {
    let changes = decide(graph, untied);
    let mut added = BTreeMap::new();
    for (tensor, groups) in changes {
        let Some(original) = graph.initializer.iter().find(|known| known.name() == tensor).cloned() else {
            continue;
        };
        let names: &mut Vec<String> = added.entry(tensor).or_default();
        for (name, uses) in groups {
            for Use { node, input } in uses {
                graph.node[node].input[input] = name.clone();
            }
            graph.initializer.push(TensorProto { name: Some(name.clone()), ..original.clone() });
            names.push(name);
        }
    }
    added
}

/// An input of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Use {
    node: usize,
    input: usize,
}

/// The copies of an initializer: each with its name and the uses that read it.
type Copies = Vec<(String, Vec<Use>)>;

fn decide(graph: &GraphProto, untied: bool) -> BTreeMap<String, Copies> {
    let floats = graph.initializer.iter().filter(|tensor| is_float(tensor));
    let merged = floats.filter(|tensor| count(tensor) > 1 && is_initial(tensor));
    let mut uses: BTreeMap<&str, Vec<Use>> = merged.map(|tensor| (tensor.name(), vec![])).collect();
    for (node, proto) in graph.node.iter().enumerate() {
        for (input, name) in proto.input.iter().enumerate() {
            if role(proto, input)
                .is_some_and(|role| role != Role::Arithmetic || untied || is_author_name(name))
                && let Some(uses) = uses.get_mut(&name[..])
            {
                uses.push(Use { node, input });
            }
        }
    }
    uses.retain(|_, uses| (2..=MOST_USES).contains(&uses.len()));
    if uses.is_empty() {
        return BTreeMap::new();
    }
    let surroundings = Surroundings::new(graph);
    let mut taken = taken_names(graph);
    let mut changes = BTreeMap::new();
    for (tensor, uses) in uses {
        let mut groups: Vec<Vec<Use>> = Vec::new();
        let mut places: Vec<UsePlace> = Vec::new();
        for found in uses {
            let place = surroundings.place(found);
            match places.iter().position(|known| !untied && known.is_of_module_of(&place)) {
                Some(group) => groups[group].push(found),
                None => {
                    groups.push(vec![found]);
                    places.push(place);
                }
            }
        }
        // The group whose module has the tensor's name keeps the original.
        let own = |group: &Vec<Use>| surroundings.author_name(group[0]).as_deref() == Some(tensor);
        let keeps = groups.iter().position(own).unwrap_or(0);
        groups.remove(keeps);
        let copies = groups.into_iter().map(|group| {
            let name = surroundings.author_name(group[0]).filter(|name| !taken.contains(name));
            let name = name.unwrap_or_else(|| free_name(&taken, tensor.to_owned()));
            taken.insert(name.clone());
            (name, group)
        });
        let copies: Copies = copies.collect();
        if !copies.is_empty() {
            changes.insert(tensor.to_owned(), copies);
        }
    }
    changes
}

/// The role of a tensor that belongs to one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Scale,
    BiasOfNorm,
    Weight,
    Bias,
    /// A scale or a bias in separate arithmetic nodes.
    Arithmetic,
}

fn role(node: &NodeProto, input: usize) -> Option<Role> {
    match (node.op_type(), input) {
        ("LayerNormalization" | "InstanceNormalization" | "RMSNormalization" | "BatchNormalization", 1) => {
            Some(Role::Scale)
        }
        ("LayerNormalization" | "InstanceNormalization" | "BatchNormalization", 2) => Some(Role::BiasOfNorm),
        ("Conv" | "ConvTranspose" | "Gemm", 2) => Some(Role::Bias),
        ("Conv" | "ConvTranspose" | "Gemm" | "MatMul", 1) | ("MatMul", 0) => Some(Role::Weight),
        ("Add" | "Mul", _) => Some(Role::Arithmetic),
        _ => None,
    }
}

/// The most uses of a tensor. No real model has more norms and layers that could share one.
const MOST_USES: usize = 4096;
/// The largest distance, in nodes, of a layer that is compared.
const FARTHEST: usize = 16;
/// The number of neighbouring layers that is enough to distinguish two uses.
const MOST_LAYERS: usize = 64;

/// The neighbourhoods of the nodes of a graph.
struct Surroundings<'g> {
    graph: &'g GraphProto,
    /// Float tensors whose elements are not initial values, so that they distinguish layers.
    telling: BTreeSet<&'g str>,
    producers: BTreeMap<&'g str, usize>,
    readers: BTreeMap<&'g str, Vec<usize>>,
}

impl<'g> Surroundings<'g> {
    fn new(graph: &'g GraphProto) -> Self {
        let floats = graph.initializer.iter().filter(|tensor| is_float(tensor));
        let telling = floats.filter(|tensor| count(tensor) > 1 && !is_initial(tensor)).map(TensorProto::name);
        let (mut producers, mut readers) = (BTreeMap::new(), BTreeMap::<&str, Vec<usize>>::new());
        for (i, node) in graph.node.iter().enumerate() {
            producers.extend(node.output.iter().map(|name| (&name[..], i)));
            node.input.iter().for_each(|name| readers.entry(name).or_default().push(i));
        }
        Self { graph, telling: telling.collect(), producers, readers }
    }

    fn place(&self, found: Use) -> UsePlace<'g> {
        let node = &self.graph.node[found.node];
        UsePlace {
            kind: (node.op_type(), role(node, found.input)),
            module: self.module(node),
            data: node.input.first().map(String::as_str).filter(|_| found.input > 0),
            own: self.tensors_of(node),
            behind: self.nearest(found.node, Self::behind),
            before: self.nearest(found.node, Self::before),
        }
    }

    /// Returns the module in a node's name, without the number of the call.
    fn module(&self, node: &NodeProto) -> Option<String> {
        let path = legacy_module_path(node.name())?;
        let is_module = |path: &str| {
            let tensors = self.graph.initializer.iter();
            tensors.filter_map(|tensor| tensor.name().strip_prefix(path)).any(|rest| rest.starts_with('.'))
        };
        let stem = path.rsplit_once('_').filter(|(stem, number)| {
            !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()) && is_module(stem)
        });
        Some(match stem {
            Some((stem, _)) if !is_module(&path) => stem.to_owned(),
            _ => path,
        })
    }

    /// Returns the distinguishing tensors that a node reads.
    fn tensors_of(&self, node: &'g NodeProto) -> BTreeSet<&'g str> {
        node.input.iter().map(String::as_str).filter(|name| self.telling.contains(name)).collect()
    }

    fn behind(&self, node: usize) -> Vec<usize> {
        let outputs = self.graph.node[node].output.iter();
        outputs.filter_map(|name| self.readers.get(&name[..])).flatten().copied().collect()
    }

    fn before(&self, node: usize) -> Vec<usize> {
        let inputs = self.graph.node[node].input.iter();
        inputs.filter_map(|name| self.producers.get(&name[..])).copied().collect()
    }

    /// Returns the distinguishing tensors of the nearest layers in a direction.
    fn nearest(&self, node: usize, near: fn(&Self, usize) -> Vec<usize>) -> BTreeSet<&'g str> {
        let (mut found, mut seen) = (BTreeSet::new(), BTreeSet::from([node]));
        let mut nodes = near(self, node);
        for _ in 0..FARTHEST {
            let mut next = Vec::new();
            for node in nodes {
                if !seen.insert(node) {
                    continue;
                }
                let tensors = self.tensors_of(&self.graph.node[node]);
                if tensors.is_empty() {
                    next.extend(near(self, node));
                }
                found.extend(tensors);
            }
            nodes = if found.len() < MOST_LAYERS { next } else { vec![] };
        }
        found
    }

    /// Returns the name of the tensor in the author's module, from the module in the node's name or from another tensor of the
    /// node.
    fn author_name(&self, found: Use) -> Option<String> {
        let node = &self.graph.node[found.node];
        let leaf = match role(node, found.input)? {
            Role::Scale | Role::Weight => "weight",
            Role::BiasOfNorm | Role::Bias => "bias",
            Role::Arithmetic => return None,
        };
        let sibling = || {
            let names =
                node.input.iter().filter(|name| self.telling.contains(&name[..]) && is_author_name(name));
            Some(names.map(String::as_str).next()?.rsplit_once('.')?.0.to_owned())
        };
        Some(format!("{}.{leaf}", self.module(node).or_else(sibling)?))
    }
}

/// The facts that tell to which module a use of a tensor belongs.
struct UsePlace<'g> {
    /// The operator, and the role of the tensor in it.
    kind: (&'g str, Option<Role>),
    /// The module in the node's name.
    module: Option<String>,
    /// The operand with which the module is called.
    data: Option<&'g str>,
    /// Other tensors that the node reads.
    own: BTreeSet<&'g str>,
    /// The tensors of the layers after the node.
    behind: BTreeSet<&'g str>,
    /// The tensors of the layers before the node.
    before: BTreeSet<&'g str>,
}

impl UsePlace<'_> {
    /// Whether two uses of a tensor are calls of the same module.
    fn is_of_module_of(&self, other: &Self) -> bool {
        if self.kind != other.kind {
            return false;
        }
        if let (Some(own), Some(others)) = (&self.module, &other.module) {
            return own == others;
        }
        // No module is called twice with the same operand.
        if self.data.is_some() && self.data == other.data {
            return false;
        }
        if !self.own.is_empty() || !other.own.is_empty() {
            return self.own == other.own;
        }
        // A shared block has the same layers after each of its nodes, or before it.
        let is_same = |own: &BTreeSet<&str>, others| !own.is_empty() && own == others;
        is_same(&self.behind, &other.behind) || is_same(&self.before, &other.before)
    }
}
