//! Tests that every operator with samples gives the same numbers after it was written as a model of one node and read back.

use super::assert_equal_outputs;
use crate::program::{Absent, Form, Header, model};
use crate::proto::{ModelProto, NodeProto, TypeProtoValue, ValueInfoProto};
use crate::{ElementType, ImportOptions, Model, import};
use ir::ops::recurrent::Cell;
use ir::samples::{Sample, Through, samples};
use ir::{DType, Diagnostic, Module, Op};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};

/// Operators of a training step, which a model cannot have.
const OF_A_STEP: [&str; 37] = [
    "accumulate",
    "adagrad",
    "adam",
    "adam_8bit",
    "addends",
    "all_gather",
    "all_reduce",
    "all_slice",
    "all_to_all",
    "attention_grad",
    "avg_pool_grad",
    "batch_norm_grad",
    "conv_grad_weight",
    "copy",
    "cross_entropy_grad",
    "experts_grad",
    "gather_elements_grad",
    "gather_grad",
    "gather_nd_grad",
    "gelu_grad",
    "gelu_tanh_grad",
    "layer_norm_grad",
    "lion",
    "max_pool_grad",
    "max_pool_grad_at",
    "max_pool_offsets",
    "orthogonalize",
    "pack_bits",
    "recurrent_grad",
    "reduce_scatter",
    "relu_grad",
    "rms_norm_grad",
    "sgd",
    "silu_grad",
    "softmax_grad",
    "transfer",
    "unpack_bits",
];

fn written(module: &Module) -> Result<Model, Diagnostic> {
    let proto = model(module, &Header::default(), &BTreeMap::new(), Form::Training, Absent::Refuse)?;
    Ok(Model::from_bytes(proto.encode_to_vec().into(), None).unwrap_or_else(|error| panic!("{error}")))
}

/// Returns the program of a sample, with the results that ONNX's operator has.
fn program(sample: &Sample) -> (Module, BTreeMap<String, ir::Tensor>) {
    let (mut module, inputs) = sample.program(Through::Inputs);
    // The other results are kept for the gradient.
    let of_onnx = match &sample.op {
        Op::Attention(_) => 1,
        Op::Recurrent(op) if op.cell == Cell::Lstm => 3,
        Op::Recurrent(_) => 2,
        _ => module.outputs.len(),
    };
    module.outputs.truncate(of_onnx);
    (module, inputs)
}

/// Whether the sample has the same meaning in ONNX. Random numbers differ there, and so do places in padding.
fn is_said_by_onnx(sample: &Sample) -> bool {
    match &sample.op {
        Op::Dropout(_) => sample.operands.len() == 1,
        Op::RandomUniform(_) => sample.operands.is_empty(),
        Op::MaxPoolIndices(op) => op.windows.iter().all(|window| window.before < window.size),
        _ => true,
    }
}

#[test]
fn a_viewer_gets_a_node_for_every_operator() {
    for sample in samples() {
        let (module, _) = sample.program(Through::Inputs);
        let proto = shown_in(&module, Form::Program);
        let graph = proto.graph.expect("a graph");
        let name = format!("trainyard.{}", sample.op.name());
        let is_written = |node: &NodeProto| {
            let facts = node.metadata_props.iter();
            facts.clone().any(|fact| fact.key() == "trainyard.operator" && fact.value() == sample.op.name())
        };
        let is_moved =
            graph.output.iter().all(|output| graph.input.iter().any(|input| input.name == output.name));
        assert!(graph.node.iter().any(is_written) || is_moved, "{name}");
        assert_eq!(graph.output.len(), module.outputs.len(), "{name}");
    }
}

fn shown_in(module: &Module, form: Form) -> ModelProto {
    model(module, &Header::default(), &BTreeMap::new(), form, Absent::AsInputs)
        .unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn operators_are_read_back_as_they_were() {
    let (mut refused, mut problems) = (BTreeSet::new(), Vec::new());
    for sample in samples().into_iter().filter(is_said_by_onnx) {
        let (module, inputs) = program(&sample);
        let name = sample.op.name();
        let file = match written(&module) {
            Ok(file) => file,
            Err(error) => {
                refused.insert(name);
                if !OF_A_STEP.contains(&name) {
                    problems.push(format!("{name}: {error}"));
                }
                continue;
            }
        };
        match import(&file, &ImportOptions::default()) {
            Ok(read) => {
                let compared =
                    std::panic::catch_unwind(|| assert_equal_outputs(name, &module, &read.module, &inputs));
                if compared.is_err() {
                    problems.push(format!("{name}: {:?} differs", sample.op));
                }
            }
            Err(error) => problems.push(format!("{name}: {error:?}")),
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert_eq!(refused, BTreeSet::from(OF_A_STEP));
}

/// Operators with element types that ONNX does not allow for them, according to the official checker.
const UNTAKEN: [(&str, ElementType); 4] = [
    ("Einsum", ElementType::Bf16),
    ("RandomUniformLike", ElementType::Bf16),
    ("RotaryEmbedding", ElementType::F64),
    ("TopK", ElementType::Bf16),
];

#[test]
fn operators_get_the_element_types_that_onnx_takes() {
    let mut met = BTreeSet::new();
    for sample in samples() {
        for sample in [DType::BF16, DType::F64].into_iter().filter_map(|dtype| sample.in_type(dtype)) {
            let (module, _) = program(&sample);
            let Ok(file) = written(&module) else { continue };
            let graph = file.proto().graph.as_ref().expect("a graph");
            let types = graph.input.iter().chain(&graph.value_info).chain(&graph.output);
            let types: BTreeMap<&str, i32> = types.map(|value| (value.name(), element_type(value))).collect();
            for node in &graph.node {
                for (operator, dtype) in UNTAKEN.into_iter().filter(|(name, _)| *name == node.op_type()) {
                    met.insert(operator);
                    for name in node.input.iter().chain(&node.output) {
                        assert_ne!(types.get(name.as_str()), Some(&dtype.code()), "{operator}: {name}");
                    }
                }
            }
        }
    }
    assert_eq!(met, UNTAKEN.map(|(operator, _)| operator).into());
}

fn element_type(value: &ValueInfoProto) -> i32 {
    match value.r#type.as_ref().and_then(|ty| ty.value.as_ref()) {
        Some(TypeProtoValue::TensorType(tensor)) => tensor.elem_type(),
        _ => 0,
    }
}
