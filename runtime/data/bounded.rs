//! The steps of a `tokenizer.json` before its model. Each has a bound on the number of bytes that it makes from a text.
//!
//! A step may make a text longer: `Replace` writes up to megabytes for each character, and forty steps that double a text make a terabyte
//! from one byte. If the result of a step could be too long, the step is first tried on the text piece by piece, and is not run if the
//! result would be too long. The library's own sequences of steps do not check in between. So a sequence is split into its steps here,
//! however deeply sequences are nested.

use std::cell::RefCell;

use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use tokenizers::{
    Decoder, Encoding, NormalizedString, Normalizer, NormalizerWrapper, PostProcessor, PreTokenizedString,
    PreTokenizer, PreTokenizerWrapper, Result,
};

/// The largest number of steps of one kind; honest files have up to about ten.
const MOST_STEPS: usize = 64;

/// The largest factor by which the bytes of a text may grow, with some more room for short texts. NFKD makes 11 times the bytes of the
/// worst text.
const MOST_GROWTH: usize = 16;
const ROOM: usize = 4096;

/// The largest growth factor of a step that runs without a trial.
const UNTRIED_GROWTH: usize = 64;

/// The approximate number of bytes that a piece becomes in a trial.
const TRIAL: usize = 1 << 20;

thread_local! {
    /// The reason why a step was not run, or failed. The library drops errors of normalizers, and continues with the unchanged text.
    static REFUSED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Returns the reason why a step of this thread was not run, or failed, since the last call.
pub(super) fn take_refusal() -> Option<String> {
    REFUSED.take()
}

/// A step of a file.
#[derive(Clone, Debug)]
struct Step<S> {
    step: S,
    /// The factor by which it lengthens the worst text.
    times: usize,
    /// The number of bytes that it adds once to every text.
    plus: usize,
}

/// Steps that change a text.
#[derive(Clone, Debug)]
pub(super) struct BoundedNormalizer(Vec<Step<NormalizerWrapper>>);

/// Steps that cut a text into words.
#[derive(Clone, Debug)]
pub(super) struct BoundedPreTokenizer(Vec<Step<PreTokenizerWrapper>>);

/// A placeholder for parts of a tokenizer that do not affect the tokens of a text: the part that adds special tokens, and the decoder.
#[derive(Clone, Debug)]
pub(super) struct Unused;

impl<'de> Deserialize<'de> for BoundedNormalizer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        steps(deserializer, "normalizers").map(Self)
    }
}

impl<'de> Deserialize<'de> for BoundedPreTokenizer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let steps: Vec<Step<PreTokenizerWrapper>> = steps(deserializer, "pretokenizers")?;
        let times = steps.iter().fold(1usize, |times, step| times.saturating_mul(step.times));
        if times > MOST_GROWTH {
            let message = format!(
                "its pre-tokenizers can make a text {times} times longer; the limit is {MOST_GROWTH} times"
            );
            return Err(D::Error::custom(message));
        }
        Ok(Self(steps))
    }
}

