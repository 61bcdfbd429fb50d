//! Random tensors: RandomUniform, RandomNormal, their forms `Like`, and Bernoulli. The numbers depend on `--seed`. A seed in the
//! file is ignored, because every step must draw different numbers.

use super::arithmetic::Built;
use super::call::Call;
use super::context::{Context, Entry, Outputs, Problem, one};
use ir::ops::elementwise::{Compare, Unary};
use ir::ops::random::RandomUniform;
use ir::{DType, Dim, Dims, Type, ensure};
use std::f64::consts::TAU;

/// RandomUniform and RandomUniformLike: numbers from `low` to below `high`.
pub(super) fn uniform(cx: &mut Context, call: &Call) -> Outputs {
    let ty = result(cx, call)?;
    let (low, high) = (call.float("low").unwrap_or(0.0), call.float("high").unwrap_or(1.0));
    let drawn = drawn(cx, &ty.dims)?;
    let scaled = scaled(cx, drawn, high - low, low)?;
    one(cx.b.cast(scaled, ty.dtype)?)
}

/// RandomNormal and RandomNormalLike, each number from two uniform numbers (Box and Muller, 1958).
///
/// The angle is shifted by 1/2. So when an evaluation replaces uniform numbers by their mean, the normal number is its mean, 0.
pub(super) fn normal(cx: &mut Context, call: &Call) -> Outputs {
    let ty = result(cx, call)?;
    let (mean, scale) = (call.float("mean").unwrap_or(0.0), call.float("scale").unwrap_or(1.0));
    let radius = drawn(cx, &ty.dims)?;
    // The numbers become greater than 0 and at most 1. This is exact, because they are multiples of 2⁻²⁴.
    let radius = scaled(cx, radius, -1.0, 1.0)?;
    let radius = cx.build(Unary::Sqrt.of(Unary::Log.of(radius) * -2.0))?;
    let angle = drawn(cx, &ty.dims)?;
    let normal = cx.build(radius * Unary::Sin.of((angle - 0.5) * TAU))?;
    let scaled = scaled(cx, normal, scale, mean)?;
    one(cx.b.cast(scaled, ty.dtype)?)
}

/// Bernoulli: 1 where a uniform number is below the probability.
pub(super) fn bernoulli(cx: &mut Context, call: &Call) -> Outputs {
    let probability = cx.value(call, 0)?;
    let own = cx.ty(probability).clone();
    let dtype = if call.int("dtype").is_some() { call.dtype("dtype")? } else { own.dtype };
    let drawn = drawn(cx, &own.dims)?;
    let probability = cx.b.cast(probability, DType::F32)?;
    one(cx.build(Compare::Less.of(drawn, probability).cast(dtype))?)
}

/// Returns the type of the result: that of the input, or with the attribute `shape`.
fn result(cx: &mut Context, call: &Call) -> Result<Type, Problem> {
    let dims = match call.ints("shape") {
        Some(sizes) => {
            let size = |&size: &i64| u64::try_from(size).map(Dim::known);
            let dims = sizes.iter().map(size).collect::<Result<Dims, _>>();
            Type::new(
                DType::F32,
                dims.map_err(|_| Problem::new(format!("the shape {sizes:?} to draw is not valid")))?,
            )
        }
        None => match cx.entry(call, 0)?.clone() {
            Entry::Value(value) => cx.ty(value).clone(),
            Entry::Stored(data) => cx.b.module().data[data].ty.clone(),
            entry => {
                let value = cx.materialize(&entry)?;
                cx.ty(value).clone()
            }
        },
    };
    let dtype = if call.int("dtype").is_some() { call.dtype("dtype")? } else { dims.dtype };
    ensure!(dtype.is_float(), "random numbers must be floats, not {dtype}");
    Ok(dims.with_dtype(dtype))
}

/// Builds uniform numbers from 0 to below 1.
fn drawn(cx: &mut Context, dims: &Dims) -> Built {
    let op = RandomUniform { id: cx.draws.next(), seed: 0, dim: 0 };
    // A scalar also gets a dim for the samples.
    let own = if dims.is_empty() { Dims::from_iter([Dim::known(1)]) } else { dims.clone() };
    let drawn = cx.b.one_typed(op, &[], Type::new(DType::F32, own))?;
    if dims.is_empty() { Ok(cx.b.reshape(drawn, dims.clone())?) } else { Ok(drawn) }
}

