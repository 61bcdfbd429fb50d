//! The inputs' columns: tokens, arrays, or generated values.

use std::path::Path;

use ir::DType;

use super::column::{Column, Content};
use super::decide::Offer;
use super::element::{self, Scalar};
use super::error::DataError;
use super::feed::Feed;
use super::spec::{DataSource, InputSpec, LoaderOptions, ModelSpec};
use super::synthetic::{self, Synthetic};
use super::table_array::{Named, TableArray};
use super::tokens::{Text, TokenStream};

/// The context in which a data set is built.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) spec: &'a ModelSpec,
    pub(super) options: &'a LoaderOptions,
    /// The way in which text becomes tokens.
    pub(super) text: Text<'a>,
    /// The seed of synthetic values, which differs between training and evaluation.
    pub(super) seed: u64,
}

/// Builds the column of an input from its source.
///
/// # Errors
/// Data that do not fit the input.
pub(super) fn feature(
    wanted: Wanted<'_>,
    input: &InputSpec,
    feed: &Feed,
    offer: &Offer,
    notes: &mut Vec<String>,
) -> Result<Column, DataError> {
    let row_dims = if input.batched { input.dims[1..].to_vec() } else { input.dims.clone() };
    let (name, dtype, batched) = (input.name.clone(), input.dtype, input.batched);
    let mut column =
        Column { name, dtype, row_dims, batched, ignored: None, content: Content::Same(Vec::new()) };
    column.content = match (feed, offer) {
        (Feed::Positions, _) => Content::Same(repeated(&column, |place| place)?),
        (Feed::Ones, _) => Content::Same(repeated(&column, |_| 1)?),
        (Feed::Zeros, _) => Content::Same(repeated(&column, |_| 0)?),
        (Feed::Tokens, Offer::Tokens(path)) => {
            tokens(input, &column, path, notes, || TokenStream::open(path, input.vocabulary, wanted.text))?
        }
        (Feed::Key(field), Offer::Json(json)) if json.is_text(field) => {
            tokens(input, &column, &json.path, notes, || {
                let texts = json.texts(field, &input.name)?;
                TokenStream::of_texts(&json.path, texts, input.vocabulary, wanted.text)
            })?
        }
        (Feed::Key(field), Offer::Json(json)) => {
            rows(input, &column, json.arrays(field, &input.name, dtype, &column.row_dims)?)?
        }
        (Feed::Key(key), Offer::Table(table)) => rows(input, &column, table.arrays(key, "", &column)?)?,
        (Feed::Columns(columns), Offer::Csv(csv)) => {
            rows(input, &column, csv.arrays(columns, &input.name, dtype, &column.row_dims)?)?
        }
        (Feed::File(path), _) => match Offer::open(&DataSource::Path(path.clone()))? {
            Offer::Tokens(path) => tokens(input, &column, &path, notes, || {
                TokenStream::open(&path, input.vocabulary, wanted.text)
            })?,
            offer => rows(
                input,
                &column,
                own_file(&[&input.name, &format!("input.{}", input.name)], &column, &offer)?,
            )?,
        },
        (Feed::Key(key), _) => {
            let data = format!("--input names the key `{key}`, but `{}` has no keys", offer.name());
            let (name, dims) = (input.name.clone(), input.dims.clone());
            return Err(DataError::MissingInput { name, dtype, dims, data, wanted: Vec::new() });
        }
        (Feed::Synthetic | Feed::Tokens | Feed::Columns(_), _) => {
            let limit = synthetic::limit(dtype, input.vocabulary.unwrap_or(2));
            Content::Synthetic { values: Synthetic::new(wanted.seed, &input.name, limit), shift: 0 }
        }
    };
    Ok(column)
}

