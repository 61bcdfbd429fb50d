//! Generated values: a pure function of (seed, tensor, row, element), so order and microbatches do not change them.

use ir::DType;

use super::element::{self, Scalar};
use super::order::mix;

/// The number of samples of synthetic data: many enough for a long epoch, and few enough to go through.
pub(super) const SAMPLES: u64 = 1 << 16;

/// The values of one tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Synthetic {
    key: u64,
    /// Integers are drawn from `0..limit`; floats are standard normal.
    limit: u64,
}

impl Synthetic {
    pub(super) fn new(seed: u64, name: &str, limit: u64) -> Self {
        let key = name.bytes().fold(mix(seed), |key, byte| mix(key ^ u64::from(byte)));
        Self { key, limit: limit.max(1) }
    }

    /// Fills `out` with row `row` from its element `first` on.
    pub(super) fn write_row(&self, dtype: DType, row: u64, first: u64, out: &mut [u8]) {
        for (index, slot) in out.chunks_exact_mut(dtype.bytes() as usize).enumerate() {
            let bits = mix(mix(self.key ^ row).wrapping_add(first + index as u64));
            let value = if dtype.is_float() {
                Scalar::Float(normal(bits))
            } else {
                Scalar::Integer((bits % self.limit).into())
            };
            let fits = element::write(dtype, value, slot);
            debug_assert!(fits, "{value:?} does not fit {dtype}: the limit was checked before");
        }
    }
}

/// Returns the largest limit, at most `wanted`, whose integers all fit `dtype`.
pub(super) fn limit(dtype: DType, wanted: u64) -> u64 {
    let bits = match dtype {
        DType::Bool => 1,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => dtype.bytes() * 8 - 1,
        _ => dtype.bytes() * 8,
    };
    wanted.min(1u64.checked_shl(bits as u32).unwrap_or(u64::MAX))
}

/// Returns a standard normal number, by Box and Muller (1958).
fn normal(bits: u64) -> f64 {
    let unit = |bits: u64| ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let (radius, angle) = (unit(bits), unit(mix(bits)));
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Array;

    #[test]
    fn floats_have_mean_0_and_variance_1() {
        let mut bytes = vec![0; 4 * 20_000];
        Synthetic::new(1, "x", 1).write_row(DType::F32, 0, 0, &mut bytes);
        let values = Array { dtype: DType::F32, dims: vec![20_000], bytes }.to_f64s();
        let mean = values.iter().sum::<f64>() / 20_000.0;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "mean {mean}, variance {variance}");
    }

    #[test]
    fn integers_stay_below_the_limit_and_rows_overlap_as_a_stream_does() {
        let tokens = Synthetic::new(1, "x", 7);
        let mut row = [0; 16];
        tokens.write_row(DType::U8, 3, 0, &mut row);
        assert!(row.iter().all(|&token| token < 7) && row.iter().any(|&token| token != row[0]));
        let mut shifted = [0; 15];
        tokens.write_row(DType::U8, 3, 1, &mut shifted);
        assert_eq!(shifted, row[1..]);
        assert_eq!(limit(DType::Bool, 512), 2);
        assert_eq!(limit(DType::I8, 512), 128);
        assert_eq!(limit(DType::U64, u64::MAX), u64::MAX);
    }
}
