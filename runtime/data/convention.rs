//! The convention of labels that a data set has as integers for each position: shifted, or as given.

use super::column::{Column, Content};
use super::dataset::Dataset;
use super::element;
use super::spec::LabelsFrom;

/// Returns the convention of labels that the data have as integers for each position of a sample.
pub(super) fn convention(data: &Dataset) -> Option<LabelsFrom> {
    let column = data.columns.iter().find(|column| column.ignored.is_some())?;
    match &column.content {
        Content::Rows { .. } if column.row_dims.len() != 1 || column.row_dims[0] < 2 => None,
        Content::Rows { shifted: true, .. } => Some(LabelsFrom::Shift),
        Content::Rows { shifted: false, .. } => Some(LabelsFrom::Given),
        _ => None,
    }
}

/// Returns the input that all counted labels of the training data equal at the same place. If the evaluation data have labels too, these
/// must equal it as well.
pub(super) fn repeated_input<'d>(train: &'d Dataset, eval: Option<&Dataset>) -> Option<&'d str> {
    if convention(train) != Some(LabelsFrom::Given) {
        return None;
    }
    let eval = eval.filter(|eval| convention(eval).is_some());
    let mut inputs = train.columns.iter().map(|column| column.name.as_str());
    inputs.find(|input| repeats(train, input) && eval.is_none_or(|eval| repeats(eval, input)))
}

/// Returns whether there are counted labels and all of them equal an input at the same place.
fn repeats(data: &Dataset, input: &str) -> bool {
    let Some(labels) = data.columns.iter().find(|column| column.ignored.is_some()) else { return false };
    let is_input = |column: &&Column| {
        let has_tokens = column.batched && column.dtype.is_integer() && column.row_dims == labels.row_dims;
        column.name == input && column.ignored.is_none() && has_tokens
    };
    let Some(tokens) = data.columns.iter().find(is_input) else { return false };
    let (Content::Rows { rows: labels_of, .. }, Content::Rows { rows: tokens_of, .. }) =
        (&labels.content, &tokens.content)
    else {
        return false;
    };
    let ignored = labels.ignored.as_ref().map(|bytes| element::read(labels.dtype, bytes));
    let mut counted = 0;
    for row in data.first..data.first + data.samples {
        let [labels, tokens] = [labels_of, tokens_of].map(|rows| {
            let (dtype, bytes) = rows.row(row, labels.row_elements());
            bytes.chunks_exact(dtype.bytes() as usize).map(move |bytes| element::read(dtype, bytes))
        });
        for (label, token) in labels.zip(tokens).filter(|(label, _)| Some(*label) != ignored) {
            if label != token {
                return false;
            }
            counted += 1;
        }
    }
    counted > 0
}
