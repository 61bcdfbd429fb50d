//! The assignment of a CSV file's columns to inputs and labels.
//!
//! The rules are, in this order: the user's choice; for labels, a column with a usual name or, without names, the last column; for an
//! input, a column with its name; for the only input that is still open, all remaining columns.

use super::csv::Csv;
use super::error::{self, DataError};
use super::feed::{Decision, Feed, shown};
use super::spec::{InputSpec, LabelSpec, LabelsFrom, LoaderOptions, Source};

/// The usual names of a label column, besides the label's own name.
pub(super) const LABELS: [&str; 5] = ["labels", "label", "target", "class", "y"];

/// The label columns of a CSV file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LabelColumns {
    /// The columns; empty if labels come from elsewhere.
    pub(super) columns: Vec<usize>,
    /// Whether they were guessed from their position.
    pub(super) is_guess: bool,
}

/// Parses COLUMNS of `--input NAME=COLUMNS`: names, numbers counted from 1, and ranges of either, joined by commas. The error names the
/// part that is none of them.
pub(super) fn parse(text: &str, csv: &Csv) -> Result<Vec<usize>, String> {
    let mut columns = Vec::new();
    for item in text.split(',').map(str::trim) {
        if let Some(column) = single(item, csv) {
            columns.push(column);
            continue;
        }
        let dashes = item.match_indices('-').map(|(at, _)| at);
        let mut ends =
            dashes.filter_map(|at| Some((single(&item[..at], csv)?, single(&item[at + 1..], csv)?)));
        match ends.next() {
            Some((first, last)) if first <= last => columns.extend(first..=last),
            Some(_) => return Err(format!("the columns `{item}` end before they begin")),
            None => return Err(format!("it has no column `{item}`; {}", known(csv))),
        }
    }
    Ok(columns)
}

/// Finds a column by its name, or else by its number.
fn single(text: &str, csv: &Csv) -> Option<usize> {
    let named = csv.header.as_ref().and_then(|header| header.iter().position(|name| name == text));
    let numbered = || text.parse::<usize>().ok()?.checked_sub(1).filter(|&column| column < csv.columns);
    named.or_else(numbered)
}

/// Describes the columns from which a user can choose.
fn known(csv: &Csv) -> String {
    match &csv.header {
        None => format!("its columns are numbered from 1 to {}", csv.columns),
        Some(header) if header.len() <= 8 => format!("its columns are {}", error::list(header)),
        Some(header) => {
            format!("its columns are {} and {} more", error::list(&header[..8]), header.len() - 8)
        }
    }
}

/// Finds the label columns.
///
/// # Errors
/// Columns that do not exist; no column has the name of labels.
pub(super) fn labels(
    label: &LabelSpec,
    csv: &Csv,
    options: &LoaderOptions,
) -> Result<LabelColumns, DataError> {
    let refuse = |reason: String| {
        let reason = format!("{reason}; choose a column with --input {}=COLUMN", label.name);
        DataError::NoLabels { name: label.name.clone(), dims: label.dims.clone(), reason }
    };
    match options.inputs.get(&label.name) {
        Some(Source::Key(text)) => {
            let columns = parse(text, csv).map_err(|reason| csv.columns_error(&label.name, reason))?;
            return Ok(LabelColumns { columns, is_guess: false });
        }
        Some(_) => return Ok(LabelColumns::default()),
        None if options.labels_from == Some(LabelsFrom::Shift) => return Ok(LabelColumns::default()),
        None => {}
    }
    if let Some(header) = &csv.header {
        let names = std::iter::once(label.name.as_str()).chain(LABELS);
        let mut column =
            names.filter_map(|wanted| header.iter().position(|name| name.eq_ignore_ascii_case(wanted)));
        let column = column.next().ok_or_else(|| {
            refuse(format!(
                "`{}` has no column with a usual name for labels ({}); {}",
                csv.path.display(),
                LABELS.join(", "),
                known(csv)
            ))
        })?;
        return Ok(LabelColumns { columns: vec![column], is_guess: false });
    }
    match label.dims[1..].iter().product::<u64>() {
        1 => Ok(LabelColumns { columns: vec![csv.columns - 1], is_guess: true }),
        several => Err(refuse(format!(
            "the labels of a sample take {several} of the {} columns, and the columns have no names",
            csv.columns
        ))),
    }
}

/// Returns the column with an input's name, if the input takes one number per sample.
pub(super) fn named(input: &InputSpec, csv: &Csv) -> Option<Vec<usize>> {
    let column = csv.header.as_ref()?.iter().position(|name| *name == input.name)?;
    (elements(input) == 1).then(|| vec![column])
}

/// Assigns all remaining columns to the only input that has no columns.
///
/// # Errors
/// Several such inputs; the number of columns is not that of the input.
pub(super) fn fill(
    inputs: &[&InputSpec],
    feeds: &mut [Option<(Feed, &'static str)>],
    labels: &[usize],
    csv: &Csv,
) -> Result<(), DataError> {
    let open: Vec<usize> = (0..inputs.len()).filter(|&index| feeds[index].is_none()).collect();
    let [index] = open[..] else {
        let Some(&first) = open.first() else { return Ok(()) };
        let names: Vec<String> = open.iter().map(|&index| inputs[index].name.clone()).collect();
        let reason = format!("the inputs {} could each take the columns", error::list(&names));
        return Err(csv.columns_error(&inputs[first].name, reason));
    };
    let chosen = feeds.iter().flatten().filter_map(|(feed, _)| match feed {
        Feed::Columns(columns) => Some(columns),
        _ => None,
    });
    let taken: Vec<usize> = chosen.flatten().chain(labels).copied().collect();
    let left: Vec<usize> = (0..csv.columns).filter(|column| !taken.contains(column)).collect();
    let wanted = elements(inputs[index]);
    if left.len() as u64 != wanted {
        let labels: Vec<String> = labels.iter().map(|&column| csv.column_name(column)).collect();
        let besides = if labels.is_empty() {
            String::new()
        } else {
            format!(" beside the labels in {}", labels.join(", "))
        };
        let reason = format!(
            "`{}` needs {wanted} columns, and {} columns are left{besides}",
            inputs[index].name,
            left.len()
        );
        return Err(csv.columns_error(&inputs[index].name, reason));
    }
    feeds[index] = Some((Feed::Columns(left), "the columns that no other input takes"));
    Ok(())
}

/// Returns the number of elements of one sample.
fn elements(input: &InputSpec) -> u64 {
    input.dims.iter().skip(usize::from(input.batched)).product()
}

/// Returns a note for the user about labels that were guessed from their position.
pub(super) fn note(
    labels: &LabelColumns,
    label: &LabelSpec,
    csv: &Csv,
    decisions: &[Decision],
) -> Option<String> {
    let column = *labels.columns.first().filter(|_| labels.is_guess)?;
    let inputs = decisions.iter().filter_map(|decision| match &decision.feed {
        Feed::Columns(columns) => Some(format!("`{}` from {}", decision.input, shown(columns))),
        _ => None,
    });
    let inputs: Vec<String> = inputs.collect();
    Some(format!(
        "the columns of `{}` have no names: the labels are taken from the last column, {}, {}; --input {}=1 \
         takes them from the first",
        csv.path.display(),
        column + 1,
        inputs.join(", "),
        label.name
    ))
}
