//! The loader: the samples of each step's global batch, and the held-out data.
//!
//! The global batch of a step is a pure function of (seed, epoch, step); microbatches and meshes only divide it. So the loader has no state
//! to save: a run that resumes at a step reads the same samples as a run without the interruption.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::array::Batch;
use super::column::{Column, Content};
use super::convention;
use super::dataset::Dataset;
use super::decide::{self, Offer};
use super::error::DataError;
use super::features::Wanted;
use super::feed::Decision;
use super::indices::IndexChecks;
use super::order::{Permutation, mix};
use super::spec::{DataSource, LabelsFrom, LoaderOptions, ModelSpec, Source, Tokenizer, Unfillable};
use super::tokenizer::TextTokenizer;
use super::tokens::Text;

/// The training and held-out data of one run. It is immutable, so threads and ranks can share it.
#[derive(Clone, Debug)]
pub struct Loader {
    train: Dataset,
    eval: Option<Dataset>,
    microbatch: u64,
    global_batch: u64,
    seed: u64,
    shuffle: bool,
    /// Whether a short batch is filled up. If not, it is left out of training.
    fills_training: bool,
    /// Whether a short batch is filled up. If not, it is evaluated as it is.
    fills_evaluation: bool,
    decisions: Vec<Decision>,
    notes: Vec<String>,
    /// The indices that the program computes from a batch.
    indices: Option<IndexChecks>,
}

/// A position in the data, saved in checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataPosition {
    /// The number of completed steps, which is the number of the next step.
    pub step: u64,
    /// The epoch of the next step.
    pub epoch: u64,
    /// The next step's number within the epoch.
    pub batch_in_epoch: u64,
    /// The number of training samples.
    pub samples: u64,
    /// Samples per step.
    pub global_batch: u64,
    /// The seed of the order.
    pub seed: u64,
    /// The convention of labels that the data have as integers for each position. `None` for other labels, and in checkpoints of earlier
    /// versions, which took such labels as given unless told to shift them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels_from: Option<LabelsFrom>,
}

/// A batch of held-out data, which is read by rows.
#[derive(Clone, Copy, Debug)]
pub struct EvalBatch<'l> {
    data: &'l Dataset,
    indices: Option<&'l IndexChecks>,
    first: u64,
    /// The number of rows that are samples. The rows after them fill the batch up.
    samples: u64,
    size: u64,
}

impl EvalBatch<'_> {
    /// Returns the length of dim 0.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns all rows of the batch.
    pub fn whole(&self) -> Batch {
        self.rows(0..self.size)
    }

    /// Returns rows `range` of the batch, such as those of one data rank.
    ///
    /// # Panics
    /// Panics if `range` ends after the batch.
    pub fn rows(&self, range: Range<u64>) -> Batch {
        assert!(range.end <= self.size, "rows {range:?} of a batch of {}", self.size);
        let rows: Vec<u64> = range.clone().map(|row| self.sample(row)).collect();
        self.data.gather(&rows, self.samples.clamp(range.start, range.end) - range.start)
    }

    /// Checks the indices that the program computes from these rows.
    ///
    /// # Errors
    /// [`DataError::Index`]
    pub fn check_indices(&self, range: Range<u64>, batch: &Batch) -> Result<(), DataError> {
        let sample = |row| self.sample(range.start + row);
        self.indices.map_or(Ok(()), |indices| indices.check(batch, &self.data.name, sample))
    }

    fn sample(&self, row: u64) -> u64 {
        (self.first + row) % self.data.samples
    }
}

