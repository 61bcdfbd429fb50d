//! A folder that one process at a time may write. The lock is advisory, and the system releases it when the process ends,
//! however it ends.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// The name of the locked file in the folder. The file's contents name the process that holds the lock.
const NAME: &str = ".lock";

/// The right to write a folder, for this process alone, until this value is dropped.
#[derive(Debug)]
pub struct FolderLock {
    file: File,
    path: PathBuf,
    /// The folder at the time of locking.
    folder: fs::Metadata,
}

/// The reason why a folder was not locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has the lock.
    #[error("{} is in use by {holder}", folder.display())]
    Held {
        /// The folder.
        folder: PathBuf,
        /// `process 4711 on host, since 2026-11-23 10:00:00 UTC`
        holder: String,
    },
    /// The file system has no locks.
    #[error("{} cannot be locked ({source}): nothing would stop a second run from writing there at the same time", folder.display())]
    Unsupported {
        /// The folder.
        folder: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The name of the lock file belongs to something that is not a lock file.
    #[error("{} is not a lock of a run, and a run would overwrite it", path.display())]
    Foreign {
        /// The file or link.
        path: PathBuf,
    },
    /// The file system refused.
    #[error("cannot lock {}: {source}", folder.display())]
    Io {
        /// The folder.
        folder: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// The largest number of attempts. An attempt fails if the previous owner ends at the same moment; after so many failures the file
/// system is at fault.
const TRIES: usize = 1000;

impl FolderLock {
    /// Locks a folder that exists.
    ///
    /// # Errors
    /// Another process has the lock, or the file system refuses.
    pub fn take(folder: &Path) -> Result<Self, LockError> {
        let path = folder.join(NAME);
        for _ in 0..TRIES {
            let lock = Self::take_file(folder, &path)?;
            // A previous owner that ended between our opening and our locking has removed the file that we opened.
            if lock.has_its_file() {
                return Ok(lock);
            }
        }
        let source = io::Error::other("a file does not keep its inode number");
        Err(LockError::Unsupported { folder: folder.to_owned(), source })
    }

    fn take_file(folder: &Path, path: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::Io { folder: folder.to_owned(), source };
        let foreign = || LockError::Foreign { path: path.to_owned() };
        // A link would lead to a file that does not belong to this run.
        if fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            return Err(foreign());
        }
        let mut file = open(path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // The holder's name is only a help: if it cannot be read, the folder is in use all the same.
                let _ = (&file).take(1024).read_to_string(&mut holder);
                let holder = holder.lines().next().unwrap_or("another process").to_owned();
                return Err(LockError::Held { folder: folder.to_owned(), holder });
            }
            Err(TryLockError::Error(source)) => {
                return Err(LockError::Unsupported { folder: folder.to_owned(), source });
            }
        }
        let mut before = vec![];
        (&file).take(MARK.len() as u64).read_to_end(&mut before).map_err(failed)?;
        if !MARK.as_bytes().starts_with(&before) {
            return Err(foreign());
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(holder().as_bytes()))
            .map_err(failed)?;
        let metadata = fs::metadata(folder).map_err(failed)?;
        Ok(Self { file, path: path.to_owned(), folder: metadata })
    }

    /// Returns whether the path still leads to the locked folder, which is false after the folder was removed or renamed. If the
    /// folder cannot be read for another reason, the answer is true. A removed lock file does not matter here.
    pub fn is_in_place(&self) -> bool {
        match fs::metadata(self.folder()) {
            Ok(now) => is_same(&self.folder, &now),
            Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        }
    }

    /// Returns whether the lock file still exists. If somebody removed it, another run can lock the folder. If the file cannot be
    /// read for another reason, the answer is true.
    pub fn is_held(&self) -> bool {
        match fs::symlink_metadata(&self.path) {
            Ok(named) => self.file.metadata().is_ok_and(|locked| is_same(&locked, &named)),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Returns whether the locked file is the lock file of the folder.
    fn has_its_file(&self) -> bool {
        let (locked, named) = (self.file.metadata(), fs::metadata(&self.path));
        matches!((locked, named), (Ok(locked), Ok(named)) if is_same(&locked, &named))
    }

    /// Returns the locked folder.
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }
}

/// Removes the lock file. A process that opened it before checks whether it still exists.
impl Drop for FolderLock {
    fn drop(&mut self) {
        if self.has_its_file() {
            let _ = fs::remove_file(&self.path);
        }
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

/// Opens the lock file, or creates it. A lock file that is a symbolic link is refused.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW);
    options.open(path)
}

/// The beginning of the contents of every lock file.
const MARK: &str = "process ";

/// Returns the text that names this process, this machine and the current time.
fn holder() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let now = jiff::Timestamp::now().strftime("%F %T UTC");
    format!("{MARK}{} on {host}, since {now}\n", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_taker_is_told_of_the_first_until_it_goes() {
        let folder = tempfile::tempdir().unwrap();
        let first = FolderLock::take(folder.path()).unwrap();
        // A lock belongs to an open file, so a second lock by the same process is refused like one by another process.
        let error = FolderLock::take(folder.path()).unwrap_err().to_string();
        let process = format!("is in use by process {} on ", std::process::id());
        assert!(error.contains(&process) && error.contains(" UTC"), "{error}");
        drop(first);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
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

    #[cfg(unix)]
    #[test]
    fn a_folder_without_its_lock_file_or_out_of_reach_is_in_place() {
        let parent = tempfile::tempdir().unwrap();
        let [run, link] = ["run", "link"].map(|name| parent.path().join(name));
        fs::create_dir(&run).unwrap();
        std::os::unix::fs::symlink(&run, &link).unwrap();
        let lock = FolderLock::take(&link).unwrap();
        fs::remove_file(run.join(NAME)).unwrap();
        assert!(lock.is_in_place() && !lock.is_held());
        // A link that leads to itself causes an error other than that of a missing folder.
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&link, &link).unwrap();
        assert!(lock.is_in_place());
        fs::remove_file(&link).unwrap();
        assert!(!lock.is_in_place());
    }

    #[cfg(unix)]
    #[test]
    fn a_lock_file_of_somebody_else_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let [target, lock] = ["target", NAME].map(|name| folder.path().join(name));
        fs::write(&target, "of somebody else").unwrap();
        let refused = || FolderLock::take(folder.path()).unwrap_err().to_string();
        for to in [&target, &folder.path().join("none")] {
            std::os::unix::fs::symlink(to, &lock).unwrap();
            assert!(refused().ends_with(".lock is not a lock of a run, and a run would overwrite it"));
            fs::remove_file(&lock).unwrap();
        }
        fs::write(&lock, "a lock of another program").unwrap();
        assert!(refused().contains(".lock is not a lock of a run"));
        assert_eq!(fs::read(&target).unwrap(), b"of somebody else");
        assert_eq!(fs::read(&lock).unwrap(), b"a lock of another program");
        assert!(!folder.path().join("none").exists());
        fs::remove_file(&lock).unwrap();
        let held = FolderLock::take(folder.path()).unwrap();
        assert!(held.is_held());
        fs::remove_file(&lock).unwrap();
        fs::write(&lock, "").unwrap();
        assert!(!held.is_held());
    }

    #[test]
    fn one_taker_at_a_time_has_the_folder_however_often_it_is_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let owners = std::sync::atomic::AtomicU32::new(0);
        let take = || {
            let mut taken = 0;
            while taken < 200 {
                let Ok(lock) = FolderLock::take(folder.path()) else { continue };
                assert_eq!(owners.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "two have it");
                owners.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                drop(lock);
                taken += 1;
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(take);
            }
        });
    }
}
