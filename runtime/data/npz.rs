//! The `.npz` format: a zip archive with one `.npy` file for each array.
//!
//! When an archive is opened, only the arrays' headers are read, and their sizes are compared with the archive's. An array is unpacked, and
//! its checksum verified, when an input takes it. So an unused array costs nothing.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use rayon::prelude::*;
use zip::{CompressionMethod, ZipArchive};

use super::npy::{self, Header};
use super::table_array::TableArray;
use super::unpack::{self, UnpackError};

type Archive = ZipArchive<Cursor<Bytes>>;

/// An array in an archive.
#[derive(Clone, Debug)]
pub(super) struct ZippedArray {
    header: Header,
    contents: Contents,
}

/// The contents of an archive's entry.
#[derive(Clone, Debug)]
enum Contents {
    /// Uncompressed contents in the file, with the archive's checksum of them.
    Stored { contents: Bytes, crc32: u32 },
    /// The compressed entry with this number in the archive. It has `size` bytes when unpacked.
    Compressed { archive: Archive, index: usize, size: u64, unpacked: Arc<Mutex<Weak<Unpacked>>> },
}

/// The reason why an array's elements cannot be loaded.
#[derive(Debug)]
pub(super) enum LoadError {
    /// Damaged contents, described by the end of a sentence about the array.
    Damaged(String),
    /// The elements do not fit into memory.
    TooLarge {
        /// Bytes that the array unpacks to.
        bytes: u64,
        /// The largest number of bytes that it may take.
        most: u64,
    },
}

/// The unpacked contents of an entry. All inputs that take the entry share them as long as one of them holds them.
#[derive(Debug)]
struct Unpacked(Vec<u8>);

/// A share in unpacked contents.
struct Share(Arc<Unpacked>);

impl AsRef<[u8]> for Share {
    fn as_ref(&self) -> &[u8] {
        &self.0.0
    }
}

/// Reads the headers of the arrays of the archive in `bytes`: every name, with its array or the reason why the array cannot be used. The
/// error is a sentence about the fault.
pub(super) fn read(bytes: &Bytes) -> Result<BTreeMap<String, Result<ZippedArray, String>>, String> {
    let mut archive = ZipArchive::new(Cursor::new(bytes.clone())).map_err(|error| error.to_string())?;
    let mut arrays = BTreeMap::new();
    for index in 0..archive.len() {
        let entry = archive.by_index_data(index).map_err(|error| error.to_string())?;
        let file = entry.name().map_err(|error| error.to_string())?;
        let Some(name) = file.strip_suffix(".npy").map(str::to_owned) else { continue };
        let array = open(bytes, &mut archive, index);
        arrays.insert(name, array);
    }
    Ok(arrays)
}

/// Reads an array's header. The error is the end of a sentence about the array.
fn open(bytes: &Bytes, archive: &mut Archive, index: usize) -> Result<ZippedArray, String> {
    let damaged = |error: &dyn std::fmt::Display| format!("cannot be unpacked: {error}");
    let copy = archive.clone();
    let entry = archive.by_index(index).map_err(|error| damaged(&error))?;
    let (size, crc32) = (entry.size(), entry.crc32());
    if let (CompressionMethod::Stored, Some(start)) = (entry.compression(), entry.data_start()) {
        let contents = slice(bytes, start, size).filter(|_| entry.compressed_size() == size);
        let contents = contents.ok_or_else(|| format!("has {size} bytes, and the file ends before them"))?;
        let header = Header::read(&contents[..contents.len().min(npy::LONGEST_HEADER)])?;
        header.check_size(size)?;
        return Ok(ZippedArray { header, contents: Contents::Stored { contents, crc32 } });
    }
    let mut prefix = Vec::new();
    entry.take(npy::LONGEST_HEADER as u64).read_to_end(&mut prefix).map_err(|error| damaged(&error))?;
    let header = Header::read(&prefix)?;
    header.check_size(size)?;
    Ok(ZippedArray {
        header,
        contents: Contents::Compressed { archive: copy, index, size, unpacked: Arc::default() },
    })
}

fn slice(bytes: &Bytes, start: u64, size: u64) -> Option<Bytes> {
    let end = start.checked_add(size)?;
    (end <= bytes.len() as u64).then(|| bytes.slice(start as usize..end as usize))
}

impl ZippedArray {
    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the largest number of bytes to which it may be unpacked. Big-endian elements are swapped in a copy, so they may take less.
    fn most(&self) -> u64 {
        if self.header.big_endian { unpack::most() } else { unpack::most_in_place() }
    }

    /// Returns the array: a slice of the file if it is stored, else unpacked into memory.
    ///
    /// # Errors
    /// Damaged contents, or contents too large for the machine's memory.
    pub(super) fn load(&self) -> Result<TableArray, LoadError> {
        let contents = match &self.contents {
            Contents::Stored { contents, crc32 } => {
                check(contents, *crc32).map_err(LoadError::Damaged)?;
                contents.clone()
            }
            Contents::Compressed { archive, index, size, unpacked } => {
                let mut unpacked = unpacked.lock().unwrap_or_else(PoisonError::into_inner);
                let shared = match unpacked.upgrade() {
                    Some(shared) => shared,
                    None => Arc::new(Unpacked(unpack(archive.clone(), *index, *size, self.most())?)),
                };
                *unpacked = Arc::downgrade(&shared);
                Bytes::from_owner(Share(shared))
            }
        };
        self.header.array(&contents).map_err(LoadError::Damaged)
    }
}

