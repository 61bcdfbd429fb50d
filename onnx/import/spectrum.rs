//! Spectra: the discrete Fourier transform as a contraction with cosines, the same for frames of a signal, and the weights of mel
//! bands.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Outputs, Problem, one};
use ir::ops::Labels;
use ir::ops::contract::Contract;
use ir::ops::elementwise::{Binary, Unary};
use ir::ops::indexing::Gather;
use ir::{DType, Dim, Tensor, ValueId, ensure};
use std::f64::consts::TAU;

/// The parameters of a transform.
#[derive(Clone, Copy, Debug)]
struct Transform {
    /// The dim of time or frequency. The last dim has the real parts, and perhaps the imaginary parts.
    dim: u32,
    /// The number of samples of a period.
    length: u64,
    inverse: bool,
    /// Whether only the first half of the frequencies is given; the others are their conjugates.
    onesided: bool,
}

/// DFT. Before opset 20 the axis was an attribute.
pub(super) fn dft(cx: &mut Context, call: &Call) -> Outputs {
    let x = cx.value(call, 0)?;
    let flag = |name: &str| call.int(name).unwrap_or(0) != 0;
    let (inverse, onesided) = (flag("inverse"), flag("onesided"));
    let first = |numbers: Option<Vec<i64>>| numbers.and_then(|numbers| numbers.first().copied());
    let axis = match call.opset() {
        ..20 => call.int("axis").unwrap_or(1),
        _ => first(cx.numbers(call, 2, "axis")?).unwrap_or(-2),
    };
    let dim = cx.axis(x, axis)?;
    let size = cx.bound(x, dim, "transforms")?;
    let length = match first(cx.numbers(call, 1, "dft_length")?) {
        Some(length) => u64::try_from(length).unwrap_or(0),
        None if inverse && onesided => 2 * size.saturating_sub(1),
        None => size,
    };
    one(transformed(cx, x, Transform { dim, length, inverse, onesided })?)
}

/// STFT: the transform of frames of a signal, each weighted by a window.
pub(super) fn stft(cx: &mut Context, call: &Call) -> Outputs {
    let mut x = cx.value(call, 0)?;
    if cx.ty(x).ndim() == 2 {
        x = cx.with_dim(x, 2)?;
    }
    let ty = cx.ty(x).clone();
    let wrong = || Problem::new(format!("the signal {ty} cannot be divided into frames"));
    if ty.ndim() != 3 {
        return Err(wrong());
    }
    let size = cx.bound(x, 1, "cuts")?;
    let positive = |numbers: Option<Vec<i64>>| {
        numbers.map(|n| n.first().and_then(|&n| u64::try_from(n).ok()).filter(|&n| n > 0).ok_or_else(wrong))
    };
    let step = positive(cx.numbers(call, 1, "frame_step")?).ok_or_else(wrong)??;
    let window = cx.optional(call, 2)?;
    let length = match (positive(cx.numbers(call, 3, "frame_length")?), window) {
        (Some(length), _) => length?,
        (None, Some(window)) => cx.bound(window, 0, "weights")?,
        (None, None) => size,
    };
    let frames = size.checked_sub(length).ok_or_else(wrong)? / step + 1;
    // The frame, and the place in it. They are computed by nodes, because there may be too many for a constant.
    let frame = cx.counted(DType::I64, 2, 0, Dim::known(frames))?;
    let start = cx.build(frame * step as f64)?;
    let within = cx.counted(DType::I64, 2, 1, Dim::known(length))?;
    let places = cx.build(start + within)?;
    let mut framed = cx.b.one(Gather { dim: 1 }, &[x, places])?;
    if let Some(mut window) = window {
        let given = cx.bound(window, 0, "weights")?;
        let missing = length.checked_sub(given).ok_or_else(wrong)?;
        window = cx.padded(window, 0, [0, missing], 0.0)?;
        let column = cx.b.reshape(window, [Dim::known(length), Dim::known(1)])?;
        framed = cx.build(framed * column)?;
    }
    let onesided = call.int("onesided").unwrap_or(1) != 0;
    one(transformed(cx, framed, Transform { dim: 2, length, inverse: false, onesided })?)
}

/// Builds the transform as one contraction, from time and part to frequency and part.
fn transformed(cx: &mut Context, x: ValueId, transform: Transform) -> Built {
    let Transform { dim, length, inverse, onesided } = transform;
    let ty = cx.ty(x).clone();
    let last = ty.ndim() as u32 - 1;
    let parts = cx.bound(x, last, "transforms")?;
    ensure!(
        ty.dtype.is_float() && dim != last && matches!(parts, 1 | 2) && length != 0 && ty.ndim() <= 20,
        "dim {dim} of {ty} cannot be transformed with a period of {length}"
    );
    let half = length / 2 + 1;
    // The inverse of half of the frequencies has only a real part.
    let (read, made, parts_made) = match (inverse, onesided) {
        (true, true) => (half, length, 1),
        (false, true) => (length, half, 2),
        (_, false) => (length, length, 2),
    };
    // A signal that is shorter than the period is padded with zeros, a longer one is cut.
    let size = cx.bound(x, dim, "transforms")?;
    let fitted = if size < read {
        cx.padded(x, dim, [0, read - size], 0.0)?
    } else {
        cx.b.slice(x, dim, 0, Dim::known(read))?
    };
    let matrix = matrix(cx, transform, [read, parts, made, parts_made])?;
    let matrix = cx.b.cast(matrix, ty.dtype)?;
    let letters: Vec<u8> = (0..ty.ndim()).map(|i| b'a' + i as u8).collect();
    let (time, part) = (letters[dim as usize], letters[last as usize]);
    let mut out = letters.clone();
    (out[dim as usize], out[last as usize]) = (b'y', b'z');
    let [lhs, rhs, out] =
        [letters, vec![time, part, b'y', b'z'], out].map(|labels| Labels(labels.into_iter().collect()));
    Ok(cx.b.one(Contract { lhs, rhs, out }, &[fitted, matrix])?)
}

