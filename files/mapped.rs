//! Files that are mapped into memory for a whole run, and changes of such files during the run.
//!
//! - A mapped file that is cut off raises a bus error (SIGBUS) where the missing bytes are read. The handler here names the
//!   file and ends the process; checkpoints that were saved before stay.
//! - A program that writes to a mapped file changes the mapped bytes. [`changes`] compares sizes and times between steps;
//!   a caller that knows the checksum of the file compares it with [`FileChanged::mapped_sum`].
//! - A file that is replaced by rename, or removed, leaves the mapped bytes as they are.

use crate::Checksum;
use crate::regular::open_regular;
use bytes::Bytes;
use memmap2::Mmap;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, Metadata};
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// A mapped file that was changed after it was mapped.
#[derive(Clone, Debug, thiserror::Error)]
#[error("`{}` was changed while it was in use: {change}", mapped.path.display())]
pub struct FileChanged {
    /// The change.
    pub change: Change,
    mapped: Arc<Mapped>,
    /// The file of this name, if there is one.
    now: Option<Stamp>,
}

impl FileChanged {
    /// The path that was mapped.
    pub fn path(&self) -> &Path {
        &self.mapped.path
    }

    /// The checksum of the mapped bytes, all of which are read. Those of a file that was cut off cannot be.
    pub fn mapped_sum(&self) -> String {
        Checksum::of(&self.mapped.map).to_string()
    }

    /// Ignores this change from now on. The caller has checked that the mapped bytes did not change.
    pub fn accept(&self) {
        *self.mapped.stamp() = self.now.filter(|_| self.change != Change::Replaced);
    }
}

/// The change of a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The file is shorter: to read the missing bytes would end the process.
    Cut {
        /// Bytes when it was mapped.
        before: u64,
        /// Bytes now.
        now: u64,
    },
    /// The time of its last change is another, so that its bytes may be others.
    Written,
    /// Its name leads to another file, or to none. The mapped bytes are as they were.
    Replaced,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut { before, now } => write!(f, "it had {before} bytes, and it has {now} bytes now"),
            Self::Written => write!(f, "a program wrote to the file"),
            Self::Replaced => write!(f, "the file was replaced or removed"),
        }
    }
}

/// The identity, the size and the time of the last change of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    identity: Option<(u64, u64)>,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let identity = {
            use std::os::unix::fs::MetadataExt;
            Some((metadata.dev(), metadata.ino()))
        };
        #[cfg(not(unix))]
        let identity = None;
        Self { identity, bytes: metadata.len(), modified: metadata.modified().ok() }
    }

    /// The change between this stamp and a later one of the same name.
    fn change(&self, now: Option<Self>) -> Option<Change> {
        match now {
            None => Some(Change::Replaced),
            Some(now) if now == *self => None,
            Some(now) if now.identity != self.identity => Some(Change::Replaced),
            Some(now) if now.bytes < self.bytes => Some(Change::Cut { before: self.bytes, now: now.bytes }),
            Some(_) => Some(Change::Written),
        }
    }
}

/// A mapped file. The file itself is closed: data may be more files than a process can have open.
#[derive(Debug)]
struct Mapped {
    map: Mmap,
    path: PathBuf,
    /// The stamp at mapping, or when a later change was accepted. `None` is a file that was accepted without its name.
    stamp: Mutex<Option<Stamp>>,
}

impl Mapped {
    fn stamp(&self) -> MutexGuard<'_, Option<Stamp>> {
        self.stamp.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Option<Stamp> {
        fs::metadata(&self.path).ok().map(|metadata| Stamp::of(&metadata))
    }

    fn change(self: Arc<Self>) -> Option<FileChanged> {
        let (stamp, now) = ((*self.stamp())?, self.now());
        Some(FileChanged { change: stamp.change(now)?, mapped: self, now })
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
        let mut watched = watched();
        if let Some(of_path) = watched.get_mut(&self.0.path) {
            of_path.retain(|other| !Arc::ptr_eq(other, &self.0));
            if of_path.is_empty() {
                watched.remove(&self.0.path);
            }
        }
        fatal::leave(self.0.map.as_ptr() as usize);
    }
}

/// The mapped files of each path. Data can be a million files.
type ByPath = BTreeMap<PathBuf, Vec<Arc<Mapped>>>;

static WATCHED: Mutex<ByPath> = Mutex::new(BTreeMap::new());

fn watched() -> MutexGuard<'static, ByPath> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The mapped files at these paths and in folders at these paths.
fn at(paths: &[PathBuf]) -> Vec<Arc<Mapped>> {
    let mut paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    // Paths are ordered by their components: a folder is followed by all that is in it.
    paths.sort_unstable();
    paths.dedup_by(|path, folder| path.starts_with(folder));
    let watched = watched();
    let under = |path| {
        let from = watched.range::<Path, _>((Bound::Included(path), Bound::Unbounded));
        from.take_while(move |(other, _)| other.starts_with(path))
            .flat_map(|(_, mapped)| mapped.iter().cloned())
    };
    paths.into_iter().flat_map(under).collect()
}

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
    let mapped = Arc::new(Mapped { map, path: path.to_owned(), stamp: Mutex::new(Some(stamp)) });
    watched().entry(path.to_owned()).or_default().push(mapped.clone());
    Ok(Bytes::from_owner(Watched(mapped)))
}

