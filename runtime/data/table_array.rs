//! An array of a file: its elements are a part of the mapped file, or unpacked.

use bytes::Bytes;
use ir::DType;

use super::element::{self, Scalar};

/// An array, and its name in messages.
pub(super) type Named = (String, TableArray);

/// One array of a table.
#[derive(Clone, Debug)]
pub(super) struct TableArray {
    pub(super) dtype: DType,
    pub(super) dims: Vec<u64>,
    /// The elements, row major, little endian.
    pub(super) bytes: Bytes,
}

impl TableArray {
    /// Makes an array after checking that the product of its dims fits the number of bytes.
    pub(super) fn new(dtype: DType, dims: Vec<u64>, bytes: Bytes) -> Result<Self, String> {
        check_size(dtype, &dims, bytes.len() as u64)?;
        Ok(Self { dtype, dims, bytes })
    }

    /// Returns the elements as integers with their positions; nothing for floats.
    pub(super) fn integers(&self) -> impl Iterator<Item = (u64, i128)> + '_ {
        let elements = self.bytes.chunks_exact(self.dtype.bytes() as usize).enumerate();
        elements.filter_map(|(position, bytes)| match element::read(self.dtype, bytes) {
            Scalar::Integer(value) => Some((position as u64, value)),
            Scalar::Float(_) => None,
        })
    }

    /// Returns the position and value of the first float that satisfies `is_wanted`.
    pub(super) fn first_float(&self, is_wanted: impl Fn(f64) -> bool) -> Option<(u64, f64)> {
        let elements = if self.dtype.is_float() { &self.bytes[..] } else { &[] };
        let elements = elements.chunks_exact(self.dtype.bytes() as usize).enumerate();
        let mut wanted = elements.filter_map(|(position, bytes)| match element::read(self.dtype, bytes) {
            Scalar::Float(value) if is_wanted(value) => Some((position as u64, value)),
            _ => None,
        });
        wanted.next()
    }

    /// Returns the number of elements in one row of dim 0.
    pub(super) fn row_elements(&self) -> u64 {
        self.dims.iter().skip(1).product()
    }
}

/// Checks that an array of this type and these dims takes `bytes` bytes.
pub(super) fn check_size(dtype: DType, dims: &[u64], bytes: u64) -> Result<(), String> {
    let size = dims.iter().try_fold(dtype.bytes(), |size, &dim| size.checked_mul(dim));
    if size == Some(bytes) {
        Ok(())
    } else {
        Err(format!("is {dtype}{dims:?}, which does not fit its {bytes} bytes"))
    }
}
