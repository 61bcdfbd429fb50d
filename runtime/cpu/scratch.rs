//! The scratch of the CPU kernels, counted in f32 elements.

use super::bf16::Part;
use ir::ops::Labels;
use ir::ops::contract::Contract;
use ir::{DType, Op};
use program::Multiprocessors;
use program::kernel_contract::Unplaced;

/// The largest number of f32 elements of scratch of a contraction: 4 MiB.
const MOST_SCRATCH: usize = 1 << 20;
/// The largest number of multiplications of one contraction that have scratch of their own.
const MOST_SHARES: usize = 16;

/// Returns the scratch of a contraction. A contraction of f16 or bf16 converts its operands to f32 there and sums there: whole operands if
/// they are small, else tile by tile.
pub(super) fn contraction(op: &Op, operands: &[Unplaced], results: &[Unplaced], _: Multiprocessors) -> usize {
    let Op::Contract(contract) = op else { unreachable!("it is in the contract of contractions") };
    if !matches!(results[0].dtype, DType::F16 | DType::BF16) {
        return 0;
    }
    let ([rows, columns, summed], batch) = sizes_of(contract, operands);
    let pairs = [(rows, summed), (summed, columns), (rows, columns)];
    let numbers = pairs.iter().map(|(a, b)| a.saturating_mul(*b)).fold(0, usize::saturating_add);
    numbers.saturating_mul(batch.min(MOST_SHARES)).clamp(3, MOST_SCRATCH)
}

/// Returns the scratch of a contraction whose operands are packed if they are bf16. Other types take that of [`contraction`].
pub(super) fn packed_contraction(
    op: &Op,
    operands: &[Unplaced],
    results: &[Unplaced],
    size: Multiprocessors,
) -> usize {
    let Op::Contract(contract) = op else { unreachable!("it is in the contract of contractions") };
    if results[0].dtype != DType::BF16 {
        return contraction(op, operands, results, size);
    }
    let ([rows, columns, summed], batch) = sizes_of(contract, operands);
    let numbers = Part::whole([rows, summed, columns], 1).len();
    numbers.saturating_mul(batch.min(MOST_SHARES)).clamp(Part::LEAST, MOST_SCRATCH)
}

/// Returns the numbers of rows, columns and terms of a contraction, and of its multiplications.
fn sizes_of(contract: &Contract, operands: &[Unplaced]) -> ([usize; 3], usize) {
    let size = |label: &u8| {
        let of = |labels: &Labels, tensor: &Unplaced| {
            Some(tensor.layout.sizes[labels.0.iter().position(|l| l == label)?])
        };
        of(&contract.lhs, &operands[0]).or_else(|| of(&contract.rhs, &operands[1])).unwrap_or(1)
    };
    let product = |labels: &[u8]| labels.iter().map(size).fold(1, usize::saturating_mul);
    let roles = contract.roles();
    ([&roles.rows, &roles.columns, &roles.summed].map(|labels| product(labels)), product(&roles.batch))
}

/// Returns the scratch of experts: the gathered rows of both sides, and one matrix.
pub(super) fn experts(_: &Op, operands: &[Unplaced], results: &[Unplaced], _: Multiprocessors) -> usize {
    let (x, y) = (&operands[0].layout.sizes, &results[0].layout.sizes);
    rows_and_matrix([x[0], x[1], y[1]], results[0].dtype)
}

/// Returns the scratch of the gradient of experts' weights, which is that of experts.
pub(super) fn experts_grad(_: &Op, operands: &[Unplaced], results: &[Unplaced], _: Multiprocessors) -> usize {
    let (rows, columns) = (&operands[1].layout.sizes, &operands[2].layout.sizes);
    rows_and_matrix([rows[0], rows[1], columns[1]], results[0].dtype)
}

fn rows_and_matrix([rows, k, n]: [usize; 3], dtype: DType) -> usize {
    let width = if dtype == DType::F64 { 2 } else { 1 };
    let numbers = rows.saturating_mul(k.saturating_add(n)).saturating_add(k.saturating_mul(n));
    numbers.saturating_mul(width)
}

/// Returns the scratch of a recurrent layer or of its gradient: the packed weight, and the states and sums of two steps.
pub(super) fn recurrent(op: &Op, operands: &[Unplaced], results: &[Unplaced], _: Multiprocessors) -> usize {
    let is_gradient = matches!(op, Op::RecurrentGrad(_));
    let weight = &operands[if is_gradient { 0 } else { 1 }];
    let (width, units, batch) = (weight.layout.sizes[0], weight.layout.sizes[1], results[0].layout.sizes[1]);
    let [of_states, of_sums] = if is_gradient { [2, 2] } else { [3, 1] };
    let of_entry = units.saturating_mul(of_states).saturating_add(width.saturating_mul(of_sums));
    let words = if weight.dtype == DType::F64 { 2 } else { 1 };
    let weight = if is_gradient {
        packed_len(width, 1, units)
    } else {
        packed_len(units, width / units.max(1), units)
    };
    weight.saturating_add(batch.saturating_mul(of_entry)).saturating_mul(words)
}

/// The columns of a panel of a weight that is packed for a recurrent layer.
pub(super) const PANEL: usize = 16;

/// Returns the number of elements of a packed weight `[depth, sections · columns]`. Each section has whole panels.
pub(super) fn packed_len(depth: usize, sections: usize, columns: usize) -> usize {
    depth.saturating_mul(sections).saturating_mul(columns.div_ceil(PANEL).saturating_mul(PANEL))
}
