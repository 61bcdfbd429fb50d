//! A temporary file for bytes that do not fit in memory during a run.

use crate::Checksum;
use crate::fault::{self, Change};
use rustix::fs::{FallocateFlags, fallocate, statfs};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// The unit of direct reads and writes. It is at least the block size of every common disk.
pub const PAGE: u64 = 4096;

/// The bytes of one request to the system.
const REQUEST: usize = 4 << 20;

/// The largest number of requests in flight at once.
const IN_FLIGHT: usize = 4;

/// A file without a name, which the system removes when the process ends in any way. Reads and writes bypass the system's cache if
/// it allows that. The checksum of each written request is kept in memory and compared when the bytes are read again.
///
/// Offsets are multiples of [`PAGE`]. The bytes between the end of a range and the next multiple belong to the range.
#[derive(Debug)]
pub struct ScratchFile {
    file: File,
    is_direct: bool,
    sums: Mutex<BTreeMap<u64, (usize, u64)>>,
}

impl ScratchFile {
    /// Creates a file of so many bytes in a folder. The bytes are reserved, so that no later write finds the disk full.
    ///
    /// # Errors
    /// No file can be created in the folder; the disk has too little space.
    pub fn new(folder: &Path, bytes: u64) -> io::Result<Self> {
        let bytes = bytes.next_multiple_of(PAGE).max(PAGE);
        let (file, is_direct) = match direct(folder) {
            Ok(file) => (file, true),
            Err(_) => (tempfile::tempfile_in(folder)?, false),
        };
        match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            // A system that cannot reserve bytes allocates them when they are written.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => file.set_len(bytes)?,
            reserved => reserved?,
        }
        Ok(Self { file, is_direct, sums: Mutex::default() })
    }

    /// Whether reads and writes bypass the system's cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Reads bytes, from the offset `at` on.
    ///
    /// # Errors
    /// An error of the disk; bytes that differ from the written ones.
    pub fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        let requests = to.chunks_mut(REQUEST).zip((at..).step_by(REQUEST));
        in_parallel(requests, |(to, at), room| {
            let read = if self.is_direct { &mut *room.of(to.len()) } else { &mut *to };
            fault::read(|| self.file.read_exact_at(read, at))?;
            if self.is_direct {
                to.copy_from_slice(&room.of(to.len())[..to.len()]);
            }
            let sum = self.sums.lock().unwrap_or_else(PoisonError::into_inner).get(&at).copied();
            match sum.filter(|(length, sum)| *length == to.len() && Checksum::of(to).number() != *sum) {
                Some(_) => {
                    Err(io::Error::other(format!("the bytes from {at} on are not those that were written")))
                }
                None => Ok(()),
            }
        })
    }

    /// Writes bytes, from the offset `at` on.
    ///
    /// # Errors
    /// An error of the disk.
    pub fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        let requests = from.chunks(REQUEST).zip((at..).step_by(REQUEST));
        in_parallel(requests, |(from, at), room| {
            let sum = (from.len(), Checksum::of(from).number());
            self.sums.lock().unwrap_or_else(PoisonError::into_inner).insert(at, sum);
            let write = |bytes: &[u8]| fault::change(Change::Unnamed, || self.file.write_all_at(bytes, at));
            if !self.is_direct {
                return write(from);
            }
            let padded = room.of(from.len());
            padded[..from.len()].copy_from_slice(from);
            write(padded)
        })
    }
}

/// Creates a file without a name for direct reads and writes.
fn direct(folder: &Path) -> io::Result<File> {
    let flags = libc::O_TMPFILE | libc::O_DIRECT;
    let file = OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(flags).open(folder)?;
    // Some systems open such a file and then refuse every write.
    file.write_all_at(PageBuffer::default().of(1), 0)?;
    Ok(file)
}

