//! Products by `vdpbf16ps` of AVX-512, which adds the products of 16 pairs to 16 sums.
//!
//! The operation is described in Intel's *Architecture Instruction Set Extensions Programming Reference*, chapter 2.

use super::{BLOCK, SIDE, Sums, TILE, multiplied, place};

/// Returns whether this processor has the instruction.
#[cfg(target_arch = "x86_64")]
pub(super) fn is_here() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16")
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn is_here() -> bool {
    false
}

/// The rows whose sums are in registers at the same time: 16 sums of 16 numbers, beside two registers of the right panel.
#[cfg(target_arch = "x86_64")]
const ROWS: usize = 8;

/// Multiplies two panels, as [`super::MultiplyFn`] says.
#[cfg(target_arch = "x86_64")]
pub(super) fn multiply(left: &[u32], right: &[u32], sums: &mut Sums, add: bool) {
    assert!(is_here());
    // SAFETY: the processor has the instructions.
    #[allow(unsafe_code)]
    unsafe {
        multiply_here(left, right, sums, add);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn multiply_here(left: &[u32], right: &[u32], sums: &mut Sums, add: bool) {
    use std::arch::x86_64::{
        __m512, __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_set1_epi32,
        _mm512_setzero_ps, _mm512_storeu_ps,
    };
    /// Returns 16 pairs.
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn pairs(numbers: __m512i) -> __m512bh {
        // SAFETY: both types are 64 bytes of which every value is valid.
        #[allow(unsafe_code)]
        unsafe {
            std::mem::transmute(numbers)
        }
    }
    for first in (0..SIDE).step_by(ROWS) {
        let mut held: [[__m512; 2]; ROWS] = [[_mm512_setzero_ps(); 2]; ROWS];
        if add {
            for (row, held) in held.iter_mut().enumerate() {
                for (half, held) in held.iter_mut().enumerate() {
                    let from = &sums[place(first + row, half)];
                    // SAFETY: these are 16 numbers.
                    #[allow(unsafe_code)]
                    unsafe {
                        *held = _mm512_loadu_ps(from.as_ptr());
                    }
                }
            }
        }
        for (left, right) in left.chunks_exact(BLOCK).zip(right.chunks_exact(BLOCK)) {
            let left = &left[first * TILE..][..ROWS * TILE];
            for pair in 0..TILE {
                let columns = [0, 1].map(|half| {
                    let from = &right[(half * TILE + pair) * TILE..][..TILE];
                    // SAFETY: the slice has 16 pairs.
                    #[allow(unsafe_code)]
                    pairs(unsafe { _mm512_loadu_si512(from.as_ptr().cast()) })
                });
                for (row, held) in held.iter_mut().enumerate() {
                    let one = pairs(_mm512_set1_epi32(left[row * TILE + pair].cast_signed()));
                    *held = [0, 1].map(|half| _mm512_dpbf16_ps(held[half], one, columns[half]));
                }
            }
        }
        for (row, held) in held.iter().enumerate() {
            for (half, held) in held.iter().enumerate() {
                let to = &mut sums[place(first + row, half)];
                // SAFETY: these are 16 numbers.
                #[allow(unsafe_code)]
                unsafe {
                    _mm512_storeu_ps(to.as_mut_ptr(), *held);
                }
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn multiply(left: &[u32], right: &[u32], sums: &mut Sums, add: bool) {
    emulate(left, right, sums, add);
}

/// Does the same as [`multiply`] on any processor: the products are added to the sum one by one, in each pair the second one first.
pub(super) fn emulate(left: &[u32], right: &[u32], sums: &mut Sums, add: bool) {
    super::emulate([left, right], sums, add, |sum, factors| {
        factors.iter().fold(sum, |sum, [a, b]| multiplied(a[0], b[0], multiplied(a[1], b[1], sum)))
    });
}
