//! Rotary embeddings: in packs and one by one, of rows that lie in several ways.

use super::writer::Writer;
use ir::ops::rotary::Rotary;
use ir::{DType, Dim};

/// What rows are cut from: rows of so many elements more, from this one on.
const CUTS: [(usize, u64); 3] = [(0, 0), (16, 8), (5, 3)];

/// Rotates what is cut from `[batch, position, head, width]`, seen as `[batch, head, position, width]`.
fn rotate(writer: &mut Writer, half: usize, [dtype, of_tables]: [DType; 2], table: &[usize]) {
    let [cos, sin] = [(); 2].map(|()| writer.floats(of_tables, table));
    for (more, start) in CUTS {
        let whole = writer.floats(dtype, &[2, 5, 3, 2 * half + more]);
        let x = writer.built(|b| {
            let cut = b.slice(whole, 3, start, Dim::known(2 * half as u64)).expect("it is as wide");
            b.transpose(cut, &[0, 2, 1, 3]).expect("a permutation")
        });
        for interleaved in [false, true] {
            writer.op(Rotary { interleaved }, &[x, cos, sin]);
        }
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn rows_are_rotated_however_they_lie() {
    use DType::{BF16, F16, F32, F64};
    let mut writer = Writer::default();
    rotate(&mut writer, 32, [BF16, F32], &[5, 32]);
    rotate(&mut writer, 16, [BF16, BF16], &[2, 1, 5, 16]);
    rotate(&mut writer, 8, [F16, F64], &[3, 1, 1]);
    rotate(&mut writer, 3, [F16, F16], &[5, 3]);
    rotate(&mut writer, 8, [F32, BF16], &[2, 3, 5, 8]);
    rotate(&mut writer, 7, [F32, F32], &[7]);
    rotate(&mut writer, 6, [F64, F32], &[1, 1, 5, 6]);
    rotate(&mut writer, 1, [F64, F64], &[5, 1]);
    for threads in [0, 1, 2] {
        writer.check(threads);
    }
}
