//! The loader: which samples make step t's global batch, and the held-out data.
//!
//! The global batch of a step is a pure function of (seed, epoch, step); microbatches and meshes only cut it. So nothing
//! of the loader has to be saved: a run that goes on at a step reads what it would have read without the break.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::array::Batch;
use super::column::{Column, Content};
use super::dataset::{Dataset, Wanted};
use super::decide::{self, Decision, Offer};
use super::error::DataError;
use super::indices::IndexChecks;
use super::labels;
use super::order::{Permutation, mix};
use super::spec::{DataSource, LabelsFrom, LoaderOptions, ModelSpec, Source, Tokenization, Unfillable};
use super::tokenizer::TextTokenizer;
use super::tokens::Text;

/// Training and held-out data of one run. Immutable: threads and ranks can share it.
#[derive(Clone, Debug)]
pub struct Loader {
    train: Dataset,
    eval: Option<Dataset>,
    microbatch: u64,
    global_batch: u64,
    seed: u64,
    shuffle: bool,
    /// Whether a short batch is filled up, else left out of training.
    fills_training: bool,
    /// Whether a short batch is filled up, else evaluated as it is.
    fills_evaluation: bool,
    decisions: Vec<Decision>,
    notes: Vec<String>,
    /// The indices that the program computes from a batch.
    indices: Option<IndexChecks>,
}

/// A place in the data, saved in checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataPosition {
    /// How many steps are done: the next one's number.
    pub step: u64,
    /// The epoch of the next step.
    pub epoch: u64,
    /// The next step's number within it.
    pub batch_in_epoch: u64,
    /// How many training samples there are.
    pub samples: u64,
    /// Samples a step.
    pub global_batch: u64,
    /// What decides the order.
    pub seed: u64,
    /// The convention of labels that stand in the data as integers for each position. `None` of other labels, and in
    /// checkpoints of versions that took such labels as they were unless they were told to shift them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels_from: Option<LabelsFrom>,
}

/// A batch of held-out data, which is read row by row.
#[derive(Clone, Copy, Debug)]
pub struct EvalBatch<'l> {
    data: &'l Dataset,
    indices: Option<&'l IndexChecks>,
    first: u64,
    /// How many rows are samples; the ones after them fill the batch up.
    samples: u64,
    size: u64,
}

