//! The labels' column: the next token, or values from the data.

use super::column::{Column, Content};
use super::columns;
use super::decide::Offer;
use super::element::{self, Scalar};
use super::error::{self, DataError};
use super::features::{Wanted, own_file};
use super::feed::{Decision, Feed};
use super::spec::{DataSource, InputSpec, LabelSpec, LabelsFrom, Source};
use super::synthetic::{self, Synthetic};
use super::table_array::{Named, TableArray};
use super::tables::Tables;

/// Builds the labels of the samples whose inputs are `features`; `decisions` has their sources, in the same order.
///
/// The user's choice (`--input LABEL=SOURCE`) comes first. Otherwise labels come from the data: the next tokens of a token stream; arrays,
/// columns or a field with a usual name; or the tokens of an input, moved one place. Synthetic labels are the next synthetic tokens, or
/// random classes.
///
/// # Errors
/// Data without suitable labels, or with labels outside the classes.
pub(super) fn column(
    wanted: Wanted<'_>,
    label: &LabelSpec,
    offer: &Offer,
    decisions: &[Decision],
    features: &[Column],
    notes: &mut Vec<String>,
) -> Result<Column, DataError> {
    let mut column = Column {
        name: label.name.clone(),
        dtype: label.dtype,
        row_dims: label.dims[1..].to_vec(),
        batched: true,
        ignored: ignored(label)?,
        content: Content::Same(Vec::new()),
    };
    let from = wanted.options.labels_from;
    let chosen = chosen(wanted, label, &column, offer)?;
    column.content = match offer {
        _ if chosen.is_some() => of_arrays(label, &column, chosen, None, from)?,
        Offer::Tokens(_) => {
            let tokens = features.iter().zip(decisions).find(|(_, decision)| decision.feed == Feed::Tokens);
            of_stream(label, &column, tokens.map(|(feature, _)| feature), from, notes)?
        }
        Offer::Table(table) => {
            let tokens = token_column(wanted, features);
            let arrays = of_table(label, &column, table, tokens, from)?;
            of_arrays(label, &column, arrays, tokens, from)?
        }
        Offer::Csv(csv) => {
            let found = columns::labels(label, csv, wanted.options)?;
            notes.extend(columns::note(&found, label, csv, decisions));
            let arrays = if found.columns.is_empty() {
                None
            } else {
                Some(csv.arrays(&found.columns, &label.name, label.dtype, &column.row_dims)?)
            };
            of_arrays(label, &column, arrays, token_column(wanted, features), from)?
        }
        Offer::Json(json) => {
            let stream = features.iter().find(|feature| matches!(feature.content, Content::Tokens { .. }));
            let names = std::iter::once(label.name.as_str()).chain(columns::LABELS);
            match (stream, names.into_iter().find(|name| json.has(name))) {
                (Some(stream), _) => of_stream(label, &column, Some(stream), from, notes)?,
                (None, Some(field)) => {
                    let arrays = json.arrays(field, &label.name, label.dtype, &column.row_dims)?;
                    of_arrays(label, &column, Some(arrays), None, from)?
                }
                (None, None) if from == Some(LabelsFrom::Shift) => {
                    of_arrays(label, &column, None, token_column(wanted, features), from)?
                }
                (None, None) => {
                    let there = error::list(&json.fields());
                    let reason = format!(
                        "`{}` has no field with a usual name for labels ({}); its fields are {there}; choose \
                         a field with --input {}=FIELD",
                        offer.name(),
                        columns::LABELS.join(", "),
                        label.name
                    );
                    return Err(no_labels(label, reason));
                }
            }
        }
        Offer::Synthetic => {
            match token_column(wanted, features).map(|tokens| (&tokens.content, &tokens.row_dims)) {
                Some((Content::Synthetic { values, .. }, dims))
                    if *dims == column.row_dims && from != Some(LabelsFrom::Given) =>
                {
                    Content::Synthetic { values: *values, shift: 1 }
                }
                _ => {
                    let limit = synthetic::limit(label.dtype, label.classes.unwrap_or(2));
                    Content::Synthetic { values: Synthetic::new(wanted.seed, &label.name, limit), shift: 0 }
                }
            }
        }
    };
    Ok(column)
}

fn ignored(label: &LabelSpec) -> Result<Option<Vec<u8>>, DataError> {
    let Some(value) = label.ignore_index.filter(|_| label.dtype.is_integer()) else { return Ok(None) };
    let mut bytes = vec![0; label.dtype.bytes() as usize];
    if element::write(label.dtype, Scalar::Integer(value.into()), &mut bytes) {
        Ok(Some(bytes))
    } else {
        Err(no_labels(label, format!("the ignored value {value} does not fit {}", label.dtype)))
    }
}

fn no_labels(label: &LabelSpec, reason: String) -> DataError {
    DataError::NoLabels { name: label.name.clone(), dims: label.dims.clone(), reason }
}

/// Returns the input whose tokens can be shifted: the input that would take a token stream.
fn token_column<'a>(wanted: Wanted<'_>, features: &'a [Column]) -> Option<&'a Column> {
    let varies = |input: &&InputSpec| {
        let column = features.iter().find(|column| column.name == input.name);
        column.is_some_and(|column| !matches!(column.content, Content::Same(_)))
    };
    let inputs: Vec<&InputSpec> = super::decide::features(wanted.spec).filter(varies).collect();
    let (name, _) = super::decide::token_input(&inputs).ok()?;
    features.iter().find(|column| column.name == name)
}

