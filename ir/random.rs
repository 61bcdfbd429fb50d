//! Random numbers that depend only on a key and a counter: Philox4x32-10.
//!
//! Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011). The same (key, counter) gives
//! the same numbers on every mesh, thread count and backend.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Returns four random words for a key and a counter.
pub fn philox(key: u64, counter: [u32; 4]) -> [u32; 4] {
    philox_lanes(key, counter.map(|word| [word])).map(|[word]| word)
}

/// Computes [`philox`] of `N` counters at once. The arguments are the first words of all counters, then their second words, and so
/// on, and the results are arranged in the same way. The loops over lanes vectorize if the caller is compiled for vectors.
#[inline(always)]
pub fn philox_lanes<const N: usize>(key: u64, counters: [[u32; N]; 4]) -> [[u32; N]; 4] {
    let mut key = [key as u32, (key >> 32) as u32];
    let [mut a, mut b, mut c, mut d] = counters;
    for _ in 0..10 {
        for lane in 0..N {
            let first = u64::from(MULTIPLIERS[0]) * u64::from(a[lane]);
            let second = u64::from(MULTIPLIERS[1]) * u64::from(c[lane]);
            a[lane] = (second >> 32) as u32 ^ b[lane] ^ key[0];
            b[lane] = second as u32;
            c[lane] = (first >> 32) as u32 ^ d[lane] ^ key[1];
            d[lane] = first as u32;
        }
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    [a, b, c, d]
}

/// Returns the standard normal number of a stream's element, by the Box-Muller method from two uniform numbers of 53 random bits.
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

/// Returns a stream number for a name: FNV-1a, 64 bits.
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
        let of_pi = philox(0x299f_31d0_a409_3822, [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]);
        assert_eq!(of_pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn lanes_give_what_each_counter_gives_alone() {
        let counter = |lane: u32| [lane, 7 * lane, u32::MAX - lane, 1 << lane];
        let lanes: [[u32; 8]; 4] =
            std::array::from_fn(|word| std::array::from_fn(|lane| counter(lane as u32)[word]));
        let words = philox_lanes(11, lanes);
        for lane in 0..8 {
            assert_eq!(words.map(|word| word[lane]), philox(11, counter(lane as u32)));
        }
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        let numbers: Vec<f64> = (0..20_000).map(|i| normal(7, stream("w"), i)).collect();
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / numbers.len() as f64;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "mean {mean}, variance {variance}");
    }
}
