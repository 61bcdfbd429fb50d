//! The order of the samples: a pure function of (seed, epoch, position), so nothing is stored and nothing is replayed.
//!
//! An epoch's order is a pseudo-random permutation of `0..length`. It is a Feistel network over the smallest domain of `4^k` indices that
//! holds `length` of them, with *cycle walking* (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002): an index that falls
//! outside is encrypted again until it falls inside. A Feistel network is a bijection whatever its round function is, and cycle walking
//! preserves that. The domain is less than four times the length, so a position costs fewer than four encryptions on average, and no
//! memory.

/// The number of rounds. With a good round function, 4 rounds are a strong pseudo-random permutation (Luby and Rackoff 1988) of large
/// domains. 8 rounds also mix tiny domains well, whose halves have only one or two bits.
const ROUNDS: usize = 8;

/// Mixes bits by SplitMix64 (Steele, Lea and Flood 2014): adds the state's increment, and scrambles the sum with the finalizer.
pub(super) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A permutation of `0..length`.
#[derive(Clone, Debug)]
pub struct Permutation {
    length: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// Returns the order of epoch `epoch` under `seed`.
    pub fn new(length: u64, seed: u64, epoch: u64) -> Self {
        let bits = u64::BITS - length.saturating_sub(1).leading_zeros();
        let key = mix(mix(seed) ^ epoch);
        let keys = std::array::from_fn(|round| mix(key.wrapping_add(round as u64)));
        Self { length, half_bits: bits.div_ceil(2).max(1), keys }
    }

    /// Returns the sample at `position`.
    ///
    /// # Panics
    /// Panics if `position` is not below the length.
    pub fn index(&self, position: u64) -> u64 {
        assert!(position < self.length, "position {position} of {}", self.length);
        let mut index = position;
        loop {
            index = self.encrypt(index);
            if index < self.length {
                return index;
            }
        }
    }

    fn encrypt(&self, value: u64) -> u64 {
        let mask = u64::MAX >> (u64::BITS - self.half_bits);
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_order_is_a_bijection(length in 1u64..3000, seed: u64, epoch in 0u64..1000) {
            let order = Permutation::new(length, seed, epoch);
            let seen: BTreeSet<u64> = (0..length).map(|position| order.index(position)).collect();
            prop_assert_eq!(seen.len() as u64, length);
            prop_assert_eq!(seen.last().copied(), Some(length - 1));
        }

        #[test]
        fn large_lengths_stay_in_range(length in 1u64 << 40..u64::MAX, position: u64, seed: u64) {
            prop_assert!(Permutation::new(length, seed, 0).index(position % length) < length);
        }
    }

    #[test]
    fn epochs_and_seeds_give_different_orders() {
        let order = |seed, epoch| -> Vec<u64> {
            let order = Permutation::new(100, seed, epoch);
            (0..100).map(|position| order.index(position)).collect()
        };
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
        assert_ne!(order(1, 0), (0..100).collect::<Vec<_>>());
    }

    /// Every sample comes first about equally often: about 1000 times for each of 8 samples, with a standard deviation of 30.
    #[test]
    fn tiny_orders_are_close_to_uniform() {
        let mut counts = [0u32; 8];
        for epoch in 0..8000 {
            counts[Permutation::new(8, 7, epoch).index(0) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
