//! Safetensors files: the header is checked against the file's length, and tensors are mapped and not copied.

use super::error::CheckpointError;
use super::tensor_writer::{CHECKSUMS, Checksums, sum_text, type_text};
use bytes::Bytes;
use comm::block::{self, Block};
use data::safetensors_types;
use ir::{DType, Type};
use program::layout::Sizes;
use safetensors::Dtype as Stored;
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The bytes before the header, which hold its length.
const LENGTH: u64 = 8;
/// The largest header in bytes; it is read into memory whole, and honest headers are smaller.
const LONGEST_HEADER: u64 = 100_000_000;
/// The metadata entry that marks a file of states.
pub(super) const MARK: (&str, &str) = ("trainyard", "states");

/// An open file of named tensors.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    /// The bytes of the file, mapped; empty if all tensors are in `parts`.
    file: Bytes,
    tensors: BTreeMap<String, Entry>,
    /// The checksums of the tensors, if the writer stored them.
    checksums: Option<Checksums>,
    /// The tensors of the file without a checksum, if others have one.
    unchecked: Vec<String>,
    /// The files of blocks.
    parts: Vec<TensorFile>,
    /// Whether a checkpoint wrote the file. Its names and sizes are then those of states.
    pub(super) of_states: bool,
    /// Whether PyTorch's own writer wrote the file, as its metadata says.
    pub(super) of_pytorch: bool,
}

/// One tensor of a file.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The element type, or the name of one that the IR does not have.
    pub(super) dtype: Result<DType, String>,
    /// The sizes, outermost first.
    pub(super) dims: Vec<u64>,
    /// The element type in the file.
    stored: Stored,
    place: TensorBytes,
}

/// The place of a tensor's bytes.
#[derive(Clone, Debug)]
enum TensorBytes {
    /// A range of the file.
    File(Range<u64>),
    /// Bytes in memory, which the caller inserted.
    Memory(Bytes),
    /// Blocks in other files.
    Blocks(Vec<BlockPlace>),
}

/// A block of a tensor.
#[derive(Clone, Debug)]
pub(super) struct BlockPlace {
    /// The number of the file that contains it.
    pub(super) part: usize,
    /// The first index of the block in the tensor.
    pub(super) start: Vec<u64>,
}

/// A tensor that is divided among several files.
pub(super) struct SplitTensor {
    pub(super) name: String,
    pub(super) dims: Vec<u64>,
    pub(super) blocks: Vec<BlockPlace>,
}

