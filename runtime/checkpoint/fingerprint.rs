//! Fingerprints of training data: a hash of all bytes, so that a run is never resumed with other data unnoticed.
//!
//! Reading all bytes takes a while. A new run hashes its data beside the training ([`super::PendingFingerprint`]). A resumed run does not
//! read a file again if its path, size and times are unchanged.

use data::{DataError, regular_files};
use files::{Checksum, open_regular};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The files and folders from which training samples are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataFiles {
    /// The data; `None` if they are generated.
    pub train: Option<PathBuf>,
    /// The tokenizer of the text, because other tokens are other data.
    pub tokenizer: Option<PathBuf>,
    /// Files that feed an input of their own, by the input's name.
    pub inputs: BTreeMap<String, PathBuf>,
}

/// A value that identifies data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFingerprint {
    /// The bytes of all files; 0 for generated data.
    pub bytes: u64,
    /// The hash in hexadecimal, by the rule below. Names and times of files do not count: a copy of the data is the same data.
    pub hash: String,
    /// The rule of the hash.
    #[serde(default, skip_serializing_if = "HashRule::is_whole")]
    pub rule: HashRule,
    /// The files, if the hash covers all bytes. Empty for generated data. A checkpoint lists at most [`MOST_LISTED`] files.
    #[serde(default, skip_serializing_if = "is_not_listed")]
    pub files: Vec<HashedFile>,
    /// The checksum of the places and sizes of all files, if these are too many for a list. It is also `None` if a file was written so
    /// recently that a later change might not alter its times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub places: Option<String>,
}

/// A rule that turns data into a hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HashRule {
    /// XXH3 of the XXH3 hashes of all files, in their order, and of their purposes.
    #[default]
    Whole,
    /// XXH3 of the sizes and samples of all files, for a checkpoint that was saved before all bytes were read.
    Samples,
    /// The rule of format 1, whose files do not name it: samples, without those of `--input` files.
    SamplesOfFormat1,
}

impl HashRule {
    fn is_whole(&self) -> bool {
        *self == Self::Whole
    }
}

/// The largest number of files that a checkpoint lists, which takes about 3 MB. With more files, one checksum covers all their places.
pub const MOST_LISTED: usize = 10_000;

fn is_not_listed(files: &[HashedFile]) -> bool {
    files.is_empty() || files.len() > MOST_LISTED
}

/// A file of the training data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashedFile {
    /// Its size.
    pub bytes: u64,
    /// XXH3 of its bytes, in hexadecimal.
    pub hash: String,
    /// The place of the file; `None` if it was written so recently that a later change might not alter its times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<FilePlace>,
}

/// A place in the file system with its times. As long as they and the size are unchanged, so are the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePlace {
    /// The absolute path.
    pub path: String,
    /// The time of the last write, in nanoseconds since 1970.
    pub modified: u64,
    /// The time of the last change of the bytes or the metadata, in nanoseconds since 1970. A program can set the time above back, but not
    /// this one. 0 if the system has none.
    pub changed: u64,
}

/// A file with its purpose: `train`, `tokenizer` or `input "NAME"`.
pub(super) type NamedFile = (String, PathBuf);

impl DataFiles {
    /// Returns the fingerprint of all bytes. If a file is unchanged at a place in `known`, its hash is taken from there. Every other file
    /// is read.
    ///
    /// # Errors
    /// A file cannot be read, or changes while it is read.
    pub fn fingerprint(&self, known: Option<&DataFingerprint>) -> Result<DataFingerprint, DataError> {
        let files = self.list()?;
        if let Some(known) = known.filter(|known| known.places.is_some())
            && places_of(&files)? == known.places
        {
            return Ok(known.clone());
        }
        let known = known.map_or(&[][..], |known| &known.files);
        let by_path = known.iter().filter_map(|file| Some((file.place.as_ref()?.path.as_str(), file)));
        let by_path: BTreeMap<&str, &HashedFile> = by_path.collect();
        let mut fingerprint = DataFingerprint::synthetic();
        let mut whole = Checksum::default();
        for (purpose, path) in &files {
            let hashed =
                hashed(path, &by_path).map_err(|source| DataError::Read { path: path.clone(), source })?;
            whole.add(format!("{purpose}: {} bytes, {}\n", hashed.bytes, hashed.hash).as_bytes());
            fingerprint.bytes += hashed.bytes;
            fingerprint.files.push(hashed);
        }
        if !files.is_empty() {
            fingerprint.hash = whole.to_string();
        }
        if files.len() > MOST_LISTED {
            fingerprint.places = sum_of_places(
                files
                    .iter()
                    .zip(&fingerprint.files)
                    .map(|((purpose, _), file)| Some((purpose.as_str(), file.place.as_ref()?, file.bytes))),
            );
        }
        Ok(fingerprint)
    }

