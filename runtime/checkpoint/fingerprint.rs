//! Fingerprints: of data files, without reading all of them, and of a module's parameters.

use super::description::StateRow;
use ir::{Module, Role};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Enough of the training data to notice that it is another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFingerprint {
    /// Bytes of all files; 0 for made-up data.
    pub bytes: u64,
    /// FNV-1a, in hexadecimal, of the files' sizes and of samples of their bytes. Names and times do not count: a
    /// copy of the data is the same data.
    pub hash: String,
}

/// Bytes read at each place of a file, and the most places.
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;

impl DataFingerprint {
    /// The fingerprint of data that is made up as it is needed.
    pub fn synthetic() -> Self {
        Self { bytes: 0, hash: "synthetic".to_owned() }
    }

    /// The fingerprint of a file, or of the files of a folder in the order of their names.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn of(path: &Path) -> io::Result<Self> {
        let mut hash = Fnv::default();
        let mut bytes = 0;
        for file in files(path)? {
            bytes += hash_file(&file, &mut hash)?;
        }
        Ok(Self { bytes, hash: hash.to_string() })
    }
}

/// `1048576 bytes (hash 0123456789abcdef)`
impl fmt::Display for DataFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes (hash {})", self.bytes, ir::visible(&self.hash))
    }
}

fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.path().is_file() && !entry.file_name().to_string_lossy().starts_with('.') {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// Hashes the size and up to [`BLOCKS`] blocks, the first and the last among them; returns the size.
fn hash_file(path: &Path, hash: &mut Fnv) -> io::Result<u64> {
    let mut file = File::open(path)?;
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

/// The fingerprint of the set of parameters: names, element types and sizes, whatever their order.
pub fn of_parameters(module: &Module) -> String {
    let role = Role::ALL.iter().find(|(role, _)| *role == Role::Parameter).map_or("", |(_, name)| name);
    let rows = StateRow::table(module).into_iter().filter(|row| row.role == role);
    let mut rows: Vec<String> = rows.map(|row| row.to_string()).collect();
    rows.sort();
    let mut hash = Fnv::default();
    rows.iter().for_each(|row| hash.add(row.as_bytes()));
    hash.to_string()
}

/// FNV-1a, 64 bits: not for secrets, the same on every machine.
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

    #[test]
    fn a_copy_is_the_same_data_and_a_longer_or_changed_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let [first, copy, longer, changed] = ["a", "b", "c", "d"].map(|name| folder.path().join(name));
        let mut bytes: Vec<u8> = (0..1_000_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
        fs::write(&first, &bytes).unwrap();
        fs::write(&copy, &bytes).unwrap();
        let fingerprint = DataFingerprint::of(&first).unwrap();
        assert_eq!(fingerprint, DataFingerprint::of(&copy).unwrap());
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&changed, &bytes).unwrap();
        assert_ne!(fingerprint, DataFingerprint::of(&changed).unwrap());
        bytes.push(0);
        fs::write(&longer, &bytes).unwrap();
        assert_ne!(fingerprint, DataFingerprint::of(&longer).unwrap());
    }

    #[test]
    fn a_folder_has_the_files_of_a_folder_and_an_empty_file_has_a_fingerprint() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.txt"), "").unwrap();
        let one = DataFingerprint::of(folder.path()).unwrap();
        assert_eq!(one, DataFingerprint::of(&folder.path().join("a.txt")).unwrap());
        fs::write(folder.path().join("b.txt"), "text").unwrap();
        assert_eq!(DataFingerprint::of(folder.path()).unwrap().bytes, 4);
        assert!(DataFingerprint::of(&folder.path().join("none")).is_err());
    }
}
