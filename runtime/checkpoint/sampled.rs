//! The fingerprint of data in checkpoints of format 1: the files' sizes, and 64 blocks of 4 KiB of each file.
//!
//! A file of which most bytes changed may have the same one, so that no checkpoint is written with it any more
//! ([`super::fingerprint`]). It is computed to compare data with an old checkpoint's.

use super::fingerprint::{DataFiles, DataFingerprint, Fnv};
use crate::data::{DataError, regular_files};
use files::open_regular;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes read at each place of a file, and the most places.
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;

/// The fingerprint of the training data by the old rule, which left `--input NAME=FILE` out.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn fingerprint(files: &DataFiles) -> Result<DataFingerprint, DataError> {
    let mut fingerprint = match &files.train {
        Some(path) => of(path)?,
        None => DataFingerprint::synthetic(),
    };
    if let Some(path) = &files.tokenizer {
        fingerprint.hash = format!("{} by {}", fingerprint.hash, of(path)?.hash);
    }
    Ok(fingerprint)
}

fn of(path: &Path) -> Result<DataFingerprint, DataError> {
    let mut hash = Fnv::default();
    let mut bytes = 0;
    for file in regular_files(path)? {
        bytes +=
            hash_file(&file, &mut hash).map_err(|source| DataError::Read { path: file.clone(), source })?;
    }
    Ok(DataFingerprint { bytes, hash: hash.to_string(), files: Vec::new() })
}

/// Hashes the size and up to [`BLOCKS`] blocks, the first and the last among them; returns the size.
fn hash_file(path: &Path, hash: &mut Fnv) -> io::Result<u64> {
    let mut file = open_regular(path)?;
    let size = file.metadata()?.len();
    hash.add(&size.to_le_bytes());
    let last = size.saturating_sub(BLOCK);
    let places = BLOCKS.min(size.div_ceil(BLOCK)).max(1);
    for place in 0..places {
        let start = u128::from(last) * u128::from(place) / u128::from((places - 1).max(1));
        file.seek(SeekFrom::Start(start as u64))?;
        let mut block = Vec::new();
        file.by_ref().take(BLOCK).read_to_end(&mut block)?;
        hash.add(&block);
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The values are those that the program wrote before it had format 2.
    #[test]
    fn the_old_rule_gives_what_it_gave() {
        let folder = tempfile::tempdir().unwrap();
        let [train, tokenizer] = ["a.bin", "tokenizer.json"].map(|name| folder.path().join(name));
        let bytes: Vec<u8> = (0..1_000_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
        fs::write(&train, bytes).unwrap();
        fs::write(&tokenizer, "{}").unwrap();
        let mut files = DataFiles { train: Some(train), ..DataFiles::default() };
        let of = |files: &DataFiles| fingerprint(files).unwrap().to_string();
        assert_eq!(of(&files), "1000000 bytes (hash 8aab810140099948)");
        files.tokenizer = Some(tokenizer);
        assert_eq!(of(&files), "1000000 bytes (hash 8aab810140099948 by 9caafcd328e9298b)");
        files.train = None;
        assert_eq!(of(&files), "0 bytes (hash synthetic by 9caafcd328e9298b)");
        assert_eq!(of(&DataFiles::default()), "0 bytes (hash synthetic)");
    }
}
