//! The protobuf messages of ONNX IR version 14, derived by hand so that a build needs no `protoc`.
//!
//! Structs and fields carry the names of `onnx.proto` (nested messages are flattened:
//! `TensorProto.Segment` is [`TensorProtoSegment`]), which documents their meaning. All `optional`
//! fields keep their presence. `bytes` fields are [`bytes::Bytes`]: decoding from a `Bytes` that owns a
//! mapped file copies no tensor. `fields.txt` lists every field of the official descriptors, and a test
//! compares these messages with it.

mod device;
mod expansion;
mod graph;
mod model;
mod tensor;
mod tensors;
mod types;

#[cfg(test)]
mod decoder_test;
#[cfg(test)]
mod fields_test;

pub use device::*;
pub use expansion::{Expansion, expansion};
pub use graph::*;
pub use model::*;
pub use tensor::*;
pub(crate) use tensors::each_tensor;
pub use types::*;
