//! The facts that the exporter's record tells about a checked model: claims about its tensors, the calls and the modules from which its
//! nodes were made, the values through which no gradient flows, and warnings.

mod detached;
mod warnings;

pub(crate) use detached::Detached;
pub(crate) use warnings::{has_folded_norm, shortened};

use crate::proto::StringStringEntryProto;
use crate::record::names::{
    SCOPES_KEY, innermost_module, is_author_name, is_created, is_folded_weight, is_result, legacy_module_path,
};
use crate::record::traced::{self, TracedCall};
use crate::record::{Record, RecordedTensor};
use crate::{Model, Node, Tensor, TensorSource};
use ir::Claim;

impl Record {
    /// Returns the module's tensors that are the weights in a recurrent node's call, in the order of the call.
    pub(crate) fn weights_of(&self, node: &Node) -> Vec<String> {
        let weights = call(node).map(|call| call.weights()).unwrap_or_default();
        weights.into_iter().filter_map(|symbol| self.symbols.get(symbol).cloned()).collect()
    }
}

/// The key of a tensor's claim in a file to which a program was written. Such a file no longer has the nodes of the source file
/// from which the claim was derived.
const WRITTEN_CLAIM: &str = "trainyard.claim";

/// Returns a claim as an entry of a tensor's metadata.
pub(crate) fn written_claim(claim: Claim) -> StringStringEntryProto {
    let names = Claim::ALL.into_iter();
    let name = names.filter(|(known, _)| *known == claim).map(|(_, name)| name.to_owned()).next();
    StringStringEntryProto { key: Some(WRITTEN_CLAIM.to_owned()), value: name }
}

/// Returns the claim about a tensor of the model.
pub(crate) fn claim(model: &Model, tensor: &Tensor) -> Option<Claim> {
    if let Some(written) = tensor.metadata.get(WRITTEN_CLAIM) {
        return Claim::ALL.into_iter().find(|(_, name)| name == written).map(|(claim, _)| claim);
    }
    let record = &model.record;
    match record.tensors.get(&tensor.name) {
        Some(RecordedTensor { is_parameter: true, .. }) => return Some(Claim::Parameter),
        Some(RecordedTensor { is_parameter: false, .. }) => return Some(Claim::Buffer),
        None if record.packed.contains(&tensor.name) => return Some(Claim::Parameter),
        None if record.made.contains(&tensor.name) => return Some(Claim::Unlisted),
        None if record.is_listed && is_created(&tensor.name) => return Some(Claim::Unlisted),
        None if record.is_listed => return record.lost.is_empty().then(|| unlisted(tensor)),
        None if !model.producer.starts_with("pytorch") => return None,
        None => {}
    }
    let is_initializer = |tensor: &Tensor| tensor.source == TensorSource::Initializer;
    if is_initializer(tensor) {
        (is_author_name(&tensor.name) || is_folded_weight(&tensor.name)).then_some(Claim::Named)
    } else {
        model.graph.tensors.iter().any(is_initializer).then_some(Claim::Literal)
    }
}

/// Whether a tensor's name was given by the author.
pub(crate) fn has_author_name(tensor: &Tensor) -> bool {
    is_author_name(&tensor.name)
}

/// Returns the claim about a tensor that is not on a complete list. A name such as `sub_1` is that of a result of the trace, which
/// the exporter computed in advance.
fn unlisted(tensor: &Tensor) -> Claim {
    let is_initializer = tensor.source == TensorSource::Initializer;
    if is_initializer && is_result(&tensor.name) { Claim::Computed } else { Claim::Unlisted }
}

/// Returns the traced call of a node, if the exporter wrote one.
pub(crate) fn call(node: &Node) -> Option<TracedCall<'_>> {
    TracedCall::parse(node.metadata.get(traced::KEY)?)
}

/// Returns the path of the module whose forward function made a node.
pub(crate) fn module_path(node: &Node) -> Option<String> {
    if let Some(scopes) = node.metadata.get(SCOPES_KEY) {
        return innermost_module(scopes).map(str::to_owned);
    }
    legacy_module_path(&node.name)
}
