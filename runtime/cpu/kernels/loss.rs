//! Softmax cross-entropy and its gradient, without a second copy of the logits.

use super::PARALLEL;
use super::softmax::logsumexp_parts;
use crate::call::Call;
use crate::element::{Element, with_float};
use crate::math::{Float, Real};
use crate::simd::{sum, vectorized};
use crate::storage::Scratch;
use ir::ops::loss::{CrossEntropy, CrossEntropyGrad};
use rayon::prelude::*;

/// Returns the class of a position, if the position counts.
fn class(label: i64, ignore_index: i64, classes: usize) -> Option<usize> {
    usize::try_from(label).ok().filter(|&class| label != ignore_index && class < classes)
}

fn classes(call: &Call) -> usize {
    call.operand_view(0).layout.sizes.last().map_or(1, |&classes| classes.max(1))
}

pub(super) fn cross_entropy(op: &CrossEntropy, mut call: Call) {
    let classes = classes(&call);
    let labels = call.integers(1);
    let smoothing = op.label_smoothing.get();
    with_float!(call.operand_view(0).dtype, S => {
        type T = <S as Float>::Real;
        let logits = call.dense::<S>(0);
        let [total, weight, logsumexps] = call.take_results().map(bytemuck::cast_slice_mut::<u8, T>);
        let rows = logits.par_chunks_exact(classes).zip(&labels).zip(logsumexps);
        let rows = rows.with_min_len((PARALLEL / 16 / classes).max(1));
        let losses = rows.map_init(Scratch::new, |scratch, ((row, &label), total)| {
            let row = scratch.read(row);
            let (largest, rest) = logsumexp_parts(row);
            *total = largest + rest;
            let class = class(label, op.ignore_index, classes)?;
            let below = |x: f64| largest.to_f64() - x;
            let target = (1.0 - smoothing) * below(row[class].to_f64());
            let uniform =
                if smoothing == 0.0 { 0.0 } else { smoothing * below(row_sum(row).to_f64() / classes as f64) };
            Some(rest.to_f64() + target + uniform)
        });
        let losses: Vec<Option<f64>> = losses.collect();
        // The sum goes row by row in f64, in an order that does not depend on the threads.
        total[0] = T::of(losses.iter().flatten().sum());
        weight[0] = T::of(losses.iter().flatten().count() as f64);
    });
}

vectorized! {
    fn row_sum<'a; T: Real>(row: &'a [T]) -> T {
        sum([row], |[x]| x)
    }
}

pub(super) fn cross_entropy_grad(op: &CrossEntropyGrad, mut call: Call) {
    let classes = classes(&call);
    // Labels count all classes; this device may have only a part of them.
    let span = call.operand_span(0, call.operand_view(0).layout.sizes.len() - 1);
    let (all, first) = (span.size as usize, span.start as usize);
    let labels = call.integers(1);
    let smoothing = op.label_smoothing.get();
    with_float!(call.dtype(), S => {
        type T = <S as Float>::Real;
        let (logits, logsumexps) = (call.dense_or_in_place::<S>(0), call.dense::<T>(2));
        let factor = call.scalar::<T>(3);
        let uniform = T::of(smoothing / all as f64);
        let rows = call.take_result::<S>().par_chunks_exact_mut(classes).zip(&labels).zip(logsumexps).enumerate();
        let rows = rows.with_min_len((PARALLEL / 16 / classes).max(1));
        rows.for_each_init(Scratch::new, |scratch, (i, ((row, &label), &total))| {
            let Some(class) = class(label, op.ignore_index, all) else { return row.fill(S::narrow(0.0)) };
            if let Some(logits) = logits {
                row.copy_from_slice(&logits[i * classes..(i + 1) * classes]);
            }
            scratch.update(row, |row| {
                if all == classes {
                    gradient_row(row, total, uniform, factor)
                } else {
                    gradient_part(row, total, uniform, factor)
                }
                if let Some(target) = class.checked_sub(first).and_then(|class| row.get_mut(class)) {
                    *target -= factor * T::of(1.0 - smoothing);
                }
            });
        });
    });
}

vectorized! {
    /// Computes `factor·(softmax(row) - uniform)` in place. Normalises the row again: the logsumexp of large logits is rounded so coarsely
    /// that the small remaining gradient of a confident class would be wrong in the fourth digit.
    fn gradient_row<'a; T: Real>(row: &'a mut [T], logsumexp: T, uniform: T, factor: T) {
        row.iter_mut().for_each(|x| *x = (*x - logsumexp).exp());
        let share = T::ONE / sum([&*row], |[x]| x);
        row.iter_mut().for_each(|x| *x = factor * (*x * share - uniform));
    }

    /// Computes the same for a part of the classes, without normalising again.
    fn gradient_part<'a; T: Real>(row: &'a mut [T], logsumexp: T, uniform: T, factor: T) {
        row.iter_mut().for_each(|x| *x = factor * ((*x - logsumexp).exp() - uniform));
    }
}
