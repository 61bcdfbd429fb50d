//! The checksum of bytes on disk: XXH3, 64 bits, which notices every flipped bit and takes less time than reading does.

use std::fmt;
use std::hash::Hasher;
use twox_hash::XxHash3_64;

/// A checksum of bytes that are added part by part. It does not depend on the boundaries of the parts. Source of the function:
/// <https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>.
#[derive(Clone)]
pub struct Checksum(XxHash3_64);

impl Default for Checksum {
    fn default() -> Self {
        Self(XxHash3_64::with_seed(0))
    }
}

impl Checksum {
    /// The length of a sum as text.
    pub const DIGITS: usize = 16;

    /// Returns the checksum of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut sum = Self::default();
        sum.add(bytes);
        sum
    }

    /// Returns the checksum as a number.
    pub fn number(&self) -> u64 {
        self.0.finish()
    }

    /// Adds the bytes that follow those added so far.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }
}

/// Writes the checksum as 16 hexadecimal digits.
impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0.finish())
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_xxh3s_whatever_the_parts() {
        // The sum of no bytes, as the reference implementation gives it.
        assert_eq!(Checksum::default().to_string(), "2d06800538d394c2");
        let bytes: Vec<u8> = (0..10_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
        let whole = Checksum::of(&bytes).to_string();
        let mut parts = Checksum::default();
        bytes.chunks(333).for_each(|part| parts.add(part));
        assert_eq!(parts.to_string(), whole);
        let mut flipped = bytes;
        flipped[5000] ^= 1;
        assert_ne!(Checksum::of(&flipped).to_string(), whole);
    }
}