/// Builds the matrix `[read, parts, made, parts made]`: `cos 2π(j·k/n + s(q - p)/4)`, which turns part p of sample j into part q
/// of frequency k. `s` is 1, or -1 for the inverse. The inverse is divided by n. If it reads half of the frequencies, each
/// frequency that also stands for its conjugate counts twice.
fn matrix(cx: &mut Context, transform: Transform, [read, parts, made, parts_made]: [u64; 4]) -> Built {
    let Transform { length, inverse, onesided, .. } = transform;
    let j = cx.counted(DType::I64, 4, 0, Dim::known(read))?;
    let k = cx.counted(DType::I64, 4, 2, Dim::known(made))?;
    // Whole turns are removed while the numbers are integers.
    let turn = cx.build(Binary::Mod.of(j * k, length as f64).cast(DType::F64) / length as f64)?;
    let p = cx.counted(DType::F64, 4, 1, Dim::known(parts))?;
    let q = cx.counted(DType::F64, 4, 3, Dim::known(parts_made))?;
    let quarters = if inverse { cx.build(p - q)? } else { cx.build(q - p)? };
    let cosine = cx.build(Unary::Cos.of((turn + quarters * 0.25) * TAU))?;
    if !inverse {
        return Ok(cosine);
    }
    let mean = 1.0 / length as f64;
    if !onesided {
        return cx.build(cosine * mean);
    }
    let single = |k: u64| k == 0 || 2 * k == length;
    ensure!(read <= Context::MOST_COMPUTED, "the period {length} is too long");
    let shares = (0..read).map(|k| if single(k) { mean } else { 2.0 * mean }).collect();
    let shares = cx.computed(Tensor::float(DType::F64, vec![read as usize, 1, 1, 1], shares))?;
    cx.build(cosine * shares)
}

/// MelWeightMatrix: `[dft_length/2 + 1, bands]`. Each band is a triangle; its corners are evenly spaced in mel.
pub(super) fn mel_weights(cx: &mut Context, call: &Call) -> Outputs {
    let wrong = || {
        Problem::new("the sizes of the mel bands are not constants, or they are too large")
            .note("export them as constants")
    };
    let mut sizes = [0u64; 3];
    for (i, (size, name)) in sizes.iter_mut().zip(["num_mel_bins", "dft_length", "sample_rate"]).enumerate() {
        let number = cx.numbers(call, i, name)?.and_then(|numbers| numbers.first().copied());
        let number = number.and_then(|number| u64::try_from(number).ok()).filter(|&number| number > 0);
        *size = number.ok_or_else(wrong)?;
    }
    let mut edges = [0.0; 2];
    for (i, edge) in edges.iter_mut().enumerate() {
        let value = cx.value(call, i + 3)?;
        *edge = super::constant_number(cx, value).ok_or_else(wrong)?;
    }
    let [bands, length, rate] = sizes;
    let frequencies = length / 2 + 1;
    if frequencies.checked_mul(bands).is_none_or(|n| n > Context::MOST_COMPUTED) {
        return Err(wrong());
    }
    let weights = triangles(bands, length, rate, edges).ok_or_else(|| {
        Problem::new(format!(
            "mel bands from {} to {} Hz do not fit a sample rate of {rate} Hz",
            edges[0], edges[1]
        ))
    })?;
    let dtype =
        if call.int("output_datatype").is_some() { call.dtype("output_datatype")? } else { DType::F32 };
    let weights = Tensor::float(DType::F64, vec![frequencies as usize, bands as usize], weights);
    let weights = cx.computed(weights)?;
    one(cx.b.cast(weights, dtype)?)
}

/// Returns the weights of each frequency in each band; `None` if a band reaches beyond the frequencies.
fn triangles(bands: u64, length: u64, rate: u64, [low, high]: [f64; 2]) -> Option<Vec<f64>> {
    let mel = |hertz: f64| 2595.0 * (hertz / 700.0).ln_1p() / 10f64.ln();
    let hertz = |mel: f64| 700.0 * (mel / 2595.0 * 10f64.ln()).exp_m1();
    // ONNX divides by the number of corners, not by the number of gaps between them.
    let step = (mel(high) - mel(low)) / (bands + 2) as f64;
    let corner = |i: u64| {
        let place = ((length + 1) as f64 * hertz(mel(low) + i as f64 * step) / rate as f64).floor();
        (place >= 0.0 && place <= (length / 2) as f64).then_some(place as u64)
    };
    let corners: Vec<u64> = (0..bands + 2).map(corner).collect::<Option<_>>()?;
    let weight = |frequency: u64, band: u64| {
        let [left, center, right] = [0, 1, 2].map(|i| corners[(band + i) as usize]);
        match frequency {
            // The peak between both sides.
            f if f == center => 1.0,
            f if (left..center).contains(&f) => (f - left) as f64 / (center - left) as f64,
            f if (center..right).contains(&f) => (right - f) as f64 / (right - center) as f64,
            _ => 0.0,
        }
    };
    let weight = &weight;
    let rows = (0..length / 2 + 1).flat_map(|frequency| (0..bands).map(move |band| weight(frequency, band)));
    Some(rows.collect())
}
