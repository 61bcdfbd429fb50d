//! Data: what is trained on, what is evaluated on, and how a file becomes the model's inputs.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use data::{DataSource, LabelsFrom, Source, Tokenizer};
use serde::{Serialize, Serializer};

use super::shapes::positive_count;
use super::value::{ValueError, as_optional_text, one_of, serialize_as_text, serialize_optional_name};

/// Flags that say what the data are.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Data")]
#[serde(rename_all = "kebab-case")]
pub struct Data {
    /// Training data: text, .bin tokens, .npz, .safetensors, .csv, .csv.gz or .jsonl; a folder of files of one kind; or the
    /// word `synthetic`
    #[arg(long, value_name = "DATA")]
    #[serde(serialize_with = "as_optional_text")]
    pub train: Option<DataSource>,
    /// Evaluation data [default: the last 5 % of a text, at most 262,144 tokens, which are then not trained on]
    #[arg(long, value_name = "DATA")]
    #[serde(serialize_with = "as_optional_text")]
    pub eval: Option<DataSource>,
    /// Evaluate every N steps, and always at the end
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub eval_every: Option<u64>,
    /// Tokenizer of text: a tokenizer.json, or `bytes` for one token per byte [default: bytes, if the vocabulary is at most
    /// 512]
    #[arg(long, value_name = "FILE|bytes")]
    #[serde(serialize_with = "as_optional_text")]
    pub tokenizer: Option<Tokenizer>,
    /// Convention of the labels: `shift` moves the tokens, or the labels in the data, by one (Hugging Face's convention); `given` takes
    /// labels as they are [default: shift for a token stream, and for labels in the data that all equal the tokens at the same
    /// place, if the model predicts the next token; otherwise given]
    #[arg(long, value_parser = one_of(&LabelsFrom::ALL))]
    #[serde(serialize_with = "serialize_labels_from")]
    pub labels_from: Option<LabelsFrom>,
    /// Fill the model's input NAME, or its labels, from SOURCE: a key of the data, columns of a .csv (names, or numbers from
    /// 1, such as 2-65), a field of a .jsonl, a file, `positions`, `ones` or `zeros`; may be repeated
    #[arg(long, value_name = "NAME=SOURCE")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub input: Vec<InputBinding>,
}

fn serialize_labels_from<S: Serializer>(from: &Option<LabelsFrom>, serializer: S) -> Result<S::Ok, S::Error> {
    serialize_optional_name(&LabelsFrom::ALL, from, serializer)
}

/// `NAME=SOURCE`: the source of the values of one input of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputBinding {
    /// The input, by its name in the model.
    pub name: String,
    /// The source.
    pub source: Source,
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
        Ok(Self { name: name.to_owned(), source: Source::parse(source) })
    }
}

impl fmt::Display for InputBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.source)
    }
}

serialize_as_text!(InputBinding);
