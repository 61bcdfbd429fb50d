//! The exporter's record: facts about the author's module that PyTorch's exporters leave in a file.
//!
//! The dynamo exporter lists the parameters and buffers of the module, and writes into each node the call that it was
//! made from. The legacy exporter keeps the names of initializers that are used as they are. By both, `restore` gives
//! back to the file the parameters that the exporter merged or dropped: then the file has an initializer for each of them,
//! and whoever reads or writes it later need not know. The rest of the record says what the tensors are ([`Record`]).
//!
//! A file may say anything: a record that does not fit the graph is passed over.

mod detached;
mod identity;
mod separate;
mod signature;
mod sites;
mod traced;
mod untied;

#[cfg(test)]
mod tests;

pub(crate) use detached::Detached;
pub(crate) use traced::TracedCall;

use crate::proto::{GraphProto, ModelProto, NodeProto, StringStringEntryProto, TensorProto};
use crate::{ElementType, Graph, Model, Node, Tensor, TensorSource};
use ir::{Claim, Diagnostic, View, ViewStep};
use signature::{Kind, Signature};
use sites::Layout;
use std::collections::{BTreeMap, BTreeSet};

/// The facts about the author's module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Whether the file has the exporter's list of parameters and buffers.
    pub is_listed: bool,
    /// The author's tensors that initializers hold, by the initializers' names.
    pub tensors: BTreeMap<String, RecordedTensor>,
    /// The keys of the module's `state_dict`.
    pub keys: Vec<String>,
    /// The names of the listed tensors by the symbols that traced calls have for them.
    symbols: BTreeMap<String, String>,
    /// Listed parameters that no initializer holds: folded, unused, or the other name of a tied one.
    pub lost: Vec<String>,
    /// Listed parameters that are another one: each with the name under which the file holds it.
    pub tied: BTreeMap<String, String>,
    /// Initializers that the exporter made for a formula of its own.
    made: BTreeSet<String>,
    /// Tensors that the exporter merged although their elements differ, each with the one that it was merged with: tied
    /// parameters, or copies of a layer.
    merged: BTreeMap<String, String>,
}

/// A tensor of the author's module, as an initializer holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedTensor {
    /// Its name in the module: a key of PyTorch's `state_dict`.
    pub name: String,
    /// Whether it is a parameter; else a buffer.
    pub is_parameter: bool,
    /// From the initializer to the author's tensor; `None` when the record does not tell.
    pub view: Option<View>,
}

/// Gives the exporter's merged and dropped parameters back to the file, and returns what else the record says. With
/// `untied`, tensors that only their equal bytes make one are separated as well.
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
        if untied {
            untied::separate(graph);
        }
        return record;
    }
    let sites = sites::find(graph, &signature);
    let mut record = Record { is_listed: true, ..Record::default() };
    record.keys = signature.keys.iter().map(|key| key.to_string()).collect();
    record.symbols = signature.symbols().map(|(symbol, name)| (symbol.to_owned(), name.to_owned())).collect();
    separate::apply(graph, &sites, &signature, &mut record);
    let found = separate::transposed(graph, &record, &record.not_held(&signature));
    record.tensors.extend(found);
    let lost = record.not_held(&signature);
    record.tied = separate::other_names(graph, &signature, &lost);
    let lost =
        signature.names.iter().filter(|name| lost.contains(*name) && !record.tied.contains_key(**name));
    record.lost = lost.map(|name| name.to_string()).collect();
    record
}

impl Record {
    /// The listed parameters that no initializer holds.
    fn not_held<'s>(&self, signature: &Signature<'s>) -> BTreeSet<&'s str> {
        let held: BTreeSet<&str> = self.tensors.values().map(|recorded| &recorded.name[..]).collect();
        let parameters = signature.tensors().filter(|tensor| tensor.kind == Kind::Parameter);
        parameters.map(|tensor| tensor.name).filter(|name| !held.contains(name)).collect()
    }

    /// The tensors of the module that a node's call reads, in the order of its arguments.
    pub(crate) fn read_by(&self, node: &Node) -> Vec<String> {
        let values = call(node).map(|call| call.values()).unwrap_or_default();
        values.into_iter().filter_map(|symbol| self.symbols.get(symbol).cloned()).collect()
    }
}

