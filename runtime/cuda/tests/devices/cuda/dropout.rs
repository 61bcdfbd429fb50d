//! Dropout and uniform numbers: what is kept or drawn is what the interpreter keeps or draws, in groups and one by one.

use super::writer::{FLOATS, Writer};
use ir::ops::dropout::Dropout;
use ir::ops::random::RandomUniform;
use ir::{DType, Tensor, Type};

/// The numbers of so many samples: beyond 32 bits, and negative.
fn numbers(w: &mut Writer, samples: i64) -> ir::ValueId {
    w.input(Tensor::int(DType::I64, vec![samples as usize], (0..samples).map(|i| (i << 33) - 1).collect()))
}

#[test]
#[ignore = "needs a C++ compiler"]
fn the_same_elements_are_kept_in_groups_and_one_by_one() {
    let cases = [
        // In groups: rows, heads before samples, several rows of a sample, more than one row of threads.
        (vec![3, 8, 16], 3, 0),
        (vec![4, 3, 64], 3, 1),
        (vec![6, 24], 3, 0),
        (vec![2, 70, 64], 2, 0),
        // One by one: odd rows, samples that stand alone.
        (vec![5, 3, 7], 5, 0),
        (vec![9, 4], 4, 1),
        (vec![10, 3], 5, 0),
    ];
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        for (i, (sizes, samples, dim)) in cases.iter().enumerate() {
            let x = w.numbers(dtype, sizes, |x| x + 10.0);
            let x = if i % 2 == 0 { w.dying(x) } else { x };
            let numbers = numbers(&mut w, *samples);
            for (ratio, id) in [(0.1, 0), (0.5, u32::MAX), (0.0, 2), (1.0, 3)] {
                let op = Dropout { ratio: ratio.into(), id, seed: 5 << 40 | 9, dim: *dim };
                w.op(op, &[x, numbers]);
            }
        }
        w.check(order as u32);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn the_same_numbers_are_drawn_in_groups_and_one_by_one() {
    for (order, dtype) in FLOATS.into_iter().enumerate() {
        let mut w = Writer::default();
        for (sizes, samples, dim) in [
            (&[3, 8, 16][..], Some(3), 0),
            (&[4, 3, 64], Some(3), 1),
            (&[6, 24], Some(3), 0),
            (&[5, 3, 7], Some(5), 0),
            (&[9, 4], Some(4), 1),
            (&[10, 1], Some(5), 0),
            (&[7], None, 0),
        ] {
            let numbers: Vec<_> = samples.map(|samples| numbers(&mut w, samples)).into_iter().collect();
            for id in [0, u32::MAX] {
                let op = RandomUniform { id, seed: 5 << 40 | 9, dim };
                w.typed(op, &numbers, &[Type::of(dtype, sizes)]);
            }
        }
        w.check(order as u32);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn without_numbers_nothing_is_dropped() {
    let mut w = Writer::default();
    let op = Dropout { ratio: 0.5.into(), id: 1, seed: 1, dim: 0 };
    for sizes in [&[3, 5][..], &[8, 8]] {
        let x = w.floats(DType::F32, sizes);
        w.op(op.clone(), &[x]);
        let dying = w.dying(x);
        w.op(op.clone(), &[dying]);
    }
    w.check(0);
}
