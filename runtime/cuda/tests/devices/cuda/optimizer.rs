//! Updates: at once and one by one, of a gradient that lies in several ways, in place and not.

use super::writer::{FLOATS, Writer};
use ir::ops::optimizer::{Adagrad, Adam, Adam8bit, Lion, Sgd};
use ir::{DType, Dim, Op, Type, ValueId};

fn rules() -> [Op; 6] {
    let adam = |decoupled| Adam { beta1: 0.9.into(), beta2: 0.99.into(), eps: 1e-6.into(), decoupled };
    let sgd = |nesterov| Sgd { momentum: 0.8.into(), nesterov };
    [
        adam(false).into(),
        adam(true).into(),
        sgd(false).into(),
        sgd(true).into(),
        Adagrad { eps: 1e-6.into() }.into(),
        Lion { beta1: 0.9.into(), beta2: 0.99.into() }.into(),
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

#[test]
#[ignore = "needs a C++ compiler"]
fn moments_of_adam_may_be_bf16() {
    for (order, dtype) in [DType::F32, DType::F16].into_iter().enumerate() {
        let mut w = Writer::default();
        let scale = w.scalar(dtype, 0.25);
        let skips = w.scalar(DType::Bool, 1.0);
        for rule in &rules()[..2] {
            for (sizes, dies) in [(&[24, 32][..], true), (&[5], false)] {
                for optional in [&[][..], &[scale], &[scale, skips]] {
                    let mut operands = vec![w.floats(dtype, sizes), w.floats(dtype, sizes)];
                    operands.extend([0, 1].map(|_| w.numbers(DType::BF16, sizes, |x| x.abs() + 0.1)));
                    if dies {
                        [0, 2, 3].iter().for_each(|&i| operands[i] = w.dying(operands[i]));
                    }
                    operands.extend([0.1, 0.01, 3.0].map(|number| w.scalar(DType::F64, number)));
                    operands.extend(optional);
                    w.op(rule.clone(), &operands);
                }
            }
        }
        w.check(order as u32);
    }
}

/// Adam in 8 bits, with a gradient that lies so; all tensors but the gradient die there if they are to.
fn update_in_8_bits(
    w: &mut Writer,
    (dtype, sizes, block): (DType, &[usize], u64),
    gradient: ValueId,
    dies: bool,
    optional: &[ValueId],
) {
    let (beta1, beta2, eps) = (0.9.into(), 0.99.into(), 1e-6.into());
    let rule = Adam8bit { beta1, beta2, eps, decoupled: dies, block };
    let dims: Vec<Dim> = sizes.iter().map(|&size| Dim::known(size as u64)).collect();
    let [_, blocks, ..] = rule.states(&Type::new(dtype, dims)).expect("sizes");
    let blocks: Vec<usize> = blocks.sizes().expect("sizes").iter().map(|&size| size as usize).collect();
    let mut operands = vec![w.floats(dtype, sizes), gradient];
    for _ in 0..2 {
        operands.push(w.integers(DType::U8, sizes, 0..256));
        operands.push(w.numbers(dtype, &blocks, |x| x.abs() + 0.1));
    }
    if dies {
        [0, 2, 3, 4, 5].iter().for_each(|&i| operands[i] = w.dying(operands[i]));
    }
    operands.extend([0.1, 0.01, 3.0].map(|number| w.scalar(DType::F64, number)));
    operands.extend(optional);
    w.op(rule, &operands);
}

#[test]
#[ignore = "needs a C++ compiler"]
fn moments_of_adam_may_be_in_8_bits() {
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        let scale = w.scalar(dtype, 0.25);
        let [runs, skips] = [0.0, 1.0].map(|number| w.scalar(DType::Bool, number));
        // Whole blocks; a short last block; one block of several dims; blocks of more elements than a block has threads.
        for (sizes, block) in
            [(&[3, 512][..], 256), (&[2, 300], 256), (&[5, 4], 256), (&[2, 2100], 1024), (&[6, 50], 16)]
        {
            for optional in [&[][..], &[scale], &[scale, runs], &[scale, skips]] {
                let gradient = w.floats(dtype, sizes);
                update_in_8_bits(&mut w, (dtype, sizes, block), gradient, optional.len() != 1, optional);
            }
        }
        let turned = w.floats(dtype, &[300, 4]);
        let turned = w.transposed(turned, &[1, 0]);
        update_in_8_bits(&mut w, (dtype, &[4, 300], 256), turned, true, &[]);
        w.check(order as u32);
    }
}