/// Compares the checksum of contents with the archive's.
fn check(contents: &[u8], expected: u32) -> Result<(), String> {
    let found = checksum(contents);
    if found == expected {
        return Ok(());
    }
    Err(format!(
        "has the checksum {found:08x}, and the archive records {expected:08x}: its bytes are damaged; write \
         or copy the file again"
    ))
}

/// Unpacks a compressed entry of at most `most` bytes. The zip crate verifies the checksum at its end.
fn unpack(mut archive: Archive, index: usize, size: u64, most: u64) -> Result<Vec<u8>, LoadError> {
    let damaged = |reason: String| LoadError::Damaged(format!("cannot be unpacked: {reason}"));
    let entry = archive.by_index(index).map_err(|error| damaged(error.to_string()))?;
    match unpack::exactly(entry, size, most) {
        Ok(contents) => Ok(contents),
        Err(UnpackError::Damaged(error)) => Err(damaged(error.to_string())),
        Err(UnpackError::TooLarge { bytes, most }) => Err(LoadError::TooLarge { bytes, most }),
    }
}

/// Returns the CRC-32 of `contents`, computed by all threads.
fn checksum(contents: &[u8]) -> u32 {
    const BLOCK: usize = 16 << 20;
    let of = |block: &[u8]| {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(block);
        hasher
    };
    let blocks: Vec<_> = contents.par_chunks(BLOCK).map(of).collect();
    let mut whole = crc32fast::Hasher::new();
    blocks.iter().for_each(|block| whole.combine(block));
    whole.finalize()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use ir::DType;
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::super::npy::tests::npy;
    use super::*;

    fn archive(method: CompressionMethod, entries: &[(&str, Vec<u8>)]) -> Bytes {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, contents) in entries {
            writer.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
            writer.write_all(contents).unwrap();
        }
        writer.finish().unwrap().into_inner().into()
    }

    /// Loads the array of this name.
    fn load(archive: &Bytes, name: &str) -> Result<TableArray, String> {
        let array = read(archive)?.remove(name).expect("the name is there")?;
        array.load().map_err(|error| match error {
            LoadError::Damaged(reason) => reason,
            LoadError::TooLarge { bytes, .. } => format!("{bytes} bytes are too many"),
        })
    }

    #[test]
    fn stored_and_compressed_arrays_are_equal() {
        let entries = [
            ("x.npy", npy("<i2", "False", "(3,)", &[1, 0, 2, 0, 255, 255])),
            ("notes.txt", b"not an array".to_vec()),
            ("flag.npy", npy("|b1", "False", "()", &[1])),
        ];
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
            let archive = archive(method, &entries);
            assert_eq!(read(&archive).unwrap().keys().collect::<Vec<_>>(), ["flag", "x"]);
            let (x, flag) = (load(&archive, "x").unwrap(), load(&archive, "flag").unwrap());
            assert_eq!((x.dtype, x.dims.as_slice()), (DType::I16, [3].as_slice()));
            assert_eq!(x.integers().map(|(_, value)| value).collect::<Vec<_>>(), [1, 2, -1]);
            assert_eq!((flag.dtype, flag.dims.len()), (DType::Bool, 0));
        }
    }

    #[test]
    fn two_inputs_share_an_unpacked_array_until_none_has_it() {
        let contents = npy("|u1", "False", "(3,)", &[1, 2, 3]);
        let archive = archive(CompressionMethod::Deflated, &[("x.npy", contents)]);
        let array = read(&archive).unwrap().remove("x").unwrap().unwrap();
        let [first, second] = [0, 1].map(|_| array.load().unwrap().bytes);
        assert_eq!((first.as_ptr(), &first[..]), (second.as_ptr(), &[1, 2, 3][..]));
        drop((first, second));
        let Contents::Compressed { unpacked, .. } = &array.contents else { panic!() };
        assert!(unpacked.lock().unwrap().upgrade().is_none(), "it stays in memory");
        assert_eq!(array.load().unwrap().bytes, [1, 2, 3][..]);
    }

    #[test]
    fn an_array_that_cannot_be_read_leaves_the_others_usable() {
        let entries = [
            ("x.npy", npy("<f4", "True", "(1, 2)", &[0; 8])),
            ("y.npy", npy("<f4", "False", "(2,)", &[0; 8])),
        ];
        let archive = archive(CompressionMethod::Stored, &entries);
        assert!(load(&archive, "x").unwrap_err().starts_with("is in Fortran order"));
        assert!(load(&archive, "y").is_ok());
    }

    #[test]
    fn an_array_whose_bytes_changed_is_refused_and_the_others_are_not() {
        let elements: Vec<u8> = (0..100_000u32).flat_map(|i| i.wrapping_mul(i).to_le_bytes()).collect();
        let array = npy("<u4", "False", "(100000,)", &elements);
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
            let whole = archive(method, &[("x.npy", array.clone()), ("y.npy", array.clone())]);
            // A flipped bit in the middle of x's elements.
            let mut damaged = whole.to_vec();
            damaged[whole.len() / 4] ^= 16;
            let damaged = Bytes::from(damaged);
            let error = load(&damaged, "x").unwrap_err();
            let expected = match method {
                CompressionMethod::Stored => "its bytes are damaged",
                _ => "cannot be unpacked",
            };
            assert!(error.contains(expected), "{error}");
            assert_eq!(load(&damaged, "y").unwrap().bytes, load(&whole, "x").unwrap().bytes);
            // Damages only the checksum: before y's contents, and in the archive's directory.
            let crc32 = crc32fast::hash(&array).to_le_bytes();
            let places = (0..whole.len() - 4).filter(|&at| whole[at..at + 4] == crc32);
            let [_, before, _, directory] = places.collect::<Vec<_>>()[..] else { panic!("other places") };
            let mut damaged = whole.to_vec();
            damaged[before] ^= 1;
            damaged[directory] ^= 1;
            let error = load(&damaged.into(), "y").unwrap_err();
            assert!(error.contains("checksum"), "{error}");
        }
    }

    #[test]
    fn a_checksum_is_that_of_all_blocks() {
        let contents: Vec<u8> = (0..40u32 << 20).map(|i| (i >> 7) as u8).collect();
        assert_eq!(checksum(&contents), crc32fast::hash(&contents));
        assert_eq!(checksum(&[]), 0);
    }

    /// Returns an archive of one deflated array that claims this unpacked size.
    fn of_size(array: &[u8], size: u32) -> Bytes {
        let mut whole = archive(CompressionMethod::Deflated, &[("x.npy", array.to_vec())]).to_vec();
        let end = whole.len() - 22;
        let directory = u32::from_le_bytes(whole[end + 16..end + 20].try_into().unwrap()) as usize;
        for place in [22, directory + 24] {
            whole[place..place + 4].copy_from_slice(&size.to_le_bytes());
        }
        whole.into()
    }

    #[test]
    fn an_array_that_is_not_as_large_as_its_header_says_is_refused() {
        let array = npy("|u1", "False", "(2000000,)", &[0; 2_000_000]);
        let there = 4_000_000_000 - (array.len() as u64 - 2_000_000);
        assert_eq!(
            load(&of_size(&array, 4_000_000_000), "x").unwrap_err(),
            format!("is u8[2000000], which does not fit its {there} bytes")
        );
        // The archive and the header agree on a size, but the stream ends before it.
        let array = npy("|u1", "False", "(3000000,)", &[0; 2_000_000]);
        let size = (array.len() - 2_000_000 + 3_000_000) as u32;
        let error = load(&of_size(&array, size), "x").unwrap_err();
        assert!(error.ends_with("bytes are announced, and there are fewer"), "{error}");
        // They agree again, but the stream ends after it.
        let array = npy("|u1", "False", "(1000000,)", &[0; 2_000_000]);
        let size = (array.len() - 1_000_000) as u32;
        let error = load(&of_size(&array, size), "x").unwrap_err();
        assert!(error.starts_with("cannot be unpacked: "), "{error}");
    }

    #[test]
    fn entries_that_share_their_bytes_are_not_unpacked_when_the_file_is_opened() {
        let array = npy("|u1", "False", "(2000000,)", &[0; 2_000_000]);
        let whole = archive(CompressionMethod::Deflated, &[("x.npy", array)]);
        // The only entry of the central directory, repeated many times: all copies point to the same compressed bytes.
        let end = whole.len() - 22;
        let start = u32::from_le_bytes(whole[end + 16..end + 20].try_into().unwrap()) as usize;
        let entry = &whole[start..end];
        let mut bomb = whole[..start].to_vec();
        for i in 0..200u8 {
            let mut entry = entry.to_vec();
            let name = entry.windows(5).position(|window| window == b"x.npy").unwrap();
            entry[name] = i % 60 + b'A';
            bomb.extend(entry);
        }
        let size = bomb.len() - start;
        let mut last = whole[end..].to_vec();
        last[8..10].copy_from_slice(&200u16.to_le_bytes());
        last[10..12].copy_from_slice(&200u16.to_le_bytes());
        last[12..16].copy_from_slice(&(size as u32).to_le_bytes());
        bomb.extend(last);
        for (name, entry) in read(&bomb.into()).unwrap_or_default() {
            let Ok(array) = entry else { continue };
            assert!(matches!(array.contents, Contents::Compressed { size: 2_000_000.., .. }), "{name}");
        }
    }

    #[test]
    fn a_cut_off_archive_is_an_error() {
        let whole = archive(CompressionMethod::Deflated, &[("x.npy", npy("<f4", "False", "(2,)", &[0; 8]))]);
        for length in 0..whole.len() {
            assert!(load(&whole.slice(..length), "x").is_err(), "{length} of {} bytes", whole.len());
        }
    }
}