impl Loader {
    /// Opens `train` for `spec`, and checks everything that the model depends on.
    ///
    /// # Errors
    /// Any fault that would make a step fail or train on garbage: see [`DataError`].
    pub fn new(spec: &ModelSpec, train: &DataSource, options: &LoaderOptions) -> Result<Self, DataError> {
        let microbatch = common_batch(spec)?;
        let global_batch =
            microbatch.checked_mul(options.microbatches).filter(|&size| size > 0).ok_or_else(|| {
                DataError::Batch(format!("{} microbatches of {microbatch}", options.microbatches))
            })?;
        let mut notes = Vec::new();
        let offer = Offer::open(train)?;
        let decisions = decide::decide(spec, options, &offer)?;
        let tokenizer = match &options.tokenizer {
            Some(Tokenizer::File(path)) => Some(TextTokenizer::open(path)?),
            Some(Tokenizer::Bytes) | None => None,
        };
        let forced = options.tokenizer == Some(Tokenizer::Bytes);
        let text = tokenizer.as_ref().map_or(Text::Bytes { forced }, Text::Tokenizer);
        let wanted = Wanted { spec, options, text, seed: options.seed };
        let whole = Dataset::build(wanted, &offer, &decisions, &mut notes)?;
        let ignorable = whole.columns.iter().any(|column| column.ignored.is_some());
        let unfillable = if ignorable {
            spec.unfillable.clone()
        } else {
            let reason = match spec.label {
                Some(_) => "these labels have no ignored value".to_owned(),
                None => "the loss has no labels that could exclude a sample".to_owned(),
            };
            Unfillable { training: Some(reason.clone()), evaluation: Some(reason) }
        };
        let (train, eval) = match &options.eval {
            Some(source) => (whole, Some(evaluation(wanted, source, &mut notes)?)),
            None => hold_out(whole, &offer, options, &mut notes),
        };
        if train.samples == 0 {
            return Err(DataError::NoSamples { data: train.name });
        }
        notes.extend(note_short_batch(&train, global_batch, unfillable.training.as_deref())?);
        let (seed, shuffle) = (options.seed, options.shuffle);
        let (fills_training, fills_evaluation) =
            (unfillable.training.is_none(), unfillable.evaluation.is_none());
        Ok(Self {
            train,
            eval,
            microbatch,
            global_batch,
            seed,
            shuffle,
            fills_training,
            fills_evaluation,
            decisions,
            notes,
            indices: None,
        })
    }

    /// Returns the number of training samples.
    pub fn samples(&self) -> u64 {
        self.train.samples
    }

    /// Returns the number of held-out samples; 0 if there are none.
    pub fn eval_samples(&self) -> u64 {
        self.eval.as_ref().map_or(0, |eval| eval.samples)
    }

    /// Returns the samples per step: the microbatch times the number of microbatches.
    pub fn global_batch_size(&self) -> u64 {
        self.global_batch
    }

    /// Returns the steps per epoch. The last short batch counts if it is filled up; otherwise it is left out.
    pub fn steps_per_epoch(&self) -> u64 {
        if self.fills_training {
            self.train.samples.div_ceil(self.global_batch)
        } else {
            self.train.samples / self.global_batch
        }
    }

    /// Returns the number of samples in the last batch of an evaluation if that is short and cannot be filled up; else 0.
    pub fn short_evaluation(&self) -> u64 {
        if self.fills_evaluation { 0 } else { self.eval_samples() % self.microbatch }
    }

    /// Leaves the last samples out of the evaluation, with a note that gives the reason.
    pub fn leave_out_of_evaluation(&mut self, samples: u64, reason: &str) {
        let Some(eval) = self.eval.as_mut().filter(|_| samples > 0) else { return };
        let left_out = samples.min(eval.samples);
        self.notes.push(format!(
            "the evaluation leaves out the last {left_out} of the {} samples of `{}`: {reason}",
            eval.samples, eval.name
        ));
        eval.samples -= left_out;
    }

    /// Returns the tokens in a global batch; `None` if the model takes no tokens.
    pub fn tokens_per_step(&self) -> Option<u64> {
        let tokens = self.train.columns.iter().find(|column| {
            let varies = !matches!(column.content, Content::Same(_));
            varies
                && column.batched
                && column.dtype.is_integer()
                && column.row_dims.len() == 1
                && column.ignored.is_none()
        });
        tokens.map(|column| self.global_batch * column.row_elements())
    }

    /// Returns the source of each input of the model, with the reason.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// Returns notes for the user about the data: warnings, and omitted samples.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Adds a note.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Returns the convention of the labels, if the data have them as integers for each position of a sample.
    pub fn labels_from(&self) -> Option<LabelsFrom> {
        convention::convention(&self.train)
    }

    /// Returns the input that all counted labels equal at the same place, in training and in evaluation, as labels in Hugging Face's
    /// convention do. `None` if the labels are shifted already.
    pub fn repeated_input(&self) -> Option<&str> {
        convention::repeated_input(&self.train, self.eval.as_ref())
    }

    /// Returns the global batch of step `step`, counted from 0 over all epochs.
    pub fn global_batch(&self, step: u64) -> Batch {
        self.rows(step, 0..self.global_batch)
    }

