//! The single disk operations that checkpoints, metrics and exports are made of. A test can make each of them fail.
//!
//! A file is durable when it has been synced and the folder that has its name has been synced too. Only then does a name
//! survive a loss of power.

use crate::fault::{self, Change};
use crate::folder::parent;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A file that is being written.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    path: PathBuf,
}

impl OpenFile {
    /// Waits until all written bytes are on the disk.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn sync(&self) -> io::Result<()> {
        fault::change(Change::Sync(&self.path), || self.file.sync_all())
    }

    /// Returns the last byte of a file that was opened for reading and writing. `None` if the file is empty.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn last_byte(&mut self) -> io::Result<Option<u8>> {
        if self.file.seek(SeekFrom::End(0))? == 0 {
            return Ok(None);
        }
        self.file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        self.file.read_exact(&mut last)?;
        Ok(Some(last[0]))
    }

    /// Returns the path under which the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Write for OpenFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Self { file, path } = self;
        fault::write(path, bytes, |bytes| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for OpenFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// Creates a file under a name that neither a file nor a link has.
///
/// # Errors
/// The name is taken; the folder cannot be written.
pub fn create_new(path: &Path) -> io::Result<OpenFile> {
    let create = || OpenOptions::new().write(true).create_new(true).open(path);
    Ok(OpenFile { file: fault::change(Change::Create(path), create)?, path: path.to_owned() })
}

/// Opens a file for reading and for writing at its end. Creates it if it is missing, but never at the target of a link.
///
/// # Errors
/// The file cannot be opened or created.
pub fn append(path: &Path) -> io::Result<OpenFile> {
    let open = |new: bool| OpenOptions::new().read(true).append(true).create_new(new).open(path);
    let file = if path.exists() { open(false)? } else { fault::change(Change::Create(path), || open(true))? };
    Ok(OpenFile { file, path: path.to_owned() })
}

/// Creates a folder. Its parent must exist, and the name must be free.
///
/// # Errors
/// The name is taken; the parent cannot be written.
pub fn create_folder(path: &Path) -> io::Result<()> {
    fault::change(Change::Create(path), || fs::create_dir(path))
}

/// Creates a folder and its missing parents, and syncs the parents, so that the names survive a loss of power.
///
/// # Errors
/// The name belongs to a file; a folder cannot be written.
pub fn create_folders(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = parent(path);
    create_folders(parent)?;
    match create_folder(path) {
        // Another process may have made the folder meanwhile.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        made => made?,
    }
    sync_folder(parent)
}

/// Renames a file or folder. A file that already has the new name is replaced.
///
/// # Errors
/// The system refuses.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fault::change(Change::Rename(from, to), || fs::rename(from, to))
}

/// Removes a file, or a folder with everything in it, if it is there.
///
/// # Errors
/// The system refuses.
pub fn remove(path: &Path) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    let remove = || if metadata.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    fault::change(Change::Remove(path), remove)
}

/// Syncs the names in a folder to the disk. On Windows, folders cannot be opened, and the file system does this by itself.
///
/// # Errors
/// The disk refuses.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    let sync = || if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) };
    fault::change(Change::SyncFolder(folder), sync)
}

/// Whether an error of the system may disappear without a change of the command: a full disk, an error of a device, a lost
/// network.
pub fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable, Interrupted, NetworkDown,
        NetworkUnreachable, OutOfMemory, QuotaExceeded, ResourceBusy, StaleNetworkFileHandle, StorageFull,
        TimedOut, WouldBlock,
    };
    // `ErrorKind` has no stable variant for device errors (EIO) and for too many open files (EMFILE, ENFILE).
    let numbers = [libc::EIO, libc::EMFILE, libc::ENFILE];
    let is_kind = matches!(
        error.kind(),
        ConnectionAborted
            | ConnectionRefused
            | ConnectionReset
            | HostUnreachable
            | Interrupted
            | NetworkDown
            | NetworkUnreachable
            | OutOfMemory
            | QuotaExceeded
            | ResourceBusy
            | StaleNetworkFileHandle
            | StorageFull
            | TimedOut
            | WouldBlock
    );
    is_kind || error.raw_os_error().is_some_and(|number| numbers.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_new_file_does_not_follow_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let [target, link, loose] = ["target", "link", "loose"].map(|name| folder.path().join(name));
        fs::write(&target, "of somebody else").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        std::os::unix::fs::symlink(folder.path().join("none"), &loose).unwrap();
        for path in [&target, &link, &loose] {
            assert_eq!(create_new(path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(append(&loose).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&target).unwrap(), b"of somebody else");
        assert!(!folder.path().join("none").exists());
    }

    #[test]
    fn many_threads_make_the_same_folders() {
        let parent = tempfile::tempdir().unwrap();
        for number in 0..200 {
            let path = parent.path().join(number.to_string()).join("checkpoints");
            let barrier = std::sync::Barrier::new(4);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        barrier.wait();
                        create_folders(&path).unwrap();
                    });
                }
            });
        }
        let file = parent.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(create_folders(&file).is_err());
    }
}