impl TensorFile {
    /// Opens `path` and checks its header: every tensor lies in the file, and together they fill it.
    ///
    /// # Errors
    /// The file cannot be read, is no safetensors file, or is incomplete.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let read = |source| CheckpointError::Read { path: path.to_owned(), source };
        let file = files::map(path).map_err(read)?;
        let malformed = |reason| CheckpointError::Malformed { path: path.to_owned(), reason };
        let (metadata, start) = read_header(&file).map_err(malformed)?;
        let mut tensors = BTreeMap::new();
        for (name, info) in metadata.tensors() {
            tensors.insert(name, entry(info, start));
        }
        let word = |key: &str| metadata.metadata().as_ref()?.get(key).cloned();
        let of_states = word(MARK.0).as_deref() == Some(MARK.1);
        let of_pytorch = word("format").as_deref() == Some("pt");
        let checksums = word(CHECKSUMS).map(|text| read_checksums(&text)).transpose().map_err(malformed)?;
        let unchecked = unchecked(&tensors, checksums.as_ref());
        if let Some(name) = unchecked.first().filter(|_| of_states) {
            return Err(malformed(format!("the checksum of its tensor `{name}` is missing")));
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            tensors,
            checksums,
            unchecked,
            parts: vec![],
            of_states,
            of_pytorch,
        })
    }

    /// Makes one file from the states of a checkpoint in the folder `path`, whose blocks are in `parts`.
    pub(super) fn of_blocks(path: &Path, parts: Vec<Self>, states: Vec<SplitTensor>) -> Self {
        let entry = |SplitTensor { name, dims, blocks }| {
            let first = parts[blocks.first()?.part].entry(&name)?.clone();
            Some((name, Entry { dims, place: TensorBytes::Blocks(blocks), ..first }))
        };
        let tensors = states.into_iter().filter_map(entry).collect();
        let (path, checksums, unchecked) = (path.to_owned(), None, vec![]);
        let file = Bytes::new();
        Self { path, file, tensors, checksums, unchecked, parts, of_states: true, of_pytorch: false }
    }

    /// Returns the tensors of the file without a checksum, if others have one.
    pub(super) fn unchecked(&self) -> &[String] {
        &self.unchecked
    }

    /// Returns the names of the tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether a checkpoint wrote the file. Its names and sizes are then those of states.
    pub fn holds_states(&self) -> bool {
        self.of_states
    }

    /// Adds a tensor that the caller made from tensors of the file. `bytes` must have the size of the type.
    pub fn insert(&mut self, name: &str, ty: &Type, bytes: Bytes) {
        let dims = ty.sizes().unwrap_or_default();
        let stored = safetensors_types::stored(ty.dtype);
        let entry = Entry { dtype: Ok(ty.dtype), dims, stored, place: TensorBytes::Memory(bytes) };
        self.tensors.insert(name.to_owned(), entry);
    }

    /// Removes a tensor, as if the file did not have it.
    pub fn remove(&mut self, name: &str) {
        self.tensors.remove(name);
    }

    pub(super) fn entry(&self, name: &str) -> Option<&Entry> {
        self.tensors.get(name)
    }

    /// Returns the element type and sizes of a tensor; `None` if there is no such tensor, or the IR has no such type.
    pub fn ty(&self, name: &str) -> Option<Type> {
        let entry = self.entry(name)?;
        Some(Type::of(entry.dtype.clone().ok()?, &entry.dims))
    }

    /// Returns the checksums of the tensors, if the writer of the file stored them.
    pub(super) fn checksums(&self) -> Option<&Checksums> {
        self.checksums.as_ref()
    }

    /// Returns the bytes of a tensor, little endian, row-major; `None` if there is none of that name. A contiguous tensor is not copied.
    ///
    /// # Errors
    /// The bytes do not match the checksum with which they were written.
    pub fn read(&self, name: &str) -> Result<Option<Bytes>, CheckpointError> {
        let Some(entry) = self.entry(name) else { return Ok(None) };
        let range = match &entry.place {
            TensorBytes::File(range) => range,
            TensorBytes::Memory(bytes) => return Ok(Some(bytes.clone())),
            TensorBytes::Blocks(_) => return self.read_block(name, &vec![0; entry.dims.len()], &entry.dims),
        };
        // The header was checked against the file's length.
        let bytes = self.file.slice(range.start as usize..range.end as usize);
        if let Some(sum) = self.checksums.as_ref().and_then(|checksums| entry.sum(name, checksums))
            && *sum != sum_text(&entry.type_text(), &bytes)
        {
            let (path, tensor) = (self.path.clone(), name.to_owned());
            return Err(CheckpointError::Damaged { path, tensor, whole: None });
        }
        Ok(Some(bytes))
    }
}

impl TensorFile {
    /// Returns the elements of a tensor in a block with this first index and these sizes; `None` if there is no such tensor, or it has
    /// another number of dims. If the tensor is divided among several files, only the pieces that overlap the block are read.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub(super) fn read_block(
        &self,
        name: &str,
        start: &[u64],
        sizes: &[u64],
    ) -> Result<Option<Bytes>, CheckpointError> {
        let Some(entry) = self.entry(name).filter(|entry| entry.dims.len() == sizes.len()) else {
            return Ok(None);
        };
        let width = entry.dtype.as_ref().map_or(1, |dtype| dtype.bytes() as usize);
        let mut bytes = vec![0; sizes.iter().product::<u64>() as usize * width];
        let mut take = |piece: &[u8], piece_start: &[u64], piece_sizes: &[u64]| {
            let Some(met) = Met::of((start, sizes), (piece_start, piece_sizes)) else { return };
            block::copy(&met.sizes, width, (piece, &met.blocks[1]), (&mut bytes, &met.blocks[0]));
        };
        if let TensorBytes::Blocks(blocks) = &entry.place {
            for BlockPlace { part, start: piece_start } in blocks {
                let part = &self.parts[*part];
                let Some(piece) = part.entry(name) else { continue };
                if Met::of((start, sizes), (piece_start, &piece.dims)).is_some()
                    && let Some(read) = part.read(name)?
                {
                    take(&read, piece_start, &piece.dims);
                }
            }
        } else if let Some(whole) = self.read(name)? {
            take(&whole, &vec![0; sizes.len()], &entry.dims);
        }
        Ok(Some(bytes.into()))
    }
}

/// The elements that two blocks of a tensor share.
struct Met {
    sizes: Sizes,
    /// The places of these elements in each of the two blocks.
    blocks: [Block; 2],
}

