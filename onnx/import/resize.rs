//! Resize and Upsample: along each dim, every element of the result is a weighted sum of a few elements of the operand, whose
//! places and weights are computed by the import (`resampling`).

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem, one};
use super::resampling::{Coordinates, Filter, Nearest, Resampling, Weighted};
use ir::ops::elementwise::Select;
use ir::ops::indexing::Gather;
use ir::{DType, Dim, Tensor, ValueId, ensure};

/// The resizing of one dim.
struct ResizedDim {
    dim: u32,
    scale: f64,
    size: u64,
    region: [f64; 2],
}

/// Resize, and its first version Upsample.
pub(super) fn resize(cx: &mut Context, call: &Call) -> Outputs {
    let mut x = cx.value(call, 0)?;
    let how = resampling(call)?;
    let extrapolation = call.float("extrapolation_value").unwrap_or(0.0);
    for ResizedDim { dim, scale, size, region } in asked(cx, call, x)? {
        let from = cx.bound(x, dim, "resizes")?;
        let crops = how.coordinates == Coordinates::TfCropAndResize;
        if from == size && scale == 1.0 && !crops {
            continue;
        }
        ensure!(
            from != 0 && size != 0 && from.max(size) <= Context::MOST_COMPUTED,
            "dim {dim} of {} cannot be resized to {size}",
            cx.ty(x)
        );
        let weighted = how.along(from, size, scale, region);
        x = resampled(cx, x, dim, &weighted)?;
        if weighted.outside.contains(&true) {
            x = extrapolated(cx, x, dim, weighted.outside, extrapolation)?;
        }
    }
    one(x)
}

/// Returns the parameters of the resampling. Before opset 11 there was only one set.
fn resampling(call: &Call) -> Result<Resampling, Problem> {
    let unknown = |what: &str, word: &str| Problem::new(format!("the {what} `{word}` is unknown"));
    let old = call.opset() < 11;
    let word = call.string("coordinate_transformation_mode").filter(|_| !old);
    let word = word.unwrap_or(if old { "asymmetric" } else { "half_pixel" });
    let coordinates = Coordinates::named(word).ok_or_else(|| unknown("coordinate transformation", word))?;
    let word = call.string("nearest_mode").filter(|_| !old);
    let word = word.unwrap_or(if old { "floor" } else { "round_prefer_floor" });
    let nearest = Nearest::named(word).ok_or_else(|| unknown("rounding", word))?;
    let filter = match call.string("mode").unwrap_or("nearest") {
        "nearest" => Filter::Nearest(nearest),
        "linear" => Filter::Linear,
        "cubic" => Filter::Cubic(call.float("cubic_coeff_a").unwrap_or(-0.75)),
        other => return Err(unknown("mode", other)),
    };
    let flag = |name: &str| call.int(name).unwrap_or(0) != 0;
    Ok(Resampling {
        coordinates,
        filter,
        antialias: flag("antialias"),
        exclude_outside: flag("exclude_outside"),
    })
}

/// Returns the dims to resize, from scales, or from sizes with a policy that may keep the aspect ratio.
fn asked(cx: &mut Context, call: &Call, x: ValueId) -> Result<Vec<ResizedDim>, Problem> {
    let axes = call.ints("axes").unwrap_or_else(|| (0..cx.ty(x).ndim() as i64).collect());
    let dims: Vec<u32> = axes.iter().map(|&axis| cx.axis(x, axis)).collect::<Result<_, _>>()?;
    let at = if call.opset() < 11 { 1 } else { 2 };
    let regions = floats(cx, call, if at == 2 { 1 } else { usize::MAX })?.unwrap_or_default();
    let region = |i: usize| match (regions.get(i), regions.get(i + dims.len())) {
        (Some(&start), Some(&end)) => [start, end],
        _ => [0.0, 1.0],
    };
    let froms = dims.iter().map(|&dim| cx.bound(x, dim, "resizes")).collect::<Result<Vec<_>, _>>()?;
    let count = |n: usize| Problem::new(format!("there are {n} scales or sizes for {} dims", dims.len()));
    if let Some(scales) = floats(cx, call, at)? {
        if scales.len() != dims.len() || scales.iter().any(|scale| !(scale.is_finite() && *scale > 0.0)) {
            return Err(count(scales.len()));
        }
        let along = |i: usize| {
            let size = (froms[i] as f64 * scales[i]).floor() as u64;
            ResizedDim { dim: dims[i], scale: scales[i], size, region: region(i) }
        };
        return Ok((0..dims.len()).map(along).collect());
    }
    let sizes = cx.numbers(call, at + 1, "sizes")?.unwrap_or_default();
    if sizes.len() != dims.len() || sizes.iter().any(|&size| size < 0) {
        return Err(count(sizes.len()));
    }
    let scales = (0..dims.len()).map(|i| sizes[i] as f64 / froms[i].max(1) as f64);
    let common = match call.string("keep_aspect_ratio_policy").unwrap_or("stretch") {
        "stretch" => None,
        "not_larger" => Some(scales.clone().fold(f64::INFINITY, f64::min)),
        "not_smaller" => Some(scales.clone().fold(0.0, f64::max)),
        other => return Err(Problem::new(format!("the keep_aspect_ratio_policy `{other}` is unknown"))),
    };
    let along = |(i, own): (usize, f64)| {
        let scale = common.unwrap_or(own);
        let size = common.map_or(sizes[i] as u64, |scale| (froms[i] as f64 * scale + 0.5).floor() as u64);
        ResizedDim { dim: dims[i], scale, size, region: region(i) }
    };
    Ok(scales.enumerate().map(along).collect())
}

