//! A column: the values of one input or of the labels, for every sample.

use ir::DType;

use super::element::{self, Scalar};
use super::error::DataError;
use super::rows::Rows;
use super::synthetic::{self, Synthetic};
use super::table_array::{Named, TableArray};
use super::tokens::TokenStream;

/// One tensor of a batch, and the source of its rows.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) dtype: DType,
    /// The dims of one sample, or of the whole tensor if it is not batched.
    pub(super) row_dims: Vec<u64>,
    pub(super) batched: bool,
    /// For labels: the element that the loss ignores. It is written to rows that are no samples.
    pub(super) ignored: Option<Vec<u8>>,
    pub(super) content: Content,
}

/// The source of a column's rows.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// Row `i` is tokens `i * sequence + shift ..` of a stream. The length of a row is the sequence length.
    Tokens { stream: TokenStream, shift: u64 },
    /// Row `i` is row `i` of some arrays. A column that is not batched is a whole array, the same for every sample. In shifted rows,
    /// elements move one place to the left, and the last is ignored.
    Rows { rows: Rows, shifted: bool },
    /// All rows are equal.
    Same(Vec<u8>),
    /// Row `i` is generated; `shift` skips its first elements.
    Synthetic { values: Synthetic, shift: u64 },
}

impl Column {
    /// Returns the number of elements of one row.
    pub(super) fn row_elements(&self) -> u64 {
        self.row_dims.iter().product()
    }

    /// Returns the number of bytes of one row.
    pub(super) fn row_bytes(&self) -> usize {
        (self.row_elements() * self.dtype.bytes()) as usize
    }

    /// Returns the number of samples; `None` if any number can be generated. A stream of T tokens has `(T - 1) / sequence` samples, so that
    /// the last token has a label too.
    pub(super) fn samples(&self) -> Option<u64> {
        match &self.content {
            _ if !self.batched => None,
            Content::Tokens { stream, .. } => Some(stream.len().saturating_sub(1) / self.row_elements()),
            Content::Rows { rows, .. } => Some(rows.len()),
            Content::Same(_) | Content::Synthetic { .. } => None,
        }
    }

    /// Writes row `row` into `out`, whose length is [`row_bytes`](Self::row_bytes).
    pub(super) fn write_row(&self, row: u64, out: &mut [u8]) {
        match &self.content {
            Content::Tokens { stream, shift } => self.write_tokens(stream, row, *shift, out),
            Content::Rows { rows, shifted } => self.write_array(rows, row, *shifted, out),
            Content::Same(bytes) => out.copy_from_slice(bytes),
            Content::Synthetic { values, shift } => values.write_row(self.dtype, row, *shift, out),
        }
    }

    /// Writes labels that are all ignored.
    pub(super) fn write_ignored(&self, out: &mut [u8]) {
        let Some(ignored) = &self.ignored else { return };
        out.chunks_exact_mut(ignored.len()).for_each(|slot| slot.copy_from_slice(ignored));
    }

    fn write_tokens(&self, stream: &TokenStream, row: u64, shift: u64, out: &mut [u8]) {
        let sequence = self.row_elements();
        let mut slots = out.chunks_exact_mut(self.dtype.bytes() as usize);
        let start = row * sequence + shift;
        stream.read(start..start + sequence, |token| {
            let fits = slots
                .next()
                .is_some_and(|slot| element::write(self.dtype, Scalar::Integer(token.into()), slot));
            debug_assert!(fits, "token {token} was checked against {}", self.dtype);
        });
    }

    fn write_array(&self, rows: &Rows, row: u64, shifted: bool, out: &mut [u8]) {
        let (dtype, source) = rows.row(if self.batched { row } else { 0 }, self.row_elements());
        let converted = if shifted {
            let (row, last) = out.split_at_mut(out.len() - self.dtype.bytes() as usize);
            self.write_ignored(last);
            element::convert(dtype, &source[dtype.bytes() as usize..], self.dtype, row)
        } else {
            element::convert(dtype, source, self.dtype, out)
        };
        debug_assert!(converted.is_ok(), "`{}`: {converted:?} was checked before", self.name);
    }

    /// Checks that an array of this type and these dims can provide this column's rows; `data` names it in errors.
    pub(super) fn check_shape(&self, dtype: DType, dims: &[u64], data: &str) -> Result<(), DataError> {
        let row_dims = if self.batched { dims.get(1..) } else { Some(dims) };
        let (data, name) = (data.to_owned(), self.name.clone());
        if row_dims != Some(&self.row_dims) {
            let (found, wanted) = (dims.to_vec(), self.row_dims.clone());
            return Err(DataError::WrongDims { data, found, name, wanted, batched: self.batched });
        }
        if element::feeds(dtype, self.dtype) {
            Ok(())
        } else {
            Err(DataError::WrongDtype { data, found: dtype, name, wanted: self.dtype })
        }
    }

    /// Checks that `array` can provide this column's rows; `data` names it in errors.
    pub(super) fn check_array(&self, array: &TableArray, data: &str) -> Result<(), DataError> {
        self.check_shape(array.dtype, &array.dims, data)?;
        let name = self.name.clone();
        if let Some((position, _)) = array.first_float(f64::is_nan) {
            let (data, sample) = (data.to_owned(), position / array.row_elements().max(1));
            return Err(DataError::NotANumber { data, sample, name });
        }
        let overflows = |value: f64| element::overflows(self.dtype, value);
        let is_rounded = array.dtype != self.dtype;
        if let Some((position, value)) = is_rounded.then(|| array.first_float(overflows)).flatten() {
            let (data, value) = (data.to_owned(), format!("{value:e}"));
            return Err(DataError::DoesNotFit { data, position, value, name, wanted: self.dtype });
        }
        let limit = i128::from(synthetic::limit(self.dtype, u64::MAX));
        let narrower = array.dtype != self.dtype && !self.dtype.is_float();
        let negative =
            if matches!(self.dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64) { limit } else { 0 };
        let beyond = |value: i128| value >= limit || value < -negative;
        if let Some((position, value)) =
            narrower.then(|| array.integers().find(|(_, value)| beyond(*value))).flatten()
        {
            let (data, value) = (data.to_owned(), value.to_string());
            return Err(DataError::DoesNotFit { data, position, value, name, wanted: self.dtype });
        }
        Ok(())
    }
    /// Collects the rows of `arrays` for this column. `check` is called with each array that fits. If the column is not batched, all arrays
    /// must have the same value.
    ///
    /// # Errors
    /// Arrays of other types or dims, and errors of `check`.
    pub(super) fn rows(
        &self,
        arrays: Vec<Named>,
        check: impl Fn(&TableArray, &str) -> Result<(), DataError>,
    ) -> Result<Rows, DataError> {
        let mut rows = Rows::default();
        for (data, array) in arrays {
            self.check_array(&array, &data)?;
            check(&array, &data)?;
            match rows.first() {
                Some(shared) if !self.batched => {
                    if (shared.dtype, &shared.bytes) != (array.dtype, &array.bytes) {
                        return Err(DataError::NotShared { data, name: self.name.clone() });
                    }
                }
                _ => rows.add(data, array),
            }
        }
        Ok(rows)
    }
}
