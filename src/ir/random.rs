//! Random numbers that depend on nothing but a key and a counter: Philox4x32-10.
//!
//! Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011). The same (key, counter) gives
//! the same numbers on every mesh, thread count and backend.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Four random words for a key and a counter.
pub fn philox(key: u64, counter: [u32; 4]) -> [u32; 4] {
    let mut key = [key as u32, (key >> 32) as u32];
    let mut x = counter;
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let products =
            [u64::from(MULTIPLIERS[0]) * u64::from(x[0]), u64::from(MULTIPLIERS[1]) * u64::from(x[2])];
        let (high, low) = (products.map(|p| (p >> 32) as u32), products.map(|p| p as u32));
        x = [high[1] ^ x[1] ^ key[0], low[1], high[0] ^ x[3] ^ key[1], low[0]];
    }
    x
}

/// The standard normal number of a stream's element, by Box and Muller from 64 random bits each.
pub fn normal(seed: u64, stream: u64, element: u64) -> f64 {
    let counter = [element as u32, (element >> 32) as u32, stream as u32, (stream >> 32) as u32];
    let words = philox(seed, counter);
    let uniform = |high: u32, low: u32| {
        let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
        (bits as f64 + 0.5) / (1u64 << 53) as f64
    };
    let (radius, angle) = (uniform(words[0], words[1]), uniform(words[2], words[3]));
    (-2.0 * radius.ln()).sqrt() * (2.0 * std::f64::consts::PI * angle).cos()
}

/// A stream number for a name: FNV-1a, 64 bits.
pub fn stream(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known-answer test of Random123's distribution (kat_vectors, philox4x32 10).
    #[test]
    fn philox_gives_the_published_numbers() {
        let zeros = philox(0, [0; 4]);
        assert_eq!(zeros, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = philox(u64::MAX, [u32::MAX; 4]);
        assert_eq!(ones, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        let numbers: Vec<f64> = (0..20_000).map(|i| normal(7, stream("w"), i)).collect();
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / numbers.len() as f64;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "mean {mean}, variance {variance}");
    }
}
