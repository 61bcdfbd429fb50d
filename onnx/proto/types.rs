//! Messages that describe the type of a value.
#![expect(missing_docs, reason = "the fields are those of onnx.proto, which documents them")]

use prost::{Message, Oneof};

/// The type of a value.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    #[prost(oneof = "TypeProtoValue", tags = "1, 4, 5, 7, 8, 9")]
    pub value: Option<TypeProtoValue>,
    #[prost(string, optional, tag = "6")]
    pub denotation: Option<String>,
}

/// The kinds of types.
#[derive(Clone, PartialEq, Oneof)]
pub enum TypeProtoValue {
    #[prost(message, tag = "1")]
    TensorType(TypeProtoTensor),
    #[prost(message, tag = "4")]
    SequenceType(Box<TypeProtoSequence>),
    #[prost(message, tag = "5")]
    MapType(Box<TypeProtoMap>),
    #[prost(message, tag = "7")]
    OpaqueType(TypeProtoOpaque),
    #[prost(message, tag = "8")]
    SparseTensorType(TypeProtoSparseTensor),
    #[prost(message, tag = "9")]
    OptionalType(Box<TypeProtoOptional>),
}

/// A dense tensor. Without `shape` its number of dims is unknown.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProtoTensor {
    #[prost(int32, optional, tag = "1")]
    pub elem_type: Option<i32>,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// A sequence of values of the same type.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProtoSequence {
    #[prost(message, optional, boxed, tag = "1")]
    pub elem_type: Option<Box<TypeProto>>,
}

/// A map from integers or strings to values of the same type.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProtoMap {
    #[prost(int32, optional, tag = "1")]
    pub key_type: Option<i32>,
    #[prost(message, optional, boxed, tag = "2")]
    pub value_type: Option<Box<TypeProto>>,
}

/// A value that may be absent.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProtoOptional {
    #[prost(message, optional, boxed, tag = "1")]
    pub elem_type: Option<Box<TypeProto>>,
}

/// A sparse tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProtoSparseTensor {
    #[prost(int32, optional, tag = "1")]
    pub elem_type: Option<i32>,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// A type that is defined only by its domain.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProtoOpaque {
    #[prost(string, optional, tag = "1")]
    pub domain: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

/// The dims of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<TensorShapeProtoDimension>,
}

/// A dim: a number, a name, or neither.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProtoDimension {
    #[prost(oneof = "TensorShapeProtoDimensionValue", tags = "1, 2")]
    pub value: Option<TensorShapeProtoDimensionValue>,
    #[prost(string, optional, tag = "3")]
    pub denotation: Option<String>,
}

/// The size of a dim.
#[derive(Clone, PartialEq, Oneof)]
pub enum TensorShapeProtoDimensionValue {
    #[prost(int64, tag = "1")]
    DimValue(i64),
    #[prost(string, tag = "2")]
    DimParam(String),
}