impl EvalBatch<'_> {
    /// The length of dim 0.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// All rows of the batch.
    pub fn whole(&self) -> Batch {
        self.rows(0..self.size)
    }

    /// Rows `range` of the batch: what one data rank needs.
    ///
    /// # Panics
    /// When `range` ends after the batch.
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
    /// Opens `train` for `spec`, and checks all of it that the model depends on.
    ///
    /// # Errors
    /// Anything that would make a step fail or train on rubbish: see [`DataError`].
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
            Tokenization::File(path) => Some(TextTokenizer::open(path)?),
            Tokenization::Auto | Tokenization::Bytes => None,
        };
        let forced = options.tokenizer == Tokenization::Bytes;
        let text = tokenizer.as_ref().map_or(Text::Bytes { forced }, Text::Tokenizer);
        let wanted = Wanted { spec, options, text, seed: options.seed };
        let whole = Dataset::build(wanted, &offer, &decisions, &mut notes)?;
        let ignorable = whole.columns.iter().any(|column| column.ignored.is_some());
        let unfillable = match ignorable {
            true => spec.unfillable.clone(),
            false => {
                let reason = match spec.label {
                    Some(_) => "these labels have no ignored value".to_owned(),
                    None => "the loss has no labels that could exclude a sample".to_owned(),
                };
                Unfillable { training: Some(reason.clone()), evaluation: Some(reason) }
            }
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

    /// Training samples.
    pub fn samples(&self) -> u64 {
        self.train.samples
    }

    /// Held-out samples, 0 when there are none.
    pub fn eval_samples(&self) -> u64 {
        self.eval.as_ref().map_or(0, |eval| eval.samples)
    }

    /// Samples a step: the microbatch times the number of microbatches.
    pub fn global_batch_size(&self) -> u64 {
        self.global_batch
    }

    /// Steps an epoch: the last short batch counts when it is filled up, else it is left out.
    pub fn steps_per_epoch(&self) -> u64 {
        match self.fills_training {
            true => self.train.samples.div_ceil(self.global_batch),
            false => self.train.samples / self.global_batch,
        }
    }

    /// How many samples the last batch of an evaluation has, where it is short and cannot be filled up; else 0.
    pub fn short_evaluation(&self) -> u64 {
        if self.fills_evaluation { 0 } else { self.eval_samples() % self.microbatch }
    }

    /// Leaves the last samples out of the evaluation, with a note that says why.
    pub fn leave_out_of_evaluation(&mut self, samples: u64, reason: &str) {
        let Some(eval) = self.eval.as_mut().filter(|_| samples > 0) else { return };
        let left_out = samples.min(eval.samples);
        self.notes.push(format!(
            "the evaluation leaves out the last {left_out} of the {} samples of `{}`: {reason}",
            eval.samples, eval.name
        ));
        eval.samples -= left_out;
    }

    /// Tokens in a global batch; `None` where the model takes no tokens.
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

    /// What feeds each input of the model, and why.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// What a user should know about the data: warnings, and what was left out.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Adds a note.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// The convention of the labels, if they stand in the data as integers for each position of a sample.
    pub fn labels_from(&self) -> Option<LabelsFrom> {
        labels::convention(&self.train)
    }

    /// The input that all counted labels equal at the same place, in training and in evaluation, as labels in Hugging Face's
    /// convention do. `None` if the labels are shifted already.
    pub fn repeated_input(&self) -> Option<&str> {
        labels::repeated_input(&self.train, self.eval.as_ref())
    }

    /// The global batch of step `step`, counted from 0 over all epochs.
    pub fn global_batch(&self, step: u64) -> Batch {
        self.rows(step, 0..self.global_batch)
    }

    /// Rows `range` of step `step`'s global batch: what one microbatch or one data rank needs.
    ///
    /// # Panics
    /// When `range` ends after the global batch.
    pub fn rows(&self, step: u64, range: Range<u64>) -> Batch {
        assert!(range.end <= self.global_batch, "rows {range:?} of a global batch of {}", self.global_batch);
        let first = step % self.steps_per_epoch() * self.global_batch;
        let rows = self.samples_of(step, range.clone());
        let real = self.train.samples.clamp(first + range.start, first + range.end) - (first + range.start);
        self.train.gather(&rows, real)
    }

    /// The samples of rows `range` of step `step`'s global batch.
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

    /// Has the indices checked that a program, which has its loss, computes from its inputs.
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

    /// The held-out data once, in its own order, in batches of one microbatch. The last is filled up with ignored labels,
    /// or has as many rows as there are samples left ([`Self::short_evaluation`]). Empty when nothing is held out.
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

    /// The place after `step` steps.
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

    /// The step to go on with, at a place that was saved.
    ///
    /// # Errors
    /// When samples, global batch or seed are not what they were, so that another order would be gone on with.
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

/// Checks the dims of everything batched, and gives the dim 0 that they share.
///
/// # Errors
/// Inputs and labels that have no common batch dim, or no elements.
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

/// The data of `--eval`. Files given to batched inputs belong to the training data: its own keys take their place.
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

/// Decides how a short last batch is used, with a note for the user. `reason` says why it cannot be filled up.
///
/// # Errors
/// Fewer samples than a batch that cannot be filled up.
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

/// The most tokens that are held out of a stream: an evaluation of gigabytes would take longer than the steps between two of them.
const MOST_HELD_OUT: u64 = 1 << 18;

/// Holds out the end of a token stream, rounded to whole samples: at least one, or none with a note.
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
    // A run of an earlier version continues with the samples that it began with.
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
