//! The `.npy` format: a header, which is a Python dictionary as text, and then the elements.
//!
//! The layout, from NumPy's `numpy.lib.format`: `\x93NUMPY`, major and minor version, the header's length (u16, and u32 from version 2
//! on, little endian), the header. It is parsed here because a reader must survive any file, and the crate for this format overflows on
//! hostile dims.

use bytes::Bytes;
use ir::DType;

use super::table_array::{self, TableArray};

/// A header: the type and dims of an array, and the position of its elements.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) dtype: DType,
    pub(super) dims: Vec<u64>,
    pub(super) big_endian: bool,
    /// Bytes before the elements.
    start: usize,
}

/// The longest header in bytes; honest ones are shorter, since NumPy itself reads up to 10,000 characters.
pub(super) const LONGEST_HEADER: usize = 1 << 16;

impl Header {
    /// Reads the header of a file that begins with `prefix`: its first [`LONGEST_HEADER`] bytes, or the whole file if it is shorter. The
    /// error is the end of a sentence about the fault.
    pub(super) fn read(prefix: &[u8]) -> Result<Self, String> {
        let (header, start) = text(prefix).ok_or("has no NumPy header")?;
        let description = entry(header, "descr").ok_or("has a header without `descr`")?;
        let (dtype, big_endian) = element_type(description)?;
        let shape = entry(header, "shape").ok_or("has a header without `shape`")?;
        let dims =
            dims(shape).ok_or_else(|| format!("has a shape that cannot be read: {}", excerpt(shape)))?;
        let fortran = entry(header, "fortran_order").is_some_and(|value| value.starts_with("True"));
        if fortran && dims.len() > 1 {
            return Err("is in Fortran order: save np.ascontiguousarray(array) instead".to_owned());
        }
        Ok(Self { dtype, dims, big_endian, start })
    }

    /// Checks that a file of `size` bytes has the array's elements after the header, and nothing else.
    pub(super) fn check_size(&self, size: u64) -> Result<(), String> {
        table_array::check_size(self.dtype, &self.dims, size.saturating_sub(self.start as u64))
    }

    /// Returns the array in `contents`, a whole file with this header.
    pub(super) fn array(&self, contents: &Bytes) -> Result<TableArray, String> {
        let elements = contents.slice(self.start.min(contents.len())..);
        let width = self.dtype.bytes() as usize;
        let elements = if self.big_endian { swapped(&elements, width) } else { elements };
        TableArray::new(self.dtype, self.dims.clone(), elements)
    }
}

/// Returns the header's text, and the position of the elements.
fn text(contents: &[u8]) -> Option<(&str, usize)> {
    let rest = contents.strip_prefix(b"\x93NUMPY")?;
    let (length, start) = match rest {
        [1, _, low, high, ..] => (usize::from(u16::from_le_bytes([*low, *high])), 10usize),
        [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 12),
        _ => return None,
    };
    let end = start.checked_add(length)?;
    Some((std::str::from_utf8(contents.get(start..end)?).ok()?, end))
}

/// Returns the text after `'key':` in the dictionary.
fn entry<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = header.split_once(&format!("'{key}'"))?;
    Some(rest.trim_start().strip_prefix(':')?.trim_start())
}

fn dims(shape: &str) -> Option<Vec<u64>> {
    let (dims, _) = shape.strip_prefix('(')?.split_once(')')?;
    let dims = dims.split(',').map(str::trim).filter(|dim| !dim.is_empty());
    dims.map(|dim| dim.parse().ok()).collect()
}

