//! Updates: at once and one by one, of a gradient that lies in several ways, in place and not.

use super::writer::{FLOATS, Writer};
use ir::ops::optimizer::{Adagrad, Adam, Sgd};
use ir::{DType, Op, ValueId};

fn rules() -> [Op; 5] {
    let adam = |decoupled| Adam { beta1: 0.9.into(), beta2: 0.99.into(), eps: 1e-6.into(), decoupled };
    let sgd = |nesterov| Sgd { momentum: 0.8.into(), nesterov };
    [
        adam(false).into(),
        adam(true).into(),
        sgd(false).into(),
        sgd(true).into(),
        Adagrad { eps: 1e-6.into() }.into(),
    ]
}

/// An update by a rule, with a decay of 0.01; all tensors but the gradient die there if they are to.
fn update(w: &mut Writer, rule: &Op, dtype: DType, sizes: &[usize], gradient: ValueId, dies: bool) {
    let parameter = w.floats(dtype, sizes);
    update_of(w, rule, (dtype, sizes), [parameter, gradient], 0.01, dies, &[]);
}

/// As [`update`], of this parameter and with this decay, and with `scale` and `skip`, as far as they are there.
fn update_of(
    w: &mut Writer,
    rule: &Op,
    (dtype, sizes): (DType, &[usize]),
    read: [ValueId; 2],
    decay: f64,
    dies: bool,
    optional: &[ValueId],
) {
    let states = if matches!(rule, Op::Adam(_)) { 2 } else { 1 };
    let mut operands = read.to_vec();
    operands.extend((0..states).map(|_| w.numbers(dtype, sizes, |x| x.abs() + 0.1)));
    if dies {
        for i in (0..operands.len()).filter(|&i| i != 1) {
            operands[i] = w.dying(operands[i]);
        }
    }
    operands.extend([0.1, decay].map(|number| w.scalar(DType::F64, number)));
    if states == 2 {
        operands.push(w.scalar(DType::F64, 3.0));
    }
    operands.extend(optional);
    w.op(rule.clone(), &operands);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn a_parameter_is_updated_wherever_its_gradient_lies() {
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        for rule in &rules() {
            for sizes in [&[][..], &[5], &[24, 32]] {
                let gradient = w.floats(dtype, sizes);
                update(&mut w, rule, dtype, sizes, gradient, sizes.len() != 1);
            }
            let turned = w.floats(dtype, &[32, 24]);
            let turned = w.transposed(turned, &[1, 0]);
            update(&mut w, rule, dtype, &[24, 32], turned, true);
            // Rows of a wider matrix, as a joined contraction leaves them: in packs, and not.
            for start in [32, 31] {
                let wide = w.floats(dtype, &[24, 32 + start]);
                let columns = w.cut(wide, 1, start as u64);
                update(&mut w, rule, dtype, &[24, 32], columns, true);
            }
            // Dense, from an odd place on.
            let cut = w.floats(dtype, &[769]);
            let cut = w.cut(cut, 0, 1);
            update(&mut w, rule, dtype, &[768], cut, false);
        }
        w.check(order as u32);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn an_infinite_parameter_that_does_not_decay_stays_infinite() {
    let mut w = Writer::default();
    for rule in &rules() {
        let parameter = w.numbers(DType::F32, &[40], |_| f64::NEG_INFINITY);
        let gradient = w.floats(DType::F32, &[40]);
        update_of(&mut w, rule, (DType::F32, &[40]), [parameter, gradient], 0.0, false, &[]);
    }
    w.check(1);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn threads_of_a_large_parameter_take_several_parts() {
    let (mut w, sizes) = (Writer::default(), [1025, 1024]);
    let gradient = w.floats(DType::F64, &sizes);
    update(&mut w, &rules()[1], DType::F64, &sizes, gradient, false);
    w.check(1);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn an_update_multiplies_its_gradient_and_may_be_skipped() {
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        let scale = w.scalar(dtype, 0.25);
        let [runs, skips] = [0.0, 1.0].map(|number| w.scalar(DType::Bool, number));
        for rule in &rules() {
            for optional in [&[scale][..], &[scale, runs], &[scale, skips]] {
                for (sizes, dies) in [([24, 32], true), ([3, 7], false)] {
                    let (parameter, gradient) = (w.floats(dtype, &sizes), w.floats(dtype, &sizes));
                    update_of(&mut w, rule, (dtype, &sizes), [parameter, gradient], 0.01, dies, optional);
                }
            }
        }
        w.check(order as u32);
    }
}
