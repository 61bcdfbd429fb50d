//! The facts of a file and of a program.

use crate::sizes;
use ir::Module;
use onnx::{Model, TensorBytes, Value};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The facts about a model's file.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FileFacts {
    /// The file.
    pub path: String,
    /// The program that wrote it, with its version.
    pub producer: String,
    /// The version of the format.
    pub ir_version: i64,
    /// Operator sets and their versions; `ai.onnx` is the standard one.
    pub opsets: BTreeMap<String, i64>,
    /// The inputs that a user gives.
    pub inputs: Vec<Port>,
    /// The outputs.
    pub outputs: Vec<Port>,
    /// The number of its nodes, with functions inlined.
    pub nodes: usize,
    /// The number of nodes of each operator.
    pub operators: BTreeMap<String, usize>,
    /// The number of its tensors.
    pub tensors: usize,
    /// The bytes of all tensors.
    pub bytes: u64,
    /// The number of tensors whose bytes are in a missing file.
    pub absent: usize,
    /// The tensors: name and type.
    #[serde(skip)]
    pub(super) stored: BTreeMap<String, StoredTensor>,
}

/// A tensor of the file.
#[derive(Clone, Debug)]
pub(super) struct StoredTensor {
    pub(super) ty: String,
    pub(super) elements: u64,
    pub(super) is_float: bool,
}

/// An input or an output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its declared type.
    #[serde(rename = "type")]
    pub ty: String,
}

impl FileFacts {
    /// The facts of a loaded model.
    pub(super) fn of(model: &Model, path: &Path) -> Self {
        let graph = &model.graph;
        let port = |value: &Value| Port { name: value.name.clone(), ty: value.ty.to_string() };
        let domain = |name: &String| if name.is_empty() { "ai.onnx".to_string() } else { name.clone() };
        let mut operators = BTreeMap::new();
        for node in &graph.nodes {
            let standard = node.domain.is_empty() || node.domain == "ai.onnx";
            let name =
                if standard { node.op_type.clone() } else { format!("{}.{}", node.domain, node.op_type) };
            *operators.entry(name).or_insert(0) += 1;
        }
        let stored = graph.tensors.iter().map(|tensor| {
            let is_float = matches!(tensor.dtype.name(), "f64" | "f32" | "f16" | "bf16");
            let ty = format!("{}{:?}", tensor.dtype, tensor.dims);
            let elements = tensor.element_count() as u64;
            (tensor.name.clone(), StoredTensor { ty, elements, is_float })
        });
        let size = |tensor: &onnx::Tensor| tensor.dtype.bytes_of(tensor.element_count()).unwrap_or(0) as u64;
        let is_absent = |tensor: &&onnx::Tensor| matches!(tensor.bytes, TensorBytes::Absent { .. });
        Self {
            path: path.display().to_string(),
            producer: model.producer.clone(),
            ir_version: model.ir_version,
            opsets: model.opsets.iter().map(|(name, version)| (domain(name), *version)).collect(),
            inputs: sizes::inputs(model).map(port).collect(),
            outputs: graph.outputs.iter().map(port).collect(),
            nodes: graph.nodes.len(),
            operators,
            tensors: graph.tensors.len(),
            bytes: graph.tensors.iter().map(size).fold(0, u64::saturating_add),
            absent: graph.tensors.iter().filter(is_absent).count(),
            stored: stored.collect(),
        }
    }
}

/// The forward program, with its loss if it has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProgramFacts {
    /// The number of times that each pattern was found which has an operator of its own.
    pub patterns: BTreeMap<String, usize>,
    /// The number of nodes of each operator.
    pub operators: BTreeMap<String, usize>,
}

/// The operators that exporters write as several nodes, which the import and `canonicalize` recognise.
pub(super) const PATTERNS: [&str; 9] = [
    "attention",
    "cross_entropy",
    "experts",
    "gelu",
    "gelu_tanh",
    "layer_norm",
    "rms_norm",
    "rotary",
    "silu",
];

impl ProgramFacts {
    /// Counts the nodes of a program.
    pub(super) fn of(module: &Module) -> Self {
        let mut operators: BTreeMap<String, usize> = BTreeMap::new();
        for (_, node) in module.nodes() {
            *operators.entry(node.op.name().to_string()).or_default() += 1;
        }
        let found = PATTERNS.iter().filter_map(|&name| Some((name.to_string(), *operators.get(name)?)));
        Self { patterns: found.collect(), operators }
    }
}