/// Returns whether a folder lies on a network file system, which is slower than a disk and may refuse direct writes.
pub fn is_on_network(folder: &Path) -> bool {
    /// Magic numbers of NFS, SMB, SMB 2, CIFS, AFS, 9P and Ceph, from `linux/magic.h`.
    const NETWORK: [i64; 7] =
        [0x6969, 0x517b, 0xfe53_4d42, 0xff53_4d42, 0x5346_414f, 0x0102_1997, 0x00c3_6400];
    statfs(folder).is_ok_and(|found| NETWORK.contains(&found.f_type))
}

/// Carries out requests, several at once. `work` gets the buffer of its thread.
fn in_parallel<T: Send>(
    requests: impl Iterator<Item = T> + Send,
    work: impl Fn(T, &mut PageBuffer) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let mut requests = requests.peekable();
    let Some(first) = requests.next() else { return Ok(()) };
    if requests.peek().is_none() {
        return work(first, &mut PageBuffer::default());
    }
    let requests = Mutex::new([first].into_iter().chain(requests));
    let next = || requests.lock().unwrap_or_else(PoisonError::into_inner).next();
    let worker = || {
        let mut room = PageBuffer::default();
        while let Some(request) = next() {
            work(request, &mut room)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        // If the system refuses a thread, fewer requests are in flight.
        let spawn = |_| thread::Builder::new().spawn_scoped(scope, worker).ok();
        let threads: Vec<_> = (1..IN_FLIGHT).filter_map(spawn).collect();
        let own = worker();
        let ended = threads.into_iter().map(|thread| thread.join());
        let ended = ended.map(|result| result.unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))));
        ended.chain([own]).collect::<Vec<_>>().into_iter().collect()
    })
}

/// A buffer that starts at a multiple of [`PAGE`], as direct reads and writes need.
#[derive(Default)]
struct PageBuffer(Vec<u8>);

impl PageBuffer {
    /// Returns a buffer of so many bytes, rounded up to whole pages.
    fn of(&mut self, bytes: usize) -> &mut [u8] {
        let page = PAGE as usize;
        let bytes = bytes.next_multiple_of(page);
        self.0.resize(self.0.len().max(bytes + page), 0);
        let start = self.0.as_ptr().align_offset(page);
        &mut self.0[start..start + bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{Fault, inject};

    fn bytes(length: usize, seed: u8) -> Vec<u8> {
        (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
    }

    #[test]
    fn ranges_of_several_requests_and_odd_lengths_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let (long, short) = (bytes(3 * REQUEST + 7, 1), bytes(5, 2));
        let second = (long.len() as u64).next_multiple_of(PAGE);
        let file = ScratchFile::new(folder.path(), second + 5).unwrap();
        file.write(0, &long).unwrap();
        file.write(second, &short).unwrap();
        let (mut first, mut last) = (vec![0; long.len()], vec![0; 5]);
        file.read(0, &mut first).unwrap();
        file.read(second, &mut last).unwrap();
        assert!(first == long && last == short);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
    }

    #[test]
    fn bytes_that_changed_on_the_disk_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let file = ScratchFile::new(folder.path(), PAGE).unwrap();
        file.write(0, &bytes(100, 3)).unwrap();
        let mut room = PageBuffer::default();
        room.of(1).fill(9);
        file.file.write_all_at(room.of(1), 0).unwrap();
        let error = file.read(0, &mut [0; 100]).unwrap_err().to_string();
        assert_eq!(error, "the bytes from 0 on are not those that were written");
    }

    #[test]
    fn a_full_disk_takes_no_bytes_and_gives_those_that_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let file = ScratchFile::new(folder.path(), PAGE).unwrap();
        file.write(0, &bytes(100, 3)).unwrap();
        let mut read = [0; 100];
        inject(0, Fault::Full, || file.read(0, &mut read)).unwrap();
        assert!(read[..] == bytes(100, 3));
        let error = inject(0, Fault::Full, || file.write(0, &read)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        inject(0, Fault::Failed, || file.read(0, &mut read)).unwrap_err();
    }

    #[test]
    fn a_disk_without_room_is_noticed_before_anything_is_written() {
        let folder = tempfile::tempdir().unwrap();
        assert!(ScratchFile::new(folder.path(), 1 << 55).is_err());
    }
}