/// Returns the claim about a tensor of the model.
pub(crate) fn claim(model: &Model, tensor: &Tensor) -> Option<Claim> {
    let record = &model.record;
    match record.tensors.get(&tensor.name) {
        Some(RecordedTensor { is_parameter: true, .. }) => return Some(Claim::Parameter),
        Some(RecordedTensor { is_parameter: false, .. }) => return Some(Claim::Buffer),
        None if record.made.contains(&tensor.name) => return Some(Claim::Unlisted),
        None if record.is_listed && is_created(&tensor.name) => return Some(Claim::Unlisted),
        None if record.is_listed => return record.lost.is_empty().then(|| unlisted(tensor)),
        None if !model.producer.starts_with("pytorch") => return None,
        None => {}
    }
    let is_initializer = |tensor: &Tensor| tensor.source == TensorSource::Initializer;
    match is_initializer(tensor) {
        true if is_author_name(&tensor.name) || is_folded_weight(&tensor.name) => Some(Claim::Named),
        false if model.graph.tensors.iter().any(is_initializer) => Some(Claim::Literal),
        _ => None,
    }
}

impl Record {
    /// Warns of parameters that the file does not hold, of tensors that were merged although their elements differ, and of
    /// names that are guesses.
    pub(crate) fn warnings(&self, graph: &Graph, aliases: &BTreeMap<String, Vec<String>>) -> Vec<Diagnostic> {
        let merged = self.merged.iter().map(merged_warning);
        merged.chain(self.lost_warning(graph)).chain(self.renamed_warning(graph, aliases)).collect()
    }

    /// Parameters that are in no tensor of the file by themselves.
    fn lost_warning(&self, graph: &Graph) -> Option<Diagnostic> {
        if self.lost.is_empty() {
            return None;
        }
        let is_known = |name: &String| self.tensors.contains_key(name) || self.made.contains(name);
        let stored = graph.tensors.iter().filter(|tensor| !is_known(&tensor.name));
        let computed = stored.filter(|tensor| tensor.dtype.is_float() && may_be_folded(tensor));
        let computed: Vec<String> = computed.map(|tensor| tensor.name.clone()).collect();
        let has_folded_norms = || graph.nodes.iter().any(has_folded_norm);
        let into = match computed[..] {
            [] => has_folded_norms().then(|| "the weights of layers".to_owned()),
            _ => Some(format!("tensors with names of its own ({})", shortened(&computed))),
        };
        let (are, them) =
            if self.lost.len() == 1 { ("parameter is", "it") } else { ("parameters are", "them") };
        let message = format!("{} {are} not in the file: {}", self.lost.len(), shortened(&self.lost));
        let note = match into {
            Some(into) => format!(
                "the exporter folded {them} into {into}, or the model does not use {them}; export with optimize=False"
            ),
            None => format!(
                "the model does not use {them}, or uses {them} under another name, as it does a tied parameter"
            ),
        };
        Some(Diagnostic::new(message).note(note))
    }

    /// Initializers that the exporter computed from parameters without saying from which.
    fn renamed_warning(&self, graph: &Graph, aliases: &BTreeMap<String, Vec<String>>) -> Option<Diagnostic> {
        let is_renamed = |tensor: &&Tensor| {
            let is_number = tensor.dims.is_empty() && !is_folded_weight(&tensor.name);
            tensor.name.starts_with("onnx::") && tensor.dtype.is_float() && !is_number
        };
        let names = graph.tensors.iter().filter(is_renamed);
        let names = names.map(|tensor| match aliases.get(&tensor.name).and_then(|names| names.first()) {
            Some(guess) => format!("`{}` (perhaps {guess})", tensor.name),
            None => format!("`{}`", tensor.name),
        });
        let unknown = self.tensors.iter().filter(|(name, recorded)| {
            let is_held = graph.tensors.iter().any(|tensor| tensor.name == **name);
            recorded.view.is_none() && recorded.is_parameter && is_held
        });
        let unknown =
            unknown.map(|(name, recorded)| format!("`{name}` ({} in another layout)", recorded.name));
        let names: Vec<String> = names.chain(unknown).collect();
        let count = names.len();
        (count > 0).then(|| {
            let tensors = if count == 1 { "a tensor" } else { &format!("{count} tensors") };
            let message = format!("the exporter renamed {tensors}: {}", shortened_list(&names));
            let warning = Diagnostic::new(message);
            if self.is_listed {
                return warning.note("export with optimize=False to keep the names and layouts of the module");
            }
            warning
                .note("one that it computed from others, such as `1 - p`, is a parameter of its own here")
                .note("export with do_constant_folding=False to keep the names and the computations of the module")
        })
    }
}

/// Whether a convolution or a linear layer is one with the batch norm after it. The dynamo exporter's optimizer says so; the legacy
/// exporter gives the weight and the bias, which are no longer the module's, names of its own.
pub(crate) fn has_folded_norm(node: &Node) -> bool {
    let fused = node.metadata.get("pkg.onnxscript.rewriter.rule_name");
    let renamed = |i: usize| node.input(i).is_some_and(|name| is_generated(name) && name.contains("::"));
    let is_convolution = node.op_type.starts_with("Conv");
    fused.is_some_and(|rules| rules.contains("FuseBatchNorm")) || is_convolution && renamed(1) && renamed(2)
}

