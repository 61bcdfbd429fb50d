//! Encodes a model directly into a file. Tensor bytes are written from where they are, without a copy of the whole model.

use std::io::{self, Write};

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use crate::proto::{ModelProto, TensorProto};

/// The fields that are encoded by hand (their numbers in `onnx.proto`).
const MODEL_GRAPH: u32 = 7;
const GRAPH_INITIALIZER: u32 = 5;
const TENSOR_RAW_DATA: u32 = 9;

/// Returns the bytes of the encoded model.
pub(super) fn encoded_len(model: &ModelProto) -> usize {
    model.encoded_len()
}

/// Writes a model.
pub(super) fn model(mut model: ModelProto, out: &mut impl Write) -> io::Result<()> {
    let graph = model.graph.take();
    out.write_all(&model.encode_to_vec())?;
    let Some(mut graph) = graph else { return Ok(()) };
    announce(MODEL_GRAPH, graph.encoded_len(), out)?;
    let initializers = std::mem::take(&mut graph.initializer);
    out.write_all(&graph.encode_to_vec())?;
    initializers.into_iter().try_for_each(|tensor| initializer(tensor, out))
}

fn initializer(mut tensor: TensorProto, out: &mut impl Write) -> io::Result<()> {
    announce(GRAPH_INITIALIZER, tensor.encoded_len(), out)?;
    let raw = tensor.raw_data.take();
    out.write_all(&tensor.encode_to_vec())?;
    let Some(raw) = raw else { return Ok(()) };
    announce(TENSOR_RAW_DATA, raw.len(), out)?;
    out.write_all(&raw)
}

/// Writes the tag and the length of a field whose bytes follow.
fn announce(field: u32, length: usize, out: &mut impl Write) -> io::Result<()> {
    let mut head = Vec::new();
    encode_key(field, WireType::LengthDelimited, &mut head);
    encode_varint(length as u64, &mut head);
    out.write_all(&head)
}
