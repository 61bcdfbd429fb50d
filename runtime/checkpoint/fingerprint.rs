//! Fingerprints: of training data, and of a module's parameters.
//!
//! The fingerprint of data is a hash of all its bytes, so that a run never goes on with other data unnoticed. Reading all of
//! them takes a while: a new run hashes its data beside the training ([`super::PendingFingerprint`]), and a run that goes on
//! reads no file again that is where it was, as it was.

use super::description::StateRow;
use crate::data::{DataError, regular_files};
use files::open_regular;
use ir::{Module, Role};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::Metadata;
use std::hash::Hasher;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use twox_hash::XxHash3_64;

/// The files and folders that training samples are made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataFiles {
    /// The data; `None` if it is made up.
    pub train: Option<PathBuf>,
    /// What makes tokens of text: other tokens are other data.
    pub tokenizer: Option<PathBuf>,
    /// Files that feed an input of their own, by the input's name.
    pub inputs: BTreeMap<String, PathBuf>,
}

/// A value that other training data does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFingerprint {
    /// Bytes of all files; 0 for made-up data.
    pub bytes: u64,
    /// XXH3, in hexadecimal, of the hashes of all files, in their order, and of what each is for. Names and times do not
    /// count: a copy of the data is the same data. In checkpoints of format 1 a hash of samples.
    pub hash: String,
    /// Each file; empty for made-up data, and in checkpoints of format 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<HashedFile>,
}

/// A file of the training data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashedFile {
    /// Its size.
    pub bytes: u64,
    /// XXH3 of its bytes, in hexadecimal.
    pub hash: String,
    /// Where it was; `None` if it was written so shortly before that a later change might not show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<FilePlace>,
}

/// A place in the file system and its times: as long as they and the size are the same, so are the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePlace {
    /// The absolute path.
    pub path: String,
    /// When the bytes were written last, in nanoseconds since 1970.
    pub modified: u64,
    /// When the bytes or anything else of the file changed last, in nanoseconds since 1970. A program can set the time above
    /// back, and cannot set this one. 0 where the system has none.
    pub changed: u64,
}

impl DataFiles {
    /// The fingerprint of all files. The hash of a file is taken from `known` where the file is at a place of it and
    /// unchanged; every other file is read.
    ///
    /// # Errors
    /// A file that cannot be read, or that changes while it is read.
    pub fn fingerprint(&self, known: &[HashedFile]) -> Result<DataFingerprint, DataError> {
        let by_path = known.iter().filter_map(|file| Some((file.place.as_ref()?.path.as_str(), file)));
        let known: BTreeMap<&str, &HashedFile> = by_path.collect();
        let mut fingerprint = DataFingerprint::synthetic();
        let mut whole = XxHash3_64::new();
        let sources = [("train", &self.train), ("tokenizer", &self.tokenizer)];
        let sources = sources.into_iter().filter_map(|(name, path)| Some((name.to_owned(), path.as_ref()?)));
        let inputs = self.inputs.iter().map(|(name, path)| (format!("input {name:?}"), path));
        for (purpose, path) in sources.chain(inputs) {
            for file in regular_files(path)? {
                let hashed =
                    hashed(&file, &known).map_err(|source| DataError::Read { path: file, source })?;
                whole.write(format!("{purpose}: {} bytes, {}\n", hashed.bytes, hashed.hash).as_bytes());
                fingerprint.bytes += hashed.bytes;
                fingerprint.files.push(hashed);
            }
        }
        if !fingerprint.files.is_empty() {
            fingerprint.hash = hexadecimal(&whole);
        }
        Ok(fingerprint)
    }
}

impl DataFingerprint {
    /// The fingerprint of data that is made up as it is needed.
    pub fn synthetic() -> Self {
        Self { bytes: 0, hash: "synthetic".to_owned(), files: Vec::new() }
    }

    /// Whether the data is the same, wherever it is.
    pub(super) fn is_of_same_data(&self, other: &Self) -> bool {
        (self.bytes, &self.hash) == (other.bytes, &other.hash)
    }
}

/// `1048576 bytes (hash 0123456789abcdef)`
impl fmt::Display for DataFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes (hash {})", self.bytes, ir::visible(&self.hash))
    }
}