fn merged_warning((tensor, with): (&String, &String)) -> Diagnostic {
    let message = format!("`{tensor}` has the bytes of `{with}`: trained as one parameter");
    Diagnostic::new(message).note("--untied keeps them apart")
}

/// Whether the exporter may have computed a tensor from parameters: it is no single number and no mask.
fn may_be_folded(tensor: &Tensor) -> bool {
    let is_number = tensor.element_count() == 1 && is_generated(&tensor.name);
    !is_number && tensor.source == TensorSource::Initializer && !tensor.name.contains("scalar")
}

/// The first names of a list in quotes, and how many more there are.
pub(crate) fn shortened(names: &[String]) -> String {
    shortened_list(&names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>())
}

/// The first items of a list, and how many more there are.
fn shortened_list(items: &[String]) -> String {
    const SHOWN: usize = 200;
    match items.len().saturating_sub(SHOWN) {
        0 => items.join(", "),
        more => format!("{} and {more} more", items[..SHOWN].join(", ")),
    }
}

/// Whether a name is one that an author gave: the path of an attribute in Python, such as `layers.0.weight`.
fn is_author_name(name: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_');
    let starts = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
    starts && !is_generated(name) && name.split('.').all(is_part)
}

/// The claim about a tensor that is not on a complete list. A name such as `sub_1` is that of a result of the trace, which the
/// exporter computed in advance.
fn unlisted(tensor: &Tensor) -> Claim {
    let name = &tensor.name;
    let is_initializer = tensor.source == TensorSource::Initializer;
    let is_result = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && !is_generated(name)
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_initializer && is_result { Claim::Computed } else { Claim::Unlisted }
}

/// Whether the trace names the result of an operator so that makes a tensor of nothing but numbers.
fn is_created(name: &str) -> bool {
    let operator = name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_');
    let operator = operator.strip_prefix("new_").unwrap_or(operator);
    let operator =
        ["_like", "_default"].iter().fold(operator, |name, end| name.strip_suffix(end).unwrap_or(name));
    matches!(operator, "zeros" | "ones" | "full" | "empty" | "eye" | "arange" | "linspace" | "scalar_tensor")
}

/// Whether the legacy exporter gave the name to the transposed weight of a layer, or to a tensor that an exponential is taken of.
fn is_folded_weight(name: &str) -> bool {
    ["onnx::MatMul_", "onnx::Gemm_", "onnx::Exp_"].iter().any(|prefix| name.starts_with(prefix))
}

/// Whether a name was made by an exporter.
pub(crate) fn is_generated(name: &str) -> bool {
    let digits = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
    name.strip_prefix("val_").is_some_and(digits) || name.starts_with("onnx::") || digits(name)
}

/// The key of a node's metadata that holds the modules whose forward functions led to its call.
pub(crate) const SCOPES_KEY: &str = "pkg.torch.onnx.name_scopes";

/// The innermost module of a list such as `['', 'm', 'm.layers.0', 'linear']`, whose last entry is the call.
pub(crate) fn innermost_module(scopes: &str) -> Option<&str> {
    let inner = scopes.trim().strip_prefix('[')?.strip_suffix(']')?;
    let mut names = inner.split(',').map(|name| name.trim().trim_matches(['\'', '"'])).rev();
    names.next()?;
    names.find(|name| !name.is_empty())
}

/// The traced call of a node, if the exporter wrote one.
pub(crate) fn call(node: &Node) -> Option<TracedCall<'_>> {
    TracedCall::parse(node.metadata.get(traced::KEY)?)
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

/// The number of elements, 0 if the dims make no sense.
fn count(tensor: &TensorProto) -> u64 {
    let sizes = tensor.dims.iter().map(|&size| u64::try_from(size).unwrap_or(0));
    sizes.fold(1, u64::saturating_mul)
}

/// The view from an initializer to the author's tensor.
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

/// The name, or if it is taken the name with a number behind it.
fn free_name(taken: &BTreeSet<String>, name: String) -> String {
    let numbered = (2..).map(|n| format!("{name}.{n}"));
    let mut names = std::iter::once(name.clone()).chain(numbered);
    names.find(|name| !taken.contains(name)).unwrap_or(name)
}

/// The names of the graph's initializers, inputs and values.
fn names(graph: &GraphProto) -> BTreeSet<String> {
    let tensors = graph.initializer.iter().map(TensorProto::name);
    let inputs = graph.input.iter().chain(&graph.output).map(|value| value.name());
    let values = graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str));
    tensors.chain(inputs).chain(values).map(str::to_owned).collect()
}
