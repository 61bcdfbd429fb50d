//! Convolutions: Conv and ConvTranspose. Their attributes are the same in all opsets; opsets 11 and 22 changed only the
//! description and the element types.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use ir::ops::Float;
use ir::ops::conv::{Conv, ConvGradInput};
use ir::ops::shape::Pad;
use ir::{Dim, Dims, Type, ValueId, ensure};

/// Conv: `x[n, channels, ..]`, `weight[out, channels/group, k..]` and perhaps a bias.
pub(super) fn conv(cx: &mut Context, call: &Call) -> Outputs {
    let (x, weight) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let y = convolved(cx, call, x, weight)?;
    let bias = cx.optional(call, 2)?;
    one(with_bias(cx, bias, y)?)
}

/// Builds the convolution that the node's attributes describe.
pub(super) fn convolved(cx: &mut Context, call: &Call, x: ValueId, weight: ValueId) -> Built {
    let windows = Windows::of(cx, call, x, weight)?;
    let (image, taken) = (cx.ty(x).clone(), cx.ty(weight).dims[1].product(&Dim::known(windows.group)));
    if taken.as_ref() != Some(&image.dims[1]) {
        let (weight, group) = (cx.ty(weight), windows.group);
        return Err(Problem::new(format!(
            "weight {weight} with {group} groups does not fit the channels of {image}"
        )));
    }
    let pads = match windows.padding {
        Padding::Given => numbers(call, "pads", 2 * windows.count(), 0)?,
        Padding::Same { upper } => {
            let side = |dim: usize| {
                let (size, stride) = (bound(&image, dim)?, windows.strides[dim]);
                let covered = size.div_ceil(stride).saturating_sub(1) * stride;
                let total = covered.saturating_add(windows.extents[dim]).saturating_sub(size);
                Ok(halves(total, upper))
            };
            let sides = (0..windows.count()).map(side).collect::<Result<Vec<_>, Problem>>()?;
            sides.iter().map(|side| side[0]).chain(sides.iter().map(|side| side[1])).collect()
        }
    };
    let unbound = image.dims[2..].iter().any(|dim| dim.size().is_none());
    let conv = Conv {
        strides: windows.strides.into_iter().collect(),
        dilations: windows.dilations.into_iter().collect(),
        pads: pads.into_iter().collect(),
    };
    cx.b.one(conv, &[x, weight]).map_err(|error| match Problem::from(error) {
        problem if unbound => problem.note("bind the sizes with --bind NAME=SIZE"),
        problem => problem,
    })
}

/// ConvTranspose: `x[n, channels, ..]`, `weight[channels, out/group, k..]` and perhaps a bias. It is the gradient of a convolution
/// with respect to its image, whose size follows from the attributes.
pub(super) fn conv_transpose(cx: &mut Context, call: &Call) -> Outputs {
    let (x, weight) = (cx.value(call, 0)?, cx.value(call, 1)?);
    let windows = Windows::of(cx, call, x, weight)?;
    let (from, kernel) = (cx.ty(x).clone(), cx.ty(weight).clone());
    let wrong = || Problem::new(format!("weight {kernel} does not fit image {from}"));
    if from.dims[1] != kernel.dims[0] {
        return Err(wrong());
    }
    let channels = kernel.dims[1].product(&Dim::known(windows.group)).ok_or_else(wrong)?;
    let kept = windows.transposed(call, &from)?;
    let images = kept.iter().map(|side| Dim::known(side.image));
    let mut ty = Type::new(from.dtype, [from.dims[0].clone(), channels].into_iter().chain(images));
    let op = ConvGradInput {
        strides: windows.strides.into_iter().collect(),
        dilations: windows.dilations.into_iter().collect(),
        pads: kept.iter().map(|side| side.before).chain(kept.iter().map(|side| side.after)).collect(),
    };
    let mut y = cx.b.one_typed(op, &[weight, x], ty.clone())?;
    for (i, side) in kept.iter().enumerate().filter(|(_, side)| side.beyond > 0) {
        let size = side.image.checked_add(side.beyond).ok_or_else(wrong)?;
        ty.dims[i + 2] = Dim::known(size);
        let pad = Pad { dim: i as u32 + 2, before: 0, value: Float::new(0.0) };
        y = cx.b.one_typed(pad, &[y], ty.clone())?;
    }
    let bias = cx.optional(call, 2)?;
    one(with_bias(cx, bias, y)?)
}

