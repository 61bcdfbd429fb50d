//! The faults of a user's data. Each error has the numbers and a remedy.

use std::io;
use std::path::PathBuf;

use ir::DType;

/// A data file, or a combination of data and model, that cannot be used. Every error but [`DataError::Index`] is found before step 0.
///
/// Names appear in its text as they are in the file: show it with [`one_line`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file system refused.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// An index that the program computes from a batch lies outside of the dim that it indexes. This is found during the run.
    #[error("{kind} {index} is outside of a dim of {size} of {table}, which {node} reads, {place}")]
    Index {
        /// `index` or `label`.
        kind: &'static str,
        /// The index.
        index: i64,
        /// The size of the dim.
        size: u64,
        /// The tensor that is indexed.
        table: String,
        /// The node of the ONNX file.
        node: String,
        /// The sample and the data, in words.
        place: String,
    },
    /// The system cannot start another thread.
    #[error("cannot start a thread to read the data: {source}")]
    Thread {
        /// The system's error.
        source: io::Error,
    },
    /// The contents do not match the file's name.
    #[error("`{}` is damaged or not supported: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The fault of the file.
        reason: String,
    },
    /// A compressed file, or an array of one, does not fit into memory.
    #[error(
        "`{data}` unpacks to {bytes} bytes or more, and only {most} bytes of memory are available for it: \
         {remedy}"
    )]
    TooLarge {
        /// The file, or the file and key.
        data: String,
        /// Bytes that it unpacks to, or the bytes at which unpacking ended.
        bytes: u64,
        /// The largest number of bytes that it may take.
        most: u64,
        /// A remedy.
        remedy: &'static str,
    },
    /// The file has an extension that is neither text nor a supported format.
    #[error(
        "`{}`: .{extension} files cannot be read; use text, .bin (tokens), .npz, .safetensors, .csv, .jsonl \
         (one object a line), a folder of files of one of these kinds, or `synthetic`",
        path.display()
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// Its extension.
        extension: String,
    },
    /// A folder cannot be read as one data set.
    #[error("folder `{}` {reason}; a data folder holds files of one kind, which are read in the order of their \
         names", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The fault of the folder.
        reason: String,
    },
    /// A token file ends within a token.
    #[error(
        "`{}` has {bytes} bytes, which is not a multiple of {width}: tokens of a vocabulary of {vocabulary} \
         are read as u{bits}, little endian",
        path.display(), bits = width * 8
    )]
    OddLength {
        /// The file.
        path: PathBuf,
        /// The length of the file in bytes.
        bytes: u64,
        /// Bytes per token.
        width: u64,
        /// The model's vocabulary.
        vocabulary: u64,
    },
    /// The data is text, and the model's tokens are not bytes.
    #[error(
        "`{}` is text, and the model's vocabulary of {vocabulary} is not bytes: give the model's tokenizer \
         (`--tokenizer tokenizer.json`), token ids (.bin), or `--tokenizer bytes` if the model's tokens are \
         bytes",
        path.display()
    )]
    TextNeedsTokenizer {
        /// The text.
        path: PathBuf,
        /// The model's vocabulary.
        vocabulary: u64,
    },
    /// A file is no tokenizer.
    #[error("`{}` cannot be used as a tokenizer: {reason}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The fault of the file.
        reason: String,
    },
    /// A tokenizer makes tokens that the model does not have.
    #[error(
        "`{}` gives ids up to {}, but the model has a vocabulary of {vocabulary}: is it this model's tokenizer?",
        path.display(), tokens - 1
    )]
    TokenizerVocabulary {
        /// The tokenizer.
        path: PathBuf,
        /// One more than its largest id.
        tokens: u64,
        /// The model's vocabulary.
        vocabulary: u64,
    },
    /// The columns of a CSV file do not fit the input or label.
    #[error(
        "`{}` has {columns} columns: {reason}; choose with --input {name}=COLUMNS: numbers from 1 or names, such as 2-{columns}",
        path.display()
    )]
    Columns {
        /// The file or folder.
        path: PathBuf,
        /// The number of columns.
        columns: usize,
        /// The input or label.
        name: String,
        /// The reason why they do not fit.
        reason: String,
    },
    /// A cell of a CSV file is not the number that is needed.
    #[error("`{}`, line {line}: column {column}, which feeds `{name}`, {wrong}", path.display())]
    Cell {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The column's number, counted from 1, and its name.
        column: String,
        /// The input or label.
        name: String,
        /// The fault of the cell.
        wrong: String,
    },
    /// A field of a record is not the value that is needed.
    #[error("`{}`, line {line}: field `{field}`, which feeds `{name}`, {wrong}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The field.
        field: String,
        /// The input or label.
        name: String,
        /// The fault of the field.
        wrong: String,
    },
    /// The training data contain NaN.
    #[error("sample {sample} of `{data}`, which feeds `{name}`, contains NaN: remove NaN from the data")]
    NotANumber {
        /// The file and key.
        data: String,
        /// The number of the sample.
        sample: u64,
        /// The input or label.
        name: String,
    },
    /// Files of a folder differ in a value that all samples share.
    #[error(
        "`{data}` differs from the files before it, but the input `{name}` has no batch dim, so all samples \
         share one value"
    )]
    NotShared {
        /// The file and key.
        data: String,
        /// The input.
        name: String,
    },
    /// There are too few tokens for one sample.
    #[error(
        "`{data}` has {tokens} tokens, but one sample of sequence length {sequence} needs at least {needed} (the last token's label included)"
    )]
    TooShort {
        /// The data.
        data: String,
        /// The number of tokens.
        tokens: u64,
        /// The model's sequence length.
        sequence: u64,
        /// The smallest number of tokens.
        needed: u64,
    },
    /// There is no sample to train on.
    #[error("`{data}` has no samples to train on")]
    NoSamples {
        /// The data.
        data: String,
    },
    /// There are too few samples for one global batch, and a batch cannot be filled up.
    #[error(
        "`{data}` has {samples} samples, but a global batch takes {global_batch}, and a short batch cannot \
         be filled up: {reason}. Use a smaller --microbatch or --global-batch, so that a step takes \
         {samples} samples or fewer"
    )]
    TooFewSamples {
        /// The data.
        data: String,
        /// The number of samples.
        samples: u64,
        /// Samples per step.
        global_batch: u64,
        /// The reason why a batch cannot be filled up.
        reason: String,
    },
    /// A token is not below the vocabulary, so it would index beyond an embedding.
    #[error("token {value} at position {position} of `{data}` is outside the vocabulary of {vocabulary} (0 to {})", vocabulary - 1)]
    OutsideVocabulary {
        /// The file, or the file's key.
        data: String,
        /// The position: the token's index in the file or in the array.
        position: u64,
        /// The token.
        value: i64,
        /// The size of the vocabulary.
        vocabulary: u64,
    },
    /// A label is neither a class nor the ignored value.
    #[error(
        "label {value} in sample {sample} of `{data}` is outside the {classes} classes (0 to {}){}",
        classes - 1,
        match ignore_index { Some(ignored) => format!(" and is not the ignored value {ignored}"), None => format!("; --ignore-index {value} ignores this label") }
    )]
    LabelOutOfRange {
        /// The file and key.
        data: String,
        /// The number of the sample.
        sample: u64,
        /// The label.
        value: i64,
        /// The number of classes.
        classes: u64,
        /// The value that is ignored, if there is one.
        ignore_index: Option<i64>,
    },
    /// Neither the data nor a rule provides values for an input.
    #[error(
        "nothing feeds input `{name}` ({dtype}{dims:?}): {data}; give it with --input {name}=KEY, COLUMNS, FILE, positions, ones or zeros{}",
        match wanted.as_slice() { [] => String::new(), wanted => format!(" (the model's inputs are {})", list(wanted)) }
    )]
    MissingInput {
        /// The input.
        name: String,
        /// Its type.
        dtype: DType,
        /// Its dims.
        dims: Vec<u64>,
        /// The contents of the data: its keys, or that it is a stream of tokens.
        data: String,
        /// All inputs of the model.
        wanted: Vec<String>,
    },
    /// A key is not in the file.
    #[error("`{}` has no key `{key}`{hint}; its keys are {}", path.display(), list(there))]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The missing key.
        key: String,
        /// An alternative that would work.
        hint: String,
        /// The file's keys.
        there: Vec<String>,
    },
    /// The elements cannot be converted to the input's type.
    #[error(
        "`{data}` holds {found}, but `{name}` takes {wanted}: convert the data (integers feed integers, \
         floats feed floats)"
    )]
    WrongDtype {
        /// The file and key.
        data: String,
        /// The type in the file.
        found: DType,
        /// The input or label.
        name: String,
        /// Its type.
        wanted: DType,
    },
    /// A number does not fit the input's type.
    #[error("{value} at position {position} of `{data}` does not fit `{name}`, which is {wanted}")]
    DoesNotFit {
        /// The file and key.
        data: String,
        /// The index in the whole array.
        position: u64,
        /// The number.
        value: String,
        /// The input or label.
        name: String,
        /// Its type.
        wanted: DType,
    },
    /// The dims are not those of the input's samples.
    #[error("`{data}` has dims {found:?}, but `{name}` takes {}", taken(*batched, wanted))]
    WrongDims {
        /// The file and key.
        data: String,
        /// The dims in the file.
        found: Vec<u64>,
        /// The input or label.
        name: String,
        /// The dims of one sample, or of the whole input if it has no batch dim.
        wanted: Vec<u64>,
        /// Whether dim 0 of the data counts samples.
        batched: bool,
    },
    /// Inputs have different numbers of samples.
    #[error("the inputs have different numbers of samples: {}", counts.iter().map(|(name, count)| format!("`{name}` {count}")).collect::<Vec<_>>().join(", "))]
    SampleCounts {
        /// The inputs and labels, with their numbers of samples.
        counts: Vec<(String, u64)>,
    },
    /// The data is a stream of tokens, and no input of the model clearly takes it.
    #[error("`{data}` is a stream of tokens, but {reason}; the model's inputs are {}", list(inputs))]
    TokenInput {
        /// The data.
        data: String,
        /// The reason why no input was chosen.
        reason: String,
        /// All inputs of the model.
        inputs: Vec<String>,
    },
    /// `--input` names an input that the model does not have.
    #[error("the model has no input `{name}`; its inputs are {}", list(inputs))]
    UnknownInput {
        /// The name.
        name: String,
        /// All inputs of the model.
        inputs: Vec<String>,
    },
    /// The data have no suitable labels.
    #[error("no labels for `{name}` {dims:?}: {reason}")]
    NoLabels {
        /// The label.
        name: String,
        /// Its dims.
        dims: Vec<u64>,
        /// The reason.
        reason: String,
    },
    /// Inputs have contradictory batch dims.
    #[error("the model's inputs and labels have no common batch dim: {0}")]
    Batch(String),
    /// A checkpoint was made with other data or another order of the data.
    #[error(
        "cannot resume at the checkpoint's place in the data: {what} was {then} when the checkpoint was \
         saved and is {now} now; resume with the data and flags of the first run, or start a new run"
    )]
    Resume {
        /// The fact that differs.
        what: &'static str,
        /// Its value in the checkpoint.
        then: u64,
        /// Its value in this run.
        now: u64,
    },
}

/// Formats an error in data for a terminal. Its text has a single line, and hidden characters in it, which can only come from names in a
/// file, are escaped.
pub fn one_line(error: &DataError) -> String {
    ir::visible(&error.to_string()).into_owned()
}

/// Formats names in backquotes, joined by commas.
pub(super) fn list(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}

/// The dims that an input takes, as an error names them.
fn taken(batched: bool, wanted: &[u64]) -> String {
    let wanted = joined(wanted);
    if batched { format!("[samples, {wanted}]") } else { format!("[{wanted}] (the same for every sample)") }
}

fn joined(dims: &[u64]) -> String {
    dims.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_begins_no_line() {
        let name = "w\n  = all is well \u{202e}".to_owned();
        let there = vec![name.clone(); 2];
        let hint = String::new();
        let error = DataError::MissingKey { path: PathBuf::from(&name), key: name, hint, there };
        let text = one_line(&error);
        assert!(!text.contains(ir::is_hidden), "{text}");
        assert_eq!(text.matches(r"\n  = all is well \u{202e}").count(), 4, "{text}");
    }
}
