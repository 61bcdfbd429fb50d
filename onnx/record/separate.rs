//! Separation: gives a merged parameter its own initializer again, and restores a dropped zero bias.

use super::names::{self, SCOPES_KEY, innermost_module};
use super::signature::{Kind, Listed, Signature};
use super::sites::{Layout, Site, Sites};
use super::traced::{self, TracedCall};
use super::{Record, RecordedTensor, count, free_name, is_float, taken_names, view};
use crate::ElementType;
use crate::proto::{GraphProto, NodeProto, TensorProto};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Changes the graph so that no initializer holds two of the author's tensors, and records the tensor of each.
pub(super) fn apply(graph: &mut GraphProto, sites: &Sites, signature: &Signature, record: &mut Record) {
    let mut holders = Holders::new(graph, signature);
    for site in &sites.known {
        holders.place(graph, site, record);
    }
    for &(node, input) in &sites.made {
        holders.keep_apart(graph, node, input, record);
    }
    for dropped in &sites.dropped {
        holders.add_bias(graph, dropped.node, &dropped.tensor, record);
    }
    // An initializer with a listed name holds that tensor, even if no node tells.
    for listed in signature.tensors() {
        if holders.floats.contains_key(listed.name) {
            let recorded = || recorded(listed, Some(ir::View::new()));
            record.tensors.entry(listed.name.to_owned()).or_insert_with(recorded);
        }
    }
}

fn recorded(tensor: &Listed, view: Option<ir::View>) -> RecordedTensor {
    RecordedTensor { name: tensor.name.to_owned(), is_parameter: tensor.kind == Kind::Parameter, view }
}

/// The initializers that hold the author's tensors.
struct Holders<'s> {
    /// The float initializers by name, as indices in the graph.
    floats: BTreeMap<String, usize>,
    /// Names that a new initializer cannot have.
    taken: BTreeSet<String>,
    /// The names of the listed tensors.
    listed: BTreeSet<&'s str>,
    /// The names of copies, by the name of the original and the module's tensor that the copy holds; `None` for a copy that is a
    /// constant of the exporter's formula.
    made: BTreeMap<(String, Option<String>), String>,
    /// The zeros that all restored biases share.
    zeros: Bytes,
}

impl<'s> Holders<'s> {
    fn new(graph: &GraphProto, signature: &Signature<'s>) -> Self {
        let tensors = graph.initializer.iter().enumerate();
        let floats = tensors.filter(|(_, tensor)| is_float(tensor)).map(|(i, t)| (t.name().to_owned(), i));
        Self {
            floats: floats.collect(),
            taken: taken_names(graph),
            listed: signature.tensors().map(|tensor| tensor.name).collect(),
            made: BTreeMap::new(),
            zeros: Bytes::new(),
        }
    }

    /// Makes a site read an initializer that holds only its tensor.
    fn place(&mut self, graph: &mut GraphProto, site: &Site, record: &mut Record) {
        let Some(name) = graph.node.get(site.node).and_then(|node| node.input.get(site.input)).cloned()
        else {
            return;
        };
        let tensor = &site.tensor;
        let holds_another = match record.tensors.get(&name) {
            Some(known) => known.name != tensor.name,
            None => name != tensor.name && self.listed.contains(&name[..]),
        };
        let holder = if holds_another { self.own(graph, &name, site) } else { Some(name.clone()) };
        let Some(holder) = holder else { return };
        if holder != name {
            graph.node[site.node].input[site.input] = holder.clone();
        }
        let stored = &graph.initializer[self.floats[&holder]];
        let layout = if holder == tensor.name { Layout::Same } else { site.layout };
        let view = view(stored, layout);
        record.tensors.entry(holder).or_insert_with(|| recorded(tensor, view));
    }

