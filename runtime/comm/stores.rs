//! Stores into the caches of a processor, or past them (non-temporal stores).
//!
//! A processor reads a line of memory into its cache before it writes a part of it. A copy then moves three bytes between memory and
//! processor for each copied byte, instead of two. Stores past the caches avoid that read. Results that are larger than the cache lose
//! nothing: they would be evicted before they are read.

/// The kind of stores with which an exchange writes its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stores {
    /// Stores into the caches, from which the results are read next.
    Cached,
    /// Stores past the caches.
    PastCaches,
}

/// The number of bytes from which results are stored past the caches: a share of the cache that most processors have for each core.
const LARGE: usize = 4 << 20;

impl Stores {
    /// Returns the kind of stores for an exchange in which a rank writes this number of bytes.
    pub(super) fn of(bytes: usize) -> Self {
        if bytes < LARGE { Self::Cached } else { Self::PastCaches }
    }

    /// Copies bytes between slices of the same length.
    pub(super) fn copy(self, from: &[u8], to: &mut [u8]) {
        match self {
            Self::Cached => to.copy_from_slice(from),
            Self::PastCaches => stream(from, to),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn stream(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "a copy is as long as what is copied");
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    // SAFETY: any bytes are a valid `__m128i`.
    #[allow(unsafe_code)]
    let (head, lines, tail) = unsafe { to.align_to_mut::<[__m128i; 4]>() };
    let (first, rest) = from.split_at(head.len());
    head.copy_from_slice(first);
    let (middle, last) = rest.split_at(size_of_val(lines));
    for (line, from) in lines.iter_mut().zip(middle.as_chunks::<16>().0.as_chunks::<4>().0) {
        for (word, from) in line.iter_mut().zip(from) {
            // SAFETY: x86-64 has SSE2. `word` is aligned, as a reference is; `from` has 16 bytes.
            #[allow(unsafe_code)]
            unsafe {
                _mm_stream_si128(word, _mm_loadu_si128(from.as_ptr().cast()));
            }
        }
    }
    tail.copy_from_slice(last);
    // SAFETY: x86-64 has SSE2. The fence makes the stores visible to other threads before this thread's later actions.
    #[allow(unsafe_code)]
    unsafe {
        _mm_sfence();
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_wherever_the_target_begins() {
        let from: Vec<u8> = (0..1000).map(|i| (i % 251) as u8).collect();
        for start in 0..70 {
            for length in [0, 1, 15, 16, 63, 64, 65, 200, 900] {
                for stores in [Stores::of(LARGE - 1), Stores::of(LARGE)] {
                    let mut to = vec![255; 1000];
                    stores.copy(&from[7..7 + length], &mut to[start..start + length]);
                    assert_eq!(to[start..start + length], from[7..7 + length]);
                    assert!(to[..start].iter().chain(&to[start + length..]).all(|&byte| byte == 255));
                }
            }
        }
    }
}
