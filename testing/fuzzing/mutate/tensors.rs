//! Changes of tensors: their types, sizes and elements.

use super::super::choices::Choices;
use super::{float, integer, values};
use onnx::proto::{TensorProto, ValueInfoProto};

/// The numbers of element types in a file, and the bytes of an element, if they are a whole number.
pub(super) const TYPES: [(i32, usize); 16] = [
    (1, 4),
    (1, 4),
    (7, 8),
    (6, 4),
    (9, 1),
    (10, 2),
    (11, 8),
    (16, 2),
    (2, 1),
    (3, 1),
    (12, 4),
    (13, 8),
    (8, 0),
    (22, 0),
    (17, 1),
    (0, 0),
];

/// The most elements of a tensor that is filled.
const MOST: i64 = 4096;

/// One change of a tensor.
pub(super) fn change(tensor: &mut TensorProto, choices: &mut Choices) {
    match choices.below(8) {
        0 => {
            tensor.data_type = Some(values::element_type(choices));
            fill(tensor, choices);
        }
        1 => tensor.data_type = Some(values::element_type(choices)),
        2 => change_dims(tensor, choices),
        3 => {
            change_dims(tensor, choices);
            fill(tensor, choices);
        }
        4 => fill(tensor, choices),
        5 => choices.change(&mut tensor.int64_data, |value| *value = 0),
        _ => change_element(tensor, choices),
    }
}

/// Moves each f32 number to a neighbouring number. Zeros stay. Tensors of one element stay too: the neighbours of an exponent of 2 have
/// another meaning.
pub(super) fn nudge(tensor: &mut TensorProto, choices: &mut Choices) {
    if tensor.data_type != Some(1) || tensor.dims.iter().product::<i64>() == 1 {
        return;
    }
    let mut neighbour = |x: f32| {
        // It is drawn for every number, so that a number does not change the draws of those after it.
        let is_up = choices.once_in(2);
        if x == 0.0 || !x.is_finite() {
            x
        } else if is_up {
            x.next_up()
        } else {
            x.next_down()
        }
    };
    tensor.float_data.iter_mut().for_each(|x| *x = neighbour(*x));
    if let Some(raw) = &mut tensor.raw_data {
        let numbers =
            raw.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        *raw = numbers.flat_map(|x| neighbour(x).to_le_bytes()).collect();
    }
}

fn change_dims(tensor: &mut TensorProto, choices: &mut Choices) {
    match choices.below(4) {
        0 => tensor.dims.insert(choices.below(tensor.dims.len() + 1), 1),
        1 => drop(tensor.dims.pop()),
        2 if tensor.dims.len() > 1 => {
            let (first, second) = (choices.below(tensor.dims.len()), choices.below(tensor.dims.len()));
            tensor.dims.swap(first, second);
        }
        _ => {
            let size = integer(choices);
            choices.change(&mut tensor.dims, |dim| *dim = size);
        }
    }
}

/// Replaces the elements; their number follows from the sizes.
pub(super) fn fill(tensor: &mut TensorProto, choices: &mut Choices) {
    let elements = tensor.dims.iter().try_fold(1i64, |elements, &dim| elements.checked_mul(dim));
    let Some(elements) = elements.filter(|elements| (0..=MOST).contains(elements)) else { return };
    let ty = tensor.data_type.unwrap_or(1);
    let width = TYPES.iter().find(|(number, _)| *number == ty).map_or(4, |(_, width)| (*width).max(1));
    let zeros = choices.once_in(4);
    let element = |choices: &mut Choices| match (ty, zeros) {
        (_, true) => vec![0; width],
        (1, _) => (choices.below(200) as f32 / 100.0 - 1.0).to_le_bytes().to_vec(),
        (11, _) => (choices.below(200) as f64 / 100.0 - 1.0).to_le_bytes().to_vec(),
        // f16 numbers from 0.5 to 1.
        (10, _) => (0x3800 + choices.below(0x400) as u16).to_le_bytes().to_vec(),
        _ => {
            let number = choices.below(4) as u64;
            number.to_le_bytes()[..width.min(8)].to_vec()
        }
    };
    let bytes: Vec<u8> = (0..elements).flat_map(|_| element(choices)).collect();
    *tensor = TensorProto {
        dims: std::mem::take(&mut tensor.dims),
        data_type: Some(ty),
        name: tensor.name.take(),
        raw_data: Some(bytes.into()),
        ..TensorProto::default()
    };
}

/// Changes one element, or a few bytes of it.
fn change_element(tensor: &mut TensorProto, choices: &mut Choices) {
    let (number, real) = (integer(choices), float(choices));
    choices.change(&mut tensor.float_data, |value| *value = real);
    choices.change(&mut tensor.int64_data, |value| *value = number);
    choices.change(&mut tensor.int32_data, |value| *value = number as i32);
    if let Some(raw) = tensor.raw_data.as_mut().filter(|raw| !raw.is_empty()) {
        let mut bytes = raw.to_vec();
        let (element, width): (Vec<u8>, usize) = match tensor.data_type {
            Some(1) => (real.to_le_bytes().into(), 4),
            Some(6) => ((number as i32).to_le_bytes().into(), 4),
            Some(7) => (number.to_le_bytes().into(), 8),
            _ => (vec![number as u8], 1),
        };
        let place = choices.below(bytes.len() / width) * width;
        if let Some(bytes) = bytes.get_mut(place..place + width) {
            bytes.copy_from_slice(&element);
        }
        *raw = bytes.into();
    }
}

/// A small tensor.
pub(super) fn new(choices: &mut Choices) -> TensorProto {
    let dims = (0..choices.below(3)).map(|_| 1 + choices.below(4) as i64).collect();
    let data_type = Some(TYPES[choices.below(8)].0);
    let mut tensor = TensorProto { dims, data_type, ..TensorProto::default() };
    fill(&mut tensor, choices);
    tensor
}

/// The tensor that replaces an input; dims with names have two elements.
pub(super) fn of_input(input: &ValueInfoProto, choices: &mut Choices) -> Option<TensorProto> {
    let (data_type, dims) = values::sizes(input)?;
    let mut tensor = TensorProto {
        name: input.name.clone(),
        dims: dims.into_iter().map(|size| size.unwrap_or(2)).collect(),
        data_type,
        ..TensorProto::default()
    };
    fill(&mut tensor, choices);
    tensor.raw_data.is_some().then_some(tensor)
}
