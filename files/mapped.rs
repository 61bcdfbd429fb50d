//! Files that are mapped into memory for a whole run, and what happens when somebody changes them meanwhile.
//!
//! A mapped file that is cut off raises a bus error (SIGBUS) where the missing bytes are read. The handler here names the
//! file and ends the process; whatever was saved before stays. A file that is written to gives other bytes from then on:
//! [`unchanged`] compares sizes and times, and is asked between steps.

use crate::regular::open_regular;
use bytes::Bytes;
use memmap2::Mmap;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// A file that is not what it was when it was mapped.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{}` was changed while it was in use: {}\n  = put it back as it was",
    path.display(), self.difference()
)]
pub struct FileChanged {
    /// The file.
    pub path: PathBuf,
    /// Bytes when it was mapped.
    pub before: u64,
    /// Bytes now.
    pub now: u64,
}

impl FileChanged {
    fn difference(&self) -> String {
        match self.before == self.now {
            true => format!("its {} bytes were written to", self.now),
            false => format!("it had {} bytes, and has {}", self.before, self.now),
        }
    }
}

/// The size and the time of the last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self { bytes: metadata.len(), modified: metadata.modified().ok() }
    }
}

/// A mapped file. It stays open, so that it is the same file that is looked at again, whatever has its name by then.
struct Mapped {
    map: Mmap,
    file: File,
    path: PathBuf,
    stamp: Stamp,
}

impl Mapped {
    fn check(&self) -> Result<(), FileChanged> {
        let now = self.file.metadata().map(|metadata| Stamp::of(&metadata));
        match now {
            Ok(now) if now != self.stamp => {
                Err(FileChanged { path: self.path.clone(), before: self.stamp.bytes, now: now.bytes })
            }
            _ => Ok(()),
        }
    }
}

/// The bytes that the rest of the program holds. Dropped, the file is no longer watched.
struct Watched(Arc<Mapped>);

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.0.map
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|other| !Arc::ptr_eq(other, &self.0));
        fatal::leave(self.0.map.as_ptr() as usize);
    }
}

static WATCHED: Mutex<Vec<Arc<Mapped>>> = Mutex::new(Vec::new());

/// The contents of a regular file, mapped and not copied, and watched until they are dropped.
///
/// # Errors
/// The file cannot be opened; it is a folder, a pipe or a device.
pub fn map(path: &Path) -> io::Result<Bytes> {
    let file = open_regular(path)?;
    let stamp = Stamp::of(&file.metadata()?);
    if stamp.bytes == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: a read-only map is unsound only if the file changes meanwhile. The bytes are plain numbers of which no value
    // is invalid, and each access is checked against the length at mapping time; a file that is cut off ends the process by
    // the handler below before a byte of it is read.
    #[allow(unsafe_code)]
    let map = unsafe { Mmap::map(&file) }?;
    fatal::watch(&map, path);
    let mapped = Arc::new(Mapped { map, file, path: path.to_owned(), stamp });
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner).push(mapped.clone());
    Ok(Bytes::from_owner(Watched(mapped)))
}

/// Compares the files at these paths, and in folders at these paths, with what they were when they were mapped.
///
/// # Errors
/// The first that has another size or another time.
pub fn unchanged(paths: &[PathBuf]) -> Result<(), FileChanged> {
    let watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut watched = watched.iter().filter(|mapped| paths.iter().any(|path| mapped.path.starts_with(path)));
    watched.try_for_each(|mapped| mapped.check())
}

/// The handler of bus errors. It may use nothing that allocates or locks, so it has a table of its own.
#[cfg(unix)]
#[allow(unsafe_code)]
mod fatal {
    use libc::{c_int, c_void, sigaction, siginfo_t};
    use std::mem::{MaybeUninit, zeroed};
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::sync::Once;
    use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

    /// A mapped file. A place is free while `start` is 0.
    struct Place {
        start: AtomicUsize,
        bytes: AtomicUsize,
        /// The file's path and a zero. Paths are never freed: a program maps few files, and the handler may be reading one.
        path: AtomicPtr<u8>,
    }

    #[allow(clippy::declare_interior_mutable_const)]
    const FREE: Place = Place {
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        path: AtomicPtr::new(std::ptr::null_mut()),
    };
    /// Files beyond these are mapped as well, and have no name in the message.
    static PLACES: [Place; 256] = [FREE; 256];

    /// The exit code of what a user can mend.
    const EXIT_CODE: c_int = 2;

    static INSTALLED: Once = Once::new();
    /// What the process did with a bus error before.
    static mut EARLIER: MaybeUninit<sigaction> = MaybeUninit::uninit();

