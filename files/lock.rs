//! A folder that one process at a time may write. The lock is advisory, and the system releases it when the process ends,
//! however it ends.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// The name of the file in the folder that is locked, and says by whom.
const NAME: &str = ".lock";

/// A folder that this process alone may write, until this is dropped.
#[derive(Debug)]
pub struct FolderLock {
    file: File,
    path: PathBuf,
}

/// A folder that was not locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("{} is in use by {holder}", folder.display())]
    Held {
        /// The folder.
        folder: PathBuf,
        /// `process 4711 on host, since 2026-11-23 10:00:00 UTC`
        holder: String,
    },
    /// The file system has no locks.
    #[error("{} cannot be locked ({source}): a second run that writes there would not be noticed", folder.display())]
    Unsupported {
        /// The folder.
        folder: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file system refused.
    #[error("cannot lock {}: {source}", folder.display())]
    Io {
        /// The folder.
        folder: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl FolderLock {
    /// Takes a folder that is there.
    ///
    /// # Errors
    /// Another process has it, or the file system refuses.
    pub fn take(folder: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::Io { folder: folder.to_owned(), source };
        let path = folder.join(NAME);
        let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = open().map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // Who it is only helps; that it is somebody is certain.
                let _ = (&file).take(1024).read_to_string(&mut holder);
                let holder = holder.lines().next().unwrap_or("another process").to_owned();
                return Err(LockError::Held { folder: folder.to_owned(), holder });
            }
            Err(TryLockError::Error(source)) => {
                return Err(LockError::Unsupported { folder: folder.to_owned(), source });
            }
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(holder().as_bytes()))
            .map_err(failed)?;
        Ok(Self { file, path })
    }

    /// Whether the folder of this name is still the one that was locked: not if it was removed or has another name.
    pub fn is_in_place(&self) -> bool {
        let (locked, named) = (self.file.metadata(), fs::metadata(&self.path));
        matches!((locked, named), (Ok(locked), Ok(named)) if is_same(&locked, &named))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }
}

#[cfg(unix)]
fn is_same(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn is_same(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
}

/// This process, this machine and now.
fn holder() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let now = jiff::Timestamp::now().strftime("%F %T UTC");
    format!("process {} on {host}, since {now}\n", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_taker_is_told_of_the_first_until_it_goes() {
        let folder = tempfile::tempdir().unwrap();
        let first = FolderLock::take(folder.path()).unwrap();
        // A lock belongs to an open file, so that a second one of the same process is refused as another's is.
        let error = FolderLock::take(folder.path()).unwrap_err().to_string();
        let process = format!("is in use by process {} on ", std::process::id());
        assert!(error.contains(&process) && error.contains(" UTC"), "{error}");
        drop(first);
        assert!(FolderLock::take(folder.path()).is_ok());
    }

    #[test]
    fn a_folder_that_is_gone_or_another_is_noticed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("run");
        fs::create_dir(&folder).unwrap();
        let lock = FolderLock::take(&folder).unwrap();
        assert!(lock.is_in_place());
        fs::rename(&folder, parent.path().join("moved")).unwrap();
        assert!(!lock.is_in_place());
        fs::create_dir(&folder).unwrap();
        let _other = FolderLock::take(&folder).unwrap();
        assert!(!lock.is_in_place());
    }
}
