//! Transposes tiles of 16 x 16 numbers of 32 bits.

use super::{TILE, Tile};

/// Transposes a tile.
pub(super) fn turn(tile: &mut Tile) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has the instructions.
        #[allow(unsafe_code)]
        return unsafe { turn_by_avx512(tile) };
    }
    turn_anywhere(tile);
}

fn turn_anywhere(tile: &mut Tile) {
    let old = *tile;
    for (i, row) in tile.iter_mut().enumerate() {
        *row = old.map(|row| row[i]);
    }
}

/// Exchanges neighbouring numbers, then neighbouring pairs of numbers, and then quarters of the registers, which are rows.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn turn_by_avx512(tile: &mut Tile) {
    use std::arch::x86_64::{
        __m512i, _mm512_loadu_si512, _mm512_shuffle_i32x4, _mm512_storeu_si512, _mm512_unpackhi_epi32,
        _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
    };
    // SAFETY: a row has 64 bytes.
    #[allow(unsafe_code)]
    let rows: [__m512i; TILE] =
        std::array::from_fn(|i| unsafe { _mm512_loadu_si512(tile[i].as_ptr().cast()) });
    let ones: [__m512i; TILE] = std::array::from_fn(|i| match i % 2 {
        0 => _mm512_unpacklo_epi32(rows[i], rows[i + 1]),
        _ => _mm512_unpackhi_epi32(rows[i - 1], rows[i]),
    });
    // Row 4 a + b has column b of each quarter of rows 4 a to 4 a + 3.
    let twos: [__m512i; TILE] = std::array::from_fn(|i| {
        let first = i / 4 * 4 + i % 4 / 2;
        match i % 2 {
            0 => _mm512_unpacklo_epi64(ones[first], ones[first + 2]),
            _ => _mm512_unpackhi_epi64(ones[first], ones[first + 2]),
        }
    });
    // Of each two rows, the first and the third quarters, and then the second and the fourth.
    let quarters = |of: &[__m512i; TILE], apart: usize, i: usize| match i / apart % 2 {
        0 => _mm512_shuffle_i32x4::<0x88>(of[i], of[i + apart]),
        _ => _mm512_shuffle_i32x4::<0xdd>(of[i - apart], of[i]),
    };
    let halves: [__m512i; TILE] = std::array::from_fn(|i| quarters(&twos, 4, i));
    let turned: [__m512i; TILE] = std::array::from_fn(|i| quarters(&halves, 8, i));
    for (row, turned) in tile.iter_mut().zip(turned) {
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe {
            _mm512_storeu_si512(row.as_mut_ptr().cast(), turned);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_is_transposed() {
        let tile: Tile = std::array::from_fn(|i| std::array::from_fn(|j| (100 * i + j) as u32));
        let expected: Tile = std::array::from_fn(|i| std::array::from_fn(|j| (100 * j + i) as u32));
        for turn in [turn, turn_anywhere] {
            let mut turned = tile;
            turn(&mut turned);
            assert_eq!(turned, expected);
        }
    }
}