fn of_stream(
    label: &LabelSpec,
    column: &Column,
    tokens: Option<&Column>,
    from: Option<LabelsFrom>,
    notes: &mut Vec<String>,
) -> Result<Content, DataError> {
    let Some((Content::Tokens { stream, .. }, sequence)) =
        tokens.map(|tokens| (&tokens.content, &tokens.row_dims))
    else {
        return Err(no_labels(
            label,
            "no input takes the token stream from which labels could be made".to_owned(),
        ));
    };
    if column.row_dims != *sequence || !label.dtype.is_integer() {
        let reason = format!(
            "a token stream gives one integer label for each token, [batch, {}]; other labels need an .npz \
             or .safetensors with the key `labels`",
            sequence.iter().product::<u64>()
        );
        return Err(no_labels(label, reason));
    }
    let classes = synthetic::limit(label.dtype, label.classes.unwrap_or(u64::MAX));
    stream.check_vocabulary(classes)?;
    let given = from == Some(LabelsFrom::Given);
    if given {
        notes.push(
            "--labels-from given: each token is its own label, so the model itself must shift them"
                .to_owned(),
        );
    }
    Ok(Content::Tokens { stream: stream.clone(), shift: u64::from(!given) })
}

/// Returns the arrays that `--input LABEL=SOURCE` names, if the user gives it. `columns` handles columns of the data instead.
fn chosen(
    wanted: Wanted<'_>,
    label: &LabelSpec,
    column: &Column,
    offer: &Offer,
) -> Result<Option<Vec<Named>>, DataError> {
    let refuse = |reason: String| Err(no_labels(label, reason));
    match (wanted.options.inputs.get(&label.name), offer) {
        (None, _) | (Some(Source::Key(_)), Offer::Csv(_)) => Ok(None),
        (Some(Source::Key(key)), Offer::Table(table)) => table.arrays(key, "", column).map(Some),
        (Some(Source::Key(field)), Offer::Json(json)) => {
            json.arrays(field, &label.name, label.dtype, &column.row_dims).map(Some)
        }
        (Some(Source::Key(key)), _) => {
            refuse(format!("--input names the key `{key}`, but `{}` has no keys", offer.name()))
        }
        (Some(Source::File(path)), _) => {
            let offer = Offer::open(&DataSource::Path(path.clone()))?;
            own_file(&[&label.name, "labels"], column, &offer).map(Some)
        }
        (Some(Source::Positions | Source::Ones | Source::Zeros), _) => {
            refuse("labels come from the data, from a file, or from columns of it".to_owned())
        }
    }
}

/// Returns the arrays of a table's labels; `None` if labels are to be made from its tokens.
fn of_table(
    label: &LabelSpec,
    column: &Column,
    table: &Tables,
    tokens: Option<&Column>,
    from: Option<LabelsFrom>,
) -> Result<Option<Vec<Named>>, DataError> {
    let key = [label.name.as_str(), "labels"].into_iter().find(|key| table.has(key));
    match (key, tokens.map(|tokens| (&tokens.content, &tokens.name))) {
        (Some(key), _) => table.arrays(key, "", column).map(Some),
        (None, Some((Content::Rows { .. }, _))) if from == Some(LabelsFrom::Shift) => Ok(None),
        (None, Some((Content::Rows { .. }, name))) => {
            Err(table.missing("labels", &format!(" (--labels-from shift makes labels from `{name}`)")))
        }
        (None, _) => Err(table.missing("labels", "")),
    }
}

/// Builds labels from arrays, or else from the rows of tokens.
fn of_arrays(
    label: &LabelSpec,
    column: &Column,
    arrays: Option<Vec<Named>>,
    tokens: Option<&Column>,
    from: Option<LabelsFrom>,
) -> Result<Content, DataError> {
    let shifted = from == Some(LabelsFrom::Shift);
    let arrays = match (arrays, tokens.map(|tokens| (&tokens.content, &tokens.name))) {
        (Some(arrays), _) => arrays,
        (None, Some((Content::Rows { rows, .. }, name))) => rows.named(&format!("input `{name}`")),
        (None, _) => {
            return Err(no_labels(label, "no input has tokens from which labels could be made".to_owned()));
        }
    };
    // A misfit is reported before the question of the last position.
    let rows = column.rows(arrays, |_, _| Ok(()))?;
    if shifted && (column.row_dims.len() != 1 || column.ignored.is_none()) {
        let reason = "--labels-from shift leaves the last position of [samples, sequence] without a label, which needs a \
                      value that the loss ignores: --ignore-index -100";
        return Err(no_labels(label, reason.to_owned()));
    }
    rows.each(|array, data| check_classes(label, array, data))?;
    Ok(Content::Rows { rows, shifted })
}

fn check_classes(label: &LabelSpec, array: &TableArray, data: &str) -> Result<(), DataError> {
    let Some(classes) = label.classes else { return Ok(()) };
    let ignored = label.ignore_index.map(i128::from);
    let outside = array
        .integers()
        .find(|(_, value)| !(0..i128::from(classes)).contains(value) && Some(*value) != ignored);
    let Some((position, value)) = outside else { return Ok(()) };
    Err(DataError::LabelOutOfRange {
        data: data.to_owned(),
        sample: position / array.row_elements().max(1),
        value: i64::try_from(value).unwrap_or(i64::MAX),
        classes,
        ignore_index: label.ignore_index,
    })
}
