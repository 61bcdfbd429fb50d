//! Data: what is trained on, what is evaluated on, and how a file becomes the model's inputs.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use data::SUFFIXES;
use serde::Serialize;

use super::shapes::positive_count;
use super::value::{ValueError, serialize_as_text};

/// Flags that say what the data are.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Data")]
#[serde(rename_all = "kebab-case")]
pub struct Data {
    /// Training data: text, .bin tokens, .npz, .safetensors, .csv, .csv.gz or .jsonl; a folder of files of one kind; or the
    /// word `synthetic`
    #[arg(long, value_name = "DATA")]
    pub train: Option<DataSource>,
    /// Evaluation data [default: the last 5 % of a text, at most 262,144 tokens, which are then not trained on]
    #[arg(long, value_name = "DATA")]
    pub eval: Option<DataSource>,
    /// Evaluate every N steps, and always at the end
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub eval_every: Option<u64>,
    /// Tokenizer of text: a tokenizer.json, or `bytes` for one token per byte [default: bytes, if the vocabulary is at most
    /// 512]
    #[arg(long, value_name = "FILE|bytes")]
    pub tokenizer: Option<Tokenizer>,
    /// Convention of the labels: `shift` moves the tokens, or the labels in the data, by one (Hugging Face's convention); `given` takes
    /// labels as they are [default: shift for a token stream, and for labels in the data that all equal the tokens at the same
    /// place, if the model predicts the next token; otherwise given]
    #[arg(long, value_enum)]
    pub labels_from: Option<LabelsFrom>,
    /// Fill the model's input NAME, or its labels, from SOURCE: a key of the data, columns of a .csv (names, or numbers from
    /// 1, such as 2-65), a field of a .jsonl, a file, `positions`, `ones` or `zeros`; may be repeated
    #[arg(long, value_name = "NAME=SOURCE")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub input: Vec<InputBinding>,
}

/// The source of the samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataSource {
    /// Made up from the seed, for trying a model without data.
    Synthetic,
    /// A file; its format is told by its name and first bytes.
    File(PathBuf),
}

impl DataSource {
    /// The file, unless the data is made up.
    pub fn file(&self) -> Option<&PathBuf> {
        match self {
            Self::Synthetic => None,
            Self::File(path) => Some(path),
        }
    }
}

impl FromStr for DataSource {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "" => Err(ValueError::new("the name of the data is empty; give a file or `synthetic`")),
            "synthetic" => Ok(Self::Synthetic),
            path => Ok(Self::File(path.into())),
        }
    }
}

impl fmt::Display for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Synthetic => f.write_str("synthetic"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The tokenizer that turns text into tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tokenizer {
    /// Each byte is a token.
    Bytes,
    /// A `tokenizer.json`.
    File(PathBuf),
}

impl FromStr for Tokenizer {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "" => {
                Err(ValueError::new("the name of the tokenizer is empty; give a tokenizer.json, or `bytes`"))
            }
            "bytes" => Ok(Self::Bytes),
            path => Ok(Self::File(path.into())),
        }
    }
}

impl fmt::Display for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes => f.write_str("bytes"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The convention of the labels.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LabelsFrom {
    /// The next token: the loader shifts the tokens of a stream, or labels that stand in the data beside their own tokens
    /// (Hugging Face's convention)
    Shift,
    /// The label of each output, as it stands in the data; nothing is shifted
    Given,
}

impl From<data::LabelsFrom> for LabelsFrom {
    fn from(from: data::LabelsFrom) -> Self {
        match from {
            data::LabelsFrom::Shift => Self::Shift,
            data::LabelsFrom::Given => Self::Given,
        }
    }
}

/// `NAME=SOURCE`: what fills one input of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputBinding {
    /// The input, by its name in the model.
    pub name: String,
    /// The source of its numbers.
    pub source: InputSource,
}

/// The source of an input's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputSource {
    /// 0, 1, 2, … along the sequence.
    Positions,
    /// Ones.
    Ones,
    /// Zeros.
    Zeros,
    /// The tensor of this name in the data, or this field or these columns of it.
    Key(String),
    /// A file of its own: every text that names a folder or has one of [`SUFFIXES`].
    File(PathBuf),
}

impl FromStr for InputBinding {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let Some((name, source)) = text.split_once('=').filter(|(n, s)| !n.is_empty() && !s.is_empty())
        else {
            return Err(ValueError::new(format!(
                "`{text}` is not of the form NAME=SOURCE, such as position_ids=positions"
            )));
        };
        let is_file = source.contains('/') || SUFFIXES.iter().any(|suffix| source.ends_with(suffix));
        let source = match source {
            "positions" => InputSource::Positions,
            "ones" => InputSource::Ones,
            "zeros" => InputSource::Zeros,
            path if is_file => InputSource::File(path.into()),
            key => InputSource::Key(key.to_owned()),
        };
        Ok(Self { name: name.to_owned(), source })
    }
}

impl fmt::Display for InputBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=", self.name)?;
        match &self.source {
            InputSource::Positions => f.write_str("positions"),
            InputSource::Ones => f.write_str("ones"),
            InputSource::Zeros => f.write_str("zeros"),
            InputSource::Key(key) => f.write_str(key),
            InputSource::File(path) => write!(f, "{}", path.display()),
        }
    }
}

serialize_as_text!(DataSource, InputBinding, Tokenizer);