/// Returns a row whose elements at place `i` of the last dim are `value(i)`.
fn repeated(column: &Column, value: impl Fn(u64) -> u64) -> Result<Vec<u8>, DataError> {
    let last = column.row_dims.last().copied().unwrap_or(1);
    let mut row = vec![0; column.row_bytes()];
    for (place, slot) in (0..).zip(row.chunks_exact_mut(column.dtype.bytes() as usize)) {
        let value = value(place % last);
        if !element::write(column.dtype, Scalar::Integer(value.into()), slot) {
            let (name, value) = (column.name.clone(), value.to_string());
            return Err(DataError::DoesNotFit {
                data: "--input".to_owned(),
                position: place,
                value,
                name,
                wanted: column.dtype,
            });
        }
    }
    Ok(row)
}

/// Returns the content of an input that takes the token stream that `open` makes from the data in `path`.
fn tokens(
    input: &InputSpec,
    column: &Column,
    path: &Path,
    notes: &mut Vec<String>,
    open: impl FnOnce() -> Result<TokenStream, DataError>,
) -> Result<Content, DataError> {
    if !(input.batched && input.dtype.is_integer() && input.dims.len() == 2) {
        let (data, inputs) = (path.display().to_string(), vec![input.name.clone()]);
        let reason = format!(
            "`{}` is {}{:?}, and a token stream needs integers of [batch, sequence]",
            input.name, input.dtype, input.dims
        );
        return Err(DataError::TokenInput { data, reason, inputs });
    }
    let stream = open()?;
    let sequence = column.row_elements();
    if stream.len() <= sequence {
        let (data, tokens) = (stream.name.clone(), stream.len());
        return Err(DataError::TooShort { data, tokens, sequence, needed: sequence + 1 });
    }
    stream.check_vocabulary(synthetic::limit(input.dtype, input.vocabulary.unwrap_or(u64::MAX)))?;
    notes.extend(stream.looks_wider());
    Ok(Content::Tokens { stream, shift: 0 })
}

/// Returns the arrays for a column in a file of its own: the array with the first of `keys` that exists, or the only array; all columns of
/// a CSV file; or a field of JSON lines.
///
/// # Errors
/// Arrays with other names; columns that do not fit.
pub(super) fn own_file(keys: &[&str], column: &Column, offer: &Offer) -> Result<Vec<Named>, DataError> {
    match offer {
        Offer::Csv(csv) => {
            let columns: Vec<usize> = (0..csv.columns).collect();
            csv.arrays(&columns, &column.name, column.dtype, &column.row_dims)
        }
        Offer::Table(table) => {
            let named = keys.iter().find(|key| table.has(key)).map(|key| (*key).to_owned());
            let key = named.or_else(|| table.only_key()).unwrap_or_else(|| column.name.clone());
            table.arrays(&key, "", column)
        }
        Offer::Json(json) => {
            let fields = json.fields();
            let named = keys.iter().find(|key| json.has(key)).map(|key| (*key).to_owned());
            let only = || if let [only] = &fields[..] { Some(only.clone()) } else { None };
            let field = named.or_else(only).unwrap_or_else(|| column.name.clone());
            json.arrays(&field, &column.name, column.dtype, &column.row_dims)
        }
        Offer::Tokens(_) | Offer::Synthetic => {
            let reason = "it is fed from arrays, columns or fields, not from tokens".to_owned();
            Err(DataError::TokenInput { data: offer.name(), reason, inputs: vec![column.name.clone()] })
        }
    }
}

fn rows(input: &InputSpec, column: &Column, arrays: Vec<Named>) -> Result<Content, DataError> {
    let check = |array: &TableArray, data: &str| match input.vocabulary {
        Some(vocabulary) => check_vocabulary(array, vocabulary, data),
        None => Ok(()),
    };
    Ok(Content::Rows { rows: column.rows(arrays, check)?, shifted: false })
}

fn check_vocabulary(array: &TableArray, vocabulary: u64, data: &str) -> Result<(), DataError> {
    let outside = array.integers().find(|(_, value)| !(0..i128::from(vocabulary)).contains(value));
    match outside.filter(|_| array.dtype != DType::Bool) {
        Some((position, value)) => {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            Err(DataError::OutsideVocabulary { data: data.to_owned(), position, value, vocabulary })
        }
        None => Ok(()),
    }
}