impl Met {
    /// Intersects two blocks, each given by its first index in the tensor and its sizes; `None` if they share nothing.
    fn of(one: (&[u64], &[u64]), other: (&[u64], &[u64])) -> Option<Self> {
        let begin = |dim: usize| one.0[dim].max(other.0[dim]);
        let end = |dim: usize| (one.0[dim] + one.1[dim]).min(other.0[dim] + other.1[dim]);
        let dims = 0..one.1.len();
        let sizes: Option<Sizes> =
            dims.clone().map(|dim| end(dim).checked_sub(begin(dim)).map(|size| size as usize)).collect();
        let place = |(start, sizes): (&[u64], &[u64])| Block {
            whole: sizes.iter().map(|&size| size as usize).collect(),
            start: dims.clone().map(|dim| (begin(dim) - start[dim]) as usize).collect(),
        };
        let sizes = sizes.filter(|sizes| !sizes.contains(&0))?;
        Some(Self { sizes, blocks: [place(one), place(other)] })
    }
}

/// Returns the tensors without a valid checksum. A tool that adds or converts tensors keeps the old checksums: a tensor whose type or sizes
/// differ from those in its checksum is another tensor.
fn unchecked(tensors: &BTreeMap<String, Entry>, checksums: Option<&Checksums>) -> Vec<String> {
    let Some(checksums) = checksums else { return Vec::new() };
    let is_unchecked = |(name, entry): &(&String, &Entry)| entry.sum(name, checksums).is_none();
    tensors.iter().filter(is_unchecked).map(|(name, _)| name.clone()).collect()
}

fn entry(info: &TensorInfo, start: u64) -> Entry {
    let (first, last) = info.data_offsets;
    let dims = info.shape.iter().map(|&size| size as u64).collect();
    let place = TensorBytes::File(start + first as u64..start + last as u64);
    let dtype = safetensors_types::loaded(info.dtype).ok_or_else(|| info.dtype.to_string());
    Entry { dtype, dims, stored: info.dtype, place }
}

impl Entry {
    /// Returns the checksum of the tensor. `None` if there is none, or if it is for another type or other sizes.
    fn sum<'c>(&self, name: &str, checksums: &'c Checksums) -> Option<&'c String> {
        let ty = self.type_text();
        checksums.get(name).filter(|sum| sum.split_once(' ').is_some_and(|(_, summed)| summed == ty))
    }

    fn type_text(&self) -> String {
        type_text(self.stored, &self.dims)
    }
}

/// Parses the checksums in the metadata. The error describes the fault.
fn read_checksums(text: &str) -> Result<Checksums, String> {
    serde_json::from_str(text).map_err(|error| format!("its checksums cannot be read: {error}"))
}

/// Returns the header, and the position of the first tensor. The error describes the fault.
fn read_header(file: &[u8]) -> Result<(Metadata, u64), String> {
    let size = file.len() as u64;
    let Some((length, rest)) = file.split_first_chunk() else {
        return Err(format!("{size} bytes are too few for a safetensors file"));
    };
    let length = u64::from_le_bytes(*length);
    if length > LONGEST_HEADER || length > rest.len() as u64 {
        return Err(format!(
            "a header of {length} bytes does not fit into the file's {size} bytes: was it truncated?"
        ));
    }
    let metadata: Metadata = serde_json::from_slice(&rest[..length as usize])
        .map_err(|error| format!("its header is not a safetensors header: {error}"))?;
    let start = LENGTH + length;
    let (found, expected) = (size - start, metadata.data_len() as u64);
    if found != expected {
        return Err(format!(
            "its tensors need {expected} bytes, and the file has {found}: was it truncated?"
        ));
    }
    Ok((metadata, start))
}

#[cfg(test)]
mod tests {
    use super::super::tensor_writer::{TensorLayout, TensorRow};
    use super::*;
    use std::fs;
    use std::io::Cursor;

    fn file_of(header: &[u8], data: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        fs::write(&path, [&(header.len() as u64).to_le_bytes(), header, data].concat()).unwrap();
        (folder, path)
    }

