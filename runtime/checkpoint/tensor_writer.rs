//! Writes a safetensors file that includes the checksum of each tensor. The format: <https://github.com/huggingface/safetensors#format>.
//! The checksums are an entry of the file's metadata, which other readers ignore.

use data::safetensors_types;
use files::Checksum;
use ir::DType;
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Seek, SeekFrom, Write};

/// The metadata entry with the checksums: a JSON object from names to [`sum_text`]s.
pub(super) const CHECKSUMS: &str = "trainyard.xxh3";
/// The name that the format reserves for its metadata.
const METADATA: &str = "__metadata__";
/// The bytes before the header, which hold its length.
const LENGTH: usize = 8;

/// The checksum and the type of each tensor of a file, by name: `0123456789abcdef F32[2,3]`.
pub type Checksums = BTreeMap<String, String>;

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRow {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its sizes, outermost first.
    pub dims: Vec<u64>,
}

impl TensorRow {
    /// Returns the bytes of its elements.
    pub fn bytes(&self) -> u64 {
        self.dims.iter().product::<u64>() * self.dtype.bytes()
    }
}

/// A file whose tensors are not known yet: their names and types, and further metadata entries.
#[derive(Debug)]
pub struct TensorLayout<'a> {
    rows: Vec<TensorRow>,
    words: BTreeMap<&'a str, String>,
}

impl<'a> TensorLayout<'a> {
    /// Makes the layout of a file with these tensors. Tensors with wide elements come first, so that each is aligned to its elements.
    ///
    /// # Errors
    /// A tensor has the name that the format reserves.
    pub fn new(mut rows: Vec<TensorRow>, words: &[(&'a str, &str)]) -> Result<Self, String> {
        if rows.iter().any(|row| row.name == METADATA) {
            return Err(METADATA.to_owned());
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.dtype.bytes()));
        let words = words.iter().map(|&(key, word)| (key, word.to_owned())).collect();
        Ok(Self { rows, words })
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.header(&self.no_checksums()).len() as u64 + self.rows.iter().map(TensorRow::bytes).sum::<u64>()
    }

    /// Writes the file from its beginning. `value` is called for each tensor in turn, and must return as many bytes as the tensor's type
    /// takes. The header is written last, into space that was reserved for it, since it has the checksums.
    ///
    /// # Errors
    /// Those of `value` and of the file.
    pub fn write<'v, E: From<io::Error>>(
        &self,
        out: &mut (impl Write + Seek),
        mut value: impl FnMut(&TensorRow) -> Result<Cow<'v, [u8]>, E>,
    ) -> Result<Checksums, E> {
        let mut checksums = self.no_checksums();
        out.write_all(&self.header(&checksums))?;
        for row in &self.rows {
            let bytes = value(row)?;
            let ty = type_text(safetensors_types::stored(row.dtype), &row.dims);
            checksums.insert(row.name.clone(), sum_text(&ty, &bytes));
            out.write_all(&bytes)?;
        }
        out.seek(SeekFrom::Start(0))?;
        out.write_all(&self.header(&checksums))?;
        Ok(checksums)
    }

    /// Returns placeholders with the length of checksums.
    fn no_checksums(&self) -> Checksums {
        let zeros = "0".repeat(Checksum::DIGITS);
        let type_text = |row: &TensorRow| type_text(safetensors_types::stored(row.dtype), &row.dims);
        self.rows.iter().map(|row| (row.name.clone(), format!("{zeros} {}", type_text(row)))).collect()
    }

    /// Returns the length and the header. Their size does not depend on the values of the checksums.
    fn header(&self, checksums: &Checksums) -> Vec<u8> {
        let json = "names, sizes and digits have a JSON form";
        let mut words = self.words.clone();
        words.insert(CHECKSUMS, serde_json::to_string(checksums).expect(json));
        let mut end = 0;
        let tensors = self.rows.iter().map(|row| {
            let begin = end;
            end += row.bytes() as usize;
            let shape = row.dims.iter().map(|&size| size as usize).collect();
            let info =
                TensorInfo { dtype: safetensors_types::stored(row.dtype), shape, data_offsets: (begin, end) };
            (row.name.as_str(), Entry::Tensor(info))
        });
        let entries = [(METADATA, Entry::Words(&words))].into_iter().chain(tensors).collect();
        let mut text = serde_json::to_vec(&Header(entries)).expect(json);
        // Tensors start at a multiple of 8 bytes, as with other writers.
        text.resize(text.len().next_multiple_of(LENGTH), b' ');
        [&(text.len() as u64).to_le_bytes(), text.as_slice()].concat()
    }
}