/// `x · scale + offset`
fn scaled(cx: &mut Context, x: ir::ValueId, scale: f64, offset: f64) -> Built {
    let x = if scale == 1.0 { x } else { cx.build(x * scale)? };
    if offset == 0.0 { Ok(x) } else { cx.build(x + offset) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attribute, Node};
    use ir::interp::{self, Mode, StateValues};
    use ir::{At, Builder, Module, Op, Tensor};
    use std::collections::BTreeMap;

    /// Returns the result of a node on `x`, `f32[50, 400]` of 0.7, with or without sample numbers.
    fn made(op_type: &str, attributes: &[(&str, f32)], numbered: bool) -> Vec<f64> {
        let mut module = Module::new("m");
        let count = 50u64;
        let numbers = module.add_input("numbers", Type::of(DType::I64, &[count]), false);
        let mut b = Builder::new(&mut module, "import");
        let x = b.splat(Type::of(DType::F32, &[count, 400]), 0.7).unwrap();
        let mut cx = Context::new(b, BTreeMap::from([("x".into(), Entry::Value(x))]));
        let attribute = |&(name, value): &(&str, f32)| (name.to_string(), Attribute::Float(value));
        let node = Node {
            op_type: op_type.into(),
            opset: 15,
            inputs: vec!["x".into()],
            outputs: vec!["y".into()],
            attributes: attributes.iter().map(attribute).collect(),
            ..Node::default()
        };
        let import = super::super::registry::find(&Call::new(&node)).expect("it is imported");
        let Entry::Value(y) = import(&mut cx, &Call::new(&node)).unwrap()[0] else { panic!("no value") };
        cx.b.finish();
        module.add_output("y", y);
        let drawing = module.nodes().filter(|(_, node)| matches!(node.op, Op::RandomUniform(_)));
        let drawing: Vec<_> = drawing.map(|(id, node)| (id, node.op.clone(), node.results[0])).collect();
        let mut b = Builder::new(&mut module, "test");
        for (id, op, result) in drawing.into_iter().filter(|_| numbered) {
            let ty = b.ty(result).clone();
            let drawn = b.at(At::Before(id)).one_typed(op, &[numbers], ty).unwrap();
            b.replace(result, drawn);
            b.remove(id);
        }
        b.finish();
        let given = Tensor::int(DType::I64, vec![count as usize], (0..count as i64).collect());
        let inputs = [BTreeMap::from([("numbers".to_string(), given)])];
        let outputs = interp::step(&module, Mode::Exact, &mut StateValues::new(), &inputs).unwrap();
        outputs["y"][0].floats().to_vec()
    }

    /// Returns the mean of a power of the numbers.
    fn moment(numbers: &[f64], power: i32) -> f64 {
        numbers.iter().map(|x| x.powi(power)).sum::<f64>() / numbers.len() as f64
    }

    #[test]
    fn drawn_numbers_have_the_moments_of_their_distribution() {
        let normal = made("RandomNormalLike", &[], true);
        // Four standard deviations of the means of 20,000 draws.
        for (power, expected, deviation) in [(1, 0.0, 1.0), (2, 1.0, 2f64.sqrt()), (4, 3.0, 96f64.sqrt())] {
            let given = moment(&normal, power);
            assert!((given - expected).abs() < 4.0 * deviation / 20_000f64.sqrt(), "{power}: {given}");
        }
        let shifted = made("RandomNormalLike", &[("mean", 2.0), ("scale", 3.0)], true);
        assert!(normal.iter().zip(&shifted).all(|(x, y)| (3.0 * x + 2.0 - y).abs() < 1e-9));
        let uniform = made("RandomUniformLike", &[("low", -1.0), ("high", 3.0)], true);
        assert!(uniform.iter().all(|x| (-1.0..3.0).contains(x)));
        assert!((moment(&uniform, 1) - 1.0).abs() < 0.04 && (moment(&uniform, 2) - 7.0 / 3.0).abs() < 0.06);
        let kept = made("Bernoulli", &[], true);
        assert!(kept.iter().all(|&x| x == 0.0 || x == 1.0) && (moment(&kept, 1) - 0.7).abs() < 0.013);
    }

    #[test]
    fn without_numbers_of_samples_random_numbers_are_their_mean() {
        let normal = made("RandomNormalLike", &[("mean", 2.0), ("scale", 3.0)], false);
        assert!(normal.iter().all(|&x| x == 2.0));
        let uniform = made("RandomUniformLike", &[("low", -1.0), ("high", 3.0)], false);
        assert!(uniform.iter().all(|&x| x == 1.0));
    }
}
