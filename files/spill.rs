//! Bytes that are kept in a file without a name instead of in memory.

use crate::mapped::is_mapped;
use bytes::Bytes;
use memmap2::{Mmap, MmapOptions};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

/// The size below which bytes stay in memory.
const SMALL: usize = 1 << 20;

/// A file for bytes that were assembled and are read again later. It has no name, and disappears when the last of its bytes are
/// dropped. The system may use the memory of such bytes for something else at any time.
pub struct Spill {
    /// `None` if no file can be created in the folder; then the bytes stay in memory.
    file: Option<File>,
}

impl Spill {
    /// Creates a file in a folder.
    pub fn new(folder: &Path) -> Self {
        Self { file: tempfile::tempfile_in(folder).ok() }
    }

    /// Returns the same bytes. They are moved to the file, unless they are few, lie in a mapped file already, or cannot be
    /// written.
    pub fn put(&mut self, bytes: Bytes) -> Bytes {
        if bytes.len() < SMALL || is_mapped(&bytes) {
            return bytes;
        }
        match self.written(&bytes) {
            Ok(map) => Bytes::from_owner(map),
            Err(_) => bytes,
        }
    }

    fn written(&mut self, bytes: &[u8]) -> io::Result<Mmap> {
        let file = self.file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        // Bytes that an earlier failed write left at the end are skipped.
        let begin = file.seek(SeekFrom::End(0))?;
        file.write_all(bytes)?;
        // SAFETY: the file has no name, so no other program can change it, and this one only appends.
        #[allow(unsafe_code)]
        let map = unsafe { MmapOptions::new().offset(begin).len(bytes.len()).map(&*file) }?;
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_bytes_come_back_from_the_file_and_small_ones_from_memory() {
        let folder = tempfile::tempdir().unwrap();
        let mut spill = Spill::new(folder.path());
        let bytes =
            |seed: u8, length: usize| Bytes::from((0..length).map(|i| (i as u8) ^ seed).collect::<Vec<_>>());
        let given = [bytes(1, SMALL + 5), bytes(2, 9), bytes(3, 2 * SMALL)];
        let put = given.clone().map(|bytes| spill.put(bytes));
        drop(spill);
        assert_eq!(put, given);
        let is_elsewhere = |index: usize| put[index].as_ptr() != given[index].as_ptr();
        assert_eq!([0, 1, 2].map(is_elsewhere), [true, false, true]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
    }

    #[test]
    fn bytes_of_a_mapped_file_are_not_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, vec![7; 2 * SMALL]).unwrap();
        let mapped = crate::map(&path).unwrap().slice(8..);
        assert_eq!(Spill::new(folder.path()).put(mapped.clone()).as_ptr(), mapped.as_ptr());
    }

    #[test]
    fn without_a_folder_bytes_stay_in_memory() {
        let bytes = Bytes::from(vec![1; SMALL]);
        assert_eq!(Spill::new(Path::new("/nowhere/at/all")).put(bytes.clone()).as_ptr(), bytes.as_ptr());
    }
}
