//! Rows of one or several arrays, one after the other: a key of a file, or of each file of a folder.

use ir::DType;

use super::error::DataError;
use super::table_array::{Named, TableArray};

/// The rows of some arrays that fit one column.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    parts: Vec<TablePart>,
}

/// One array of [`Rows`].
#[derive(Clone, Debug)]
struct TablePart {
    /// The number of its first row among all rows.
    first: u64,
    /// Its name in messages.
    data: String,
    array: TableArray,
}

impl Rows {
    /// Adds the rows of an array, which has the name `data` in messages.
    pub(super) fn add(&mut self, data: String, array: TableArray) {
        self.parts.push(TablePart { first: self.len(), data, array });
    }

    /// Returns the first array.
    pub(super) fn first(&self) -> Option<&TableArray> {
        self.parts.first().map(|part| &part.array)
    }

    /// Returns the number of rows.
    pub(super) fn len(&self) -> u64 {
        self.parts.last().map_or(0, |part| part.first + part.array.dims.first().copied().unwrap_or(1))
    }

    /// Returns the arrays, each with the name `data`.
    pub(super) fn named(&self, data: &str) -> Vec<Named> {
        self.parts.iter().map(|part| (data.to_owned(), part.array.clone())).collect()
    }

    /// Calls `look` with each array and its name in messages.
    pub(super) fn each(
        &self,
        look: impl Fn(&TableArray, &str) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        self.parts.iter().try_for_each(|part| look(&part.array, &part.data))
    }

    /// Returns the elements of row `row`, each row having `elements`, and their type.
    pub(super) fn row(&self, row: u64, elements: u64) -> (DType, &[u8]) {
        let index = self.parts.partition_point(|part| part.first <= row).saturating_sub(1);
        let TablePart { first, array, .. } = &self.parts[index];
        let size = (elements * array.dtype.bytes()) as usize;
        let start = (row - first) as usize * size;
        (array.dtype, &array.bytes[start..start + size])
    }
}
