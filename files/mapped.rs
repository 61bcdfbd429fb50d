//! Files that are mapped into memory for a whole run, and the detection of changes of such files.
//!
//! - A truncated file raises a bus error (SIGBUS) when its missing bytes are read. The handler in this file prints the name of the
//!   file and ends the process. Saved checkpoints stay.
//! - A program that writes to a mapped file changes the mapped bytes. [`changes`] compares sizes and times between steps. A caller
//!   that knows the checksum of the file compares it with [`FileChanged::mapped_sum`].
//! - If a file is removed, or replaced by rename, the mapped bytes stay as they are.

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
    /// The stamp of the file that has this name now, if there is one.
    now: Option<Stamp>,
}

impl FileChanged {
    /// Returns the path of the mapped file.
    pub fn path(&self) -> &Path {
        &self.mapped.path
    }

    /// Returns the checksum of all mapped bytes. Do not call this for a truncated file: its missing bytes cannot be read.
    pub fn mapped_sum(&self) -> String {
        Checksum::of(&self.mapped.map).to_string()
    }

    /// Ignores this change from now on. The caller has checked that the mapped bytes are unchanged.
    pub fn accept(&self) {
        *self.mapped.stamp() = self.now.filter(|_| self.change != Change::Replaced);
    }
}

/// The change of a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The file is shorter. Reading its missing bytes would end the process.
    Cut {
        /// The file's bytes at mapping.
        before: u64,
        /// The file's bytes now.
        now: u64,
    },
    /// The modification time is different, so the bytes may be different.
    Written,
    /// The name leads to another file, or to none. The mapped bytes are unchanged.
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

    /// Returns the change between this stamp and a later stamp of the same path.
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

