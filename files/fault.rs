//! Deliberate faults: a test makes one operation on the disk fail and looks at the disk afterwards, as SQLite's tests do
//! (<https://www.sqlite.org/testing.html>, section 3).
//!
//! Only operations on the thread of the test are counted. After the process was "killed", all of its operations fail. A loss of
//! power undoes every change that was not synced: written bytes, and names in folders.

use crate::folder::parent;
use std::cell::RefCell;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// The failure of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The disk is full: the operation is not done. A write writes its first half.
    Full,
    /// The disk fails: the operation is not done.
    Failed,
    /// The process is killed before the operation.
    KilledBefore,
    /// The process is killed after the operation.
    KilledAfter,
    /// The machine loses its power before the operation.
    PowerLostBefore,
    /// The machine loses its power after the operation.
    PowerLostAfter,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 6] = [
        Self::Full,
        Self::Failed,
        Self::KilledBefore,
        Self::KilledAfter,
        Self::PowerLostBefore,
        Self::PowerLostAfter,
    ];
}

/// The change on disk that an operation makes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change<'a> {
    /// Access to a file without a name, which nobody can open after the process has ended.
    Unnamed,
    Create(&'a Path),
    Write(&'a Path),
    Sync(&'a Path),
    Rename(&'a Path, &'a Path),
    Remove(&'a Path),
    SyncFolder(&'a Path),
}

/// A change that was not synced, which a loss of power undoes.
#[derive(Debug)]
enum Unsynced {
    Created(PathBuf),
    /// Bytes of the file beyond this length.
    Written(PathBuf, u64),
    /// `replaced` is a copy of the file that had the new name before.
    Renamed {
        from: PathBuf,
        to: PathBuf,
        replaced: Option<PathBuf>,
    },
    /// `kept` is a copy of the removed file or folder.
    Removed {
        path: PathBuf,
        kept: PathBuf,
    },
}

/// The fault that a thread injects, and its file operations so far.
struct FaultPlan {
    at: Option<(u64, Fault)>,
    done: u64,
    ended: bool,
    unsynced: Vec<Unsynced>,
    /// Copies of files that were replaced or removed.
    attic: tempfile::TempDir,
}

thread_local! {
    static PLAN: RefCell<Option<FaultPlan>> = const { RefCell::new(None) };
}

/// Runs `work` with a fault at the operation number `at` (from 0) of this thread.
pub fn inject<T>(at: u64, fault: Fault, work: impl FnOnce() -> T) -> T {
    run(Some((at, fault)), work).0
}

/// Runs `work` and returns its result and the number of its operations.
pub fn count<T>(work: impl FnOnce() -> T) -> (T, u64) {
    run(None, work)
}

/// The fault plan of a thread, while another thread works for that thread.
#[derive(Default)]
pub struct LentFault(Option<FaultPlan>);

/// Takes the fault of this thread, for a thread that works for it until [`LentFault::give_back`].
pub fn lend() -> LentFault {
    LentFault(PLAN.take())
}

impl LentFault {
    /// Runs `work` with the fault on this thread, which works for the lending thread.
    #[must_use]
    pub fn during(self, work: impl FnOnce()) -> Self {
        PLAN.set(self.0);
        work();
        lend()
    }

    /// Returns the fault to the thread that lent it.
    pub fn give_back(self) {
        PLAN.set(self.0);
    }
}

fn run<T>(at: Option<(u64, Fault)>, work: impl FnOnce() -> T) -> (T, u64) {
    /// Clears the plan even if the test panics, so that the next test on this thread does not inherit it.
    struct Clear;
    impl Drop for Clear {
        fn drop(&mut self) {
            PLAN.set(None);
        }
    }
    let attic = tempfile::tempdir().expect("tests have a temporary folder");
    PLAN.set(Some(FaultPlan { at, done: 0, ended: false, unsynced: Vec::new(), attic }));
    let _clear = Clear;
    let result = work();
    let done = PLAN.with_borrow(|plan| plan.as_ref().map_or(0, |plan| plan.done));
    (result, done)
}

fn killed() -> io::Error {
    io::Error::other("the process was killed (a test)")
}

/// Does an operation, unless a test makes it fail.
pub(crate) fn change<T>(change: Change<'_>, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let Some(fault) = before(change)? else { return act() };
    match fault {
        Some(Fault::Full) => Err(io::ErrorKind::StorageFull.into()),
        _ => after(fault, act),
    }
}

/// Writes, as [`change`] does. On a full disk only the first half of the bytes is written.
pub(crate) fn write(
    path: &Path,
    bytes: &[u8],
    mut act: impl FnMut(&[u8]) -> io::Result<usize>,
) -> io::Result<usize> {
    let Some(fault) = before(Change::Write(path))? else { return act(bytes) };
    match fault {
        Some(Fault::Full) => {
            act(&bytes[..bytes.len() / 2])?;
            Err(io::ErrorKind::StorageFull.into())
        }
        _ => after(fault, || act(bytes)),
    }
}

/// Reads a file without a name, unless a test makes the disk fail. A full disk can still be read.
pub(crate) fn read<T>(act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let Some(fault) = before(Change::Unnamed)? else { return act() };
    after(fault, act)
}

/// Counts an operation, and records its change so that a loss of power can undo it. Returns `None` outside of a test, otherwise
/// the fault of this operation. A fault that comes before the operation is returned as the error.
fn before(change: Change<'_>) -> io::Result<Option<Option<Fault>>> {
    PLAN.with_borrow_mut(|plan| {
        let Some(plan) = plan else { return Ok(None) };
        if plan.ended {
            return Err(killed());
        }
        let fault = plan.at.filter(|(at, _)| *at == plan.done).map(|(_, fault)| fault);
        plan.done += 1;
        match fault {
            Some(Fault::Failed) => return Err(io::Error::other("input/output error (a test)")),
            Some(Fault::KilledBefore) => return Err(plan.end(false)),
            Some(Fault::PowerLostBefore) => return Err(plan.end(true)),
            Some(Fault::Full) if !matches!(change, Change::Write(_)) => {}
            _ => plan.keep(change)?,
        }
        Ok(Some(fault))
    })
}

fn after<T>(fault: Option<Fault>, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let result = act()?;
    let power = match fault {
        Some(Fault::KilledAfter) => false,
        Some(Fault::PowerLostAfter) => true,
        _ => return Ok(result),
    };
    PLAN.with_borrow_mut(|plan| match plan {
        Some(plan) => Err(plan.end(power)),
        None => Ok(result),
    })
}

impl FaultPlan {
    /// Records the change of the next operation. A sync drops the records of its file or folder, because they are now durable.
    fn keep(&mut self, change: Change<'_>) -> io::Result<()> {
        let unsynced = match change {
            Change::Unnamed => return Ok(()),
            Change::Create(path) => Unsynced::Created(path.to_owned()),
            Change::Write(path) => Unsynced::Written(path.to_owned(), fs::metadata(path)?.len()),
            Change::Rename(from, to) => {
                let replaced = if to.is_file() { Some(self.store(to)?) } else { None };
                Unsynced::Renamed { from: from.to_owned(), to: to.to_owned(), replaced }
            }
            Change::Remove(path) => Unsynced::Removed { path: path.to_owned(), kept: self.store(path)? },
            Change::Sync(path) => {
                self.unsynced.retain(|change| !matches!(change, Unsynced::Written(of, _) if of == path));
                return Ok(());
            }
            Change::SyncFolder(folder) => {
                self.unsynced.retain(|change| !change.is_name_in(folder));
                return Ok(());
            }
        };
        self.unsynced.push(unsynced);
        Ok(())
    }

    /// Stores a copy of a file or folder in the attic, and returns its path.
    fn store(&self, path: &Path) -> io::Result<PathBuf> {
        let kept = self.attic.path().join(self.unsynced.len().to_string());
        copy(path, &kept)?;
        Ok(kept)
    }

    /// Ends the process. With `power`, every change that was not synced is undone.
    fn end(&mut self, power: bool) -> io::Error {
        self.ended = true;
        if power {
            for change in std::mem::take(&mut self.unsynced).into_iter().rev() {
                if let Err(error) = change.undo() {
                    panic!("{change:?} could not be undone: {error}");
                }
            }
        }
        killed()
    }
}

impl Unsynced {
    fn is_name_in(&self, folder: &Path) -> bool {
        match self {
            Self::Created(path) | Self::Removed { path, .. } => parent(path) == folder,
            Self::Renamed { to, .. } => parent(to) == folder,
            Self::Written(..) => false,
        }
    }

    fn undo(&self) -> io::Result<()> {
        match self {
            Self::Created(path) if path.is_dir() => fs::remove_dir_all(path),
            Self::Created(path) if path.exists() => fs::remove_file(path),
            Self::Created(_) => Ok(()),
            // Half of the unsynced bytes are kept, as if the system had already written them.
            Self::Written(path, from) if path.exists() => {
                let file = OpenOptions::new().write(true).open(path)?;
                let length = file.metadata()?.len();
                file.set_len(from + length.saturating_sub(*from) / 2)
            }
            Self::Written(..) => Ok(()),
            Self::Renamed { from, to, replaced } => {
                if to.exists() {
                    fs::rename(to, from)?;
                }
                replaced.as_ref().map_or(Ok(()), |kept| copy(kept, to))
            }
            Self::Removed { path, kept } => copy(kept, path),
        }
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if !from.is_dir() {
        return fs::copy(from, to).map(drop);
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk;
    use std::io::Write;

    #[test]
    fn a_thread_that_works_for_another_has_its_fault() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| disk::create_new(&folder.path().join(name)).map(drop);
        let error = inject(1, Fault::Failed, || {
            write("first").unwrap();
            let lent = lend();
            write("not counted").unwrap();
            let mut error = None;
            let lent = std::thread::scope(|scope| {
                let work = || lent.during(|| error = write("second").err());
                scope.spawn(work).join().unwrap()
            });
            lent.give_back();
            write("third").unwrap();
            error
        });
        assert_eq!(error.unwrap().to_string(), "input/output error (a test)");
    }

    #[test]
    fn a_loss_of_power_takes_back_what_was_not_synced_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let [kept, lost] = ["kept", "lost"].map(|name| folder.path().join(name));
        let work = || -> io::Result<()> {
            for path in [&kept, &lost] {
                let mut file = disk::create_new(path)?;
                file.write_all(b"12345678")?;
                file.sync()?;
                if path == &kept {
                    disk::sync_folder(folder.path())?;
                    file.write_all(b"12345678")?;
                }
            }
            disk::remove(&kept)
        };
        let (result, operations) = count(work);
        result.unwrap();
        assert_eq!(operations, 9);
        fs::remove_file(&lost).unwrap();
        assert!(inject(8, Fault::PowerLostAfter, work).is_err());
        // The removal is undone. Half of the bytes that were written after the sync are there. The second file has no name.
        assert_eq!(fs::read(&kept).unwrap(), b"123456781234");
        assert!(!lost.exists());
    }

    #[test]
    fn nothing_is_done_after_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let end = inject(1, Fault::KilledAfter, || {
            let mut file = disk::create_new(&path).unwrap();
            assert!(file.write_all(b"1234").is_err());
            disk::remove(&path)
        });
        assert!(end.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"1234");
    }

    #[test]
    fn a_full_disk_has_half_of_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let error = inject(1, Fault::Full, || disk::create_new(&path).unwrap().write_all(b"1234"));
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"12");
    }
}