/// Returns the type of a description such as `'<f4'`, and whether its bytes must be swapped.
fn element_type(description: &str) -> Result<(DType, bool), String> {
    let (name, _) = description
        .strip_prefix('\'')
        .and_then(|rest| rest.split_once('\''))
        .ok_or_else(|| format!("has elements of a structured type: {}", excerpt(description)))?;
    let refuse = || format!("has elements of type {}, which is not supported", excerpt(name));
    let order = name.chars().next().filter(|order| "<>|=".contains(*order)).ok_or_else(refuse)?;
    let dtype = match &name[1..] {
        "f8" => DType::F64,
        "f4" => DType::F32,
        "f2" => DType::F16,
        "i8" => DType::I64,
        "i4" => DType::I32,
        "i2" => DType::I16,
        "i1" => DType::I8,
        "u8" => DType::U64,
        "u4" => DType::U32,
        "u2" => DType::U16,
        "u1" => DType::U8,
        "b1" => DType::Bool,
        _ => return Err(refuse()),
    };
    Ok((dtype, order == '>'))
}

/// Returns the start of a text from a file, short enough for a message.
fn excerpt(text: &str) -> String {
    text.chars().take(40).collect()
}

fn swapped(elements: &[u8], width: usize) -> Bytes {
    elements.chunks(width).flat_map(|element| element.iter().rev().copied()).collect::<Vec<_>>().into()
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn npy(descr: &str, fortran: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
        let header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n");
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((header.len() as u16).to_le_bytes());
        file.extend(header.as_bytes());
        file.extend(elements);
        file
    }

    fn read(contents: Bytes) -> Result<TableArray, String> {
        Header::read(&contents)?.array(&contents)
    }

    fn integers(file: Vec<u8>) -> Vec<i128> {
        read(file.into()).unwrap().integers().map(|(_, value)| value).collect()
    }

    #[test]
    fn elements_of_either_byte_order_are_read() {
        assert_eq!(integers(npy("<i2", "False", "(3,)", &[1, 0, 2, 0, 255, 255])), [1, 2, -1]);
        assert_eq!(integers(npy(">i4", "False", "(1, 2)", &[0, 0, 1, 2, 0, 0, 0, 5])), [258, 5]);
        assert_eq!(integers(npy("|u1", "True", "(2,)", &[3, 4])), [3, 4]);
        let scalar = read(npy("|b1", "False", "()", &[1]).into()).unwrap();
        assert_eq!((scalar.dtype, scalar.dims.len()), (DType::Bool, 0));
    }

    #[test]
    fn a_header_of_version_2_is_read() {
        let mut file = npy("<f4", "False", "(1,)", &[0; 4]);
        file[6] = 2;
        file.splice(10..10, [0, 0]);
        assert_eq!(read(file.into()).unwrap().dims, [1]);
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let refused = |file: Vec<u8>| read(file.into()).unwrap_err();
        assert!(refused(npy("<f4", "True", "(1, 2)", &[0; 8])).starts_with("is in Fortran order"));
        assert!(refused(npy("<c8", "False", "(1,)", &[0; 8])).contains("type <c8,"));
        assert!(refused(npy("é", "False", "(1,)", &[0; 8])).contains("not supported"));
        assert_eq!(
            refused(npy("<f4", "False", "(3,)", &[0; 8])),
            "is f32[3], which does not fit its 8 bytes"
        );
        let error = refused(npy("<f4", "False", "(4294967296, 4294967296)", &[0; 8]));
        assert!(error.contains("does not fit its 8 bytes"), "{error}");
        assert!(refused(npy("<f4", "False", "(-1,)", &[0; 8])).contains("(-1,)"));
        assert_eq!(refused(b"\x93NUMPY\x01\x00\xff\xff{".to_vec()), "has no NumPy header");
    }

    proptest! {
        #[test]
        fn no_contents_make_the_reader_panic(position in 0usize..90, bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let mut file = npy("<i2", "False", "(3,)", &[1, 0, 2, 0, 255, 255]);
            let position = position.min(file.len());
            file.splice(position..(position + bytes.len()).min(file.len()), bytes);
            if let Ok(array) = read(file.into()) {
                prop_assert_eq!(array.dims.iter().product::<u64>() * array.dtype.bytes(), array.bytes.len() as u64);
            }
        }
    }
}