    /// Returns rows `range` of step `step`'s global batch, such as those of one microbatch or one data rank.
    ///
    /// # Panics
    /// Panics if `range` ends after the global batch.
    pub fn rows(&self, step: u64, range: Range<u64>) -> Batch {
        assert!(range.end <= self.global_batch, "rows {range:?} of a global batch of {}", self.global_batch);
        let first = step % self.steps_per_epoch() * self.global_batch;
        let rows = self.samples_of(step, range.clone());
        let real = self.train.samples.clamp(first + range.start, first + range.end) - (first + range.start);
        self.train.gather(&rows, real)
    }

    /// Returns the samples of rows `range` of step `step`'s global batch.
    fn samples_of(&self, step: u64, range: Range<u64>) -> Vec<u64> {
        let epoch = step / self.steps_per_epoch();
        let first = step % self.steps_per_epoch() * self.global_batch;
        let order = Permutation::new(self.train.samples, self.seed, epoch);
        let sample = |place: u64| match place % self.train.samples {
            place if self.shuffle => order.index(place),
            place => place,
        };
        range.map(|row| sample(first + row)).collect()
    }

    /// Enables the checks of the indices that a program, which includes its loss, computes from its inputs.
    pub fn check_indices_of(&mut self, module: &ir::Module) {
        self.indices = IndexChecks::new(module, self.microbatch);
    }

    /// Checks the indices that the program computes from rows `range` of step `step`'s global batch.
    ///
    /// # Errors
    /// [`DataError::Index`]
    pub fn check_indices(&self, step: u64, range: Range<u64>, batch: &Batch) -> Result<(), DataError> {
        let Some(indices) = &self.indices else { return Ok(()) };
        let sample = |row: u64| self.samples_of(step, range.start + row..range.start + row + 1)[0];
        indices.check(batch, &self.train.name, sample)
    }

    /// Returns the held-out data once, in their own order, in batches of one microbatch. The last batch is filled up with ignored labels,
    /// or has only the remaining samples ([`Self::short_evaluation`]). Empty if nothing is held out.
    pub fn eval_batches(&self) -> impl Iterator<Item = EvalBatch<'_>> {
        self.eval.iter().flat_map(|data| {
            (0..data.samples.div_ceil(self.microbatch)).map(|batch| {
                let first = batch * self.microbatch;
                let samples = (data.samples - first).min(self.microbatch);
                let size = if self.fills_evaluation { self.microbatch } else { samples };
                EvalBatch { data, indices: self.indices.as_ref(), first, samples, size }
            })
        })
    }

    /// Returns the position after `step` steps.
    pub fn position(&self, step: u64) -> DataPosition {
        DataPosition {
            step,
            epoch: step / self.steps_per_epoch(),
            batch_in_epoch: step % self.steps_per_epoch(),
            samples: self.train.samples,
            global_batch: self.global_batch,
            seed: self.seed,
            labels_from: self.labels_from(),
        }
    }

    /// Returns the step at which to resume from a saved position.
    ///
    /// # Errors
    /// The number of samples, the global batch or the seed has changed, so the order would be another one.
    pub fn resume(&self, saved: &DataPosition) -> Result<u64, DataError> {
        let now = self.position(saved.step);
        let facts = [
            ("the number of training samples", saved.samples, now.samples),
            ("the global batch", saved.global_batch, now.global_batch),
            ("the seed", saved.seed, now.seed),
        ];
        match facts.into_iter().find(|(_, then, now)| then != now) {
            Some((what, then, now)) => Err(DataError::Resume { what, then, now }),
            None => Ok(saved.step),
        }
    }
}

/// Checks the dims of all batched inputs and labels, and returns their common dim 0.
///
/// # Errors
/// Inputs and labels without a common batch dim, or without elements.
pub fn common_batch(spec: &ModelSpec) -> Result<u64, DataError> {
    let inputs = spec.inputs.iter().map(|input| (&input.name, &input.dims, input.batched));
    let label = spec.label.iter().map(|label| (&label.name, &label.dims, true));
    let mut found: Option<(&String, u64)> = None;
    for (name, dims, batched) in inputs.chain(label) {
        let elements = dims.iter().try_fold(16u64, |size, &dim| size.checked_mul(dim));
        if dims.contains(&0) {
            return Err(DataError::Batch(format!("`{name}` has dims {dims:?}, and therefore no elements")));
        }
        if elements.is_none_or(|size| size > isize::MAX as u64) {
            return Err(DataError::Batch(format!(
                "`{name}` has dims {dims:?}, which is larger than any memory"
            )));
        }
        let size = match (batched, dims.first()) {
            (false, _) => continue,
            (true, Some(&size)) => size,
            (true, None) => {
                return Err(DataError::Batch(format!("`{name}` is a scalar, which has no batch dim")));
            }
        };
        match found {
            Some((other, first)) if first != size => {
                let reason = format!(
                    "dim 0 counts the samples, and it is {first} in `{other}` and {size} in `{name}`; export \
                     the model with the batch first in its inputs and outputs"
                );
                return Err(DataError::Batch(reason));
            }
            _ => found = Some((name, size)),
        }
    }
    found.map(|(_, size)| size).ok_or_else(|| DataError::Batch("no input has a batch dim".to_owned()))
}