    /// Watches a map until [`leave`].
    pub(super) fn watch(map: &[u8], path: &Path) {
        INSTALLED.call_once(install);
        let taken =
            |place: &&Place| place.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let Some(place) = PLACES.iter().find(taken) else { return };
        let name: Vec<u8> = path.as_os_str().as_bytes().iter().copied().chain([0]).collect();
        place.path.store(name.leak().as_mut_ptr(), Ordering::Release);
        place.bytes.store(map.len(), Ordering::Release);
        place.start.store(map.as_ptr() as usize, Ordering::Release);
    }

    /// Frees the place of the map that starts there.
    pub(super) fn leave(start: usize) {
        if let Some(place) = PLACES.iter().find(|place| place.start.load(Ordering::Acquire) == start) {
            place.start.store(0, Ordering::Release);
        }
    }

    fn install() {
        // SAFETY: the struct is plain data of which all zeros is a value; the handler has the signature that SA_SIGINFO asks
        // for; `EARLIER` is written here alone, once, before the handler can run.
        unsafe {
            let mut action: sigaction = zeroed();
            action.sa_sigaction = handler as *const () as usize;
            // On the thread's own stack for signals, where it has one: this thread may be short of stack.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &action, (&raw mut EARLIER).cast());
        }
    }

    extern "C" fn handler(_signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
        // SAFETY: the system gives a valid `siginfo_t` to a handler with SA_SIGINFO. `write`, `_exit` and `sigaction` are
        // async-signal-safe. The paths are never freed.
        unsafe {
            let address = (*info).si_addr() as usize;
            for place in &PLACES {
                let (start, bytes) =
                    (place.start.load(Ordering::Acquire), place.bytes.load(Ordering::Acquire));
                // Beyond the end to the end of the page, which is mapped too.
                if start > 1 && (start..start + bytes.next_multiple_of(1 << 16)).contains(&address) {
                    say(b"\nerror: `");
                    let path = place.path.load(Ordering::Acquire);
                    say(std::ffi::CStr::from_ptr(path.cast()).to_bytes());
                    say(b"` was cut off while it was in use, or cannot be read any more\n");
                    say(b"  = checkpoints that were saved are whole: put the file back as it was, and go on with --resume\n");
                    libc::_exit(EXIT_CODE);
                }
            }
            // No file of ours: back to what was done before, which happens when the instruction is tried again.
            libc::sigaction(libc::SIGBUS, (&raw const EARLIER).cast(), std::ptr::null_mut());
        }
    }

    fn say(text: &[u8]) {
        // SAFETY: the text is valid for its length. Nothing can be done about an error.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }
}

#[cfg(not(unix))]
mod fatal {
    pub(super) fn watch(_map: &[u8], _path: &std::path::Path) {}
    pub(super) fn leave(_start: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    #[test]
    fn a_file_that_changes_is_named_until_it_is_no_longer_mapped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.bin");
        let unchanged = || unchanged(&[folder.path().to_owned()]);
        fs::write(&path, [1, 2, 3]).unwrap();
        let bytes = map(&path).unwrap();
        unchanged().unwrap();
        // Another file of the name is not the one that is mapped.
        fs::write(folder.path().join("other"), [9]).unwrap();
        fs::rename(folder.path().join("other"), &path).unwrap();
        unchanged().unwrap();
        assert_eq!(bytes.as_ref(), [1, 2, 3]);
        let part = map(&path).unwrap().slice(..1);
        drop(bytes);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(&[4, 5]).unwrap();
        let changed = unchanged().unwrap_err();
        assert_eq!((changed.before, changed.now), (1, 3));
        assert!(changed.to_string().contains("it had 1 bytes, and has 3"), "{changed}");
        drop(part);
        unchanged().unwrap();
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(map(folder.path()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert!(map(&folder.path().join("none")).is_err());
        fs::write(folder.path().join("empty"), []).unwrap();
        assert!(map(&folder.path().join("empty")).unwrap().is_empty());
    }

    /// Set for the process that reads.
    const READER: &str = "FILES_TEST_READS_MISSING_BYTES";

    /// The reading end of the next test, in a process of its own: it ends the process.
    #[test]
    fn reads_missing_bytes() {
        if std::env::var_os(READER).is_none() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.bin");
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        let bytes = map(&path).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
        fs::remove_dir_all(folder.path()).unwrap();
        println!("read {}", bytes[1 << 19]);
    }

    #[test]
    fn missing_bytes_end_the_process_with_the_files_name() {
        let this = std::env::current_exe().unwrap();
        let arguments = ["--exact", "--nocapture", "mapped::tests::reads_missing_bytes"];
        let ended = std::process::Command::new(this).args(arguments).env(READER, "1").output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{told}");
        assert!(told.contains("data.bin` was cut off while it was in use"), "{told}");
    }
}
