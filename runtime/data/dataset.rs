//! Builds the columns of a data set from the decisions about its inputs, and checks everything before step 0.

use super::array::{Array, Batch};
use super::column::Column;
use super::decide::{Offer, features};
use super::error::DataError;
use super::features::{Wanted, feature};
use super::feed::Decision;
use super::labels;
use super::synthetic;

/// Some samples: rows `first .. first + samples` of the columns.
#[derive(Clone, Debug)]
pub(super) struct Dataset {
    /// The name in messages.
    pub(super) name: String,
    pub(super) columns: Vec<Column>,
    pub(super) first: u64,
    pub(super) samples: u64,
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
