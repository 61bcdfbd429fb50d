//! Decides where the values of each input of the model come from, with a reason that can be printed.

use std::path::PathBuf;

use super::columns::{self, LabelColumns};
use super::csv::Csv;
use super::error::{self, DataError};
use super::feed::{Decision, Feed};
use super::file::{self, Format};
use super::json::Json;
use super::spec::{DataSource, InputSpec, LoaderOptions, ModelSpec, Source};
use super::tables::Tables;

/// The contents of DATA.
#[derive(Clone, Debug)]
pub(super) enum Offer {
    /// A file or folder of text or raw tokens.
    Tokens(PathBuf),
    /// Named arrays.
    Table(Tables),
    /// Columns of numbers.
    Csv(Csv),
    /// Records with fields.
    Json(Json),
    /// No file: values are generated.
    Synthetic,
}

impl Offer {
    /// Opens DATA as far as necessary to know its contents.
    ///
    /// # Errors
    /// Data that is missing, or has an unsupported format.
    pub(super) fn open(source: &DataSource) -> Result<Self, DataError> {
        let DataSource::Path(path) = source else { return Ok(Self::Synthetic) };
        let (files, format) = file::files(path)?;
        match format {
            Format::Text | Format::Tokens => Ok(Self::Tokens(path.clone())),
            Format::Npz | Format::Safetensors => Tables::open(path, &files).map(Self::Table),
            Format::Csv => Csv::open(path, &files).map(Self::Csv),
            Format::Json => Json::open(path, &files).map(Self::Json),
        }
    }

    /// Returns the name of the data for messages.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Tokens(path) => path.display().to_string(),
            Self::Table(table) => table.path.display().to_string(),
            Self::Csv(csv) => csv.path.display().to_string(),
            Self::Json(json) => json.path.display().to_string(),
            Self::Synthetic => "synthetic".to_owned(),
        }
    }
}

/// Decides for every input. The rules are, in this order: the user's choice; a key or column with the input's name; a meaning that the name
/// suggests (positions, masks, token types); the token stream, the remaining columns, or random values.
///
/// # Errors
/// An input without a source, a token stream that no input takes, `--input` for an input that does not exist.
pub(super) fn decide(
    spec: &ModelSpec,
    options: &LoaderOptions,
    offer: &Offer,
) -> Result<Vec<Decision>, DataError> {
    let inputs: Vec<&InputSpec> = features(spec).collect();
    let names = || inputs.iter().map(|input| input.name.clone()).collect::<Vec<_>>();
    let label = spec.label.as_ref();
    let is_known = |name: &String| {
        inputs.iter().any(|input| input.name == *name) || label.is_some_and(|label| label.name == *name)
    };
    if let Some(name) = options.inputs.keys().find(|name| !is_known(name)) {
        return Err(DataError::UnknownInput { name: name.clone(), inputs: names() });
    }
    let known = |input: &&InputSpec| -> Result<Option<(Feed, &'static str)>, DataError> {
        let own = match (options.inputs.get(&input.name), offer) {
            (Some(source), _) => Some((user_feed(input, source, offer)?, "--input names it")),
            (None, Offer::Table(table)) => {
                table.key_for_input(&input.name).map(|key| (Feed::Key(key), "the data has a key of its name"))
            }
            (None, Offer::Csv(csv)) => columns::named(input, csv)
                .map(|column| (Feed::Columns(column), "the data has a column of its name")),
            (None, Offer::Json(json)) => json
                .has(&input.name)
                .then(|| (Feed::Key(input.name.clone()), "the records have a field of its name")),
            (None, _) => None,
        };
        Ok(own.or_else(|| automatic(input)))
    };
    let mut feeds: Vec<_> = inputs.iter().map(known).collect::<Result<_, _>>()?;
    if let Offer::Csv(csv) = offer {
        let labels =
            label.map_or(Ok(LabelColumns::default()), |label| columns::labels(label, csv, options))?;
        columns::fill(&inputs, &mut feeds, &labels.columns, csv)?;
    }
    if let Offer::Tokens(_) = offer {
        let open: Vec<&InputSpec> =
            inputs.iter().zip(&feeds).filter(|(_, feed)| feed.is_none()).map(|(input, _)| *input).collect();
        let (name, reason) = token_input(&open).map_err(|reason| {
            let (data, inputs) = (offer.name(), names());
            DataError::TokenInput { data, reason, inputs }
        })?;
        let index = inputs.iter().position(|input| input.name == name).unwrap_or_default();
        feeds[index] = Some((Feed::Tokens, reason));
    }
    if let Offer::Json(json) = offer {
        let open = inputs.iter().zip(&feeds).filter(|(_, feed)| feed.is_none());
        let open: Vec<&InputSpec> = open.map(|(input, _)| *input).collect();
        if let (Some(field), Ok((name, _))) = (json.text_field(), token_input(&open)) {
            let index = inputs.iter().position(|input| input.name == name).unwrap_or_default();
            feeds[index] = Some((Feed::Key(field), "the text of the records"));
        }
    }
    let decided = inputs.iter().zip(feeds).map(|(input, feed)| {
        let feed = feed.or(match offer {
            Offer::Synthetic => Some((Feed::Synthetic, "--train asks for synthetic data")),
            _ => None,
        });
        let (feed, reason) = feed.ok_or_else(|| nothing_feeds(input, offer, names()))?;
        Ok(Decision { input: input.name.clone(), feed, reason })
    });
    decided.collect()
}