/// A mapped file. The file itself is closed, because a data set may have more files than a process can open.
#[derive(Debug)]
struct Mapped {
    map: Mmap,
    path: PathBuf,
    /// The stamp at mapping, or at the last accepted change. `None` after the replacement of the file was accepted.
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

/// The owner of the mapped bytes that callers hold. When it is dropped, the file is no longer watched.
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

/// The mapped files of each path. A data set can have a million files.
type ByPath = BTreeMap<PathBuf, Vec<Arc<Mapped>>>;

static WATCHED: Mutex<ByPath> = Mutex::new(BTreeMap::new());

fn watched() -> MutexGuard<'static, ByPath> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the mapped files at these paths and in folders at these paths.
fn at(paths: &[PathBuf]) -> Vec<Arc<Mapped>> {
    let mut paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    // Paths are ordered by their components: a folder is followed by all paths in it.
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

/// Maps the contents of a regular file without a copy. The file is watched until the bytes are dropped.
///
/// # Errors
/// The file cannot be opened; it is a folder, a pipe or a device.
pub fn map(path: &Path) -> io::Result<Bytes> {
    let file = open_regular(path)?;
    let stamp = Stamp::of(&file.metadata()?);
    if stamp.bytes == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: a read-only map is unsound only if the file changes meanwhile. Every bit pattern of the bytes is valid, and each
    // access is checked against the length at mapping time. If the file is truncated, the handler below ends the process before a
    // missing byte is used.
    #[allow(unsafe_code)]
    let map = unsafe { Mmap::map(&file) }?;
    fatal::watch(&map, path);
    let mapped = Arc::new(Mapped { map, path: path.to_owned(), stamp: Mutex::new(Some(stamp)) });
    watched().entry(path.to_owned()).or_default().push(mapped.clone());
    Ok(Bytes::from_owner(Watched(mapped)))
}

/// Returns whether a path leads to a mapped file, perhaps under another name.
pub fn is_in_use(path: &Path) -> bool {
    let Some(identity) = fs::metadata(path).ok().and_then(|metadata| Stamp::of(&metadata).identity) else {
        return false;
    };
    let is_same = |mapped: &Arc<Mapped>| mapped.stamp().is_some_and(|stamp| stamp.identity == Some(identity));
    watched().values().flatten().any(is_same)
}

/// Returns whether bytes lie in a mapped file.
pub(crate) fn is_mapped(bytes: &[u8]) -> bool {
    let holds = |mapped: &Arc<Mapped>| mapped.map.as_ptr_range().contains(&bytes.as_ptr());
    watched().values().flatten().any(holds)
}

/// Gives back the memory of the pages of all mapped files of at least 1 MiB. A page that is read later comes from the file again, or from the
/// system's cache of it.
pub(crate) fn release_pages() {
    #[cfg(unix)]
    for mapped in watched().values().flatten().filter(|mapped| mapped.map.len() >= 1 << 20) {
        // SAFETY: the map is read-only and shared with the file. So its pages hold nothing but the file's bytes, and the same bytes are read
        // again. A page that stays costs memory and nothing else.
        #[allow(unsafe_code)]
        let _ = unsafe { mapped.map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
    }
}

/// Returns the changes of the mapped files at these paths, and in folders at these paths, since they were mapped.
pub fn changes(paths: &[PathBuf]) -> Vec<FileChanged> {
    at(paths).into_iter().filter_map(Mapped::change).collect()
}

/// Returns whether an opened file is unchanged since it was mapped under this path. True if no file is mapped under the path.
pub fn is_as_mapped(path: &Path, opened: &Metadata) -> bool {
    let is_same = |mapped: &Arc<Mapped>| *mapped.stamp() == Some(Stamp::of(opened));
    watched().get(path).is_none_or(|mapped| mapped.iter().all(is_same))
}

/// The handler of bus errors. It must neither allocate nor lock, so it has its own table of files.
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
    struct Slot {
        start: AtomicUsize,
        bytes: AtomicUsize,
        /// The file's path and a zero. Paths are never freed: a program maps few files, and the handler may be reading one.
        path: AtomicPtr<u8>,
    }

    #[allow(clippy::declare_interior_mutable_const)]
    const FREE: Slot = Slot {
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        path: AtomicPtr::new(std::ptr::null_mut()),
    };
    /// The table of watched files. Files beyond its size are mapped as well, but the message cannot name them.
    static PLACES: [Slot; 256] = [FREE; 256];

    /// The exit code of errors that a user can correct.
    const EXIT_CODE: c_int = 2;

    static INSTALLED: Once = Once::new();
    /// The handler of bus errors before this one was installed.
    static mut EARLIER: MaybeUninit<sigaction> = MaybeUninit::uninit();

    /// Watches a map until [`leave`] is called.
    pub(super) fn watch(map: &[u8], path: &Path) {
        INSTALLED.call_once(install);
        let taken =
            |place: &&Slot| place.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let Some(place) = PLACES.iter().find(taken) else { return };
        let name: Vec<u8> = path.as_os_str().as_bytes().iter().copied().chain([0]).collect();
        place.path.store(name.leak().as_mut_ptr(), Ordering::Release);
        place.bytes.store(map.len(), Ordering::Release);
        place.start.store(map.as_ptr() as usize, Ordering::Release);
    }

    /// Frees the place of the map that begins at `start`.
    pub(super) fn leave(start: usize) {
        if let Some(place) = PLACES.iter().find(|place| place.start.load(Ordering::Acquire) == start) {
            place.start.store(0, Ordering::Release);
        }
    }

    fn install() {
        // SAFETY: the struct is plain data, for which all zeros is a valid value. The handler has the signature that SA_SIGINFO
        // requires. `EARLIER` is written only here, once, before the handler can run.
        unsafe {
            let mut action: sigaction = zeroed();
            action.sa_sigaction = handler as *const () as usize;
            // The handler runs on the thread's signal stack if there is one, because the thread's own stack may be nearly full.
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
                // The rest of the last page is mapped too.
                if start > 1 && (start..start + bytes.next_multiple_of(1 << 16)).contains(&address) {
                    say(b"\nerror: `");
                    let path = place.path.load(Ordering::Acquire);
                    say(std::ffi::CStr::from_ptr(path.cast()).to_bytes());
                    say(b"` was truncated while it was in use, or it can no longer be read\n");
                    say(b"  = restore the file; a run that has saved a checkpoint continues with --resume\n");
                    libc::_exit(EXIT_CODE);
                }
            }
            // The address is in no mapped file. The earlier handler is restored, and runs when the instruction is repeated.
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
        // Modification times have a resolution of some milliseconds.
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
        // Accepting an earlier change does not accept a later one.
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
    #[cfg(target_os = "linux")]
    fn released_pages_take_no_memory_and_are_read_again() {
        const BYTES: usize = 64 << 20;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.bin");
        fs::write(&path, vec![7; BYTES]).unwrap();
        let bytes = map(&path).unwrap();
        let sum = || bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        // The third number is that of the resident pages that belong to files.
        let resident = || {
            let numbers = fs::read_to_string("/proc/self/statm").unwrap();
            numbers.split(' ').nth(2).unwrap().parse::<usize>().unwrap()
        };
        assert_eq!(sum(), 7 * BYTES as u64);
        let read = resident();
        release_pages();
        let released = resident();
        assert!(released < read / 2, "{released} pages of {read}");
        assert_eq!(sum(), 7 * BYTES as u64);
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(map(folder.path()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert!(map(&folder.path().join("none")).is_err());
        fs::write(folder.path().join("empty"), []).unwrap();
        assert!(map(&folder.path().join("empty")).unwrap().is_empty());
    }

    /// The environment variable of the process that reads missing bytes.
    const READER: &str = "FILES_TEST_READS_MISSING_BYTES";

    /// The part of the next test that runs in its own process and ends that process.
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
