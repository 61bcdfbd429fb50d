//! Builds cuDNN's graphs of convolutions. cuDNN has images of two or three dims, so an image of fewer dims gets dims of size 1.

use super::{Convolution, Graph, InstructionTensor, Makes, Operation, Tensor, TensorStorage};
use ir::Op;
use ir::ops::conv::Windows;
use program::Instruction;
use program::layout::Layout;

/// The fewest and the most dims of an image.
const FEWEST: usize = 2;
const MOST: usize = 3;

/// Returns the graph of a convolution or of one of its gradients, or the reason why there is none.
pub(super) fn graph(op: &Op, instruction: &Instruction) -> Result<Graph, String> {
    let (first, second, result) =
        (InstructionTensor::Operand(0), InstructionTensor::Operand(1), InstructionTensor::Result(0));
    let (windows, makes, parts) = match op {
        Op::Conv(op) => (op.windows(), Makes::Output, [first, second, result]),
        Op::ConvGradInput(op) => (op.windows(), Makes::Image, [result, first, second]),
        Op::ConvGradWeight(op) => (op.windows(), Makes::Weight, [first, result, second]),
        _ => return Err("cuDNN does not support this operator".into()),
    };
    let dims = windows.strides.len();
    if dims > MOST {
        return Err(format!("cuDNN supports convolutions over at most {MOST} spatial dims, not over {dims}"));
    }
    let tensors = parts.map(|part| tensor(part, instruction).ok_or("an operand is missing"));
    let tensors = tensors.into_iter().collect::<Result<Vec<Tensor>, _>>()?;
    if let Some(size) = tensors.iter().flat_map(|tensor| &tensor.sizes).find(|&&size| size > i32::MAX.into())
    {
        return Err(format!("cuDNN does not support a dim of {size} elements"));
    }
    let [image, weight, output] = [0, 1, 2];
    let Windows { strides, dilations, pads } = windows;
    let (before, after) = pads.split_at(dims);
    let convolution = Convolution {
        makes,
        image,
        weight,
        output,
        strides: numbers(strides, 1)?,
        dilations: numbers(dilations, 1)?,
        before: numbers(before, 0)?,
        after: numbers(after, 0)?,
    };
    Ok(Graph { tensors, operations: vec![Operation::Convolution(convolution)] })
}

/// Returns a tensor of the graph, row-major without holes. Missing spatial dims of size 1 are inserted after batch and channels.
fn tensor(part: InstructionTensor, instruction: &Instruction) -> Option<Tensor> {
    let view = part.view(instruction)?;
    let mut sizes = view.layout.sizes.clone();
    while sizes.len() < 2 + FEWEST {
        sizes.insert(2, 1);
    }
    let strides = Layout::dense(&sizes).strides;
    Some(Tensor {
        dtype: view.dtype,
        sizes: sizes.iter().map(|&size| size as i64).collect(),
        strides: strides.iter().map(|&stride| stride as i64).collect(),
        held: TensorStorage::memory(part, view),
    })
}

/// Returns a number for each spatial dim. Inserted dims come first and get `missing`.
fn numbers(given: &[u64], missing: i64) -> Result<Vec<i64>, String> {
    let given = given.iter().map(|&number| {
        i32::try_from(number)
            .map(i64::from)
            .map_err(|_| format!("cuDNN does not support a window that moves by {number}"))
    });
    let given = given.collect::<Result<Vec<i64>, String>>()?;
    let mut all = vec![missing; FEWEST.saturating_sub(given.len())];
    all.extend(given);
    Ok(all)
}