/// Adds a bias for each channel to a result, if there is one.
pub(super) fn with_bias(cx: &mut Context, bias: Option<ValueId>, y: ValueId) -> Built {
    let Some(bias) = bias else { return Ok(y) };
    let (given, made) = (cx.ty(bias).clone(), cx.ty(y).clone());
    ensure!(given.dims[..] == made.dims[1..2], "bias {given} does not fit the channels of {made}");
    let ones = (2..made.ndim()).map(|_| Dim::known(1));
    let dims: Dims = given.dims.iter().cloned().chain(ones).collect();
    let bias = cx.b.reshape(bias, dims)?;
    cx.build(y + bias)
}

/// The attributes that both operators have.
struct Windows {
    group: u64,
    strides: Vec<u64>,
    dilations: Vec<u64>,
    /// The distance from the first element of a window to its last, plus 1.
    extents: Vec<u64>,
    padding: Padding,
}

/// The source of the padding.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Padding {
    /// The attribute `pads`, which defaults to zeros.
    Given,
    /// Computed from the sizes, so that there are ⌈size / stride⌉ windows. With `upper`, an odd element is added after the image.
    Same { upper: bool },
}

impl Windows {
    fn of(cx: &Context, call: &Call, x: ValueId, weight: ValueId) -> Result<Self, Problem> {
        let (x, weight) = (cx.ty(x), cx.ty(weight));
        ensure!(
            x.ndim() >= 3 && weight.ndim() == x.ndim(),
            "image {x} and weight {weight} must have the same number of dims, at least 3"
        );
        let count = x.ndim() - 2;
        let group = match call.int("group") {
            None => 1,
            Some(group) => u64::try_from(group)
                .ok()
                .filter(|&group| group > 0)
                .ok_or_else(|| Problem::new(format!("has {group} groups")))?,
        };
        let kernel = (0..count).map(|dim| bound(weight, dim)).collect::<Result<Vec<_>, _>>()?;
        if let Some(given) = call.ints("kernel_shape")
            && !given.iter().copied().eq(kernel.iter().map(|&size| size as i64))
        {
            return Err(Problem::new(format!("kernel_shape is {given:?}, and the weight is {weight}")));
        }
        let (strides, dilations) =
            (numbers(call, "strides", count, 1)?, numbers(call, "dilations", count, 1)?);
        let extent =
            |(&size, &dilation): (&u64, &u64)| size.checked_sub(1)?.checked_mul(dilation)?.checked_add(1);
        let extents = kernel.iter().zip(&dilations).map(extent).collect::<Option<Vec<_>>>();
        let extents = extents.ok_or_else(|| {
            Problem::new(format!(
                "the windows are empty or too large: weight {weight}, dilations {dilations:?}"
            ))
        })?;
        let padding = match call.string("auto_pad").unwrap_or("NOTSET") {
            "NOTSET" | "" => Padding::Given,
            "VALID" if call.ints("pads").is_none_or(|pads| pads.iter().all(|&pad| pad == 0)) => {
                Padding::Given
            }
            "SAME_UPPER" => Padding::Same { upper: true },
            "SAME_LOWER" => Padding::Same { upper: false },
            other => {
                return Err(Problem::new(format!(
                    "auto_pad `{other}` does not fit the node's other attributes"
                )));
            }
        };
        Ok(Self { group, strides, dilations, extents, padding })
    }

    fn count(&self) -> usize {
        self.strides.len()
    }

