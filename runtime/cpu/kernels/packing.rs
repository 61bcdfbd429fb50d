//! Packs bools into the bits of bytes, and unpacks them.

use crate::call::Call;
use rayon::prelude::*;

/// The number of bytes of a task if rows have whole bytes: their bools fill half of a first-level cache.
const RUN: usize = 1 << 11;

/// The number of rows of a task if rows end within a byte.
const ROWS: usize = 64;

/// Returns the number of bools and of bytes of a task, and the number of bools of a row. If rows have whole bytes, a task counts as one
/// row.
fn task(sizes: &[usize]) -> [usize; 3] {
    let bools = sizes.last().copied().unwrap_or(1);
    if bools.is_multiple_of(8) {
        [8 * RUN, RUN, 8 * RUN]
    } else {
        [ROWS * bools, ROWS * bools.div_ceil(8), bools]
    }
}

pub(super) fn pack(mut call: Call) {
    let [bools, bytes, row] = task(&call.operand_view(0).layout.sizes);
    let (x, out) = (call.dense::<u8>(0), call.take_result::<u8>());
    x.par_chunks(bools).zip(out.par_chunks_mut(bytes)).for_each(|(x, out)| {
        for (x, out) in x.chunks(row).flat_map(|row| row.chunks(8)).zip(out) {
            *out = x.iter().rev().fold(0, |bits, &bit| bits << 1 | bit);
        }
    });
}

pub(super) fn unpack(mut call: Call) {
    let [bools, bytes, row] = task(&call.result_view(0).layout.sizes);
    let (x, out) = (call.dense::<u8>(0), call.take_result::<u8>());
    out.par_chunks_mut(bools).zip(x.par_chunks(bytes)).for_each(|(out, x)| {
        for (out, &bits) in out.chunks_mut(row).flat_map(|row| row.chunks_mut(8)).zip(x) {
            out.iter_mut().enumerate().for_each(|(k, bool)| *bool = bits >> k & 1);
        }
    });
}
