//! The `.npz` format: a zip archive with one `.npy` file an array.

use std::io::{Cursor, Read};

use bytes::Bytes;
use zip::{CompressionMethod, ZipArchive};

use super::npy;
use super::table::Entries;

/// The arrays of the archive in `bytes`. Stored ones are slices of `bytes`, compressed ones (`savez_compressed`) are read
/// into memory; the error is a sentence that says what is wrong.
pub(super) fn read(bytes: &Bytes) -> Result<Entries, String> {
    let mut archive = ZipArchive::new(Cursor::new(bytes.as_ref())).map_err(|error| error.to_string())?;
    let mut arrays = Entries::new();
    let mut left = (bytes.len() as u64).saturating_mul(MOST_EXPANSION);
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(|error| error.to_string())?;
        let file = entry.name().map_err(|error| error.to_string())?;
        let Some(name) = file.strip_suffix(".npy").map(str::to_owned) else { continue };
        let stored = match (entry.compression(), entry.data_start()) {
            (CompressionMethod::Stored, Some(start)) => slice(bytes, start, entry.size()),
            _ => None,
        };
        let contents = match stored {
            Some(contents) => contents,
            None => inflate(&mut entry, &mut left).map_err(|error| format!("`{name}`: {error}"))?,
        };
        arrays.insert(name, npy::read(contents));
    }
    Ok(arrays)
}

fn slice(bytes: &Bytes, start: u64, size: u64) -> Option<Bytes> {
    let end = start.checked_add(size)?;
    (end <= bytes.len() as u64).then(|| bytes.slice(start as usize..end as usize))
}

/// A byte of deflate becomes at most so many (<https://zlib.net/zlib_tech.html>).
const MOST_EXPANSION: u64 = 1032;

/// The size in the archive is a hostile file's to choose, so that memory grows with what is read and not with what it
/// says. `left` is what all entries together may still unpack to: entries that share their bytes would unpack without end.
fn inflate(entry: &mut impl Read, left: &mut u64) -> std::io::Result<Bytes> {
    let mut contents = Vec::new();
    entry.take(*left + 1).read_to_end(&mut contents)?;
    *left = left.checked_sub(contents.len() as u64).ok_or_else(|| {
        std::io::Error::other("the arrays unpack to more than their bytes can hold: do entries overlap?")
    })?;
    Ok(contents.into())
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

    #[test]
    fn stored_and_compressed_arrays_are_equal() {
        let entries = [
            ("x.npy", npy("<i2", "False", "(3,)", &[1, 0, 2, 0, 255, 255])),
            ("notes.txt", b"not an array".to_vec()),
            ("flag.npy", npy("|b1", "False", "()", &[1])),
        ];
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
            let arrays = read(&archive(method, &entries)).unwrap();
            assert_eq!(arrays.keys().collect::<Vec<_>>(), ["flag", "x"]);
            let (x, flag) = (arrays["x"].as_ref().unwrap(), arrays["flag"].as_ref().unwrap());
            assert_eq!((x.dtype, x.dims.as_slice()), (DType::I16, [3].as_slice()));
            assert_eq!(x.integers().map(|(_, value)| value).collect::<Vec<_>>(), [1, 2, -1]);
            assert_eq!((flag.dtype, flag.dims.len()), (DType::Bool, 0));
        }
    }

    #[test]
    fn an_array_that_cannot_be_read_leaves_the_others_usable() {
        let entries = [
            ("x.npy", npy("<f4", "True", "(1, 2)", &[0; 8])),
            ("y.npy", npy("<f4", "False", "(2,)", &[0; 8])),
        ];
        let arrays = read(&archive(CompressionMethod::Stored, &entries)).unwrap();
        assert!(arrays["x"].as_ref().unwrap_err().starts_with("is in Fortran order"));
        assert!(arrays["y"].is_ok());
    }

    #[test]
    fn entries_that_unpack_the_same_bytes_again_are_refused() {
        let array = npy("|u1", "False", "(2000000,)", &[0; 2_000_000]);
        let method = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        writer.start_file("x.npy", method).unwrap();
        writer.write_all(&array).unwrap();
        let whole = writer.finish().unwrap().into_inner();
        // The central directory's one entry, many times over: all point to the same compressed bytes.
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
        let error = read(&bomb.into()).map(drop);
        assert!(error.is_err(), "200 entries of 2 MB were unpacked");
    }

    #[test]
    fn a_cut_off_archive_is_an_error() {
        let whole = archive(CompressionMethod::Deflated, &[("x.npy", npy("<f4", "False", "(2,)", &[0; 8]))]);
        for length in 0..whole.len() {
            assert!(read(&whole.slice(..length)).is_err(), "{length} of {} bytes", whole.len());
        }
    }
}
