//! Tensors as they are stored in a file: little-endian bytes, row-major, mapped where possible.

pub(crate) mod data;
mod external;

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use ir::DType;

use crate::error::{Problem, quoted};

pub(crate) use external::ExternalFiles;

macro_rules! element_types {
    ($($variant:ident = $code:literal, $name:literal, $onnx:literal, $bits:literal;)*) => {
        /// The element types of ONNX.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ElementType {
            $(#[doc = concat!("`", $onnx, "`, ", $bits, " bits (0: no fixed size).")] $variant,)*
        }

        impl ElementType {
            /// Returns the type with this number in `TensorProto.DataType`.
            pub fn from_code(code: i32) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Returns the number in `TensorProto.DataType`.
            pub fn code(self) -> i32 {
                match self { $(Self::$variant => $code,)* }
            }

            /// Returns the short name: `f32`, `bf16`, `bool`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns the name in `TensorProto.DataType`.
            pub fn onnx_name(self) -> &'static str {
                match self { $(Self::$variant => $onnx,)* }
            }

            /// Returns the bits of an element in `raw_data`; 0 for strings.
            pub fn bits(self) -> usize {
                match self { $(Self::$variant => $bits,)* }
            }
        }
    };
}

element_types! {
    F32 = 1, "f32", "FLOAT", 32;
    U8 = 2, "u8", "UINT8", 8;
    I8 = 3, "i8", "INT8", 8;
    U16 = 4, "u16", "UINT16", 16;
    I16 = 5, "i16", "INT16", 16;
    I32 = 6, "i32", "INT32", 32;
    I64 = 7, "i64", "INT64", 64;
    String = 8, "string", "STRING", 0;
    Bool = 9, "bool", "BOOL", 8;
    F16 = 10, "f16", "FLOAT16", 16;
    F64 = 11, "f64", "DOUBLE", 64;
    U32 = 12, "u32", "UINT32", 32;
    U64 = 13, "u64", "UINT64", 64;
    C64 = 14, "c64", "COMPLEX64", 64;
    C128 = 15, "c128", "COMPLEX128", 128;
    Bf16 = 16, "bf16", "BFLOAT16", 16;
    F8E4M3Fn = 17, "f8e4m3fn", "FLOAT8E4M3FN", 8;
    F8E4M3Fnuz = 18, "f8e4m3fnuz", "FLOAT8E4M3FNUZ", 8;
    F8E5M2 = 19, "f8e5m2", "FLOAT8E5M2", 8;
    F8E5M2Fnuz = 20, "f8e5m2fnuz", "FLOAT8E5M2FNUZ", 8;
    U4 = 21, "u4", "UINT4", 4;
    I4 = 22, "i4", "INT4", 4;
    F4E2M1 = 23, "f4e2m1", "FLOAT4E2M1", 4;
    F8E8M0 = 24, "f8e8m0", "FLOAT8E8M0", 8;
    U2 = 25, "u2", "UINT2", 2;
    I2 = 26, "i2", "INT2", 2;
    F6E2M3 = 27, "f6e2m3", "FLOAT6E2M3", 6;
    F6E3M2 = 28, "f6e3m2", "FLOAT6E3M2", 6;
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// ONNX has all element types of the IR.
impl From<DType> for ElementType {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F64 => Self::F64,
            DType::F32 => Self::F32,
            DType::F16 => Self::F16,
            DType::BF16 => Self::Bf16,
            DType::I64 => Self::I64,
            DType::I32 => Self::I32,
            DType::I16 => Self::I16,
            DType::I8 => Self::I8,
            DType::U64 => Self::U64,
            DType::U32 => Self::U32,
            DType::U16 => Self::U16,
            DType::U8 => Self::U8,
            DType::Bool => Self::Bool,
        }
    }
}

impl ElementType {
    /// Returns the bytes of `count` elements, the last byte padded with zero bits; `None` on overflow, or for strings.
    pub fn bytes_of(self, count: usize) -> Option<usize> {
        match self.bits() {
            0 => None,
            bits if bits % 8 == 0 => count.checked_mul(bits / 8),
            bits => Some(count.checked_mul(bits)?.div_ceil(8)),
        }
    }

    /// Returns the IR's element type, if there is one.
    pub fn dtype(self) -> Option<DType> {
        Some(match self {
            Self::F64 => DType::F64,
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
            Self::I64 => DType::I64,
            Self::I32 => DType::I32,
            Self::I16 => DType::I16,
            Self::I8 => DType::I8,
            Self::U64 => DType::U64,
            Self::U32 => DType::U32,
            Self::U16 => DType::U16,
            Self::U8 => DType::U8,
            Self::Bool => DType::Bool,
            _ => return None,
        })
    }

    /// Whether elements of this type can be trained.
    pub fn is_float(self) -> bool {
        self.dtype().is_some_and(DType::is_float)
    }
}

/// A tensor of the file: an initializer, a `Constant` node's value, or an attribute.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The name of the value that it defines; often empty in an attribute.
    pub name: String,
    /// The type of the elements.
    pub dtype: ElementType,
    /// The dims, as in the file. Their product does not overflow.
    pub dims: Vec<usize>,
    /// The elements.
    pub bytes: TensorBytes,
    /// The place of the tensor in the file.
    pub source: TensorSource,
    /// The file's `metadata_props` of the tensor (of the node, for a `Constant`).
    pub metadata: BTreeMap<String, String>,
}