    #[test]
    fn a_hostile_header_is_an_error_and_not_a_panic() {
        let huge = u64::MAX.to_string();
        let half = (u64::MAX / 2).to_string();
        let cases = [
            "{".to_owned(),
            "[]".to_owned(),
            "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}".to_owned(),
            "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}".to_owned(),
            "{\"x\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}".to_owned(),
            "{\"x\":{\"dtype\":\"F99\",\"shape\":[1],\"data_offsets\":[0,4]}}".to_owned(),
            format!("{{\"x\":{{\"dtype\":\"F32\",\"shape\":[{huge},{huge}],\"data_offsets\":[0,4]}}}}"),
            format!("{{\"x\":{{\"dtype\":\"U8\",\"shape\":[{half}],\"data_offsets\":[0,{half}]}}}}"),
            format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000)),
        ];
        for header in cases {
            let (_folder, path) = file_of(header.as_bytes(), &[0; 4]);
            let error = TensorFile::open(&path).unwrap_err();
            assert!(matches!(error, CheckpointError::Malformed { .. }), "{error}");
        }
    }

    #[test]
    fn a_file_that_was_cut_off_says_so() {
        let header = b"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
        let (_folder, path) = file_of(header, &[0; 7]);
        let error = TensorFile::open(&path).unwrap_err().to_string();
        assert!(error.contains("need 8 bytes, and the file has 7"), "{error}");
        fs::write(&path, 1000u64.to_le_bytes()).unwrap();
        let error = TensorFile::open(&path).unwrap_err().to_string();
        assert!(error.contains("a header of 1000 bytes does not fit into"), "{error}");
        fs::write(&path, [1, 2]).unwrap();
        assert!(TensorFile::open(&path).is_err());
    }

    #[test]
    fn a_written_file_is_read_and_marked_as_ours_and_damage_is_noticed() {
        let row =
            |name: &str, dtype, dims: &[u64]| TensorRow { name: name.to_owned(), dtype, dims: dims.to_vec() };
        let rows = vec![row("a", DType::F64, &[]), row("b", DType::U8, &[3])];
        let layout = TensorLayout::new(rows, &[MARK]).unwrap();
        let mut written = Cursor::new(Vec::new());
        let value = |row: &TensorRow| {
            let bytes = if row.name == "a" { vec![7; 8] } else { vec![1, 2, 3] };
            Ok::<_, std::io::Error>(bytes.into())
        };
        layout.write(&mut written, value).unwrap();
        let mut written = written.into_inner();
        let (_folder, path) = file_of(&[], &[]);
        fs::write(&path, &written).unwrap();
        let file = TensorFile::open(&path).unwrap();
        assert!(file.of_states);
        assert_eq!(file.ty("b"), Some(Type::of(DType::U8, &[3])));
        assert_eq!(file.read("b").unwrap().unwrap(), &[1, 2, 3][..]);
        assert_eq!(file.read("a").unwrap().unwrap(), &[7; 8][..]);
        assert!(file.read("c").unwrap().is_none());
        *written.last_mut().unwrap() ^= 4;
        fs::write(&path, &written).unwrap();
        let file = TensorFile::open(&path).unwrap();
        assert_eq!(file.read("a").unwrap().unwrap(), &[7; 8][..]);
        let error = file.read("b").unwrap_err().to_string();
        assert!(error.contains("the bytes of `b` do not match their checksum"), "{error}");
    }

    /// Returns the header of a file that a tool wrote, with the old checksums.
    fn edited(words: &str, dtype: &str, shape: &str) -> String {
        let sums = words.replace('"', "\\\"");
        format!(
            "{{\"__metadata__\":{{\"trainyard.xxh3\":\"{sums}\"}},\
             \"a\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[0,4]}},\
             \"b\":{{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[4,6]}}}}"
        )
    }

    #[test]
    fn a_tensor_that_a_tool_converted_or_added_is_taken_and_told() {
        let data = [1, 2, 3, 4, 5, 6];
        let of = |ty: &str, bytes: &[u8]| sum_text(ty, bytes);
        let [a, b] = [of("F32[1]", &data[..4]), of("U8[2]", &data[4..])];
        let open = |words: &str, dtype: &str, shape: &str, data: &[u8]| {
            let (folder, path) = file_of(edited(words, dtype, shape).as_bytes(), data);
            (TensorFile::open(&path).unwrap(), folder)
        };
        let both = format!("{{\"a\":\"{a}\",\"b\":\"{b}\"}}");
        let (file, _folder) = open(&both, "F32", "[1]", &data);
        assert!(file.unchecked().is_empty());
        let other = [1, 2, 3, 9, 5, 6];
        let (file, _folder) = open(&both, "F32", "[1]", &other);
        assert!(file.read("a").is_err() && file.read("b").is_ok());
        for (dtype, shape) in [("F16", "[2]"), ("F32", "[1,1]"), ("I32", "[1]")] {
            let (file, _folder) = open(&both, dtype, shape, &other);
            assert_eq!(file.unchecked(), ["a"]);
            assert_eq!(file.read("a").unwrap().unwrap(), other[..4]);
        }
        let (file, _folder) = open(&format!("{{\"a\":\"{a}\"}}"), "F32", "[1]", &data);
        assert_eq!(file.unchecked(), ["b"]);
        assert_eq!(file.read("b").unwrap().unwrap(), data[4..]);
    }
}