    /// Returns the bytes of all files that the rule counts: in format 1 only those of the training data.
    ///
    /// # Errors
    /// A file cannot be found.
    pub(super) fn bytes(&self, rule: HashRule) -> Result<u64, DataError> {
        let size = |(_, path): NamedFile| match fs::metadata(&path) {
            Ok(metadata) => Ok(metadata.len()),
            Err(source) => Err(DataError::Read { path, source }),
        };
        let is_counted = |(purpose, _): &NamedFile| rule != HashRule::SamplesOfFormat1 || purpose == "train";
        self.list()?.into_iter().filter(is_counted).map(size).sum()
    }

    /// Returns all files, in the order in which they are hashed.
    pub(super) fn list(&self) -> Result<Vec<NamedFile>, DataError> {
        let sources = [("train", &self.train), ("tokenizer", &self.tokenizer)];
        let sources = sources.into_iter().filter_map(|(name, path)| Some((name.to_owned(), path.as_ref()?)));
        let inputs = self.inputs.iter().map(|(name, path)| (format!("input {name:?}"), path));
        let mut all = Vec::new();
        for (purpose, path) in sources.chain(inputs) {
            all.extend(regular_files(path)?.into_iter().map(|file| (purpose.clone(), file)));
        }
        Ok(all)
    }
}

impl DataFingerprint {
    /// Returns the fingerprint of generated data.
    pub fn synthetic() -> Self {
        Self {
            bytes: 0,
            hash: "synthetic".to_owned(),
            rule: HashRule::Whole,
            files: Vec::new(),
            places: None,
        }
    }

    /// Returns whether the data is the same, wherever it is stored.
    pub(super) fn is_of_same_data(&self, other: &Self) -> bool {
        (self.bytes, &self.hash, self.rule) == (other.bytes, &other.hash, other.rule)
    }
}

/// Returns the checksum of the present places of files.
fn places_of(files: &[NamedFile]) -> Result<Option<String>, DataError> {
    let now = |(purpose, path): &NamedFile| {
        let metadata = fs::metadata(path)?;
        Ok((purpose.clone(), place(path, &metadata)?, metadata.len()))
    };
    let now =
        files.iter().map(|file| now(file).map_err(|source| DataError::Read { path: file.1.clone(), source }));
    let now: Vec<_> = now.collect::<Result<_, _>>()?;
    Ok(sum_of_places(now.iter().map(|(purpose, place, bytes)| Some((purpose.as_str(), place, *bytes)))))
}

/// Returns the checksum of purposes, places and sizes of files. `None` if a place is unknown.
fn sum_of_places<'f>(
    mut files: impl Iterator<Item = Option<(&'f str, &'f FilePlace, u64)>>,
) -> Option<String> {
    let mut sum = Checksum::default();
    files.try_for_each(|file| {
        let (purpose, FilePlace { path, modified, changed }, bytes) = file?;
        sum.add(format!("{purpose} {path:?} {bytes} {modified} {changed}\n").as_bytes());
        Some(())
    })?;
    Some(sum.to_string())
}

/// `1048576 bytes (hash 0123456789abcdef)`
impl fmt::Display for DataFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes)?;
        match self.hash.as_str() {
            // A difference in size needs no hash.
            "" => Ok(()),
            hash => write!(f, " (hash {})", ir::visible(hash)),
        }
    }
}

const CHANGED: &str = "the file changed while it was read; train on a file that no other program changes";