/// Returns the inputs that are not the label.
pub(super) fn features(spec: &ModelSpec) -> impl Iterator<Item = &InputSpec> {
    let label = spec.label.as_ref().map(|label| label.name.as_str());
    spec.inputs.iter().filter(move |input| Some(input.name.as_str()) != label)
}

fn user_feed(input: &InputSpec, source: &Source, offer: &Offer) -> Result<Feed, DataError> {
    Ok(match source {
        Source::Key(text) => match offer {
            Offer::Csv(csv) => {
                let columns = columns::parse(text, csv);
                Feed::Columns(columns.map_err(|reason| csv.columns_error(&input.name, reason))?)
            }
            _ => Feed::Key(text.clone()),
        },
        Source::File(path) => Feed::File(path.clone()),
        Source::Positions => Feed::Positions,
        Source::Ones => Feed::Ones,
        Source::Zeros => Feed::Zeros,
    })
}

/// Returns the source that an input's name and type suggest, for inputs of transformers that data sets rarely have. A mask of more than two
/// dims is left to the user: a bool mask allows positions by ones, but a float mask is often added, and ones would be wrong.
fn automatic(input: &InputSpec) -> Option<(Feed, &'static str)> {
    let name = input.name.to_lowercase();
    let integer = input.dtype.is_integer();
    let ndim = input.dims.len();
    if integer && (1..=2).contains(&ndim) && name.contains("position") {
        Some((Feed::Positions, "its name contains `position`"))
    } else if integer && ndim == 2 && (name.contains("token_type") || name.contains("segment_ids")) {
        Some((Feed::Zeros, "token types: all tokens have type 0"))
    } else if ndim == 2 && name.contains("mask") {
        Some((Feed::Ones, "a mask over [batch, sequence]: no token is masked"))
    } else {
        None
    }
}

/// Returns the input among `open` that takes a token stream: the first with a usual name, else the only integer [batch, seq].
pub(super) fn token_input<'a>(open: &[&'a InputSpec]) -> Result<(&'a str, &'static str), String> {
    let takes_tokens =
        |input: &&&InputSpec| input.batched && input.dtype.is_integer() && input.dims.len() == 2;
    let candidates: Vec<&'a InputSpec> = open.iter().filter(takes_tokens).copied().collect();
    let usual = ["input_ids", "inputs_ids", "token_ids", "tokens", "idx"];
    let named = candidates.iter().find(|input| {
        let name = input.name.to_lowercase();
        usual.contains(&name.rsplit(['.', '/', ':']).next().unwrap_or_default())
    });
    match (named, candidates.as_slice()) {
        (Some(input), _) => Ok((&input.name, "an integer [batch, sequence] with the usual name")),
        (None, [input]) => Ok((&input.name, "the only integer [batch, sequence]")),
        (None, []) => Err("no input has integers of [batch, sequence]".to_owned()),
        (None, several) => {
            let names: Vec<String> = several.iter().map(|input| input.name.clone()).collect();
            let names = error::list(&names);
            Err(format!(
                "the inputs {names} could each take it; give all but one of these inputs with --input \
                 NAME=SOURCE"
            ))
        }
    }
}