/// The elements of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorBytes {
    /// Little-endian, row-major bytes, with the length that dims and type require. Often a slice of the mapped file, and then not
    /// aligned to the element.
    Present(Bytes),
    /// Elements in a missing file beside the model.
    Absent {
        /// The path relative to the model's folder.
        location: String,
        /// The byte of that file at which the elements begin.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
    /// The elements of a string tensor.
    Strings(Vec<Bytes>),
}

/// The place of a tensor in a file. [`crate::Model::write`] can replace tensors in the first two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorSource {
    /// An initializer of the main graph.
    Initializer,
    /// A `Constant` node of the main graph.
    Constant,
    /// A place inside a function or a subgraph, or an attribute of another node.
    Inner,
}

impl Tensor {
    /// Returns the number of elements.
    pub fn element_count(&self) -> usize {
        self.dims.iter().product()
    }

    /// Returns the bytes, if they are present and not strings.
    pub fn present(&self) -> Option<&Bytes> {
        match &self.bytes {
            TensorBytes::Present(bytes) => Some(bytes),
            TensorBytes::Absent { .. } | TensorBytes::Strings(_) => None,
        }
    }

    /// Returns the elements of an integer or bool tensor: shapes, axes, indices.
    pub fn integers(&self) -> Result<Vec<i64>, Problem> {
        let bytes = self.bytes_or_problem()?;
        Ok(match self.dtype {
            ElementType::I64 => each(bytes, i64::from_le_bytes),
            ElementType::I32 => each(bytes, |raw| i32::from_le_bytes(raw).into()),
            ElementType::I16 => each(bytes, |raw| i16::from_le_bytes(raw).into()),
            ElementType::I8 => each(bytes, |raw| i8::from_le_bytes(raw).into()),
            ElementType::U64 => {
                let large = each(bytes, u64::from_le_bytes);
                let converted = large.into_iter().map(i64::try_from).collect::<Result<_, _>>();
                return converted.map_err(|_| self.problem("holds an unsigned number above the largest i64"));
            }
            ElementType::U32 => each(bytes, |raw| u32::from_le_bytes(raw).into()),
            ElementType::U16 => each(bytes, |raw| u16::from_le_bytes(raw).into()),
            ElementType::U8 => each(bytes, |[byte]: [u8; 1]| byte.into()),
            ElementType::Bool => each(bytes, |[byte]: [u8; 1]| (byte != 0).into()),
            other => {
                return Err(self.problem(&format!("has elements of type {other}; integers are needed")));
            }
        })
    }

    /// Returns the elements of a tensor of floats (64, 32 or 16 bits).
    pub fn floats(&self) -> Result<Vec<f64>, Problem> {
        let bytes = self.bytes_or_problem()?;
        Ok(match self.dtype {
            ElementType::F64 => each(bytes, f64::from_le_bytes),
            ElementType::F32 => each(bytes, |raw| f32::from_le_bytes(raw).into()),
            ElementType::F16 => each(bytes, |raw| half::f16::from_le_bytes(raw).into()),
            ElementType::Bf16 => each(bytes, |raw| half::bf16::from_le_bytes(raw).into()),
            other => {
                return Err(self.problem(&format!("has elements of type {other}; floats are needed")));
            }
        })
    }

    /// Returns `tensor "name" (f32[3, 4])`, for messages.
    pub fn label(&self) -> String {
        label(&self.name, self.dtype, &self.dims)
    }

    fn bytes_or_problem(&self) -> Result<&Bytes, Problem> {
        match &self.bytes {
            TensorBytes::Present(bytes) => Ok(bytes),
            TensorBytes::Strings(_) => Err(self.problem("holds strings; numbers are needed")),
            TensorBytes::Absent { location, .. } => {
                let message =
                    format!("has its elements in the file {}, which does not exist", quoted(location));
                Err(self.problem(&message))
            }
        }
    }

    fn problem(&self, message: &str) -> Problem {
        Problem::new(format!("tensor {} {message}", quoted(&self.name))).at(self.label())
    }
}

/// Returns `tensor "name" (f32[3, 4])`.
pub(crate) fn label(name: &str, dtype: ElementType, dims: &[usize]) -> String {
    if dims.len() <= 16 {
        format!("tensor {} ({dtype}{dims:?})", quoted(name))
    } else {
        format!("tensor {} ({dtype}, {} dims)", quoted(name), dims.len())
    }
}

fn each<const N: usize, T>(bytes: &[u8], convert: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (elements, _) = bytes.as_chunks::<N>();
    elements.iter().map(|&raw| convert(raw)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_types_have_the_official_numbers() {
        let official = include_str!("proto/fields.txt").lines();
        let mut count = 0;
        for line in official.filter_map(|line| line.strip_prefix("enum TensorProto DataType ")) {
            let (name, number) = line.split_once(' ').unwrap();
            let ours = ElementType::from_code(number.parse().unwrap());
            assert_eq!(ours.map_or("UNDEFINED", ElementType::onnx_name), name);
            assert_eq!(ours.map_or(0, ElementType::code).to_string(), number);
            count += 1;
        }
        assert_eq!(count, 29);
    }

    #[test]
    fn small_elements_are_packed_and_padded() {
        assert_eq!(ElementType::U4.bytes_of(3), Some(2));
        assert_eq!(ElementType::I2.bytes_of(5), Some(2));
        assert_eq!(ElementType::F6E2M3.bytes_of(5), Some(4));
        assert_eq!(ElementType::F64.bytes_of(usize::MAX), None);
    }
}