/// Returns the numbers of an input, which must be known; `None` if it is left out or empty.
fn floats(cx: &mut Context, call: &Call, i: usize) -> Result<Option<Vec<f64>>, Problem> {
    if call.input(i).is_none() {
        return Ok(None);
    }
    if let Entry::Ints(ints, _) = cx.entry(call, i)? {
        let numbers = ints.numbers().map(|numbers| numbers.into_iter().map(|n| n as f64).collect::<Vec<_>>());
        return Ok(numbers.filter(|numbers| !numbers.is_empty()));
    }
    let value = cx.value(call, i)?;
    // Exports without constant folding compute scales from sizes.
    let numbers = cx.evaluate(value).map(|tensor| tensor.numbers());
    let numbers = numbers.ok_or_else(|| {
        Problem::new("the scales or regions are computed from data").note("export with static shapes")
    })?;
    Ok(Some(numbers).filter(|numbers| !numbers.is_empty()))
}

/// Builds the weighted sum of the elements that are read along a dim.
fn resampled(cx: &mut Context, x: ValueId, dim: u32, weighted: &Weighted) -> Built {
    let ndim = cx.ty(x).ndim();
    let mut sum = None;
    for (places, weights) in weighted.places.iter().zip(&weighted.weights) {
        if weights.iter().all(|&weight| weight == 0.0) {
            continue;
        }
        let indices = cx.computed(Tensor::int(DType::I64, vec![places.len()], places.clone()))?;
        let mut read = cx.b.one(Gather { dim }, &[x, indices])?;
        if weights.iter().any(|&weight| weight != 1.0) {
            let weights = cx.computed(Tensor::float(DType::F64, vec![weights.len()], weights.clone()))?;
            let dtype = cx.ty(x).dtype;
            let weights = cx.b.cast(weights, dtype)?;
            let weights = along(cx, weights, ndim, dim)?;
            read = cx.build(read * weights)?;
        }
        sum = Some(match sum {
            Some(sum) => cx.build(sum + read)?,
            None => read,
        });
    }
    sum.ok_or_else(|| Problem::new("there are no interpolation weights"))
}

/// Replaces elements whose places lie outside of the operand by a number.
fn extrapolated(cx: &mut Context, x: ValueId, dim: u32, outside: Vec<bool>, number: f64) -> Built {
    let ndim = cx.ty(x).ndim();
    let inside: Vec<bool> = outside.into_iter().map(|outside| !outside).collect();
    let inside = cx.computed(Tensor::bool(vec![inside.len()], inside))?;
    let inside = along(cx, inside, ndim, dim)?;
    cx.build(Select.of(inside, x, number))
}

/// Reshapes a vector so that it lies along a dim of `ndim` dims.
fn along(cx: &mut Context, vector: ValueId, ndim: usize, dim: u32) -> Built {
    let mut dims = vec![Dim::known(1); ndim];
    dims[dim as usize] = cx.ty(vector).dims[0].clone();
    Ok(cx.b.reshape(vector, dims)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attribute, Node};
    use ir::ops::elementwise::Binary;
    use ir::ops::shape::Concat;
    use ir::{Builder, Module, Type};
    use std::collections::BTreeMap;

    /// Resizes `[1, 1, 4]` by scales that a file computes: 1 for each dim except the last, then `8 / divisor`.
    fn resized(divisor: impl FnOnce(&mut Builder, ValueId) -> ValueId) -> Result<Vec<u64>, Problem> {
        let mut module = Module::new("m");
        let x = module.add_input("x", Type::of(DType::F32, &[1, 1, 4]), true);
        let mut b = Builder::new(&mut module, "import");
        let ones = b.splat(Type::of(DType::F32, &[2]), 1.0).unwrap();
        let wanted = b.splat(Type::of(DType::I64, &[1]), 8.0).unwrap();
        let wanted = b.cast(wanted, DType::F32).unwrap();
        let divisor = divisor(&mut b, x);
        let last = b.one(Binary::Div, &[wanted, divisor]).unwrap();
        let scales = b.one(Concat { dim: 0 }, &[ones, last]).unwrap();
        let entries = [("x", x), ("scales", scales)].map(|(name, value)| (name.into(), Entry::Value(value)));
        let mut cx = Context::new(b, BTreeMap::from(entries));
        let node = Node {
            op_type: "Resize".into(),
            opset: 18,
            inputs: ["x", "", "scales"].map(String::from).into(),
            outputs: vec!["y".into()],
            attributes: BTreeMap::from([("mode".to_string(), Attribute::String("linear".into()))]),
            ..Node::default()
        };
        let outputs = resize(&mut cx, &Call::new(&node))?;
        let Entry::Value(value) = outputs[0] else { panic!("it gives a value") };
        Ok(cx.ty(value).sizes().unwrap())
    }

    #[test]
    fn scales_that_an_unfolded_export_computes_are_known() {
        let sizes = resized(|b, _| b.splat(Type::of(DType::F32, &[1]), 4.0).unwrap());
        assert_eq!(sizes.unwrap(), [1, 1, 8]);
    }

    #[test]
    fn scales_that_depend_on_an_input_are_refused() {
        let refused = resized(|b, x| {
            let row = b.reshape(x, [4].map(Dim::known)).unwrap();
            b.slice(row, 0, 0, Dim::known(1)).unwrap()
        });
        let Err(Problem::Wrong { message, .. }) = refused else { panic!("it is refused") };
        assert!(message.contains("computed from data"), "{message}");
    }
}