    /// Returns an initializer for a site's tensor, in place of `name`, which holds another tensor: an existing one, or a copy.
    /// `None` if an initializer with the tensor's name has other elements.
    fn own(&mut self, graph: &mut GraphProto, name: &str, site: &Site) -> Option<String> {
        let wanted = site.tensor.name;
        let key = (name.to_owned(), Some(wanted.to_owned()));
        if let Some(known) = self.made.get(&key) {
            return Some(known.clone());
        }
        let merged = graph.initializer[*self.floats.get(name)?].clone();
        if let Some(&there) = self.floats.get(wanted) {
            // Tensors are merged because their elements are equal. Whatever the record says, no number may change here.
            return has_equal_elements(&graph.initializer[there], &merged).then(|| wanted.to_owned());
        }
        let plain = matches!(site.layout, Layout::Same | Layout::Unknown)
            || site.layout == Layout::Vector && merged.dims.len() == 1;
        // A matrix that is stored transposed does not get the plain name.
        let own = free_name(&self.taken, if plain { wanted.to_owned() } else { format!("{wanted}.{name}") });
        self.add(graph, TensorProto { name: Some(own.clone()), ..merged });
        self.made.insert(key, own.clone());
        Some(own)
    }

    /// Makes an input of the exporter's own formula read an initializer that is not a tensor of the module.
    fn keep_apart(&mut self, graph: &mut GraphProto, node: usize, input: usize, record: &mut Record) {
        let Some(name) = graph.node.get(node).and_then(|node| node.input.get(input)).cloned() else { return };
        let Some(&merged) = self.floats.get(&name) else { return };
        if !record.tensors.contains_key(&name) && !self.listed.contains(&name[..]) {
            record.made.insert(name);
            return;
        }
        let key = (name.clone(), None);
        let own = self.made.get(&key).cloned().unwrap_or_else(|| {
            let own = free_name(&self.taken, format!("{name}.constant"));
            self.add(graph, TensorProto { name: Some(own.clone()), ..graph.initializer[merged].clone() });
            self.made.insert(key, own.clone());
            own
        });
        graph.node[node].input[input] = own.clone();
        record.made.insert(own);
    }

    /// Adds a bias of zeros to a node without a bias.
    fn add_bias(&mut self, graph: &mut GraphProto, node: usize, bias: &Listed, record: &mut Record) {
        let known = self.floats.get(bias.name).map(|&i| graph.initializer[i].dims.clone());
        let weight = graph.node[node].input.get(1).and_then(|name| self.weight(graph, name));
        let Some((dims, data_type)) =
            weight.and_then(|weight| Some((bias_dims(&graph.node[node], &weight)?, weight.data_type)))
        else {
            return;
        };
        let node = &mut graph.node[node];
        if known.is_some_and(|known| known != dims) {
            return;
        }
        while node.input.len() < 3 {
            node.input.push(String::new());
        }
        node.input[2] = bias.name.to_owned();
        if !self.floats.contains_key(bias.name) {
            if self.taken.contains(bias.name) {
                node.input[2].clear();
                return;
            }
            let element = data_type.and_then(ElementType::from_code);
            let Some(size) = element.and_then(|element| element.bytes_of(dims[0] as usize)) else { return };
            if self.zeros.len() < size {
                self.zeros = vec![0u8; size].into();
            }
            let (name, raw_data) = (Some(bias.name.to_owned()), Some(self.zeros.slice(..size)));
            let tensor = TensorProto { dims, data_type, name, raw_data, ..Default::default() };
            self.add(graph, tensor);
        }
        record.tensors.insert(bias.name.to_owned(), recorded(bias, Some(ir::View::new())));
    }

    /// Returns the type and dims of a layer's weight, which is an initializer or the transpose of one.
    fn weight(&self, graph: &GraphProto, name: &str) -> Option<TensorProto> {
        let stored = |name: &str| {
            let TensorProto { dims, data_type, .. } = &graph.initializer[*self.floats.get(name)?];
            Some(TensorProto { dims: dims.clone(), data_type: *data_type, ..TensorProto::default() })
        };
        if let Some(weight) = stored(name) {
            return Some(weight);
        }
        let producer =
            graph.node.iter().find(|node| node.output.first().is_some_and(|output| output == name))?;
        let mut weight = stored(producer.input.first().filter(|_| producer.op_type() == "Transpose")?)?;
        if weight.dims.len() != 2 {
            return None;
        }
        weight.dims.reverse();
        Some(weight)
    }