/// A header in the order of the file, so that equal tensors make equal files.
struct Header<'a>(Vec<(&'a str, Entry<'a>)>);

#[derive(Serialize)]
#[serde(untagged)]
enum Entry<'a> {
    Words(&'a BTreeMap<&'a str, String>),
    Tensor(TensorInfo),
}

impl Serialize for Header<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, entry)| (name, entry)))
    }
}

/// Formats an element type and sizes as in checksums: `F32[2,3]`. The text is part of the file format.
pub(super) fn type_text(dtype: Dtype, dims: &[u64]) -> String {
    let dims: Vec<String> = dims.iter().map(u64::to_string).collect();
    format!("{}[{}]", safetensors_types::name(dtype), dims.join(","))
}

/// Returns the checksum of a tensor with its type: `0123456789abcdef F32[2,3]`. The type is included in the checksum, so that the two
/// cannot be separated.
pub(super) fn sum_text(ty: &str, bytes: &[u8]) -> String {
    let mut sum = Checksum::of(ty.as_bytes());
    sum.add(bytes);
    format!("{sum} {ty}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn row(name: &str, dtype: DType, dims: &[u64]) -> TensorRow {
        TensorRow { name: name.to_owned(), dtype, dims: dims.to_vec() }
    }

    #[test]
    fn another_reader_takes_the_file_and_each_tensor_is_aligned() {
        let rows =
            vec![row("b", DType::U8, &[3]), row("a", DType::F64, &[]), row("none", DType::F32, &[0, 4])];
        let layout = TensorLayout::new(rows, &[("format", "pt")]).unwrap();
        let mut file = Cursor::new(Vec::new());
        let value = |row: &TensorRow| Ok::<_, io::Error>(vec![7; row.bytes() as usize].into());
        let checksums = layout.write(&mut file, value).unwrap();
        let file = file.into_inner();
        assert_eq!(file.len() as u64, layout.bytes());
        let read = safetensors::SafeTensors::deserialize(&file).unwrap();
        assert_eq!(read.tensor("b").unwrap().data(), [7; 3]);
        let (length, metadata) = safetensors::SafeTensors::read_metadata(&file).unwrap();
        assert_eq!((length + LENGTH) % 8, 0);
        assert_eq!(metadata.info("a").unwrap().data_offsets, (0, 8));
        let words = metadata.metadata().as_ref().unwrap();
        assert_eq!(words["format"], "pt");
        assert_eq!(serde_json::from_str::<Checksums>(&words[CHECKSUMS]).unwrap(), checksums);
        assert!(checksums.len() == 3 && checksums.values().all(|sum| !sum.starts_with(&"0".repeat(16))));
    }

    /// Files that were written earlier must be readable, so a change here needs a new format.
    #[test]
    fn the_text_of_a_sum_is_as_it_was() {
        let bytes: Vec<u8> = (0..24).collect();
        let sum = |dtype, dims: &[u64]| sum_text(&type_text(dtype, dims), &bytes);
        expect_test::expect!["83e65bd4bf966613 F32[2,3]"].assert_eq(&sum(Dtype::F32, &[2, 3]));
        expect_test::expect!["18636cdadf4efe70 I64[3]"].assert_eq(&sum(Dtype::I64, &[3]));
        expect_test::expect!["31adf49fdce8f0cb U8[]"].assert_eq(&sum(Dtype::U8, &[]));
    }

    #[test]
    fn the_name_of_the_metadata_is_refused() {
        assert_eq!(TensorLayout::new(vec![row(METADATA, DType::U8, &[0])], &[]).unwrap_err(), METADATA);
    }
}
