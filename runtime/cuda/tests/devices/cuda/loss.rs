//! Cross-entropy: rows for a warp and for blocks, rows that begin anywhere, and classes that are sure.

use super::stand_in;
use super::writer::{FLOATS, Writer};
use crate::compare::{Microbatch, assert_agrees_on, unit};
use cuda::host::Order;
use ir::interp::Mode;
use ir::ops::Float;
use ir::ops::elementwise::Unary;
use ir::ops::loss::{CrossEntropy, CrossEntropyGrad};
use ir::{Builder, DType, Module, Tensor, ValueId};
use program::lower::LowerOptions;

const LABELS: [DType; 4] = [DType::I64, DType::I32, DType::U8, DType::I16];

/// The loss of logits and its gradient, with labels beyond both ends of the classes.
fn add(w: &mut Writer, logits: ValueId, [rows, classes]: [usize; 2], labels: DType, smoothing: f64) {
    let low = if labels == DType::U8 { 0 } else { -2 };
    let labels = w.integers(labels, &[rows], low..classes.min(100) as i64 + 2);
    let (ignore_index, label_smoothing) = (1, Float::new(smoothing));
    let results = w.op(CrossEntropy { ignore_index, label_smoothing }, &[logits, labels]);
    let factor = w.built(|b| {
        let half = b.splat_like(results[0], 0.5).expect("a float");
        b.one(Unary::Neg, &[half]).expect("a number")
    });
    let grad = CrossEntropyGrad { ignore_index, label_smoothing };
    w.op(grad.clone(), &[logits, labels, results[2], factor]);
    let dying = w.dying(logits);
    w.op(grad, &[dying, labels, results[2], factor]);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn rows_of_any_length_and_place() {
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        // A warp a row, few classes and many; blocks of both sizes; rows that begin a pack and such that do not.
        let cases = [[20, 1], [19, 3], [9, 37], [10, 1024], [3, 1025], [2, 4096], [2, 16_387], [2, 50_257]];
        for (case, [rows, classes]) in cases.into_iter().enumerate() {
            let x = w.numbers(dtype, &[rows, classes], |x| 3.0 * x);
            let smoothing = if case % 2 == order % 2 { 0.1 } else { 0.0 };
            add(&mut w, x, [rows, classes], LABELS[case % 4], smoothing);
        }
        // Behind a row of an odd length: packs of the gradient lie otherwise than those of the logits.
        for classes in [37, 1025] {
            let x = w.floats(dtype, &[4, classes]);
            let x = w.cut(x, 0, 1);
            add(&mut w, x, [3, classes], DType::I64, 0.1);
        }
        w.check(order as u32);
    }
}

/// The largest logit decides a row, or there is none, or one that is no number.
#[test]
#[ignore = "needs a C++ compiler"]
fn rows_with_extremes() {
    let mut w = Writer::default();
    for classes in [50, 3000] {
        for (extreme, share) in
            [(f64::NEG_INFINITY, 0.5), (f64::NEG_INFINITY, 9.0), (f64::NAN, 0.01), (1e4, 0.01)]
        {
            let x = w.numbers(DType::F32, &[3, classes], |x| if x.abs() < share { extreme } else { x });
            add(&mut w, x, [3, classes], DType::I64, 0.0);
        }
    }
    w.check(2);
}

/// The gradient of a class that is nearly sure is far below the rounding of the logsumexp, which the interpreter does not round here.
/// The class has a probability of 1 - 6.5e-4. PTX's exponential is an approximation, and its error in the last bit of the probability
/// is more of this gradient than launches by their PTX may differ. So this test does not run launches by their PTX.
#[test]
#[ignore = "needs a C++ compiler"]
fn a_sure_class_keeps_its_gradient() {
    let (mut module, mut inputs) = (Module::new("sure"), Microbatch::new());
    for classes in [40, 2000] {
        let logit = |class: usize| if class == 7 { 100.0 } else { 89.0 };
        let logits = Tensor::float(DType::F32, vec![1, classes], (0..classes).map(logit).collect());
        let labels = Tensor::int(DType::I64, vec![1], vec![7]);
        let operands = [("logits", logits), ("labels", labels)].map(|(name, tensor)| {
            let name = format!("{name} {classes}");
            let value = module.add_input(&name, tensor.ty(), false);
            inputs.insert(name, tensor);
            value
        });
        let (ignore_index, label_smoothing) = (-1, Float::new(0.0));
        let mut b = Builder::new(&mut module, "test");
        let loss = CrossEntropy { ignore_index, label_smoothing };
        let results = b.push_typed(loss, &operands, &[]).expect("a loss");
        let factor = b.scalar(DType::F32, 16.0).expect("a scalar");
        let grad = CrossEntropyGrad { ignore_index, label_smoothing };
        let gradient = b.one(grad, &[operands[0], operands[1], results[2], factor]).expect("its gradient");
        b.finish();
        module.add_output(format!("gradient {classes}"), gradient);
    }
    let make = |program| stand_in(program, Order { threads: 1, first: None });
    let options = LowerOptions::of(cuda::TARGET);
    assert_agrees_on(&make, Mode::Exact, &module, &options, &[vec![inputs]], unit);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn no_rows_have_no_loss() {
    let mut w = Writer::default();
    let x = w.floats(DType::F32, &[0, 7]);
    let labels = w.integers(DType::I64, &[0], 0..7);
    w.op(CrossEntropy { ignore_index: -1, label_smoothing: Float::new(0.0) }, &[x, labels]);
    w.check(0);
}