/// Hashes a file, or takes the hash from `known`, by path.
fn hashed(path: &Path, known: &BTreeMap<&str, &HashedFile>) -> io::Result<HashedFile> {
    let mut file = open_regular(path)?;
    let opened = file.metadata()?;
    let place = place(path, &opened)?;
    let is_same = |known: &&&HashedFile| known.bytes == opened.len() && known.place.as_ref() == Some(&place);
    if let Some(&known) = known.get(place.path.as_str()).filter(is_same) {
        return Ok(known.clone());
    }
    let opened_at = SystemTime::now();
    let mut hash = XxHash3_64::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let read = match file.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if read == 0 {
            break;
        }
        hash.write(&buffer[..read]);
        bytes += read as u64;
    }
    let closed = file.metadata()?;
    if (bytes, opened.modified().ok()) != (closed.len(), closed.modified().ok()) || bytes != opened.len() {
        return Err(io::Error::other(
            "it changed while it was read; train on a file that no program writes to",
        ));
    }
    Ok(HashedFile {
        bytes,
        hash: hexadecimal(&hash),
        place: Some(place).filter(|place| is_old(place, opened_at)),
    })
}

fn place(path: &Path, metadata: &Metadata) -> io::Result<FilePlace> {
    let path = std::path::absolute(path)?.display().to_string();
    let modified = metadata.modified().map_or(0, nanoseconds);
    #[cfg(unix)]
    let changed = {
        use std::os::unix::fs::MetadataExt;
        let [seconds, rest] =
            [metadata.ctime(), metadata.ctime_nsec()].map(|time| u64::try_from(time).unwrap_or(0));
        seconds.saturating_mul(1_000_000_000).saturating_add(rest)
    };
    #[cfg(not(unix))]
    let changed = 0;
    Ok(FilePlace { path, modified, changed })
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether a file changed so long before `opened_at` that another change gives it another time: file systems count time in
/// steps, the coarsest of two seconds.
fn is_old(place: &FilePlace, opened_at: SystemTime) -> bool {
    const COARSEST: Duration = Duration::from_secs(2);
    let newest = u128::from(place.modified.max(place.changed));
    newest + COARSEST.as_nanos() < u128::from(nanoseconds(opened_at))
}

fn hexadecimal(hash: &XxHash3_64) -> String {
    format!("{:016x}", hash.finish())
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
pub(super) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    pub(super) fn add(&mut self, bytes: &[u8]) {
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
    use std::fs::{self, File, FileTimes};

    fn of(path: &Path) -> Result<DataFingerprint, DataError> {
        DataFiles { train: Some(path.to_owned()), ..DataFiles::default() }.fingerprint(&[])
    }

    fn bytes() -> Vec<u8> {
        (0..1_000_000u32).map(|i| ((i * 31) >> 3) as u8).collect()
    }

    /// Makes a file look as if it was written an hour ago, but for its time of change.
    fn date_back(path: &Path) {
        let hour_ago = SystemTime::now() - Duration::from_secs(3600);
        let file = File::options().write(true).open(path).unwrap();
        file.set_times(FileTimes::new().set_modified(hour_ago)).unwrap();
    }

    #[test]
    fn a_copy_is_the_same_data_and_a_longer_or_changed_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let [first, copy, longer, changed] = ["a", "b", "c", "d"].map(|name| folder.path().join(name));
        let mut bytes = bytes();
        fs::write(&first, &bytes).unwrap();
        fs::write(&copy, &bytes).unwrap();
        date_back(&copy);
        let fingerprint = of(&first).unwrap();
        assert!(fingerprint.is_of_same_data(&of(&copy).unwrap()));
        assert_eq!(fingerprint.bytes, 1_000_000);
        bytes.push(0);
        fs::write(&longer, &bytes).unwrap();
        assert!(!fingerprint.is_of_same_data(&of(&longer).unwrap()));
        bytes.pop();
        // The old rule looked at 64 blocks: a change between two of them was not seen.
        bytes[4096 + 5000] ^= 1;
        fs::write(&changed, &bytes).unwrap();
        assert!(!fingerprint.is_of_same_data(&of(&changed).unwrap()));
        let sampled = |path: PathBuf| {
            let files = DataFiles { train: Some(path), ..DataFiles::default() };
            super::super::sampled::fingerprint(&files).unwrap()
        };
        assert_eq!(sampled(first), sampled(changed));
    }

    #[test]
    fn a_hash_is_xxh3_of_all_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let bytes = bytes().repeat(3);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(of(&path).unwrap().files[0].hash, format!("{:016x}", XxHash3_64::oneshot(&bytes)));
    }

    #[test]
    fn a_folder_has_the_files_of_a_folder_and_an_empty_file_has_a_fingerprint() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.txt"), "").unwrap();
        let one = of(folder.path()).unwrap();
        assert!(one.is_of_same_data(&of(&folder.path().join("a.txt")).unwrap()));
        fs::write(folder.path().join("b.txt"), "text").unwrap();
        let two = of(folder.path()).unwrap();
        assert_eq!((two.bytes, two.files.len()), (4, 2));
        assert!(of(&folder.path().join("none")).is_err());
        // The same bytes in another order are other data.
        fs::rename(folder.path().join("b.txt"), folder.path().join("0.txt")).unwrap();
        assert!(!two.is_of_same_data(&of(folder.path()).unwrap()));
    }

    #[test]
    fn what_a_file_is_for_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        fs::write(&path, "bytes").unwrap();
        let path = || Some(path.clone());
        let inputs = |name: &str| path().map(|path| (name.to_owned(), path)).into_iter().collect();
        let all = [
            DataFiles::default(),
            DataFiles { train: path(), ..DataFiles::default() },
            DataFiles { tokenizer: path(), ..DataFiles::default() },
            DataFiles { inputs: inputs("x"), ..DataFiles::default() },
            DataFiles { inputs: inputs("y"), ..DataFiles::default() },
            DataFiles { train: path(), inputs: inputs("x"), ..DataFiles::default() },
        ];
        let hashes: std::collections::BTreeSet<String> =
            all.iter().map(|files| files.fingerprint(&[]).unwrap().hash).collect();
        assert_eq!(hashes.len(), all.len());
    }

    #[test]
    fn a_file_that_is_where_and_as_it_was_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        fs::write(&path, "the bytes").unwrap();
        let files = DataFiles { train: Some(path.clone()), ..DataFiles::default() };
        let metadata = fs::metadata(&path).unwrap();
        // A hash that reading would not give.
        let known = HashedFile {
            bytes: metadata.len(),
            hash: "0".repeat(16),
            place: Some(super::place(&path, &metadata).unwrap()),
        };
        assert_eq!(
            files.fingerprint(std::slice::from_ref(&known)).unwrap().files,
            std::slice::from_ref(&known)
        );
        let read = files.fingerprint(&[]).unwrap();
        assert_ne!(read.files[0].hash, known.hash);
        let changed = |change: &dyn Fn(&mut FilePlace)| {
            let mut known = known.clone();
            change(known.place.as_mut().unwrap());
            files.fingerprint(&[known]).unwrap() == read
        };
        assert!(changed(&|place| place.path.push('x')));
        assert!(changed(&|place| place.modified += 1));
        assert!(changed(&|place| place.changed -= 1));
        assert!(files.fingerprint(&[HashedFile { bytes: 8, ..known.clone() }]).unwrap() == read);
        // Other bytes of the same number, with the time of the first set back.
        fs::write(&path, "or others").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(metadata.modified().unwrap()).unwrap();
        assert_ne!(files.fingerprint(std::slice::from_ref(&known)).unwrap().files, [known]);
    }

    #[test]
    fn the_place_of_a_file_that_was_just_written_is_not_kept() {
        let opened_at = SystemTime::now();
        let at = |modified: Duration, changed: Duration| {
            let [modified, changed] = [modified, changed].map(|before| nanoseconds(opened_at - before));
            is_old(&FilePlace { path: String::new(), modified, changed }, opened_at)
        };
        let [long, short] = [Duration::from_secs(3), Duration::from_millis(1999)];
        assert!(at(long, long));
        assert!(!at(long, short) && !at(short, long) && !at(Duration::ZERO, Duration::ZERO));
    }
}
