//! The loader's description of a model, and the user's choices about the data.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::path::PathBuf;
use std::str::FromStr;

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
    /// Returns the file or folder. `None` if the values are generated.
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            Self::Synthetic => None,
            Self::Path(path) => Some(path),
        }
    }
}

/// Parses `synthetic`, or else a path. An empty text is refused.
impl FromStr for DataSource {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "" => Err("the name of the data is empty; give a file or `synthetic`"),
            "synthetic" => Ok(Self::Synthetic),
            path => Ok(Self::Path(path.into())),
        }
    }
}

impl Display for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Synthetic => f.write_str("synthetic"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

/// The tokenizer that makes tokens of text (`--tokenizer`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tokenizer {
    /// Each byte is a token, whatever the vocabulary is.
    Bytes,
    /// A `tokenizer.json`.
    File(PathBuf),
}

impl Tokenizer {
    /// Returns the `tokenizer.json`. `None` if each byte is a token.
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            Self::Bytes => None,
            Self::File(path) => Some(path),
        }
    }
}

/// Parses `bytes`, or else a path. An empty text is refused.
impl FromStr for Tokenizer {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "" => Err("the name of the tokenizer is empty; give a tokenizer.json, or `bytes`"),
            "bytes" => Ok(Self::Bytes),
            path => Ok(Self::File(path.into())),
        }
    }
}

impl Display for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes => f.write_str("bytes"),
            Self::File(path) => path.display().fmt(f),
        }
    }
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
const SUFFIXES: [&str; 10] =
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

impl Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Positions => f.write_str("positions"),
            Self::Ones => f.write_str("ones"),
            Self::Zeros => f.write_str("zeros"),
            Self::Key(key) => f.write_str(key),
            Self::File(path) => path.display().fmt(f),
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

impl LabelsFrom {
    /// All origins, with the names of the flag's values.
    pub const ALL: [(Self, &str); 2] = [(Self::Shift, "shift"), (Self::Given, "given")];
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
    /// The tokenizer of text. `None`: bytes, if the vocabulary can be one of bytes.
    pub tokenizer: Option<Tokenizer>,
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
            tokenizer: None,
            labels_from: None,
            inputs: BTreeMap::new(),
            shuffle: true,
        }
    }
}
