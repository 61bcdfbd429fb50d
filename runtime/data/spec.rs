//! The loader's description of a model, and the user's choices about the data.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ir::DType;
use serde::{Deserialize, Serialize};

/// One input of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputSpec {
    /// The name in the model.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its dims. If it is batched, `dims[0]` is the microbatch (over all data ranks).
    pub dims: Vec<u64>,
    /// Whether dim 0 counts samples. An input that is not batched has one value for all samples.
    pub batched: bool,
    /// For integers that index a table (token ids): the length of the table. Values must be below it.
    pub vocabulary: Option<u64>,
}

/// The labels of the loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelSpec {
    /// The name of the input of the training step. The data's key is this name, or `labels`.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its dims; `dims[0]` is the microbatch.
    pub dims: Vec<u64>,
    /// For integer labels: the number of classes. Values are in `0..classes`.
    pub classes: Option<u64>,
    /// For integer labels: the value to which the loss gives the weight zero. It also fills up short batches.
    pub ignore_index: Option<i64>,
}

/// All inputs and labels of a batch. An input with the label's name is the label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSpec {
    /// The inputs.
    pub inputs: Vec<InputSpec>,
    /// The labels, if the loss has any.
    pub label: Option<LabelSpec>,
    /// The reasons why a short batch cannot be filled up.
    pub unfillable: Unfillable,
}

/// The reasons why a batch cannot be filled up with other samples whose labels are ignored, each as a sentence without its full stop.
/// `None` if filling changes no result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unfillable {
    /// The reason in training.
    pub training: Option<String>,
    /// The reason in an evaluation, which has no statistics of the batch.
    pub evaluation: Option<String>,
}

/// DATA of `--train DATA` and `--eval DATA`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataSource {
    /// Seeded random values of the right types, generated on demand.
    Synthetic,
    /// A file, or a folder of files.
    Path(PathBuf),
}

impl DataSource {
    /// Parses `synthetic`, or else a path.
    pub fn parse(text: &str) -> Self {
        match text {
            "synthetic" => Self::Synthetic,
            path => Self::Path(path.into()),
        }
    }
}

/// The way in which text becomes tokens (`--tokenizer`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tokenization {
    /// Bytes, if the vocabulary can be one of bytes.
    #[default]
    Auto,
    /// Bytes, whatever the vocabulary is.
    Bytes,
    /// A `tokenizer.json`.
    File(PathBuf),
}

/// SOURCE of `--input NAME=SOURCE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A key of DATA, or a field of its records. For a CSV file, its columns: names or numbers counted from 1, such as `2-65`, joined by
    /// commas.
    Key(String),
    /// A file or folder of its own: tokens (text, .bin), the array with the input's name (or the only array) in an .npz or .safetensors, or
    /// all columns of a CSV file.
    File(PathBuf),
    /// `0, 1, 2, …` along the last dim.
    Positions,
    /// All ones.
    Ones,
    /// All zeros.
    Zeros,
}

/// The endings by which a SOURCE is a file and not a key.
pub const SUFFIXES: [&str; 10] =
    [".npz", ".safetensors", ".bin", ".txt", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".jsonl", ".ndjson"];

impl Source {
    /// Parses `positions`, `ones` or `zeros`; a file, if the text has a path separator or a known extension; or else a key.
    pub fn parse(text: &str) -> Self {
        let is_file = |text: &str| SUFFIXES.iter().any(|suffix| text.ends_with(suffix));
        match text {
            "positions" => Self::Positions,
            "ones" => Self::Ones,
            "zeros" => Self::Zeros,
            path if is_file(path) || path.contains(std::path::MAIN_SEPARATOR) => Self::File(path.into()),
            key => Self::Key(key.to_owned()),
        }
    }
}

/// The origin of labels (`--labels-from`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LabelsFrom {
    /// The next token: labels are the tokens (or the file's labels) moved one place to the left.
    Shift,
    /// The labels of the data, unchanged.
    Given,
}

/// The user's choices about the data.
#[derive(Clone, Debug, PartialEq)]
pub struct LoaderOptions {
    /// The seed of the order and of synthetic data.
    pub seed: u64,
    /// Microbatches per step: the global batch is the microbatch times this number.
    pub microbatches: u64,
    /// The data to evaluate on. `None`: the end of a token stream is held out.
    pub eval: Option<DataSource>,
    /// The fraction of a token stream that is held out if `eval` is not given; less of a long stream. 0 holds nothing out.
    pub held_out: f64,
    /// The number of training samples of the run that continues: earlier versions held out more of a long stream.
    pub samples: Option<u64>,
    /// The way in which text becomes tokens.
    pub tokenizer: Tokenization,
    /// The origin of labels. `None`: shift a token stream, and take labels in the data as they are.
    pub labels_from: Option<LabelsFrom>,
    /// The values of `--input NAME=SOURCE`. NAME may also be the labels'.
    pub inputs: BTreeMap<String, Source>,
    /// Whether samples are shuffled. If not, the data keep their own order.
    pub shuffle: bool,
}

impl Default for LoaderOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            microbatches: 1,
            eval: None,
            held_out: 0.05,
            samples: None,
            tokenizer: Tokenization::Auto,
            labels_from: None,
            inputs: BTreeMap::new(),
            shuffle: true,
        }
    }
}
