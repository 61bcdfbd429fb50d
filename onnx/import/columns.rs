//! Col2Im: adds windows at their places in an image.

use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use super::conv::numbers;
use ir::ops::conv::ConvGradInput;
use ir::{DType, Dim, Tensor, Type};

/// Col2Im (opset 18): `x[n, channels·window, positions]`. It is the gradient, with respect to the image, of a convolution that
/// turns each element of the window into a channel.
pub(super) fn col2im(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let ty = cx.ty(x).clone();
    let known = |i: usize, name: &str| -> Result<Vec<u64>, Problem> {
        let numbers = cx.numbers(call, i, name)?.unwrap_or_default();
        let wrong = || Problem::new(format!("has {name} {numbers:?}"));
        numbers
            .iter()
            .map(|&n| u64::try_from(n).ok().filter(|&n| n > 0))
            .collect::<Option<_>>()
            .ok_or_else(wrong)
    };
    let (image, window) = (known(1, "image_shape")?, known(2, "block_shape")?);
    let count = image.len();
    let wrong = || Problem::new(format!("windows {window:?} of {ty} do not fit into an image {image:?}"));
    if count == 0 || window.len() != count || ty.ndim() != 3 {
        return Err(wrong());
    }
    let (strides, dilations) = (numbers(call, "strides", count, 1)?, numbers(call, "dilations", count, 1)?);
    let pads = numbers(call, "pads", 2 * count, 0)?;
    let taps = window.iter().try_fold(1u64, |n, &size| n.checked_mul(size));
    let taps = taps.filter(|taps| taps.checked_mul(*taps).is_some_and(|n| n <= Context::MOST_COMPUTED));
    let taps = taps.ok_or_else(wrong)?;
    let channels = ty.dims[1].quotient(&Dim::known(taps)).ok_or_else(wrong)?;
    let positions = |dim: usize| {
        let extent = (window[dim] - 1).checked_mul(dilations[dim])?.checked_add(1)?;
        let padded = image[dim].checked_add(pads[dim])?.checked_add(pads[dim + count])?;
        Some(padded.checked_sub(extent)? / strides[dim] + 1)
    };
    let positions = (0..count).map(positions).collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
    let known = |sizes: &[u64]| sizes.iter().map(|&size| Dim::known(size)).collect::<Vec<_>>();
    let dims = [&ty.dims[..2], &known(&positions)[..]].concat();
    let windows = cx.b.reshape(x, dims)?;
    // The weight is the same for each channel: output i of the convolution is element i of the window.
    let one_hot = (0..taps * taps).map(|i| if i / taps == i % taps { 1.0 } else { 0.0 }).collect();
    let one_hot = cx.computed(Tensor::float(DType::F64, vec![taps as usize; 2], one_hot))?;
    let one_hot = cx.b.cast(one_hot, ty.dtype)?;
    let wide = cx.b.broadcast(one_hot, [channels.clone(), taps.into(), taps.into()])?;
    let weight = cx.b.reshape(wide, [vec![ty.dims[1].clone(), Dim::known(1)], known(&window)].concat())?;
    let op = ConvGradInput {
        strides: strides.into_iter().collect(),
        dilations: dilations.into_iter().collect(),
        pads: pads.into_iter().collect(),
    };
    let dims = [vec![ty.dims[0].clone(), channels], known(&image)].concat();
    one(cx.b.one_typed(op, &[weight, windows], Type::new(ty.dtype, dims))?)
}
