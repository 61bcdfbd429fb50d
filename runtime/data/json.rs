//! JSON lines: each line is an object, which is a record. Its fields are numbers, (nested) lists of numbers, or text.
//!
//! When a file is opened, every line is parsed, so a damaged line is reported first. A field is read only when an input needs it, so unused
//! fields may hold anything.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use ir::DType;
use serde_json::{Map, Value};

use super::element::{self, Scalar};
use super::error::DataError;
use super::file;
use super::table_array::{Named, TableArray};

/// A file, or the files of a folder.
#[derive(Clone, Debug)]
pub(super) struct Json {
    /// The file or folder.
    pub(super) path: PathBuf,
    files: Vec<JsonFile>,
    /// The first record.
    first: Map<String, Value>,
}

/// One file.
#[derive(Clone, Debug)]
struct JsonFile {
    path: PathBuf,
    text: Bytes,
    records: u64,
}

impl Json {
    /// Opens the files, at least one.
    ///
    /// # Errors
    /// Files that cannot be read or have no records; lines that are no JSON objects.
    pub(super) fn open(path: &Path, files: &[PathBuf]) -> Result<Self, DataError> {
        let mut json = Self { path: path.to_owned(), files: vec![], first: Map::new() };
        for path in files {
            let mut file = JsonFile { path: path.clone(), text: file::map(path)?, records: 0 };
            let (mut records, mut first) = (0, None);
            file.each_record(|_, record| {
                records += 1;
                first.get_or_insert(record);
                Ok(())
            })?;
            let Some(first) = first else {
                return Err(DataError::Malformed { path: path.clone(), reason: "it is empty".to_owned() });
            };
            if json.files.is_empty() {
                json.first = first;
            }
            file.records = records;
            json.files.push(file);
        }
        Ok(json)
    }

    /// Returns the fields of the first record, sorted.
    pub(super) fn fields(&self) -> Vec<String> {
        self.first.keys().cloned().collect()
    }

    /// Returns whether the first record has this field.
    pub(super) fn has(&self, field: &str) -> bool {
        self.first.contains_key(field)
    }

    /// Returns whether a field is text.
    pub(super) fn is_text(&self, field: &str) -> bool {
        self.first.get(field).is_some_and(Value::is_string)
    }

    /// Returns the field from which a stream of tokens is made: `text`, or the only field with text.
    pub(super) fn text_field(&self) -> Option<String> {
        let mut texts = self.first.keys().filter(|field| self.is_text(field));
        match (self.is_text("text"), texts.next(), texts.next()) {
            (true, ..) => Some("text".to_owned()),
            (false, Some(only), None) => Some(only.clone()),
            _ => None,
        }
    }

    /// Reads the numbers of a field as arrays of `[records, row_dims…]`, one for each file, for the input or label `name`.
    ///
    /// # Errors
    /// A record without the field; a value that is not a row.
    pub(super) fn arrays(
        &self,
        field: &str,
        name: &str,
        dtype: DType,
        row_dims: &[u64],
    ) -> Result<Vec<Named>, DataError> {
        self.check_field(field, name)?;
        let array = |file: &JsonFile| {
            let mut bytes = Vec::new();
            file.each_record(|line, record| {
                let pushed = match record.get(field) {
                    None => Err("is missing".to_owned()),
                    Some(value) => push_row(&mut bytes, value, dtype, row_dims),
                };
                pushed.map_err(|wrong| file.field_error(line, field, name, wrong))
            })?;
            let dims = std::iter::once(file.records).chain(row_dims.iter().copied()).collect();
            let array = TableArray::new(dtype, dims, bytes.into());
            let array = array.map_err(|reason| DataError::Malformed { path: file.path.clone(), reason })?;
            Ok((format!("{}:{field}", file.path.display()), array))
        };
        self.files.iter().map(array).collect()
    }

    /// Returns the text of a field for each file: the texts of its records in order, each with a line end after it.
    ///
    /// # Errors
    /// A record without the field, or with a value that is no text.
    pub(super) fn texts(&self, field: &str, name: &str) -> Result<Vec<(PathBuf, Bytes)>, DataError> {
        self.check_field(field, name)?;
        let text = |file: &JsonFile| {
            let mut text = String::new();
            file.each_record(|line, record| match record.get(field) {
                Some(Value::String(part)) => {
                    text.push_str(part);
                    text.push('\n');
                    Ok(())
                }
                Some(other) => {
                    let wrong = format!("is {}, and in the first record it is text", kind(other));
                    Err(file.field_error(line, field, name, wrong))
                }
                None => Err(file.field_error(line, field, name, "is missing".to_owned())),
            })?;
            Ok((file.path.clone(), text.into()))
        };
        self.files.iter().map(text).collect()
    }

