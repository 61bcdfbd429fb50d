//! Rows of one or several arrays, one after the other: a key of a file, or of each file of a folder.

use ir::DType;

use super::column::Column;
use super::error::DataError;
use super::table::TableArray;

/// An array, and its name in messages.
pub(super) type Named = (String, TableArray);

/// The rows of some arrays that fit one column. Never empty.
#[derive(Clone, Debug)]
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
    /// Collects the rows of `arrays` for `column`. `check` is called with each array that fits. If a column is not batched, all arrays must
    /// have the same value.
    ///
    /// # Errors
    /// Arrays of other types or dims, and errors of `check`.
    pub(super) fn new(
        column: &Column,
        arrays: Vec<Named>,
        check: impl Fn(&TableArray, &str) -> Result<(), DataError>,
    ) -> Result<Self, DataError> {
        let (mut parts, mut first) = (Vec::<TablePart>::new(), 0);
        for (data, array) in arrays {
            column.check_array(&array, &data)?;
            check(&array, &data)?;
            match parts.first() {
                Some(shared) if !column.batched => {
                    if (shared.array.dtype, &shared.array.bytes) != (array.dtype, &array.bytes) {
                        return Err(DataError::NotShared { data, name: column.name.clone() });
                    }
                }
                _ => {
                    let rows = if column.batched { array.dims[0] } else { 1 };
                    parts.push(TablePart { first, data, array });
                    first += rows;
                }
            }
        }
        Ok(Self { parts })
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
