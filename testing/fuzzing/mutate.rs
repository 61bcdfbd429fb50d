//! Changes of an ONNX file field by field. Most changed files can still be decoded, and many of them are still valid models.

mod differences;
mod graphs;
mod nodes;
mod tensors;
mod values;

use super::choices::Choices;
use bytes::Bytes;
use onnx::proto::{GraphProto, ModelProto, OperatorSetIdProto};
use prost::Message;

/// Changes a few fields of a file. `None` if it is not an ONNX file, or if the result is longer than `longest` bytes.
pub fn changed(bytes: &[u8], longest: usize, choices: &mut Choices) -> Option<Vec<u8>> {
    let mut model = decode(bytes)?;
    for _ in 0..1 + choices.below(3) {
        change(&mut model, choices);
    }
    encode(&model, longest)
}

/// Puts parts of another file into a file. `None` as in [`changed`].
pub fn crossed(bytes: &[u8], other: &[u8], longest: usize, choices: &mut Choices) -> Option<Vec<u8>> {
    let (mut model, other) = (decode(bytes)?, decode(other)?);
    graphs::cross(graph(&mut model), other.graph.as_ref()?, choices);
    for (domain, version) in other.opset_import.iter().map(|opset| (&opset.domain, opset.version)) {
        if !model.opset_import.iter().any(|opset| opset.domain == *domain) {
            model.opset_import.push(OperatorSetIdProto { domain: domain.clone(), version });
        }
    }
    for function in &other.functions {
        if !model.functions.iter().any(|known| known.name == function.name) {
            model.functions.push(function.clone());
        }
    }
    encode(&model, longest)
}

/// Moves each number of the f32 initializers to a neighbouring number: a change that is no larger than rounding. `None` as in [`changed`].
pub fn nudged(bytes: &[u8], longest: usize, choices: &mut Choices) -> Option<Vec<u8>> {
    let mut model = decode(bytes)?;
    graph(&mut model).initializer.iter_mut().for_each(|tensor| tensors::nudge(tensor, choices));
    encode(&model, longest)
}

/// The parts that only one of two files has, as text: the difference that a change made. `None` if one of them is not an ONNX file.
pub fn described(before: &[u8], after: &[u8]) -> Option<String> {
    Some(differences::differences(&decode(before)?, &decode(after)?))
}

fn decode(bytes: &[u8]) -> Option<ModelProto> {
    // Decoding some files takes much more memory than their size; the loader has the same limit.
    if onnx::proto::expansion(bytes).ok()?.struct_bytes > 16 << 20 {
        return None;
    }
    ModelProto::decode(Bytes::copy_from_slice(bytes)).ok()
}

fn encode(model: &ModelProto, longest: usize) -> Option<Vec<u8>> {
    let bytes = model.encode_to_vec();
    (bytes.len() <= longest).then_some(bytes)
}

fn graph(model: &mut ModelProto) -> &mut GraphProto {
    model.graph.get_or_insert_default()
}

/// One change.
fn change(model: &mut ModelProto, choices: &mut Choices) {
    match choices.below(24) {
        0 => change_opset(model, choices),
        1 => match choices.of_mut(&mut model.functions) {
            Some(function) => {
                let results = function.node.iter().flat_map(|node| &node.output);
                let names: Vec<String> = function.input.iter().chain(results).cloned().collect();
                nodes::change(&mut function.node, &names, choices);
            }
            None => change_opset(model, choices),
        },
        2..=4 => values::resize(graph(model), choices),
        _ => graphs::change(graphs::choose(graph(model), choices), choices),
    }
}

/// Another version of an operator set.
fn change_opset(model: &mut ModelProto, choices: &mut Choices) {
    let version = Some(choices.below(28) as i64);
    match choices.of_mut(&mut model.opset_import) {
        Some(opset) => opset.version = version,
        None => model.opset_import.push(OperatorSetIdProto { domain: None, version }),
    }
}

/// Limits of sizes, axes and integer types, and numbers near them.
const INTEGERS: [i64; 16] =
    [0, 1, 2, 3, 4, 5, 7, 8, -1, -2, -3, -100, 65_536, i32::MAX as i64, i64::MAX, i64::MIN];

fn integer(choices: &mut Choices) -> i64 {
    // Small numbers are valid more often.
    if choices.once_in(4) { INTEGERS[choices.below(16)] } else { choices.below(6) as i64 - 1 }
}

const FLOATS: [f32; 12] =
    [0.0, 1.0, -1.0, 0.5, 2.0, 1e-5, 1e-38, 1e30, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0];

fn float(choices: &mut Choices) -> f32 {
    FLOATS[choices.below(FLOATS.len())]
}
