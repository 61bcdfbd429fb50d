//! Fingerprints of samples, the sizes of the files and blocks of 4 KiB of each file, and the choice between them and those of all bytes.
//!
//! A file may have the same samples although most of its bytes changed. So a checkpoint has such a fingerprint only if it was saved before
//! all bytes were read ([`super::PendingFingerprint`]), or in format 1.

use super::fingerprint::{DataFiles, DataFingerprint, HashRule};
use data::{DataError, regular_files};
use files::{Checksum, open_regular};
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// The bytes read at each place of a file, and the largest number of places.
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;

/// The largest number of places in all files together. Samples of 256 MiB are read in seconds, unless there are more files.
const BLOCKS_OF_ALL: u64 = 1 << 16;

impl DataFiles {
    /// Returns the fingerprint by the rule of another one with which it will be compared.
    ///
    /// # Errors
    /// A file cannot be read, or changes while it is read.
    pub(super) fn fingerprint_like(&self, other: &DataFingerprint) -> Result<DataFingerprint, DataError> {
        match other.rule {
            HashRule::Whole => self.fingerprint(Some(other)),
            HashRule::Samples => fingerprint(self),
            HashRule::SamplesOfFormat1 => fingerprint_of_format_1(self),
        }
    }

    /// Returns the fingerprint of the files' sizes and of samples of them, which takes seconds at most.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn sampled(&self) -> Result<DataFingerprint, DataError> {
        fingerprint(self)
    }
}

/// Returns the fingerprint of the sizes and samples of all files.
///
/// # Errors
/// A file cannot be read.
pub(super) fn fingerprint(files: &DataFiles) -> Result<DataFingerprint, DataError> {
    let files = files.list()?;
    let mut fingerprint = DataFingerprint::synthetic();
    let places = (BLOCKS_OF_ALL / (files.len() as u64).max(1)).clamp(1, BLOCKS);
    let mut sum = Checksum::default();
    for (purpose, path) in &files {
        sum.add(format!("{purpose}\n").as_bytes());
        let size = sample(path, places, &mut |bytes| sum.add(bytes));
        fingerprint.bytes += size.map_err(|source| DataError::Read { path: path.clone(), source })?;
    }
    if !files.is_empty() {
        (fingerprint.hash, fingerprint.rule) = (sum.to_string(), HashRule::Samples);
    }
    Ok(fingerprint)
}

/// Returns the fingerprint of the training data by the rule of format 1, which omitted `--input NAME=FILE`.
///
/// # Errors
/// A file cannot be read.
pub(super) fn fingerprint_of_format_1(files: &DataFiles) -> Result<DataFingerprint, DataError> {
    let mut fingerprint = match &files.train {
        Some(path) => of(path)?,
        None => DataFingerprint::synthetic(),
    };
    fingerprint.rule = HashRule::SamplesOfFormat1;
    if let Some(path) = &files.tokenizer {
        fingerprint.hash = format!("{} by {}", fingerprint.hash, of(path)?.hash);
    }
    Ok(fingerprint)
}

fn of(path: &Path) -> Result<DataFingerprint, DataError> {
    let mut hash = Fnv::default();
    let mut bytes = 0;
    for file in regular_files(path)? {
        let size = sample(&file, BLOCKS, &mut |bytes| hash.add(bytes));
        bytes += size.map_err(|source| DataError::Read { path: file.clone(), source })?;
    }
    Ok(DataFingerprint { bytes, hash: hash.to_string(), ..DataFingerprint::synthetic() })
}

/// Passes the size and up to `most` blocks to `add`, including the first and the last block. Returns the size.
fn sample(path: &Path, most: u64, add: &mut dyn FnMut(&[u8])) -> io::Result<u64> {
    let mut file = open_regular(path)?;
    let size = file.metadata()?.len();
    add(&size.to_le_bytes());
    let last = size.saturating_sub(BLOCK);
    let places = most.min(size.div_ceil(BLOCK)).max(1);
    for place in 0..places {
        let start = u128::from(last) * u128::from(place) / u128::from((places - 1).max(1));
        file.seek(SeekFrom::Start(start as u64))?;
        let mut block = Vec::new();
        file.by_ref().take(BLOCK).read_to_end(&mut block)?;
        add(&block);
    }
    Ok(size)
}

/// FNV-1a, 64 bits: the hash of format 1. <http://www.isthe.com/chongo/tech/comp/fnv/>
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        let fold = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        self.0 = bytes.iter().fold(self.0, fold);
    }
}

impl fmt::Display for Fnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The values are those that the program wrote before format 2.
    #[test]
    fn the_old_rule_gives_what_it_gave() {
        let folder = tempfile::tempdir().unwrap();
        let [train, tokenizer] = ["a.bin", "tokenizer.json"].map(|name| folder.path().join(name));
        let bytes: Vec<u8> = (0..1_000_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
        fs::write(&train, bytes).unwrap();
        fs::write(&tokenizer, "{}").unwrap();
        let mut files = DataFiles { train: Some(train), ..DataFiles::default() };
        let of = |files: &DataFiles| fingerprint_of_format_1(files).unwrap().to_string();
        assert_eq!(of(&files), "1000000 bytes (hash 8aab810140099948)");
        files.tokenizer = Some(tokenizer);
        assert_eq!(of(&files), "1000000 bytes (hash 8aab810140099948 by 9caafcd328e9298b)");
        files.train = None;
        assert_eq!(of(&files), "0 bytes (hash synthetic by 9caafcd328e9298b)");
        assert_eq!(of(&DataFiles::default()), "0 bytes (hash synthetic)");
    }

    #[test]
    fn samples_are_of_every_file_and_its_purpose() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            fs::write(folder.path().join(name), bytes).unwrap();
            Some(folder.path().join(name))
        };
        let (train, other) = (file("a.bin", &[1; 10_000]), file("b.bin", &[2; 10_000]));
        let input = |path: &Option<std::path::PathBuf>| {
            path.clone().map(|path| ("x".to_owned(), path)).into_iter().collect()
        };
        let all = [
            DataFiles { train: train.clone(), ..DataFiles::default() },
            DataFiles { tokenizer: train.clone(), ..DataFiles::default() },
            DataFiles { train: other.clone(), ..DataFiles::default() },
            DataFiles { train: train.clone(), inputs: input(&other), ..DataFiles::default() },
            DataFiles { train: train.clone(), inputs: input(&train), ..DataFiles::default() },
        ];
        let hashes: std::collections::BTreeSet<String> =
            all.iter().map(|files| fingerprint(files).unwrap().hash).collect();
        assert_eq!(hashes.len(), all.len());
        // Generated data has no samples; its fingerprint is that of the whole.
        assert_eq!(fingerprint(&DataFiles::default()).unwrap(), DataFingerprint::synthetic());
    }
}
