//! Checks whether `interp` gives different numbers for the same operands at another place of larger tensors.

use super::{Check, close, interp};
use ir::ops::{Interp, PartSpans};
use ir::samples::Sample;
use ir::{Operator, Span, Type};
use smallvec::SmallVec;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Checks that numbers that depend on the place of a part are declared to do so.
pub(crate) fn check(sample: &Sample, depends: bool) -> Check {
    if depends || !moves(sample) {
        Ok(())
    } else {
        Err("the numbers of a part depend on its place, which is not declared".into())
    }
}

/// Whether the results change, or `interp` panics, when all tensors are the second halves of larger tensors along some dim.
fn moves(sample: &Sample) -> bool {
    let results = sample.result_types().expect("samples are well-typed");
    let operands = sample.fill(1);
    let here = interp(sample, &operands, &results);
    let most = results.iter().chain(&sample.operand_types()).map(Type::ndim).max().unwrap_or(0);
    (0..most).any(|dim| {
        let second_half = |ty: &Type| {
            let sizes = ty.sizes().expect("samples have bound dims").into_iter().enumerate();
            let span = |(own, size)| {
                if own == dim { Span { start: size, size: 2 * size } } else { Span { start: 0, size } }
            };
            sizes.map(span).collect::<SmallVec<[Span; 4]>>()
        };
        let parts = PartSpans {
            operands: sample.operand_types().iter().map(second_half).collect(),
            results: results.iter().map(second_half).collect(),
        };
        let operands: Vec<_> = operands.iter().collect();
        let call = Interp { operands: &operands, results: &results, data: &sample.data, parts: Some(&parts) };
        // `interp` may panic, because indices may lie outside of the second half.
        let there = catch_unwind(AssertUnwindSafe(|| sample.op.interp(&call)));
        there.map_or(true, |there| there.iter().zip(&here).any(|(there, here)| !close(there, here)))
    })
}
