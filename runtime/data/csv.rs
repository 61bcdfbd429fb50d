//! Numbers in comma-separated files (RFC 4180), or tab-separated files (`.tsv`), also gzipped. A row is a sample, and a column is a number.
//! The first line may have the names of the columns.
//!
//! When a file is opened, its rows are counted and their lengths checked. A cell is read only when its column is used, so unused columns
//! may hold anything.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use ir::DType;

use super::element::{self, Scalar};
use super::error::DataError;
use super::file;
use super::records::Records;
use super::table_array::{Named, TableArray};
use super::unpack::{self, UnpackError};

/// A file, or the files of a folder with the same columns.
#[derive(Clone, Debug)]
pub(super) struct Csv {
    /// The file or folder.
    pub(super) path: PathBuf,
    files: Vec<CsvFile>,
    /// The names of the columns, if the first line has them.
    pub(super) header: Option<Vec<String>>,
    /// The number of columns.
    pub(super) columns: usize,
}

/// One file.
#[derive(Clone, Debug)]
struct CsvFile {
    path: PathBuf,
    /// The text, unpacked.
    text: Bytes,
    delimiter: u8,
    has_header: bool,
    rows: u64,
}

impl Csv {
    /// Opens the files, at least one.
    ///
    /// # Errors
    /// Files that cannot be read, have no rows, or rows of different lengths; files whose columns differ.
    pub(super) fn open(path: &Path, files: &[PathBuf]) -> Result<Self, DataError> {
        let mut csv = Self { path: path.to_owned(), files: vec![], header: None, columns: 0 };
        for path in files {
            let (file, header, columns) = CsvFile::open(path)?;
            match csv.files.first() {
                None => (csv.header, csv.columns) = (header, columns),
                Some(first) if (&csv.header, csv.columns) != (&header, columns) => {
                    let reason = format!("its columns differ from the columns of `{}`", first.path.display());
                    return Err(DataError::Malformed { path: path.clone(), reason });
                }
                Some(_) => {}
            }
            csv.files.push(file);
        }
        Ok(csv)
    }

    /// Returns the name of a column for messages: its number, counted from 1, and its name.
    pub(super) fn column_name(&self, column: usize) -> String {
        match self.header.as_ref().and_then(|header| header.get(column)) {
            Some(name) => format!("{} (`{name}`)", column + 1),
            None => (column + 1).to_string(),
        }
    }

    /// Reads the columns of every file as arrays of `[rows, row_dims…]`, for the input or label `name`.
    ///
    /// # Errors
    /// The number of columns is not that of a row; cells that are no finite numbers, or do not fit.
    pub(super) fn arrays(
        &self,
        columns: &[usize],
        name: &str,
        dtype: DType,
        row_dims: &[u64],
    ) -> Result<Vec<Named>, DataError> {
        let wanted: u64 = row_dims.iter().product();
        if columns.len() as u64 != wanted {
            let reason =
                format!("`{name}` needs {wanted} columns, and {} columns are chosen for it", columns.len());
            return Err(self.columns_error(name, reason));
        }
        let array = |file: &CsvFile| {
            let mut bytes = Vec::new();
            file.each_row(|line, cells| {
                for &column in columns {
                    let place = || (line, self.column_name(column));
                    push(&mut bytes, &cells[column], dtype)
                        .map_err(|wrong| file.cell_error(place(), name, wrong))?;
                }
                Ok(())
            })?;
            let dims = std::iter::once(file.rows).chain(row_dims.iter().copied()).collect();
            let array = TableArray::new(dtype, dims, bytes.into());
            let array = array.map_err(|reason| DataError::Malformed { path: file.path.clone(), reason })?;
            Ok((file.path.display().to_string(), array))
        };
        self.files.iter().map(array).collect()
    }

    /// Returns an error about the assignment of columns.
    pub(super) fn columns_error(&self, name: &str, reason: String) -> DataError {
        let (path, columns, name) = (self.path.clone(), self.columns, name.to_owned());
        DataError::Columns { path, columns, name, reason }
    }
}