impl<'de> Deserialize<'de> for Unused {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

impl Normalizer for BoundedNormalizer {
    fn normalize(&self, text: &mut NormalizedString) -> Result<()> {
        let before = text.len();
        for step in &self.0 {
            if let Err(error) = step.normalize(text, before) {
                REFUSED.set(Some(error.to_string()));
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Step<NormalizerWrapper> {
    /// Changes a text that had `before` bytes before the first step.
    fn normalize(&self, text: &mut NormalizedString, before: usize) -> Result<()> {
        let most = |times: usize| before.saturating_mul(times).saturating_add(ROOM);
        let possible = text.len().saturating_mul(self.times).saturating_add(self.plus);
        let after =
            if possible > most(UNTRIED_GROWTH) { self.trial(text.get(), most(MOST_GROWTH))? } else { 0 };
        let bytes = text.len().max(after);
        if bytes > most(MOST_GROWTH) {
            return Err(format!(
                "its normalizers turn {before} bytes into {bytes} bytes or more; the limit is {MOST_GROWTH} \
                 times the bytes"
            )
            .into());
        }
        self.step.normalize(text)
    }

    /// Returns about how many bytes the step makes from `text`. Stops as soon as the number exceeds `most`.
    fn trial(&self, text: &str, most: usize) -> Result<usize> {
        let (mut bytes, mut rest) = (self.plus, text);
        while !rest.is_empty() && bytes <= most {
            let size = (TRIAL / self.times).clamp(1, rest.len());
            let end = (size..rest.len()).find(|&at| rest.is_char_boundary(at)).unwrap_or(rest.len());
            let (piece, after) = rest.split_at(end);
            let mut piece = NormalizedString::from(piece);
            self.step.normalize(&mut piece)?;
            bytes += piece.len().saturating_sub(self.plus);
            rest = after;
        }
        Ok(bytes)
    }
}

impl PreTokenizer for BoundedPreTokenizer {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> Result<()> {
        self.0.iter().try_for_each(|step| step.step.pre_tokenize(text))
    }
}

impl PostProcessor for Unused {
    fn added_tokens(&self, _: bool) -> usize {
        0
    }

    fn process_encodings(&self, encodings: Vec<Encoding>, _: bool) -> Result<Vec<Encoding>> {
        Ok(encodings)
    }
}

impl Decoder for Unused {
    fn decode_chain(&self, tokens: Vec<String>) -> Result<Vec<String>> {
        Ok(tokens)
    }
}

/// Returns the steps in a file's order. The steps of a sequence are in its field `key`.
fn steps<'de, D, S>(deserializer: D, key: &str) -> std::result::Result<Vec<Step<S>>, D::Error>
where
    D: Deserializer<'de>,
    S: for<'a> Deserialize<'a>,
{
    let mut open = vec![Value::deserialize(deserializer)?];
    let mut steps = Vec::new();
    while let Some(mut value) = open.pop() {
        if open.len() + steps.len() >= MOST_STEPS {
            return Err(D::Error::custom(format!("it has more than {MOST_STEPS} {key}")));
        }
        if let Some(Value::Array(inner)) = value.get_mut(key).map(Value::take) {
            open.extend(inner.into_iter().rev());
            continue;
        }
        let no_fields = Map::new();
        let fields = value.as_object().unwrap_or(&no_fields);
        let kind = fields.get("type").and_then(Value::as_str).unwrap_or("a step without a type");
        let (times, plus) = (times(kind, fields), length(fields, "prepend"));
        if times.max(plus) > TRIAL {
            let message = format!("`{kind}` adds {} bytes to a text; the limit is {TRIAL}", times.max(plus));
            return Err(D::Error::custom(message));
        }
        // Parsed from text, because some of the library's types borrow from it.
        let step = serde_json::from_str(&value.to_string()).map_err(D::Error::custom)?;
        steps.push(Step { step, times, plus });
    }
    Ok(steps)
}

/// Returns the bytes of the text in a field; 0 if there is none.
fn length(fields: &Map<String, Value>, key: &str) -> usize {
    fields.get(key).and_then(Value::as_str).map_or(0, str::len)
}

/// Returns the factor by which a step lengthens the worst text, in bytes. The library recognizes some steps by their fields alone, whatever
/// their type says, so all fields are considered.
fn times(kind: &str, fields: &Map<String, Value>) -> usize {
    let pattern =
        || fields.get("pattern")?.get("String")?.as_str().map(str::len).filter(|&length| length > 0);
    let content = length(fields, "content");
    // A regular expression may match between any two characters.
    let replaced = pattern().map_or(content + 1, |pattern| content.div_ceil(pattern));
    // The replacement is written for a space, or before a word.
    let written = length(fields, "replacement") + 1;
    let mapped = fields.get("precompiled_charsmap").and_then(Value::as_str).map_or(1, longest_replacement);
    let by_kind = match kind {
        // Spaces around a character of three bytes, NFD, and lower case.
        _ if fields.contains_key("handle_chinese_chars") => 2 * 3 * 2,
        // A byte becomes a character of two bytes, and a space may come before a word.
        "ByteLevel" => 4,
        // <https://unicode.org/faq/normalization.html>, "maximum expansion factor" in UTF-8.
        "NFC" | "NFD" => 3,
        "NFKC" | "NFKD" => 11,
        "Lowercase" => 2,
        _ => 1,
    };
    replaced.max(written).max(mapped).max(by_kind)
}

/// Returns the bytes of the longest text to which a map of SentencePiece changes a character. The map has the size of a table in bytes, the
/// table, and then the texts with a zero after each.
fn longest_replacement(charsmap: &str) -> usize {
    let bytes = base64::decode(charsmap).unwrap_or_default();
    let texts = bytes.split_first_chunk::<4>().and_then(|(size, rest)| {
        let table = u32::from_le_bytes(*size) as usize / 4 * 4;
        rest.get(table..)
    });
    texts.unwrap_or(&bytes).split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0).max(1)
}