fn nothing_feeds(input: &InputSpec, offer: &Offer, wanted: Vec<String>) -> DataError {
    if let Offer::Table(table) = offer
        && let Some(error) = table.unusable_input(&input.name)
    {
        return error;
    }
    let data = offer.name();
    let data = match offer {
        Offer::Table(table) => {
            let keys: Vec<String> = table.keys().map(str::to_owned).collect();
            format!("the keys of `{data}` are {}", error::list(&keys))
        }
        Offer::Json(json) => format!("the fields of `{data}` are {}", error::list(&json.fields())),
        _ => format!("`{data}` is a stream of tokens"),
    };
    let (name, dims) = (input.name.clone(), input.dims.clone());
    DataError::MissingInput { name, dtype: input.dtype, dims, data, wanted }
}

#[cfg(test)]
mod tests {
    use ir::DType;

    use super::*;

    fn input(name: &str, dtype: DType, dims: &[u64]) -> InputSpec {
        InputSpec { name: name.to_owned(), dtype, dims: dims.to_vec(), batched: true, vocabulary: None }
    }

    fn decisions(inputs: Vec<InputSpec>, chosen: &[(&str, Source)]) -> Result<Vec<String>, String> {
        let spec = ModelSpec { inputs, ..ModelSpec::default() };
        let chosen = chosen.iter().map(|(name, source)| ((*name).to_owned(), source.clone())).collect();
        let options = LoaderOptions { inputs: chosen, ..LoaderOptions::default() };
        let decided = decide(&spec, &options, &Offer::Tokens("corpus.txt".into()));
        decided
            .map(|decided| decided.iter().map(Decision::to_string).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_transformers_inputs_are_all_fed_from_text() {
        let inputs = vec![
            input("attention_mask", DType::F32, &[2, 8]),
            input("token_type_ids", DType::I64, &[2, 8]),
            input("position_ids", DType::I64, &[2, 8]),
            input("input_ids", DType::I64, &[2, 8]),
        ];
        let expected = [
            "input `attention_mask`: ones (a mask over [batch, sequence]: no token is masked)",
            "input `token_type_ids`: zeros (token types: all tokens have type 0)",
            "input `position_ids`: positions 0, 1, 2, … (its name contains `position`)",
            "input `input_ids`: the tokens (an integer [batch, sequence] with the usual name)",
        ];
        assert_eq!(decisions(inputs, &[]).unwrap(), expected);
    }

    #[test]
    fn a_user_overrides_what_a_name_says() {
        let inputs = vec![input("position_ids", DType::I64, &[2, 8]), input("x", DType::I64, &[2, 8])];
        let decided = decisions(inputs, &[("position_ids", Source::Zeros)]).unwrap();
        assert_eq!(decided[0], "input `position_ids`: zeros (--input names it)");
        assert_eq!(decided[1], "input `x`: the tokens (the only integer [batch, sequence])");
    }

    #[test]
    fn an_input_that_nothing_feeds_is_an_error_with_what_would() {
        let inputs = vec![input("input_ids", DType::I64, &[2, 8]), input("mask", DType::F32, &[2, 1, 8, 8])];
        let error = decisions(inputs, &[]).unwrap_err();
        assert!(error.contains("nothing feeds input `mask` (f32[2, 1, 8, 8])"), "{error}");
        assert!(error.contains("--input mask="), "{error}");
    }

    #[test]
    fn a_stream_needs_exactly_one_place_to_go() {
        let error = decisions(vec![input("x", DType::F32, &[2, 8])], &[]).unwrap_err();
        assert!(error.contains("no input has integers of [batch, sequence]"), "{error}");
        let two = vec![input("a", DType::I64, &[2, 8]), input("b", DType::I64, &[2, 8])];
        let error = decisions(two, &[]).unwrap_err();
        assert!(error.contains("`a`, `b` could each take it"), "{error}");
        let error = decisions(vec![input("a", DType::I64, &[2, 8])], &[("b", Source::Ones)]).unwrap_err();
        assert_eq!(error, "the model has no input `b`; its inputs are `a`");
    }
}