impl CsvFile {
    /// Opens a file. Returns it, the names in its first line, and the number of its columns.
    fn open(path: &Path) -> Result<(Self, Option<Vec<String>>, usize), DataError> {
        let malformed = |reason: String| DataError::Malformed { path: path.to_owned(), reason };
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let mut text = file::map(path)?;
        if name.ends_with(".gz") {
            text = gunzip(path, &text, unpack::most())?;
        }
        let delimiter = if name.contains(".tsv") { b'\t' } else { b',' };
        let mut first = Vec::new();
        let line = Records::new(&text, delimiter).next(&mut first);
        if line.map_err(malformed)?.is_none() {
            return Err(malformed("it is empty".to_owned()));
        }
        if let [cell] = &first[..]
            && let Some(other) = [';', '\t', '|'].into_iter().find(|&other| cell.contains(other))
        {
            return Err(malformed(format!("its cells are separated by {other:?}; separate them by commas")));
        }
        let has_header = first.iter().any(|cell| cell.trim().parse::<f64>().is_err());
        let header = has_header.then(|| first.iter().map(|cell| cell.trim().to_owned()).collect());
        let columns = first.len();
        let mut opened = Self { path: path.to_owned(), text: text.clone(), delimiter, has_header, rows: 0 };
        let mut rows = 0;
        opened.each_row(|line, cells| {
            rows += 1;
            if cells.len() == columns {
                Ok(())
            } else {
                Err(malformed(format!(
                    "line {line} has {} columns, and the first line has {columns}",
                    cells.len()
                )))
            }
        })?;
        if rows == 0 {
            return Err(malformed("it has column names and no rows".to_owned()));
        }
        opened.rows = rows;
        Ok((opened, header, columns))
    }

    /// Calls `each` with the line number and the cells of every row.
    fn each_row(
        &self,
        mut each: impl FnMut(u64, &[Cow<'_, str>]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let malformed = |reason: String| DataError::Malformed { path: self.path.clone(), reason };
        let mut records = Records::new(&self.text, self.delimiter);
        let mut cells = Vec::new();
        if self.has_header {
            records.next(&mut cells).map_err(malformed)?;
        }
        while let Some(line) = records.next(&mut cells).map_err(malformed)? {
            each(line, &cells)?;
        }
        Ok(())
    }

    fn cell_error(&self, (line, column): (u64, String), name: &str, wrong: String) -> DataError {
        DataError::Cell { path: self.path.clone(), line, column, name: name.to_owned(), wrong }
    }
}

/// Returns the unpacked text of a gzipped file, at most `most` bytes.
fn gunzip(path: &Path, packed: &[u8], most: u64) -> Result<Bytes, DataError> {
    match unpack::to_end(MultiGzDecoder::new(packed), most) {
        Ok(text) => Ok(text.into()),
        Err(UnpackError::Damaged(error)) => {
            let reason = format!("it cannot be unpacked: {error}");
            Err(DataError::Malformed { path: path.to_owned(), reason })
        }
        Err(UnpackError::TooLarge { bytes, most }) => {
            let remedy = "unpack the file with gunzip: an unpacked file is mapped and needs no memory";
            Err(DataError::TooLarge { data: path.display().to_string(), bytes, most, remedy })
        }
    }
}

/// Appends the number in a cell. The error describes the fault of the cell.
fn push(bytes: &mut Vec<u8>, cell: &str, dtype: DType) -> Result<(), String> {
    /// The number up to which every integer is represented exactly in f64.
    const EXACT: f64 = (1u64 << 53) as f64;
    let cell = cell.trim();
    if cell.is_empty() {
        return Err("is empty".to_owned());
    }
    let shown = || cell.chars().take(40).collect::<String>();
    let value = match (dtype.is_float(), cell.parse::<i128>()) {
        (false, Ok(integer)) => Scalar::Integer(integer),
        (is_float, _) => match cell.parse::<f64>() {
            Ok(number) if !number.is_finite() => {
                return Err(format!("is `{}`, which is not a finite number", shown()));
            }
            Ok(number) if is_float => Scalar::Float(number),
            // Some programs write the integer 3 as 3.0.
            Ok(number) if number.fract() == 0.0 && number.abs() < EXACT => Scalar::Integer(number as i128),
            Ok(_) => return Err(format!("is `{}`, which is not an integer", shown())),
            Err(_) => return Err(format!("is `{}`, which is not a number", shown())),
        },
    };
    let start = bytes.len();
    bytes.resize(start + dtype.bytes() as usize, 0);
    if element::write(dtype, value, &mut bytes[start..]) {
        Ok(())
    } else {
        Err(format!("is `{}`, which does not fit {dtype}", shown()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_that_unpacks_to_more_than_there_is_room_for_is_refused() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&b"0,".repeat(1 << 20)).unwrap();
        let member = gzip.finish().unwrap();
        let packed = member.repeat(64);
        let path = Path::new("zeros.csv.gz");
        assert_eq!(gunzip(path, &packed, 128 << 20).unwrap().len(), 128 << 20);
        let error = gunzip(path, &packed, 5 << 20).unwrap_err().to_string();
        assert_eq!(
            error,
            "`zeros.csv.gz` unpacks to 6291456 bytes or more, and only 5242880 bytes of memory are available for it: unpack the file with gunzip: an unpacked file is mapped and needs no memory"
        );
    }
}
