//! Products of two panels: the instructions beside their emulations, and the emulations beside plain sums.

use super::*;
use ir::random;

/// Two panels of random pairs, among them zeros, subnormal and very large numbers, infinities and NaNs.
fn panels(key: u64, blocks: usize) -> [Vec<u32>; 2] {
    let word = |side: u64, i: usize| random::philox(key * 2 + side, [i as u32, 0, 0, 0])[0];
    [0, 1].map(|side| {
        let pair = |i: usize| match word(side, i) % 4096 {
            // Any bits, with few numbers whose products are not finite.
            0..64 => word(side, i + blocks * BLOCK),
            64..1024 => word(side, i + blocks * BLOCK) & 0x83ff_83ff,
            _ => word(side, i + blocks * BLOCK) & 0x8fff_8fff | 0x3000_3000,
        };
        (0..blocks * BLOCK).map(pair).collect()
    })
}

/// Instructions and their emulations.
const PAIRS: [(Bf16Products, MultiplyFn, MultiplyFn); 2] = [
    (Bf16Products::Amx, amx::multiply, amx::emulate),
    (Bf16Products::Avx512, avx512::multiply, avx512::emulate),
];

#[test]
fn instructions_have_the_bits_of_their_emulations() {
    for (products, multiply, emulate) in PAIRS {
        if !products.is_here() {
            continue;
        }
        for (key, blocks) in (0..12).flat_map(|key| [1, 2, 5].map(|blocks| (key, blocks))) {
            let [left, right] = panels(key, blocks);
            for add in [false, true] {
                let start: Sums =
                    std::array::from_fn(|i| std::array::from_fn(|j| (i + 64 * j) as f32 * 1e-3 - 0.5));
                let (mut given, mut expected) = (start, start);
                multiply(&left, &right, &mut given, add);
                emulate(&left, &right, &mut expected, add);
                for (i, (given, expected)) in
                    given.as_flattened().iter().zip(expected.as_flattened()).enumerate()
                {
                    let is_same =
                        given.to_bits() == expected.to_bits() || given.is_nan() && expected.is_nan();
                    assert!(
                        is_same,
                        "{products:?} {key} {blocks} {add}: sum {i} is {given:e}, not {expected:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn emulations_compute_the_product() {
    let one = |i: usize| u32::from(half::bf16::from_f32((i % 13) as f32 - 6.0).to_bits());
    let panel = |step: usize| -> Vec<u32> {
        (0..2 * BLOCK).map(|i| one(i * step) | one(i * step + 5) << 16).collect()
    };
    let (left, right) = (panel(7), panel(3));
    let number = |pairs: &[u32], place: usize, term: usize| numbers(pairs[place])[term % 2];
    for (products, _, emulate) in PAIRS {
        let mut sums: Sums = [[1.0; TILE]; 4 * TILE];
        emulate(&left, &right, &mut sums, true);
        for (row, column) in (0..SIDE).flat_map(|row| (0..SIDE).map(move |column| (row, column))) {
            let terms = (0..2 * TERMS).map(|term| {
                let (block, pair) = (term / TERMS * BLOCK, term % TERMS / 2);
                let a = number(&left, block + row * TILE + pair, term);
                a * number(&right, block + (column / TILE * TILE + pair) * TILE + column % TILE, term)
            });
            let expected = 1.0 + terms.sum::<f32>();
            assert_eq!(
                sums[place(row, column / TILE)][column % TILE],
                expected,
                "{products:?} {row} {column}"
            );
        }
    }
}