    /// Returns the kept part of the covered elements in a transposed convolution, for each spatial dim of `x`.
    fn transposed(&self, call: &Call, x: &Type) -> Result<Vec<KeptRange>, Problem> {
        let count = self.count();
        let more = numbers(call, "output_padding", count, 0)?;
        let pads = numbers(call, "pads", 2 * count, 0)?;
        let sizes = match call.ints("output_shape") {
            // Some files also give the batch and the channels.
            Some(shape) if shape.len() == count + 2 => Some(shape[2..].to_vec()),
            shape => shape,
        };
        if let Some(sizes) = sizes.as_ref().filter(|sizes| sizes.len() != count) {
            return Err(Problem::new(format!(
                "output_shape is {sizes:?}, and there are {count} spatial dims"
            )));
        }
        let side = |dim: usize| {
            let (size, stride) = (bound(x, dim)?, self.strides[dim]);
            let wrong = || {
                Problem::new(format!("the result's spatial dim {dim} would be empty or too large for {x}"))
            };
            let covered = size
                .checked_sub(1)
                .and_then(|steps| steps.checked_mul(stride)?.checked_add(self.extents[dim]));
            let covered = covered.ok_or_else(wrong)?;
            let full = covered.checked_add(more[dim]).ok_or_else(wrong)?;
            let wanted = match (&sizes, self.padding) {
                (Some(sizes), _) => Some(u64::try_from(sizes[dim]).map_err(|_| wrong())?),
                (None, Padding::Same { .. }) => Some(size.checked_mul(stride).ok_or_else(wrong)?),
                (None, Padding::Given) => None,
            };
            let (before, out) = match wanted {
                // If the attributes do not say otherwise, an odd element is cut off before (ONNX's formula for `pads`).
                Some(out) => {
                    (halves(full.saturating_sub(out), self.padding == Padding::Same { upper: true })[0], out)
                }
                None => {
                    let cut = pads[dim].checked_add(pads[dim + count]).ok_or_else(wrong)?;
                    (pads[dim], full.checked_sub(cut).ok_or_else(wrong)?)
                }
            };
            KeptRange::new(covered, before, out).ok_or_else(wrong)
        };
        (0..count).map(side).collect()
    }
}

/// The part of the covered elements that is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
struct KeptRange {
    /// The number of elements that are cut off before the part.
    before: u64,
    /// The number of elements of the part.
    image: u64,
    /// The number of elements that are cut off after the part.
    after: u64,
    /// The number of zeros after the part, which no window covers.
    beyond: u64,
}

impl KeptRange {
    /// Keeps `out` elements after the first `before` covered elements; `None` if none of them is covered.
    fn new(covered: u64, before: u64, out: u64) -> Option<Self> {
        let rest = covered.checked_sub(before)?;
        let image = rest.min(out);
        (image > 0).then_some(Self { before, image, after: rest - image, beyond: out - image })
    }
}

/// Divides padding into the elements before and after. With `upper`, an odd element goes after.
fn halves(total: u64, upper: bool) -> [u64; 2] {
    let (less, more) = (total / 2, total - total / 2);
    if upper { [less, more] } else { [more, less] }
}

/// Returns the size of a spatial dim, which must be bound.
fn bound(ty: &Type, dim: usize) -> Result<u64, Problem> {
    ty.dims[dim + 2].size().ok_or_else(|| {
        Problem::new(format!("spatial dim {dim} of {ty} is not bound"))
            .note("bind the dim with --bind NAME=SIZE")
    })
}

/// Returns an attribute of `count` numbers, none below `least`, which is also their default.
pub(super) fn numbers(call: &Call, name: &str, count: usize, least: u64) -> Result<Vec<u64>, Problem> {
    let Some(given) = call.ints(name) else { return Ok(vec![least; count]) };
    let number = |&number: &i64| u64::try_from(number).ok().filter(|&number| number >= least);
    let read = given.iter().map(number).collect::<Option<Vec<u64>>>().filter(|read| read.len() == count);
    read.ok_or_else(|| {
        Problem::new(format!("{name} is {given:?}; it must be {count} numbers of at least {least}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_transposed_convolution_keeps_is_cut_or_goes_beyond_its_windows() {
        // First: size 3, stride 3, window 3, with ten elements wanted. Then: padding of 1 with output padding of 1, stride 2.
        assert_eq!(KeptRange::new(9, 0, 10), Some(KeptRange { before: 0, image: 9, after: 0, beyond: 1 }));
        assert_eq!(KeptRange::new(7, 1, 6), Some(KeptRange { before: 1, image: 6, after: 0, beyond: 0 }));
        assert_eq!(KeptRange::new(7, 1, 5), Some(KeptRange { before: 1, image: 5, after: 1, beyond: 0 }));
        assert_eq!(KeptRange::new(3, 3, 2), None);
        assert_eq!(KeptRange::new(3, 0, 0), None);
    }

    #[test]
    fn what_is_odd_goes_where_the_file_says() {
        assert_eq!(halves(3, true), [1, 2]);
        assert_eq!(halves(3, false), [2, 1]);
        assert_eq!(halves(0, true), [0, 0]);
    }
}
