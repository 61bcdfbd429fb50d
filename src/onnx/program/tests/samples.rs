//! Every operator with samples is written as a model of one node, and read back it gives the same numbers.

use super::assert_equal_outputs;
use crate::program::{Absent, Form, Header, model};
use crate::proto::{ModelProto, NodeProto};
use crate::{ImportOptions, Model, import};
use ir::ops::samples::{Sample, Through, samples};
use ir::{Diagnostic, Module, Op};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};

/// Operators of a training step, which a model cannot have.
const OF_A_STEP: [&str; 27] = [
    "accumulate",
    "adagrad",
    "adam",
    "all_gather",
    "all_reduce",
    "all_slice",
    "all_to_all",
    "attention_grad",
    "avg_pool_grad",
    "batch_norm_grad",
    "conv_grad_weight",
    "cross_entropy_grad",
    "experts_grad",
    "gather_elements_grad",
    "gather_grad",
    "gather_nd_grad",
    "gelu_grad",
    "gelu_tanh_grad",
    "layer_norm_grad",
    "max_pool_grad",
    "reduce_scatter",
    "relu_grad",
    "rms_norm_grad",
    "sgd",
    "silu_grad",
    "softmax_grad",
    "transfer",
];

fn written(module: &Module) -> Result<Model, Diagnostic> {
    let proto = model(module, &Header::default(), &BTreeMap::new(), Form::Training, Absent::Refuse)?;
    Ok(Model::from_bytes(proto.encode_to_vec().into(), None).unwrap_or_else(|error| panic!("{error}")))
}

/// The program of a sample, with the results that ONNX gives.
fn program(sample: &Sample) -> (Module, BTreeMap<String, ir::Tensor>) {
    let (mut module, inputs) = sample.program(Through::Inputs);
    if matches!(sample.op, Op::Attention(_)) {
        module.outputs.truncate(1);
    }
    (module, inputs)
}

/// Whether the sample means the same in ONNX: numbers drawn are others there, and so are places in padding.
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
