//! The end of writing a graph: unread nodes are removed, tensors get names, and everything becomes messages.
//!
//! A value of the program has its name in the program's text, such as `%12`. An intermediate tensor of its node has this name
//! followed by the tensor's operator. A node has the name of the file's node from which it was made, with a number if several were
//! made from the same one.

use super::draft::{Draft, DraftNode, Source, TensorId};
use super::names::{Names, of_origin};
use super::{Form, Header, own, sharding};
use crate::ElementType;
use crate::proto::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorShapeProto,
    TensorShapeProtoDimension, TensorShapeProtoDimensionValue, TypeProto, TypeProtoTensor, TypeProtoValue,
    ValueInfoProto,
};
use ir::text::Numbering;
use ir::{Diagnostic, Dim, Phase, Type, ValueId};
use std::collections::BTreeSet;

/// The format version of written files: the first with operator set 23, and with placements on devices.
const IR_VERSION: i64 = 11;
/// The format version with operator set 26.
const IR_VERSION_26: i64 = 13;

/// Returns the messages of a graph.
///
/// # Errors
/// An output has no tensor; a size cannot be represented in ONNX.
pub(super) fn model(mut draft: Draft, header: &Header) -> Result<ModelProto, Diagnostic> {
    let configuration =
        if draft.form == Form::Program { sharding::configuration(draft.module)? } else { vec![] };
    let outputs = outputs(&mut draft)?;
    keep_read(&mut draft, &outputs);
    let names = names(&draft, &outputs);
    let module = draft.module;
    let mut graph = GraphProto {
        name: Some(header.graph_name.clone().filter(|name| !name.is_empty()).unwrap_or(module.name.clone())),
        doc_string: header.graph_doc_string.clone(),
        metadata_props: header.graph_metadata.clone(),
        ..GraphProto::default()
    };
    let described = |tensor: TensorId| described(&draft, &names, header, tensor);
    graph.input = draft.inputs.iter().map(|&input| described(input)).collect::<Result<_, _>>()?;
    graph.output = outputs.iter().map(|&output| described(output)).collect::<Result<_, _>>()?;
    graph.value_info = inner(&draft, &outputs).into_iter().map(described).collect::<Result<_, _>>()?;
    let read = read(&draft, &outputs);
    for (tensor, proto) in std::mem::take(&mut draft.initializers) {
        if read.contains(&tensor) {
            let name = Some(names[tensor.index()].clone());
            graph.initializer.push(crate::proto::TensorProto { name, ..proto });
        }
    }
    let mut node_names = Names::default();
    graph.node = draft.nodes.iter().map(|node| message(&draft, node, &names, &mut node_names)).collect();
    let mut opsets = vec![opset("", draft.opset())];
    if draft.nodes.iter().any(|node| node.is_own) {
        opsets.push(opset(own::DOMAIN, 1));
    }
    let is_newer = draft.opset() > super::draft::OPSET;
    Ok(ModelProto {
        ir_version: Some(if is_newer { IR_VERSION_26 } else { IR_VERSION }),
        opset_import: opsets,
        producer_name: header.producer_name.clone().or_else(|| Some("trainyard".to_owned())),
        producer_version: header.producer_version.clone(),
        domain: header.domain.clone(),
        model_version: header.model_version,
        doc_string: header.doc_string.clone(),
        metadata_props: header.metadata.clone(),
        graph: Some(graph),
        configuration,
        ..ModelProto::default()
    })
}

fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: Some(domain.to_owned()), version: Some(version) }
}

/// Returns the tensors of the outputs, and gives each its name. A tensor that has another name, or is already another output, is
/// passed through an Identity.
fn outputs(draft: &mut Draft) -> Result<Vec<TensorId>, Diagnostic> {
    let mut wanted: Vec<(String, ValueId)> = draft.reach.outputs.clone();
    if draft.form == Form::Program {
        let states = draft.module.states.values();
        let changed = states.filter_map(|state| Some((format!("{}.next", state.name), state.output?)));
        wanted.extend(changed);
    }
    let mut outputs = Vec::new();
    let mut names = Names::default();
    for tensor in &draft.tensors {
        if let Source::Named(name) = &tensor.source {
            names.free(name);
        }
    }
    for (name, value) in wanted {
        let tensor = draft.value(value)?;
        // An input or a tensor of the file may be an output under its own name.
        if draft.tensors[tensor.index()].source == Source::Named(name.clone()) {
            outputs.push(tensor);
            continue;
        }
        let is_free = matches!(draft.tensors[tensor.index()].source, Source::Value(_) | Source::Between(..));
        let is_constant = |node: &DraftNode| node.operator == "Constant" && node.outputs.contains(&tensor);
        // A shared constant keeps its name.
        let is_shared = draft.nodes.iter().any(is_constant);
        let output = if is_free && !is_shared { tensor } else { draft.push("Identity", &[tensor], []) };
        let name = if draft.form == Form::Program { names.free(&name) } else { name };
        draft.tensors[output.index()].source = Source::Named(name);
        draft.tensors[output.index()].ty = Some(draft.module.ty(value).clone());
        outputs.push(output);
    }
    Ok(outputs)
}

/// Removes the nodes that nothing reads. In a program for a viewer, nodes of the domain `trainyard` stay.
fn keep_read(draft: &mut Draft, outputs: &[TensorId]) {
    let mut read: BTreeSet<TensorId> = outputs.iter().copied().collect();
    let mut kept = Vec::new();
    for node in std::mem::take(&mut draft.nodes).into_iter().rev() {
        if node.is_own || node.outputs.iter().any(|output| read.contains(output)) {
            read.extend(node.inputs.iter().flatten());
            kept.push(node);
        }
    }
    kept.reverse();
    draft.nodes = kept;
}

