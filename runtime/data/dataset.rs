//! Builds the columns of a data set from the decisions about its inputs, and checks everything before step 0.

use std::path::Path;

use ir::DType;

use super::array::{Array, Batch};
use super::column::{Column, Content};
use super::decide::{Offer, features};
use super::element::{self, Scalar};
use super::error::DataError;
use super::feed::{Decision, Feed};
use super::labels;
use super::spec::{DataSource, InputSpec, LoaderOptions, ModelSpec};
use super::synthetic::{self, Synthetic};
use super::table_array::{Named, TableArray};
use super::tokens::{Text, TokenStream};

/// Some samples: rows `first .. first + samples` of the columns.
#[derive(Clone, Debug)]
pub(super) struct Dataset {
    /// The name in messages.
    pub(super) name: String,
    pub(super) columns: Vec<Column>,
    pub(super) first: u64,
    pub(super) samples: u64,
}

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

impl Dataset {
    /// Builds a data set with all samples of `offer`. Adds remarks for the user to `notes`.
    ///
    /// # Errors
    /// Any fault that makes the data unfit for the model.
    pub(super) fn build(
        wanted: Wanted<'_>,
        offer: &Offer,
        decisions: &[Decision],
        notes: &mut Vec<String>,
    ) -> Result<Self, DataError> {
        let mut columns = Vec::new();
        for (input, decision) in features(wanted.spec).zip(decisions) {
            columns.push(feature(wanted, input, &decision.feed, offer, notes)?);
        }
        if let Some(label) = &wanted.spec.label {
            columns.push(labels::column(wanted, label, offer, decisions, &columns, notes)?);
        }
        let samples = count(&columns)?;
        Ok(Self { name: offer.name(), columns, first: 0, samples })
    }

    /// Splits off the last `held_out` samples. Returns the other samples, and these.
    pub(super) fn split(mut self, held_out: u64) -> (Self, Self) {
        let mut last = self.clone();
        self.samples -= held_out;
        last.first += self.samples;
        last.samples = held_out;
        (self, last)
    }

    /// Returns a batch of the samples in `rows`. The labels of all rows from the `samples`th on are ignored.
    pub(super) fn gather(&self, rows: &[u64], samples: u64) -> Batch {
        let mut batch = Batch { tensors: [].into(), broadcast: [].into(), rows: rows.len() as u64, samples };
        for column in &self.columns {
            let mut dims = column.row_dims.clone();
            let mut bytes = vec![0; column.row_bytes() * if column.batched { rows.len() } else { 1 }];
            if column.batched {
                dims.insert(0, rows.len() as u64);
                for ((place, row), out) in (0..).zip(rows).zip(bytes.chunks_exact_mut(column.row_bytes())) {
                    column.write_row(self.first + row, out);
                    if place >= samples {
                        column.write_ignored(out);
                    }
                }
            } else {
                column.write_row(0, &mut bytes);
                batch.broadcast.insert(column.name.clone());
            }
            batch.tensors.insert(column.name.clone(), Array { dtype: column.dtype, dims, bytes });
        }
        batch
    }
}

/// Returns the number of samples, on which all columns must agree.
fn count(columns: &[Column]) -> Result<u64, DataError> {
    let counts: Vec<(String, u64)> =
        columns.iter().filter_map(|column| Some((column.name.clone(), column.samples()?))).collect();
    match counts.as_slice() {
        [] => Ok(synthetic::SAMPLES),
        [(_, first), rest @ ..] if rest.iter().all(|(_, count)| count == first) => Ok(*first),
        _ => Err(DataError::SampleCounts { counts }),
    }
}

fn feature(
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
