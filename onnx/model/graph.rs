//! Graphs and nodes of a loaded model, and typed access to a node's attributes.

use std::collections::BTreeMap;

use super::{Attribute, Value, ValueType};
use crate::error::{Problem, quoted};
use crate::tensor::Tensor;

/// A graph: that of the model, or the body of a control-flow operator.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// Its name.
    pub name: String,
    /// The values it is given: for the model, those that have no initializer.
    pub inputs: Vec<Value>,
    /// The values it yields.
    pub outputs: Vec<Value>,
    /// Initializers, then the values of `Constant` nodes (which are not among the nodes), in the file's order.
    pub tensors: Vec<Tensor>,
    /// Operators, definitions before uses; in the file's order where that allows it.
    pub nodes: Vec<Node>,
    /// The declared types of inner values, by name. They are hints: nothing has checked them.
    pub value_types: BTreeMap<String, ValueType>,
}

impl Graph {
    /// The tensor that defines the value `name`.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// About how many bytes a copy of it takes, tensor data (which is shared) left out.
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

/// One application of an operator. Model functions are inlined, so every operator is one of its domain's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// The node's name in the file, behind the path of the calls it was inlined from; may be empty.
    pub name: String,
    /// The operator.
    pub op_type: String,
    /// Its domain; empty for `ai.onnx`.
    pub domain: String,
    /// Which of the operator's overloads; mostly empty.
    pub overload: String,
    /// The version of the domain's operator set that the node is written against.
    pub opset: i64,
    /// The values it reads; an empty name is an optional input left out.
    pub inputs: Vec<String>,
    /// The values it defines; an empty name is an optional output left out.
    pub outputs: Vec<String>,
    /// Attributes by name.
    pub attributes: BTreeMap<String, Attribute>,
    /// `metadata_props`, also of the calls it was inlined from (`pkg.torch.onnx.name_scopes`: module path).
    pub metadata: BTreeMap<String, String>,
    /// The model function it was inlined from.
    pub function: Option<String>,
}

impl Node {
    /// Which node this is, for messages: `node "/h/Gemm" (Gemm, opset 20)`.
    pub fn label(&self) -> String {
        let name = match (&self.name[..], self.outputs.iter().find(|output| !output.is_empty())) {
            ("", Some(output)) => format!("the node of value {}", quoted(output)),
            (name, _) => format!("node {}", quoted(name)),
        };
        let domain = if self.domain.is_empty() { String::new() } else { format!("{}.", self.domain) };
        let function = self.function.as_ref().map(|name| format!(", in function {name}")).unwrap_or_default();
        format!("{name} ({domain}{}, opset {}{function})", self.op_type, self.opset)
    }

    /// The value at this input; `None`: it is left out.
    pub fn input(&self, index: usize) -> Option<&str> {
        self.inputs.get(index).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// The value at this output; `None`: it is left out.
    pub fn output(&self, index: usize) -> Option<&str> {
        self.outputs.get(index).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// The value at this input, which the operator needs.
    pub fn required_input(&self, index: usize) -> Result<&str, Problem> {
        self.input(index).ok_or_else(|| {
            let message =
                format!("{} needs input {index} and has {} inputs", self.op_type, self.inputs.len());
            Problem::new(message).at(self.label())
        })
    }

    /// An INT attribute; `Ok(None)` without one, a problem when it is of another type.
    pub fn int(&self, name: &str) -> Result<Option<i64>, Problem> {
        self.typed(name, "INT", |attribute| match attribute {
            Attribute::Int(value) => Some(*value),
            _ => None,
        })
    }

    /// A FLOAT attribute.
    pub fn float(&self, name: &str) -> Result<Option<f32>, Problem> {
        self.typed(name, "FLOAT", |attribute| match attribute {
            Attribute::Float(value) => Some(*value),
            _ => None,
        })
    }

    /// A STRING attribute.
    pub fn string(&self, name: &str) -> Result<Option<&str>, Problem> {
        self.typed(name, "STRING", |attribute| match attribute {
            Attribute::String(value) => Some(value.as_str()),
            _ => None,
        })
    }

    /// An INTS attribute.
    pub fn ints(&self, name: &str) -> Result<Option<&[i64]>, Problem> {
        self.typed(name, "INTS", |attribute| match attribute {
            Attribute::Ints(values) => Some(values.as_slice()),
            _ => None,
        })
    }

    /// A FLOATS attribute.
    pub fn floats(&self, name: &str) -> Result<Option<&[f32]>, Problem> {
        self.typed(name, "FLOATS", |attribute| match attribute {
            Attribute::Floats(values) => Some(values.as_slice()),
            _ => None,
        })
    }

    /// A STRINGS attribute.
    pub fn strings(&self, name: &str) -> Result<Option<&[String]>, Problem> {
        self.typed(name, "STRINGS", |attribute| match attribute {
            Attribute::Strings(values) => Some(values.as_slice()),
            _ => None,
        })
    }

    /// A TENSOR attribute.
    pub fn tensor(&self, name: &str) -> Result<Option<&Tensor>, Problem> {
        self.typed(name, "TENSOR", |attribute| match attribute {
            Attribute::Tensor(tensor) => Some(tensor),
            _ => None,
        })
    }

    /// A GRAPH attribute.
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