/// Returns the tensors that a node or an output reads.
fn read(draft: &Draft, outputs: &[TensorId]) -> BTreeSet<TensorId> {
    let inputs = draft.nodes.iter().flat_map(|node| node.inputs.iter().flatten());
    inputs.chain(outputs).copied().collect()
}

/// Returns the values of the program that are neither inputs nor outputs.
fn inner(draft: &Draft, outputs: &[TensorId]) -> Vec<TensorId> {
    let defined = draft.nodes.iter().flat_map(|node| node.outputs.iter().copied());
    defined.filter(|tensor| draft.tensors[tensor.index()].ty.is_some() && !outputs.contains(tensor)).collect()
}

/// Returns the name of each tensor.
fn names(draft: &Draft, outputs: &[TensorId]) -> Vec<String> {
    let numbering = Numbering::of(draft.module);
    let mut names = Names::default();
    let mut given = vec![String::new(); draft.tensors.len()];
    // Inputs and outputs get their names first, then tensors of the file, then all others.
    let others = (0..draft.tensors.len()).map(TensorId::at);
    for tensor in draft.inputs.iter().chain(outputs).copied().chain(others) {
        let index = tensor.index();
        if let Source::Named(wanted) = &draft.tensors[index].source
            && given[index].is_empty()
        {
            given[index] = names.free(wanted);
        }
    }
    for (tensor, name) in draft.tensors.iter().zip(&mut given) {
        *name = match &tensor.source {
            Source::Named(_) => continue,
            Source::Value(value) => names.free(&numbering.value(*value)),
            Source::Between(node, operator) => {
                let result = node.and_then(|node| draft.module.node(node).results.first().copied());
                let result = result.map(|value| numbering.value(value)).unwrap_or_default();
                names.free(&format!("{result}.{}", operator.to_lowercase()))
            }
        };
    }
    given
}

/// Returns the name, type and description of a tensor.
fn described(
    draft: &Draft,
    names: &[String],
    header: &Header,
    tensor: TensorId,
) -> Result<ValueInfoProto, Diagnostic> {
    let name = &names[tensor.index()];
    let description = header.values.get(name).cloned().unwrap_or_default();
    let ty = draft.tensors[tensor.index()].ty.as_ref().map(type_message).transpose()?;
    Ok(ValueInfoProto {
        name: Some(name.clone()),
        r#type: ty,
        doc_string: description.doc_string,
        metadata_props: description.metadata,
    })
}

fn type_message(ty: &Type) -> Result<TypeProto, Diagnostic> {
    let dim = ty.dims.iter().map(dim_message).collect::<Result<_, _>>()?;
    let tensor = TypeProtoTensor {
        elem_type: Some(ElementType::from(ty.dtype).code()),
        shape: Some(TensorShapeProto { dim }),
    };
    Ok(TypeProto { value: Some(TypeProtoValue::TensorType(tensor)), denotation: None })
}

/// Returns the message of a dim: a number, a symbol, or a product such as `2*batch`.
fn dim_message(dim: &Dim) -> Result<TensorShapeProtoDimension, Diagnostic> {
    let value = match dim.size() {
        Some(known) => TensorShapeProtoDimensionValue::DimValue(super::draft::size(known)?),
        None => {
            let coefficient = (dim.coefficient() != 1).then(|| dim.coefficient().to_string());
            let factors: Vec<String> = coefficient
                .into_iter()
                .chain(dim.symbols().iter().map(|symbol| symbol.to_string()))
                .collect();
            TensorShapeProtoDimensionValue::DimParam(factors.join("*"))
        }
    };
    Ok(TensorShapeProtoDimension { value: Some(value), denotation: None })
}

fn message(draft: &Draft, node: &DraftNode, names: &[String], node_names: &mut Names) -> NodeProto {
    let module = draft.module;
    let origin = node.node.map(|id| module.node(id)).map_or("", |node| of_origin(&node.origin));
    let base = if origin.is_empty() { &node.operator } else { origin };
    let name = |tensor: &TensorId| names[tensor.index()].clone();
    let mut message = NodeProto {
        name: Some(node_names.free(base)),
        op_type: Some(node.operator.clone()),
        domain: Some(if node.is_own { own::DOMAIN.to_owned() } else { String::new() }),
        input: node.inputs.iter().map(|input| input.as_ref().map(name).unwrap_or_default()).collect(),
        output: node.outputs.iter().map(name).collect(),
        attribute: node.attributes.clone(),
        ..NodeProto::default()
    };
    if draft.form == Form::Program {
        message.metadata_props = facts(draft, node);
        sharding::annotate(draft, node, names, &mut message);
    }
    message
}

/// Returns the facts of a node of the program, for a viewer.
fn facts(draft: &Draft, node: &DraftNode) -> Vec<StringStringEntryProto> {
    let Some(node) = node.node.map(|id| draft.module.node(id)) else { return vec![] };
    let mut facts = vec![("operator", node.op.name().to_owned())];
    if node.phase != Phase::Forward || draft.module.level != ir::Level::Imported {
        facts.push(("phase", node.phase.long_name().to_owned()));
    }
    if node.copy != 0 {
        facts.push(("copy", node.copy.to_string()));
    }
    if !node.origin.is_empty() {
        facts.push(("origin", node.origin.to_string()));
    }
    facts.push(("by", node.by.to_string()));
    facts.into_iter().map(|(key, value)| fact(key, value)).collect()
}

/// Makes a metadata entry of the compiler.
pub(super) fn fact(key: &str, value: String) -> StringStringEntryProto {
    StringStringEntryProto { key: Some(format!("{}.{key}", own::DOMAIN)), value: Some(value) }
}