/// Hashes a file, or takes its hash from `known`, which is keyed by path.
fn hashed(path: &Path, known: &BTreeMap<&str, &HashedFile>) -> io::Result<HashedFile> {
    let mut file = open_regular(path)?;
    let opened = file.metadata()?;
    // The run trains on the mapped bytes, which differ from those of a file that was replaced or written to since.
    if !files::is_as_mapped(path, &opened) {
        return Err(io::Error::other(CHANGED));
    }
    let place = place(path, &opened)?;
    let is_same = |known: &&&HashedFile| known.bytes == opened.len() && known.place.as_ref() == Some(&place);
    if let Some(&known) = known.get(place.path.as_str()).filter(is_same) {
        return Ok(known.clone());
    }
    let opened_at = SystemTime::now();
    let mut hash = Checksum::default();
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
        hash.add(&buffer[..read]);
        bytes += read as u64;
    }
    let closed = file.metadata()?;
    if (bytes, opened.modified().ok()) != (closed.len(), closed.modified().ok()) || bytes != opened.len() {
        return Err(io::Error::other(CHANGED));
    }
    Ok(HashedFile {
        bytes,
        hash: hash.to_string(),
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

/// Returns whether a file last changed so long before `opened_at` that another change gives it another time. File systems count time in
/// steps, the coarsest of two seconds.
fn is_old(place: &FilePlace, opened_at: SystemTime) -> bool {
    const COARSEST: Duration = Duration::from_secs(2);
    let newest = u128::from(place.modified.max(place.changed));
    newest + COARSEST.as_nanos() < u128::from(nanoseconds(opened_at))
}

#[cfg(test)]
mod tests {
    use super::super::sampled;
    use super::*;
    use std::fs::{self, File, FileTimes};

    fn of(path: &Path) -> Result<DataFingerprint, DataError> {
        DataFiles { train: Some(path.to_owned()), ..DataFiles::default() }.fingerprint(None)
    }

    fn bytes() -> Vec<u8> {
        (0..1_000_000u32).map(|i| ((i * 31) >> 3) as u8).collect()
    }

    /// Makes a file look as if it was written an hour ago, except for its time of change.
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
        // The old rule read only 64 blocks, so it missed a change between two of them.
        bytes[4096 + 5000] ^= 1;
        fs::write(&changed, &bytes).unwrap();
        assert!(!fingerprint.is_of_same_data(&of(&changed).unwrap()));
        let sampled = |path: PathBuf| {
            let files = DataFiles { train: Some(path), ..DataFiles::default() };
            sampled::fingerprint_of_format_1(&files).unwrap()
        };
        assert_eq!(sampled(first), sampled(changed));
    }

    #[test]
    fn a_file_that_was_replaced_after_it_was_mapped_is_not_hashed() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["a", "b"].map(|name| folder.path().join(name));
        fs::write(&path, "the mapped bytes").unwrap();
        let mapped = files::map(&path).unwrap();
        of(&path).unwrap();
        fs::write(&other, "the other bytes").unwrap();
        fs::rename(&other, &path).unwrap();
        assert!(of(&path).unwrap_err().to_string().contains("the file changed while it was read"));
        drop(mapped);
        of(&path).unwrap();
    }

    #[test]
    fn a_hash_is_xxh3_of_all_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let bytes = bytes().repeat(3);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(of(&path).unwrap().files[0].hash, Checksum::of(&bytes).to_string());
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
            all.iter().map(|files| files.fingerprint(None).unwrap().hash).collect();
        assert_eq!(hashes.len(), all.len());
    }

    #[test]
    fn a_file_that_is_where_and_as_it_was_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        fs::write(&path, "the bytes").unwrap();
        let files = DataFiles { train: Some(path.clone()), ..DataFiles::default() };
        let metadata = fs::metadata(&path).unwrap();
        // A hash that differs from the real one.
        let known = HashedFile {
            bytes: metadata.len(),
            hash: "0".repeat(16),
            place: Some(super::place(&path, &metadata).unwrap()),
        };
        let fingerprint = |known: &HashedFile| {
            let known = DataFingerprint { files: vec![known.clone()], ..DataFingerprint::synthetic() };
            files.fingerprint(Some(&known)).unwrap()
        };
        assert_eq!(fingerprint(&known).files, std::slice::from_ref(&known));
        let read = files.fingerprint(None).unwrap();
        assert_ne!(read.files[0].hash, known.hash);
        let changed = |change: &dyn Fn(&mut FilePlace)| {
            let mut known = known.clone();
            change(known.place.as_mut().unwrap());
            fingerprint(&known).hash == read.hash
        };
        assert!(changed(&|place| place.path.push('x')));
        assert!(changed(&|place| place.modified += 1));
        // Other bytes of the same number, with their time of writing set back: only the time of change differs.
        assert!(changed(&|place| place.changed -= 1));
        assert_eq!(fingerprint(&HashedFile { bytes: 8, ..known.clone() }).hash, read.hash);
    }

    #[test]
    fn many_files_are_not_listed_and_not_read_again_where_they_are_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..=MOST_LISTED {
            fs::write(folder.path().join(number.to_string()), [1]).unwrap();
        }
        let files = DataFiles { train: Some(folder.path().to_owned()), ..DataFiles::default() };
        let read = files.fingerprint(None).unwrap();
        assert_eq!(read.files.len(), MOST_LISTED + 1);
        let text = serde_json::to_string(&read).unwrap();
        assert!(text.len() < 200, "{} bytes", text.len());
        // As if the files had been old enough, with a hash that differs from the real one.
        let places = super::places_of(&files.list().unwrap()).unwrap();
        let known = DataFingerprint { places, hash: "0".repeat(16), ..serde_json::from_str(&text).unwrap() };
        assert_eq!(files.fingerprint(Some(&known)).unwrap(), known);
        fs::write(folder.path().join("0"), [1, 2]).unwrap();
        let changed = files.fingerprint(Some(&known)).unwrap();
        assert_eq!(changed.bytes, read.bytes + 1);
        fs::rename(folder.path().join("0"), folder.path().join("00")).unwrap();
        assert_eq!(files.fingerprint(Some(&known)).unwrap().hash, changed.hash);
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
