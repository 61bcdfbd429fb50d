//! A file that is written under a temporary name and replaces its target when it is complete.

use crate::disk::{self, OpenFile};
use crate::folder::parent;
use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The end of every temporary name.
const ENDING: &str = ".partial";
/// The number of random digits in a temporary name.
const DIGITS: usize = 16;

/// Returns a temporary name beside `target` for an incomplete file: hidden, and random so that other users of the folder cannot
/// guess it.
pub fn temporary_name(target: &Path) -> PathBuf {
    // The system draws new random keys for each `RandomState`.
    let random = RandomState::new().build_hasher().finish();
    let mut name = OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(format!(".{random:016x}{ENDING}"));
    target.with_file_name(name)
}

/// Removes the files and folders in `folder` that have temporary names; killed processes left them. The caller holds the folder's
/// lock.
///
/// # Errors
/// The folder cannot be read, or an entry cannot be removed. A missing folder is not an error.
pub fn remove_leftovers(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_temporary) {
            disk::remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Whether a name has the form of the names that [`temporary_name`] makes.
fn is_temporary(name: &str) -> bool {
    let random = name.strip_prefix('.').and_then(|name| name.strip_suffix(ENDING)?.rsplit_once('.'));
    let is_random =
        |digits: &str| digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    random.is_some_and(|(_, digits)| is_random(digits))
}

/// A file that is written under a temporary name beside its target. If it is dropped before it is published, it is removed, and
/// the target stays as it was.
#[derive(Debug)]
pub struct Replacement {
    out: BufWriter<OpenFile>,
    target: PathBuf,
    /// Whether the contents are on the disk.
    complete: bool,
    published: bool,
}

impl Replacement {
    /// Begins a file that will replace `target`.
    ///
    /// # Errors
    /// The folder does not exist, or cannot be written.
    pub fn begin(target: &Path) -> io::Result<Self> {
        if target.file_name().is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name"));
        }
        let file = disk::create_new(&temporary_name(target))?;
        let out = BufWriter::with_capacity(1 << 20, file);
        Ok(Self { out, target: target.to_owned(), complete: false, published: false })
    }

    /// Writes a whole file to `target`.
    ///
    /// # Errors
    /// The system refuses; the target then stays as it was.
    pub fn write(target: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut replacement = Self::begin(target)?;
        replacement.write_all(bytes)?;
        replacement.publish()
    }

    /// Waits until the contents are on the disk. Several files can be complete before any of them takes its name.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn complete(&mut self) -> io::Result<()> {
        if !self.complete {
            self.out.flush()?;
            self.out.get_ref().sync()?;
            self.complete = true;
        }
        Ok(())
    }

    /// Returns the path that the file will have.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Returns the path that the file has until it is published.
    pub fn path(&self) -> &Path {
        self.out.get_ref().path()
    }

    /// Renames the file to its target and syncs the folder.
    ///
    /// # Errors
    /// The system refuses; the target is as it was, or has the new contents.
    pub fn publish(mut self) -> io::Result<()> {
        self.complete()?;
        disk::rename(self.path(), &self.target)?;
        self.published = true;
        disk::sync_folder(parent(&self.target))
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.complete = false;
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Seek for Replacement {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.out.seek(to)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.published {
            // If the file cannot be removed, it keeps its temporary name, which no reader looks for.
            let _ = disk::remove(self.out.get_ref().path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{Fault, count, inject};

    #[test]
    fn a_replaced_file_is_the_old_or_the_new_one_after_any_fault() {
        let replace = |target: &Path| Replacement::write(target, b"the new contents");
        let fresh = || {
            let folder = tempfile::tempdir().unwrap();
            let target = folder.path().join("file");
            fs::write(&target, b"old").unwrap();
            (folder, target)
        };
        let (_folder, target) = fresh();
        let (done, operations) = count(|| replace(&target));
        done.unwrap();
        assert_eq!(operations, 5, "create, write, sync, rename, sync of the folder");
        for at in 0..operations {
            for fault in Fault::ALL {
                let (folder, target) = fresh();
                let result = inject(at, fault, || replace(&target));
                assert!(result.is_err(), "{fault:?} at {at} was not told");
                let found = fs::read(&target).unwrap();
                assert!(found == b"old" || found == b"the new contents", "{fault:?} at {at}: {found:?}");
                remove_leftovers(folder.path()).unwrap();
                assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{fault:?} at {at}");
            }
        }
    }

    #[test]
    fn a_complete_file_is_not_synced_again() {
        let folder = tempfile::tempdir().unwrap();
        let replace = |completions: u32| {
            let mut replacement = Replacement::begin(&folder.path().join("file"))?;
            replacement.write_all(b"contents")?;
            (0..completions).try_for_each(|_| replacement.complete())?;
            replacement.publish()
        };
        let operations = [0, 1, 2].map(|completions| {
            let (done, operations) = count(|| replace(completions));
            done.unwrap();
            operations
        });
        assert_eq!(operations, [5, 5, 5]);
    }

    #[test]
    fn a_published_file_survives_a_loss_of_power() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        let after = folder.path().join("after");
        let lost = inject(5, Fault::PowerLostBefore, || {
            Replacement::write(&target, b"contents").unwrap();
            fs::write(&after, b"").and_then(|()| disk::remove(&after))
        });
        assert!(lost.is_err());
        assert_eq!(fs::read(&target).unwrap(), b"contents");
    }

    #[test]
    fn temporary_names_are_told_from_the_users() {
        let name = temporary_name(Path::new("folder/model.onnx"));
        assert_eq!(name.parent(), Some(Path::new("folder")));
        assert!(is_temporary(name.file_name().unwrap().to_str().unwrap()), "{name:?}");
        assert_ne!(name, temporary_name(Path::new("folder/model.onnx")));
        for other in [
            ".partial",
            "model.partial",
            ".model.onnx.partial",
            ".a.0123456789abcdeg.partial",
            "x.0123456789abcdef.partial",
        ] {
            assert!(!is_temporary(other), "{other}");
        }
    }
}
