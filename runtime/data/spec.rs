//! What the loader needs to know of a model, and what a user says about the data.

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
    /// Its dims; `dims[0]` is the microbatch (over all data ranks) when it is batched.
    pub dims: Vec<u64>,
    /// Whether dim 0 counts samples. An input that is not batched has one value for all samples.
    pub batched: bool,
    /// For integers that index a table (token ids): its length. Values must be below it.
    pub vocabulary: Option<u64>,
}

/// The labels that the loss takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelSpec {
    /// The name of the input of the training step. The data's key is this, or `labels`.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its dims; `dims[0]` is the microbatch.
    pub dims: Vec<u64>,
    /// For integer labels: values are in `0..classes`.
    pub classes: Option<u64>,
    /// For integer labels: the value that the loss gives the weight zero, also used to fill up short batches.
    pub ignore_index: Option<i64>,
}

/// All that a batch must hold. An input with the label's name is the label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSpec {
    /// The inputs.
    pub inputs: Vec<InputSpec>,
    /// The labels, for a loss that has any.
    pub label: Option<LabelSpec>,
    /// Whether a short batch can be filled up.
    pub unfillable: Unfillable,
}

/// Why a batch of fewer samples cannot be filled up with others whose labels are ignored, as a sentence without its full
/// stop; `None` where the fill changes no result.
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
    /// Seeded random values of the right types, made up as they are needed.
    Synthetic,
    /// A file, or a folder of files.
    Path(PathBuf),
}

impl DataSource {
    /// `synthetic`, or else a path.
    pub fn parse(text: &str) -> Self {
        match text {
            "synthetic" => Self::Synthetic,
            path => Self::Path(path.into()),
        }
    }
}

/// How text becomes tokens (`--tokenizer`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tokenization {
    /// By bytes, for a vocabulary that can be one of bytes.
    #[default]
    Auto,
    /// By bytes whatever the vocabulary is.
    Bytes,
    /// By a `tokenizer.json`.
    File(PathBuf),
}

/// SOURCE of `--input NAME=SOURCE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A key of DATA, or a field of its records; its columns, where it is CSV: names or numbers counted from 1, `2-65`, joined by commas.
    Key(String),
    /// A file or folder of its own: tokens (text, .bin), an array of that name (or the only one) in an .npz or
    /// .safetensors, or all columns of a CSV file.
    File(PathBuf),
    /// `0, 1, 2, …` along the last dim.
    Positions,
    /// All ones.
    Ones,
    /// All zeros.
    Zeros,
}

/// A SOURCE that ends so is a file and not a key.
pub const SUFFIXES: [&str; 10] =
    [".npz", ".safetensors", ".bin", ".txt", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".jsonl", ".ndjson"];

impl Source {
    /// `positions`, `ones`, `zeros`; a file if it has a folder or a known extension in it; else a key.
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

/// Where labels come from (`--labels-from`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LabelsFrom {
    /// The next token: labels are the tokens (or the file's labels) moved one to the left.
    Shift,
    /// Taken as they are.
    Given,
}

/// What a user chooses about the data.
#[derive(Clone, Debug, PartialEq)]
pub struct LoaderOptions {
    /// Decides the order, and synthetic data.
    pub seed: u64,
    /// Microbatches a step: the global batch is the microbatch times this.
    pub microbatches: u64,
    /// Data to evaluate on; none: the end of a token stream is held out.
    pub eval: Option<DataSource>,
    /// The part of a token stream that is held out when `eval` is not given, of a long stream less; 0 holds nothing out.
    pub held_out: f64,
    /// The training samples of the run that continues: earlier versions held out more of a long stream.
    pub samples: Option<u64>,
    /// How text becomes tokens.
    pub tokenizer: Tokenization,
    /// None: shift a token stream, take labels that stand in the data as they are.
    pub labels_from: Option<LabelsFrom>,
    /// `--input NAME=SOURCE`; the labels' name is one too.
    pub inputs: BTreeMap<String, Source>,
    /// False goes through the data in its own order.
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
