//! Graphs and nodes of a loaded model, and typed access to a node's attributes.

use std::collections::BTreeMap;

use super::{Attribute, Value, ValueType};
use crate::error::{Problem, quoted};
use crate::tensor::Tensor;

/// A graph: the graph of the model, or the body of a control-flow operator.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// The name.
    pub name: String,
    /// The inputs; in the main graph, those without an initializer.
    pub inputs: Vec<Value>,
    /// The outputs.
    pub outputs: Vec<Value>,
    /// Initializers, then the values of `Constant` nodes (which are not among the nodes), in the file's order.
    pub tensors: Vec<Tensor>,
    /// The nodes, definitions before uses, and otherwise in the file's order.
    pub nodes: Vec<Node>,
    /// The declared types of inner values, by name. They are only hints, and were not checked.
    pub value_types: BTreeMap<String, ValueType>,
}

impl Graph {
    /// Returns the tensor that defines the value `name`.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Estimates the bytes of a copy, without tensor data (which is shared).
    pub(super) fn weight(&self) -> usize {
        let nodes = self.nodes.iter().map(|node| {
            let names = node.inputs.iter().chain(&node.outputs).map(|name| 24 + name.len());
            let texts = node.metadata.iter().map(|(key, value)| 48 + key.len() + value.len());
            let attributes = node.attributes.iter().map(|(name, value)| name.len() + value.weight());
            256 + node.name.len() + names.chain(texts).chain(attributes).sum::<usize>()
        });
        let values = self.inputs.iter().chain(&self.outputs).map(|value| 64 + value.name.len());
        let tensors = self.tensors.iter().map(|tensor| 256 + tensor.name.len());
        let types = self.value_types.keys().map(|name| 96 + name.len());
        nodes.chain(values).chain(tensors).chain(types).sum()
    }
}

/// An application of an operator. Model functions are inlined, so every operator belongs to its domain's operator set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// The node's name in the file, after the path of the calls from which it was inlined; may be empty.
    pub name: String,
    /// The operator.
    pub op_type: String,
    /// The domain; empty for `ai.onnx`.
    pub domain: String,
    /// The overload of the operator; mostly empty.
    pub overload: String,
    /// The version of the domain's operator set that the node uses.
    pub opset: i64,
    /// The values that the node reads. An empty name is an optional input that is left out.
    pub inputs: Vec<String>,
    /// The values that the node defines. An empty name is an optional output that is left out.
    pub outputs: Vec<String>,
    /// Attributes by name.
    pub attributes: BTreeMap<String, Attribute>,
    /// The `metadata_props` of the node and of the calls from which it was inlined (`pkg.torch.onnx.name_scopes`: module path).
    pub metadata: BTreeMap<String, String>,
    /// The model function from which the node was inlined.
    pub function: Option<String>,
}

impl Node {
    /// Returns the place of the node, for messages: `node "/h/Gemm" (Gemm, opset 20)`.
    pub fn label(&self) -> String {
        let name = match (&self.name[..], self.outputs.iter().find(|output| !output.is_empty())) {
            ("", Some(output)) => format!("the node of value {}", quoted(output)),
            (name, _) => format!("node {}", quoted(name)),
        };
        let domain = if self.domain.is_empty() { String::new() } else { format!("{}.", self.domain) };
        let function = self.function.as_ref().map(|name| format!(", in function {name}")).unwrap_or_default();
        format!("{name} ({domain}{}, opset {}{function})", self.op_type, self.opset)
    }

    /// Returns the value at this input; `None` if it is left out.
    pub fn input(&self, index: usize) -> Option<&str> {
        self.inputs.get(index).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Returns the value at this output; `None` if it is left out.
    pub fn output(&self, index: usize) -> Option<&str> {
        self.outputs.get(index).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Returns the value at this input, which the operator requires.
    pub fn required_input(&self, index: usize) -> Result<&str, Problem> {
        self.input(index).ok_or_else(|| {
            let message =
                format!("{} needs input {index} and has {} inputs", self.op_type, self.inputs.len());
            Problem::new(message).at(self.label())
        })
    }

    /// Returns an INT attribute. `Ok(None)` if it is left out; a problem if it has another type.
    pub fn int(&self, name: &str) -> Result<Option<i64>, Problem> {
        self.typed(name, "INT", |attribute| match attribute {
            Attribute::Int(value) => Some(*value),
            _ => None,
        })
    }

    /// Returns a FLOAT attribute, as [`Self::int`] does.
    pub fn float(&self, name: &str) -> Result<Option<f32>, Problem> {
        self.typed(name, "FLOAT", |attribute| match attribute {
            Attribute::Float(value) => Some(*value),
            _ => None,
        })
    }

    /// Returns a STRING attribute, as [`Self::int`] does.
    pub fn string(&self, name: &str) -> Result<Option<&str>, Problem> {
        self.typed(name, "STRING", |attribute| match attribute {
            Attribute::String(value) => Some(value.as_str()),
            _ => None,
        })
    }

    /// Returns an INTS attribute, as [`Self::int`] does.
    pub fn ints(&self, name: &str) -> Result<Option<&[i64]>, Problem> {
        self.typed(name, "INTS", |attribute| match attribute {
            Attribute::Ints(values) => Some(values.as_slice()),
            _ => None,
        })
    }

    /// Returns a FLOATS attribute, as [`Self::int`] does.
    pub fn floats(&self, name: &str) -> Result<Option<&[f32]>, Problem> {
        self.typed(name, "FLOATS", |attribute| match attribute {
            Attribute::Floats(values) => Some(values.as_slice()),
            _ => None,
        })
    }

    /// Returns a STRINGS attribute, as [`Self::int`] does.
    pub fn strings(&self, name: &str) -> Result<Option<&[String]>, Problem> {
        self.typed(name, "STRINGS", |attribute| match attribute {
            Attribute::Strings(values) => Some(values.as_slice()),
            _ => None,
        })
    }

    /// Returns a TENSOR attribute, as [`Self::int`] does.
    pub fn tensor(&self, name: &str) -> Result<Option<&Tensor>, Problem> {
        self.typed(name, "TENSOR", |attribute| match attribute {
            Attribute::Tensor(tensor) => Some(tensor),
            _ => None,
        })
    }

    /// Returns a GRAPH attribute, as [`Self::int`] does.
    pub fn graph(&self, name: &str) -> Result<Option<&Graph>, Problem> {
        self.typed(name, "GRAPH", |attribute| match attribute {
            Attribute::Graph(graph) => Some(&**graph),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        name: &str,
        wanted: &str,
        get: impl Fn(&'a Attribute) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let Some(attribute) = self.attributes.get(name) else { return Ok(None) };
        get(attribute).map(Some).ok_or_else(|| {
            let found = attribute.kind();
            Problem::new(format!("attribute {} must be {wanted}; it is {found}", quoted(name)))
                .at(self.label())
        })
    }
}
