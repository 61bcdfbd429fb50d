//! Attributes of nodes, decoded into one typed enum.

use crate::error::{Problem, quoted};
use crate::proto::{AttributeProto, AttributeType};
use crate::tensor::Tensor;

use super::{Graph, ValueType};

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// A float.
    Float(f32),
    /// An integer.
    Int(i64),
    /// Text.
    String(String),
    /// A tensor.
    Tensor(Tensor),
    /// The body of a control-flow operator. It may read values of the graphs around it.
    Graph(Box<Graph>),
    /// A sparse tensor.
    Sparse(Box<SparseTensor>),
    /// A type.
    Type(ValueType),
    /// Floats.
    Floats(Vec<f32>),
    /// Integers.
    Ints(Vec<i64>),
    /// Texts.
    Strings(Vec<String>),
    /// Tensors.
    Tensors(Vec<Tensor>),
    /// Graphs.
    Graphs(Vec<Graph>),
    /// Sparse tensors.
    Sparses(Vec<SparseTensor>),
    /// Types.
    Types(Vec<ValueType>),
}

/// A sparse tensor: `values[i]` is at `indices[i]` (linear, or one index per dim); all other elements are zero.
#[derive(Clone, Debug, PartialEq)]
pub struct SparseTensor {
    /// The dims of the whole tensor.
    pub dims: Vec<usize>,
    /// The nonzero values.
    pub values: Tensor,
    /// The indices of these values.
    pub indices: Tensor,
}

impl Attribute {
    /// Returns the name of the attribute's kind in `AttributeProto`, for messages.
    pub fn kind(&self) -> &'static str {
        kind_name(self.proto_type())
    }

    pub(super) fn proto_type(&self) -> AttributeType {
        match self {
            Attribute::Float(_) => AttributeType::Float,
            Attribute::Int(_) => AttributeType::Int,
            Attribute::String(_) => AttributeType::String,
            Attribute::Tensor(_) => AttributeType::Tensor,
            Attribute::Graph(_) => AttributeType::Graph,
            Attribute::Sparse(_) => AttributeType::SparseTensor,
            Attribute::Type(_) => AttributeType::TypeProto,
            Attribute::Floats(_) => AttributeType::Floats,
            Attribute::Ints(_) => AttributeType::Ints,
            Attribute::Strings(_) => AttributeType::Strings,
            Attribute::Tensors(_) => AttributeType::Tensors,
            Attribute::Graphs(_) => AttributeType::Graphs,
            Attribute::Sparses(_) => AttributeType::SparseTensors,
            Attribute::Types(_) => AttributeType::TypeProtos,
        }
    }

    /// Returns the graphs in the attribute.
    pub fn graphs(&self) -> &[Graph] {
        match self {
            Attribute::Graph(graph) => std::slice::from_ref(graph),
            Attribute::Graphs(graphs) => graphs,
            _ => &[],
        }
    }

    /// Estimates the bytes of a copy, without tensor data (which is shared).
    pub(super) fn weight(&self) -> usize {
        const TENSOR: usize = 256;
        64 + match self {
            Attribute::Float(_) | Attribute::Int(_) | Attribute::Type(_) => 0,
            Attribute::String(text) => text.len(),
            Attribute::Tensor(tensor) => TENSOR + tensor.name.len(),
            Attribute::Sparse(_) => 3 * TENSOR,
            Attribute::Floats(values) => 4 * values.len(),
            Attribute::Ints(values) => 8 * values.len(),
            Attribute::Strings(texts) => texts.iter().map(|text| 24 + text.len()).sum(),
            Attribute::Tensors(tensors) => TENSOR * tensors.len(),
            Attribute::Sparses(tensors) => 3 * TENSOR * tensors.len(),
            Attribute::Types(types) => 64 * types.len(),
            Attribute::Graph(_) | Attribute::Graphs(_) => self.graphs().iter().map(Graph::weight).sum(),
        }
    }

    pub(super) fn graphs_mut(&mut self) -> &mut [Graph] {
        match self {
            Attribute::Graph(graph) => std::slice::from_mut(graph),
            Attribute::Graphs(graphs) => graphs,
            _ => &mut [],
        }
    }
}

pub(super) fn kind_name(kind: AttributeType) -> &'static str {
    match kind {
        AttributeType::Undefined => "UNDEFINED",
        AttributeType::Float => "FLOAT",
        AttributeType::Int => "INT",
        AttributeType::String => "STRING",
        AttributeType::Tensor => "TENSOR",
        AttributeType::Graph => "GRAPH",
        AttributeType::SparseTensor => "SPARSE_TENSOR",
        AttributeType::TypeProto => "TYPE_PROTO",
        AttributeType::Floats => "FLOATS",
        AttributeType::Ints => "INTS",
        AttributeType::Strings => "STRINGS",
        AttributeType::Tensors => "TENSORS",
        AttributeType::Graphs => "GRAPHS",
        AttributeType::SparseTensors => "SPARSE_TENSORS",
        AttributeType::TypeProtos => "TYPE_PROTOS",
    }
}

/// Returns the kind of an attribute: from `type` or, in files without it, from the only field that is set.
pub(super) fn kind_of(proto: &AttributeProto) -> Result<AttributeType, String> {
    let name = quoted(proto.name.as_deref().unwrap_or_default());
    let code = proto.r#type.unwrap_or(0);
    let declared = AttributeType::try_from(code)
        .map_err(|_| format!("attribute {name} has the type {code}; ONNX IR 14 knows 1 to 14"))?;
    let present = present_fields(proto);
    match (declared, &present[..]) {
        (AttributeType::Undefined, [only]) => Ok(*only),
        (AttributeType::Undefined, []) => Err(format!("attribute {name} has neither a type nor a value")),
        (_, []) => Ok(declared),
        (_, [only]) if *only == declared => Ok(declared),
        (AttributeType::Undefined, _) => Err(format!("attribute {name} has values of several types")),
        (_, [other, ..]) => Err(format!(
            "attribute {name} is declared as {}, and its value has type {}",
            kind_name(declared),
            kind_name(present.iter().copied().find(|kind| *kind != declared).unwrap_or(*other))
        )),
    }
}

fn present_fields(proto: &AttributeProto) -> Vec<AttributeType> {
    let fields = [
        (proto.f.is_some(), AttributeType::Float),
        (proto.i.is_some(), AttributeType::Int),
        (proto.s.is_some(), AttributeType::String),
        (proto.t.is_some(), AttributeType::Tensor),
        (proto.g.is_some(), AttributeType::Graph),
        (proto.sparse_tensor.is_some(), AttributeType::SparseTensor),
        (proto.tp.is_some(), AttributeType::TypeProto),
        (!proto.floats.is_empty(), AttributeType::Floats),
        (!proto.ints.is_empty(), AttributeType::Ints),
        (!proto.strings.is_empty(), AttributeType::Strings),
        (!proto.tensors.is_empty(), AttributeType::Tensors),
        (!proto.graphs.is_empty(), AttributeType::Graphs),
        (!proto.sparse_tensors.is_empty(), AttributeType::SparseTensors),
        (!proto.type_protos.is_empty(), AttributeType::TypeProtos),
    ];
    fields.into_iter().filter_map(|(present, kind)| present.then_some(kind)).collect()
}

/// Returns the text of bytes that must be UTF-8.
pub(super) fn text(bytes: &[u8], attribute: &str) -> Result<String, Problem> {
    let text = std::str::from_utf8(bytes);
    text.map(str::to_owned)
        .map_err(|_| Problem::new(format!("attribute {} is not UTF-8 text", quoted(attribute))))
}
