//! Unpacking of compressed files into memory, bounded by the available memory of the machine.
//!
//! A byte of deflate becomes up to 1032 bytes (<https://zlib.net/zlib_tech.html>), so a small file may unpack to more than fits. If the
//! system cannot back an allocation, it kills the process without a message; these bounds report an error first.

use std::io::{self, Read};

use files::memory;

/// The reason why a file was not unpacked.
#[derive(Debug)]
pub(super) enum UnpackError {
    /// The bytes do not fit into the memory that is available.
    TooLarge {
        /// Bytes that the file unpacks to, or the bytes at which unpacking ended.
        bytes: u64,
        /// The largest number of bytes that it may take.
        most: u64,
    },
    /// The compressed stream is damaged.
    Damaged(io::Error),
}

/// Returns the largest size of an unpacked file from which arrays are then copied: half of the available memory. No limit if the system
/// does not report it.
pub(super) fn most() -> u64 {
    memory::available().map_or(u64::MAX, |available| available / 2)
}

/// Returns the largest size of an unpacked array that is used in place: seven eighths of the available memory, since other programs need
/// some too. No limit if the system does not report it.
pub(super) fn most_in_place() -> u64 {
    memory::available().map_or(u64::MAX, |available| available / 8 * 7)
}

/// Reads `reader` to its end, which must come after `size` bytes.
///
/// # Errors
/// `size` is above `most`; the reader fails, or ends before or after `size` bytes.
pub(super) fn exactly(reader: impl Read, size: u64, most: u64) -> Result<Vec<u8>, UnpackError> {
    let too_large = || UnpackError::TooLarge { bytes: size, most };
    if size > most {
        return Err(too_large());
    }
    let mut unpacked = Vec::new();
    unpacked.try_reserve_exact(usize::try_from(size).map_err(|_| too_large())?).map_err(|_| too_large())?;
    // One more byte, so that the reader reaches its end, where it verifies its checksum.
    reader.take(size.saturating_add(1)).read_to_end(&mut unpacked).map_err(UnpackError::Damaged)?;
    if unpacked.len() as u64 != size {
        let there = if unpacked.len() as u64 > size { "there are more" } else { "there are fewer" };
        return Err(UnpackError::Damaged(io::Error::other(format!(
            "{size} bytes are announced, and {there}"
        ))));
    }
    Ok(unpacked)
}

/// Reads `reader` to its end.
///
/// # Errors
/// There are more than `most` bytes; the reader fails.
pub(super) fn to_end(mut reader: impl Read, most: u64) -> Result<Vec<u8>, UnpackError> {
    const CHUNK: u64 = 1 << 20;
    let mut unpacked = Vec::new();
    loop {
        let too_large = |unpacked: &Vec<u8>| UnpackError::TooLarge { bytes: unpacked.len() as u64, most };
        unpacked.try_reserve(CHUNK as usize).map_err(|_| too_large(&unpacked))?;
        let read = reader.by_ref().take(CHUNK).read_to_end(&mut unpacked).map_err(UnpackError::Damaged)?;
        if unpacked.len() as u64 > most {
            return Err(too_large(&unpacked));
        }
        if read == 0 {
            return Ok(unpacked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_never_ends_is_left_at_the_limit() {
        let error = to_end(io::repeat(0), 5 << 20).unwrap_err();
        assert!(
            matches!(error, UnpackError::TooLarge { bytes, most: 0x50_0000 } if bytes <= 6 << 20),
            "{error:?}"
        );
        assert_eq!(to_end(io::repeat(7).take(3 << 20), 3 << 20).unwrap(), vec![7; 3 << 20]);
        assert!(to_end(io::empty(), 0).unwrap().is_empty());
    }

    #[test]
    fn a_size_that_is_not_there_is_refused_before_it_is_allocated() {
        for size in [1 << 50, u64::MAX] {
            let error = exactly(io::empty(), size, u64::MAX).unwrap_err();
            assert!(matches!(error, UnpackError::TooLarge { .. }), "{error:?}");
        }
        assert!(matches!(exactly(io::empty(), 9, 8), Err(UnpackError::TooLarge { bytes: 9, most: 8 })));
        for there in [2, 4] {
            let error = exactly(io::repeat(1).take(there), 3, 8).unwrap_err();
            assert!(matches!(error, UnpackError::Damaged(_)), "{there}: {error:?}");
        }
        assert_eq!(exactly(io::repeat(1).take(3), 3, 8).unwrap(), [1; 3]);
    }
}