    fn check_field(&self, field: &str, name: &str) -> Result<(), DataError> {
        if self.has(field) {
            return Ok(());
        }
        let hint = format!(" for `{name}`");
        let (path, key, there) = (self.path.clone(), field.to_owned(), self.fields());
        Err(DataError::MissingKey { path, key, hint, there })
    }
}

impl JsonFile {
    /// Calls `each` with the line number of every record, counted from 1, and the record. Empty lines are skipped.
    fn each_record(
        &self,
        mut each: impl FnMut(u64, Map<String, Value>) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let malformed = |reason: String| DataError::Malformed { path: self.path.clone(), reason };
        let text = self.text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.text);
        for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
            if line.trim_ascii().is_empty() {
                continue;
            }
            let value: Value = serde_json::from_slice(line).map_err(|error| {
                // serde_json's message ends with the place within this line, which is cut off.
                let text = error.to_string();
                let wrong = text.split(" at line ").next().unwrap_or_default();
                malformed(format!("line {number} is not JSON (column {}): {wrong}", error.column()))
            })?;
            let Value::Object(record) = value else {
                let found = kind(&value);
                return Err(malformed(format!(
                    "line {number} is {found}; a record is an object such as {{\"x\": 1, …}}"
                )));
            };
            each(number, record)?;
        }
        Ok(())
    }

    fn field_error(&self, line: u64, field: &str, name: &str, wrong: String) -> DataError {
        let (path, field, name) = (self.path.clone(), field.to_owned(), name.to_owned());
        DataError::Field { path, line, field, name, wrong }
    }
}

/// Appends the numbers of one sample: a list nested like its dims, one flat list, or a single number if a sample is one. The error is the
/// end of a sentence about the field.
fn push_row(bytes: &mut Vec<u8>, value: &Value, dtype: DType, dims: &[u64]) -> Result<(), String> {
    let count: u64 = dims.iter().product();
    match value {
        Value::Array(items) if items.len() as u64 == count && !items.iter().any(Value::is_array) => {
            items.iter().try_for_each(|item| push(bytes, item, dtype))
        }
        Value::Array(_) => push_nested(bytes, value, dtype, dims),
        alone if count == 1 => push(bytes, alone, dtype),
        other => Err(format!("is {}, and a sample takes {dims:?}", kind(other))),
    }
}

fn push_nested(bytes: &mut Vec<u8>, value: &Value, dtype: DType, dims: &[u64]) -> Result<(), String> {
    match (value, dims) {
        (Value::Array(items), [size, rest @ ..]) if items.len() as u64 == *size => {
            items.iter().try_for_each(|item| push_nested(bytes, item, dtype, rest))
        }
        (Value::Array(items), [size, ..]) => {
            Err(format!("has a list of {}, where a sample takes {size}", items.len()))
        }
        (Value::Array(_), []) => Err("has a list where a sample takes a number".to_owned()),
        (other, [size, ..]) => Err(format!("has {}, where a sample takes a list of {size}", kind(other))),
        (number, []) => push(bytes, number, dtype),
    }
}

/// Appends a number.
fn push(bytes: &mut Vec<u8>, value: &Value, dtype: DType) -> Result<(), String> {
    /// The number up to which every integer is represented exactly in f64.
    const EXACT: f64 = (1u64 << 53) as f64;
    let scalar = match value {
        Value::Bool(value) => Scalar::Integer((*value).into()),
        Value::Number(number) => {
            let integer = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
            match (dtype.is_float(), integer, number.as_f64()) {
                (false, Some(integer), _) => Scalar::Integer(integer),
                (true, _, Some(float)) => Scalar::Float(float),
                // Some programs write the integer 3 as 3.0.
                (false, None, Some(float)) if float.fract() == 0.0 && float.abs() < EXACT => {
                    Scalar::Integer(float as i128)
                }
                _ => return Err(format!("has {number}, which is not an integer")),
            }
        }
        other => return Err(format!("has {}, which is not a number", kind(other))),
    };
    let start = bytes.len();
    bytes.resize(start + dtype.bytes() as usize, 0);
    if element::write(dtype, scalar, &mut bytes[start..]) {
        Ok(())
    } else {
        Err(format!("has {value}, which does not fit {dtype}"))
    }
}

/// Describes a kind of value in words.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