/// Opens the data of `--eval`. Files given to batched inputs belong to the training data, so the evaluation uses its own keys instead.
fn evaluation(
    wanted: Wanted<'_>,
    source: &DataSource,
    notes: &mut Vec<String>,
) -> Result<Dataset, DataError> {
    let mut options = wanted.options.clone();
    let batched = |name: &str| wanted.spec.inputs.iter().any(|input| input.name == name && input.batched);
    let is_label = |name: &str| wanted.spec.label.as_ref().is_some_and(|label| label.name == name);
    options
        .inputs
        .retain(|name, source| !(matches!(source, Source::File(_)) && (batched(name) || is_label(name))));
    let offer = Offer::open(source)?;
    let decisions = decide::decide(wanted.spec, &options, &offer)?;
    let seed = mix(wanted.seed);
    Dataset::build(Wanted { options: &options, seed, ..wanted }, &offer, &decisions, notes)
}

/// Returns a note for the user about the use of a short last batch. `reason` says why it cannot be filled up.
///
/// # Errors
/// There are fewer samples than a batch, which cannot be filled up.
fn note_short_batch(
    train: &Dataset,
    global_batch: u64,
    reason: Option<&str>,
) -> Result<Option<String>, DataError> {
    let (samples, rest) = (train.samples, train.samples % global_batch);
    Ok(match reason {
        None if samples < global_batch => Some(format!(
            "`{}` has {samples} samples, fewer than a global batch of {global_batch}: each step repeats \
             samples in the other {} places, and these repetitions do not count",
            train.name,
            global_batch - samples
        )),
        Some(reason) if samples < global_batch => {
            let (data, reason) = (train.name.clone(), reason.to_owned());
            return Err(DataError::TooFewSamples { data, samples, global_batch, reason });
        }
        Some(reason) if rest > 0 => Some(format!(
            "the last {rest} of {samples} samples of each epoch's order are left out: they do not fill a global batch of \
             {global_batch}, and {reason}"
        )),
        _ => None,
    })
}

/// The largest number of tokens held out of a stream. An evaluation of gigabytes would take longer than the steps between two evaluations.
const MOST_HELD_OUT: u64 = 1 << 18;

/// Holds out the end of a token stream in whole samples: at least one, or none with a note.
fn hold_out(
    whole: Dataset,
    offer: &Offer,
    options: &LoaderOptions,
    notes: &mut Vec<String>,
) -> (Dataset, Option<Dataset>) {
    let is_stream = match offer {
        Offer::Tokens(_) => true,
        Offer::Json(_) => whole.columns.iter().any(|column| matches!(column.content, Content::Tokens { .. })),
        _ => false,
    };
    if !is_stream || options.held_out <= 0.0 {
        return (whole, None);
    }
    let share = (whole.samples as f64 * options.held_out.min(1.0)) as u64;
    let length = whole.columns.iter().map(Column::row_elements).max().unwrap_or(1).max(1);
    let most = (MOST_HELD_OUT / length).max(1);
    // A run that an earlier version began continues with the same samples.
    let was_unbounded = options.samples.is_some_and(|samples| samples == whole.samples - share);
    let held_out = if was_unbounded { share } else { share.min(most) };
    if held_out < share {
        notes.push(format!(
            "the last {held_out} samples of `{}` are held out for evaluation, which is less than {:.1} % of the {} \
             samples; --eval DATA gives other data",
            whole.name,
            options.held_out * 100.0,
            whole.samples
        ));
    }
    if held_out == 0 {
        notes.push(format!(
            "there is no evaluation: {:.1} % of the {} samples of `{}` is less than one sample; give --eval \
             DATA",
            options.held_out * 100.0,
            whole.samples,
            whole.name
        ));
        return (whole, None);
    }
    let (train, eval) = whole.split(held_out);
    (train, Some(eval))
}
