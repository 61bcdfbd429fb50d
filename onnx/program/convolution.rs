//! Convolutions: Conv, and the gradient with respect to the image as ConvTranspose.

use super::attribute;
use super::draft::{Draft, size};
use super::operators::{Results, one};
use crate::proto::AttributeProto;
use ir::ops::conv::{Conv, ConvGradInput, Windows};
use ir::{Diagnostic, Dim, Node, Type};

/// Writes Conv.
pub(super) fn conv(draft: &mut Draft, node: &Node, op: &Conv) -> Results {
    let (x, weight) = (draft.ty(node.operands[0]), draft.ty(node.operands[1]));
    let attributes = attributes(op.windows(), x, weight)?;
    let operands = draft.operands(node)?;
    one(draft.push("Conv", &operands, attributes))
}

/// ConvTranspose: the gradient of a convolution with respect to its image, given the gradient of its result.
pub(super) fn transposed(draft: &mut Draft, node: &Node, op: &ConvGradInput) -> Results {
    let (weight, dy) = (draft.ty(node.operands[0]), draft.ty(node.operands[1]));
    let dx = draft.ty(node.results[0]);
    let mut attributes = attributes(op.windows(), dx, weight)?;
    // The elements behind the last window. They are needed because several sizes of the image have the same windows.
    let beyond = (0..op.strides.len()).map(|i| beyond(op, i, [dx, weight, dy])).collect::<Option<Vec<i64>>>();
    let beyond = beyond.ok_or_else(|| {
        Diagnostic::new(format!(
            "the transposed convolution from {dy} to {dx} has sizes that ONNX's ConvTranspose cannot express"
        ))
    })?;
    attributes.push(attribute::ints("output_padding", beyond));
    let operands = [draft.operand(node, 1)?, draft.operand(node, 0)?];
    one(draft.push("ConvTranspose", &operands, attributes))
}

fn beyond(op: &ConvGradInput, dim: usize, [dx, weight, dy]: [&Type; 3]) -> Option<i64> {
    let spatial = |ty: &Type| i64::try_from(ty.dims.get(dim + 2)?.size()?).ok();
    let number = |number: u64| i64::try_from(number).ok();
    let pads = number(op.pads[dim])?.checked_add(number(op.pads[dim + op.strides.len()])?)?;
    let window = (spatial(weight)? - 1).checked_mul(number(op.dilations[dim])?)?.checked_add(1)?;
    let reached =
        (spatial(dy)? - 1).checked_mul(number(op.strides[dim])?)?.checked_add(window)?.checked_sub(pads)?;
    let beyond = spatial(dx)?.checked_sub(reached)?;
    (beyond >= 0).then_some(beyond)
}

/// Returns the attributes that both operators have. The number of groups is the quotient of the channels of `x` and of the weight.
fn attributes(windows: Windows, x: &Type, weight: &Type) -> Result<Vec<AttributeProto>, Diagnostic> {
    let wrong = || Diagnostic::new(format!("the convolution of {x} by {weight} has no form in ONNX"));
    if windows.strides.is_empty() {
        return Err(wrong().note("ONNX convolves over one dim at least"));
    }
    let groups = x.dims[1].quotient(&weight.dims[1]).and_then(|groups| groups.size()).ok_or_else(wrong)?;
    let kernel = weight.dims[2..].iter().map(Dim::size).collect::<Option<Vec<u64>>>().ok_or_else(wrong)?;
    let list = |name: &str, sizes: &[u64]| -> Result<AttributeProto, Diagnostic> {
        Ok(attribute::ints(name, sizes.iter().map(|&n| size(n)).collect::<Result<Vec<_>, _>>()?))
    };
    Ok(vec![
        list("kernel_shape", &kernel)?,
        list("strides", windows.strides)?,
        list("dilations", windows.dilations)?,
        list("pads", windows.pads)?,
        attribute::int("group", size(groups)?),
    ])
}