/// Whether a path leads to a file that is mapped, perhaps under another name.
pub fn is_in_use(path: &Path) -> bool {
    let Some(identity) = fs::metadata(path).ok().and_then(|metadata| Stamp::of(&metadata).identity) else {
        return false;
    };
    let is_same = |mapped: &Arc<Mapped>| mapped.stamp().is_some_and(|stamp| stamp.identity == Some(identity));
    watched().values().flatten().any(is_same)
}

/// Whether bytes lie in a file that is mapped.
pub(crate) fn is_mapped(bytes: &[u8]) -> bool {
    let holds = |mapped: &Arc<Mapped>| mapped.map.as_ptr_range().contains(&bytes.as_ptr());
    watched().values().flatten().any(holds)
}

/// Compares the mapped files at these paths, and in folders at these paths, with their state at mapping. Returns the changes.
pub fn changes(paths: &[PathBuf]) -> Vec<FileChanged> {
    at(paths).into_iter().filter_map(Mapped::change).collect()
}

/// Returns whether an opened file has the bytes that are mapped under its path, if any are.
pub fn is_as_mapped(path: &Path, opened: &Metadata) -> bool {
    let is_same = |mapped: &Arc<Mapped>| *mapped.stamp() == Some(Stamp::of(opened));
    watched().get(path).is_none_or(|mapped| mapped.iter().all(is_same))
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

    /// The exit code of errors that a user can mend.
    const EXIT_CODE: c_int = 2;

    static INSTALLED: Once = Once::new();
    /// The process's earlier reaction to a bus error.
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
                    say(b"` was truncated while it was in use, or it can no longer be read\n");
                    say(b"  = restore the file; a run that has saved a checkpoint continues with --resume\n");
                    libc::_exit(EXIT_CODE);
                }
            }
            // The address is in no mapped file. The earlier reaction is restored, and follows when the instruction is repeated.
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
    fn each_change_of_a_mapped_file_is_noticed_until_it_is_accepted_or_the_map_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.bin");
        let changed = || changes(&[folder.path().to_owned()]).pop();
        let change = || changed().map(|changed| changed.change);
        fs::write(&path, [1, 2, 3]).unwrap();
        let bytes = map(&path).unwrap();
        assert_eq!(change(), None);
        // Time is counted in steps of some milliseconds.
        let later = SystemTime::now() + std::time::Duration::from_secs(10);
        fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert_eq!(change(), Some(Change::Written));
        let touched = changed().unwrap();
        assert_eq!(touched.mapped_sum(), Checksum::of(&[1, 2, 3]).to_string());
        assert!(!is_as_mapped(&path, &fs::metadata(&path).unwrap()));
        touched.accept();
        assert!(is_as_mapped(&path, &fs::metadata(&path).unwrap()));
        assert_eq!(change(), None);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(&[4, 5]).unwrap();
        let grown = changed().unwrap();
        assert_eq!(grown.change, Change::Written);
        // A later change is not accepted with this one.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(&[6]).unwrap();
        grown.accept();
        assert_eq!(change(), Some(Change::Written));
        OpenOptions::new().write(true).open(&path).unwrap().set_len(1).unwrap();
        assert_eq!(change(), Some(Change::Cut { before: 5, now: 1 }));
        drop(bytes);
        assert_eq!(change(), None);

        let bytes = map(&path).unwrap();
        fs::write(folder.path().join("other"), [9, 9]).unwrap();
        fs::rename(folder.path().join("other"), &path).unwrap();
        let replaced = changed().unwrap();
        assert_eq!(replaced.change, Change::Replaced);
        assert_eq!(bytes.as_ref(), [1]);
        replaced.accept();
        assert_eq!(change(), None);
        drop(bytes);
        let _bytes = map(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(change(), Some(Change::Replaced));
    }

    #[test]
    fn the_files_of_a_folder_are_found_once_each() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("part");
        fs::create_dir(&inner).unwrap();
        let paths =
            [inner.join("a"), inner.join("b"), folder.path().join("part.a"), folder.path().join("pa")];
        let maps: Vec<Bytes> = paths
            .iter()
            .map(|path| {
                fs::write(path, [1]).unwrap();
                map(path).unwrap()
            })
            .collect();
        let found =
            |paths: &[PathBuf]| at(paths).iter().map(|mapped| mapped.path.clone()).collect::<Vec<PathBuf>>();
        assert_eq!(found(std::slice::from_ref(&inner)), paths[..2]);
        assert_eq!(found(&[paths[1].clone(), inner.clone(), inner]), paths[..2]);
        assert_eq!(found(&[paths[2].clone()]), paths[2..3]);
        assert_eq!(found(&[folder.path().to_owned()]).len(), maps.len());
        drop(maps);
        assert!(found(&[folder.path().to_owned()]).is_empty());
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
        assert!(told.contains("data.bin` was truncated while it was in use"), "{told}");
    }
}
