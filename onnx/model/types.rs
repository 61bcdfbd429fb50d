//! The declared types of values.

use std::fmt;

use crate::error::{Problem, quoted};
use crate::proto::{
    TensorShapeProto, TensorShapeProtoDimensionValue, TypeProto, TypeProtoValue, ValueInfoProto,
};
use crate::tensor::{ElementType, Tensor};

/// A value with its declared type: an input or output of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The name, unique in the model.
    pub name: String,
    /// The declared type.
    pub ty: ValueType,
}

/// One dim of a declared type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dim {
    /// A number.
    Known(usize),
    /// A name. Dims with the same name have the same size.
    Named(String),
    /// Neither is declared (also written as -1).
    Unknown,
}

/// The declared type of a dense tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// The type of the elements.
    pub dtype: ElementType,
    /// The dims; `None` if even their number is not declared.
    pub dims: Option<Vec<Dim>>,
}

/// The declared type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// A dense tensor.
    Tensor(TensorType),
    /// A sparse tensor.
    Sparse(TensorType),
    /// A sequence.
    Sequence(Box<ValueType>),
    /// A value that may be absent.
    Optional(Box<ValueType>),
    /// A map from integers or strings.
    Map(ElementType, Box<ValueType>),
    /// A type of a foreign domain: domain and name.
    Opaque(String, String),
    /// No type is declared.
    Undeclared,
}

impl TensorType {
    /// Whether a tensor fits this type: equal element types, and equal dims as far as they are declared.
    pub fn describes(&self, tensor: &Tensor) -> bool {
        let Some(dims) = &self.dims else { return self.dtype == tensor.dtype };
        let fits =
            |(declared, &actual): (&Dim, &usize)| !matches!(declared, Dim::Known(size) if *size != actual);
        self.dtype == tensor.dtype
            && dims.len() == tensor.dims.len()
            && dims.iter().zip(&tensor.dims).all(fits)
    }
}

impl ValueType {
    /// Returns the type, if it is the type of a dense tensor.
    pub fn tensor(&self) -> Option<&TensorType> {
        match self {
            ValueType::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Known(size) => write!(f, "{size}"),
            Dim::Named(name) => f.write_str(&ir::visible(name)),
            Dim::Unknown => f.write_str("?"),
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(dims) = &self.dims else { return write!(f, "{}[..]", self.dtype) };
        let dims: Vec<String> = dims.iter().map(Dim::to_string).collect();
        write!(f, "{}[{}]", self.dtype, dims.join(", "))
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueType::Tensor(tensor) => tensor.fmt(f),
            ValueType::Sparse(tensor) => write!(f, "sparse {tensor}"),
            ValueType::Sequence(element) => write!(f, "sequence of {element}"),
            ValueType::Optional(element) => write!(f, "optional {element}"),
            ValueType::Map(key, value) => write!(f, "map from {key} to {value}"),
            ValueType::Opaque(domain, name) => {
                write!(f, "opaque {}.{}", ir::visible(domain), ir::visible(name))
            }
            ValueType::Undeclared => f.write_str("no declared type"),
        }
    }
}

/// Returns the declared type in `info`.
pub(super) fn value_type(info: &ValueInfoProto) -> Result<ValueType, Problem> {
    let name = info.name.as_deref().unwrap_or_default();
    let Some(declared) = &info.r#type else { return Ok(ValueType::Undeclared) };
    decode(declared).map_err(|message| {
        Problem::new(format!("value {} {message}", quoted(name))).at(format!("value {}", quoted(name)))
    })
}

/// Decodes a type. The error text continues `value "x" …`.
pub(super) fn decode(ty: &TypeProto) -> Result<ValueType, String> {
    let nested = |inner: &Option<Box<TypeProto>>| match inner {
        Some(inner) => decode(inner).map(Box::new),
        None => Ok(Box::new(ValueType::Undeclared)),
    };
    Ok(match &ty.value {
        None => ValueType::Undeclared,
        Some(TypeProtoValue::TensorType(tensor)) => tensor_type(tensor.elem_type, tensor.shape.as_ref())?
            .map_or(ValueType::Undeclared, ValueType::Tensor),
        Some(TypeProtoValue::SparseTensorType(tensor)) => {
            tensor_type(tensor.elem_type, tensor.shape.as_ref())?
                .map_or(ValueType::Undeclared, ValueType::Sparse)
        }
        Some(TypeProtoValue::SequenceType(sequence)) => ValueType::Sequence(nested(&sequence.elem_type)?),
        Some(TypeProtoValue::OptionalType(optional)) => ValueType::Optional(nested(&optional.elem_type)?),
        Some(TypeProtoValue::MapType(map)) => {
            let key = element_type(map.key_type)?.ok_or("is a map whose key type is missing")?;
            ValueType::Map(key, nested(&map.value_type)?)
        }
        Some(TypeProtoValue::OpaqueType(opaque)) => ValueType::Opaque(
            opaque.domain.clone().unwrap_or_default(),
            opaque.name.clone().unwrap_or_default(),
        ),
    })
}

/// Decodes a tensor type. `None` if the element type is not declared.
fn tensor_type(code: Option<i32>, shape: Option<&TensorShapeProto>) -> Result<Option<TensorType>, String> {
    let dims = shape.map(|shape| {
        let dims = shape.dim.iter().map(|dim| match &dim.value {
            Some(TensorShapeProtoDimensionValue::DimValue(size)) => {
                usize::try_from(*size).map_or(Dim::Unknown, Dim::Known)
            }
            // Some exporters write `?` for every unknown dim. It is not a name, because such dims may have different sizes.
            Some(TensorShapeProtoDimensionValue::DimParam(name)) if !matches!(&name[..], "" | "?") => {
                Dim::Named(name.clone())
            }
            Some(TensorShapeProtoDimensionValue::DimParam(_)) | None => Dim::Unknown,
        });
        dims.collect()
    });
    Ok(element_type(code)?.map(|dtype| TensorType { dtype, dims }))
}

fn element_type(code: Option<i32>) -> Result<Option<ElementType>, String> {
    match code {
        None | Some(0) => Ok(None),
        Some(code) => ElementType::from_code(code)
            .map(Some)
            .ok_or_else(|| format!("has the element type {code}; ONNX IR 14 defines 1 to 28")),
    }
}