    fn add(&mut self, graph: &mut GraphProto, tensor: TensorProto) {
        self.floats.insert(tensor.name().to_owned(), graph.initializer.len());
        self.taken.insert(tensor.name().to_owned());
        graph.initializer.push(tensor);
    }
}

/// Whether two initializers have the same numbers, in memory or at the same place of another file.
fn has_equal_elements(one: &TensorProto, other: &TensorProto) -> bool {
    let key = |tensor: &TensorProto| TensorProto { name: None, doc_string: None, ..tensor.clone() };
    one.dims == other.dims && key(one) == key(other)
}

/// The most outputs of a layer. A hostile file must not ask for a bias that fills the memory.
const MOST_OUTPUTS: i64 = 1 << 24;

/// Returns the dims of a layer's bias, computed from its weight.
fn bias_dims(node: &NodeProto, weight: &TensorProto) -> Option<Vec<i64>> {
    let size = |i: usize| weight.dims.get(i).copied();
    let size = match node.op_type() {
        "Conv" => size(0)?,
        "ConvTranspose" => size(1)?.checked_mul(super::int_attribute(node, "group").unwrap_or(1))?,
        "Gemm" if super::int_attribute(node, "transB") == Some(1) => size(0)?,
        "Gemm" => size(1)?,
        _ => return None,
    };
    // The weight has at least as many elements, so the file is at least as large.
    ((1..=MOST_OUTPUTS).contains(&size) && size as u64 <= count(weight)).then(|| vec![size])
}

/// Returns the lost parameters that are a second name of a parameter in the file. The trace knows only one name of a tied
/// parameter; a call in the module of the other name reveals that name.
pub(super) fn other_names(
    graph: &GraphProto,
    signature: &Signature,
    lost: &BTreeSet<&str>,
) -> BTreeMap<String, String> {
    let mut tied = BTreeMap::new();
    for node in &graph.node {
        let (Some(scopes), Some(call)) = (
            super::metadata(node, SCOPES_KEY),
            super::metadata(node, traced::KEY).and_then(TracedCall::parse),
        ) else {
            continue;
        };
        let Some(module) = innermost_module(scopes) else { continue };
        for symbol in call.values() {
            let Some(held) = signature.find(symbol) else { continue };
            let leaf = held.name.rsplit('.').next().unwrap_or(held.name);
            let own = format!("{module}.{leaf}");
            if own != held.name && lost.contains(&own[..]) {
                tied.insert(own, held.name.to_owned());
            }
        }
    }
    tied
}

/// Finds weights of linear layers that the exporter transposed and named after the transposition (`permute_3`). The call that made
/// them is gone; the module whose call reads such a weight owns it.
pub(super) fn transposed(
    graph: &GraphProto,
    record: &Record,
    lost: &BTreeSet<&str>,
) -> BTreeMap<String, RecordedTensor> {
    let is_matrix = |tensor: &&TensorProto| is_float(tensor) && tensor.dims.len() == 2;
    let matrices = graph.initializer.iter().filter(is_matrix).map(|tensor| (tensor.name(), tensor));
    let matrices: BTreeMap<&str, &TensorProto> =
        matrices.filter(|(name, _)| !record.tensors.contains_key(*name)).collect();
    let mut found = BTreeMap::new();
    for node in graph.node.iter().filter(|node| node.op_type() == "MatMul") {
        let scopes = super::metadata(node, SCOPES_KEY);
        let (Some(matrix), Some(module)) = (node.input.get(1), scopes.and_then(innermost_module)) else {
            continue;
        };
        let name = format!("{module}.weight");
        // A tool may have removed the calls from the file's metadata. Then the scopes alone tell the module.
        let has_no_call = || super::metadata(node, traced::KEY).is_none();
        let is_renamed = names::is_transposition(matrix) || names::is_generated(matrix) && has_no_call();
        if is_renamed && matrices.contains_key(&matrix[..]) && lost.contains(&name[..]) {
            let view = view(matrices[&matrix[..]], Layout::Transposed);
            found.insert(matrix.clone(), RecordedTensor { name, is_parameter: true, view });
        }
    }
    found
}
