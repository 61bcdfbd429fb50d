//! The facts of a file and of a program.

use crate::sizes;
use ir::{Diagnostic, Module};
use onnx::{Model, TensorBytes, Value};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// What stands in a model's file.
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
    /// What it takes.
    pub inputs: Vec<Port>,
    /// What it gives.
    pub outputs: Vec<Port>,
    /// The number of its nodes, functions inlined.
    pub nodes: usize,
    /// How many nodes of each operator there are.
    pub operators: BTreeMap<String, usize>,
    /// How many tensors it holds.
    pub tensors: usize,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Tensors whose bytes are in a file that is not there.
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
        let mut stored = BTreeMap::new();
        let (mut bytes, mut absent) = (0u64, 0);
        for tensor in &graph.tensors {
            let is_float = matches!(tensor.dtype.name(), "f64" | "f32" | "f16" | "bf16");
            let elements = tensor.element_count() as u64;
            let ty = format!("{}{:?}", tensor.dtype, tensor.dims);
            stored.insert(tensor.name.clone(), StoredTensor { ty, elements, is_float });
            let size = tensor.dtype.bytes_of(tensor.element_count()).unwrap_or(0);
            bytes = bytes.saturating_add(size as u64);
            absent += usize::from(matches!(tensor.bytes, TensorBytes::Absent { .. }));
        }
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
            bytes,
            absent,
            stored,
        }
    }
}

/// The forward program, its loss included where there is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProgramFacts {
    /// How often each of the patterns was found that have an operator of their own.
    pub patterns: BTreeMap<String, usize>,
    /// How many nodes of each operator there are.
    pub operators: BTreeMap<String, usize>,
}

/// Operators that exporters spell out, and that the import and `canonicalize` find again.
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

/// A diagnostic, for JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiagnosticFacts {
    /// What.
    pub message: String,
    /// Where.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Why, and what would work.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl DiagnosticFacts {
    pub(super) fn diagnostic(diagnostic: &Diagnostic) -> Self {
        let Diagnostic { message, origin, notes, .. } = diagnostic.clone();
        Self { message, origin, notes }
    }

    pub(super) fn as_diagnostic(&self) -> Diagnostic {
        let Self { message, origin, notes } = self.clone();
        Diagnostic { message, origin, notes, is_passing: false }
    }
}
