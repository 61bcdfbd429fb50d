//! Turns text into tokens with a user's `tokenizer.json`, the format of Hugging Face's `tokenizers`.
//!
//! A text is cut into pieces that are tokenised in parallel, at places where the common tokenizers cut it themselves: after a line end
//! before a word, or else before a word. So memory is bounded by the tokens, and the tokens depend on the text alone, not on the number of
//! threads. Some steps change the beginning or the end of a text, such as a space before the first word. A tokenizer that may have such a
//! step gets each piece with some text around it, whose tokens are dropped.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use rayon::prelude::*;
use serde::Deserialize;
use serde_json::Value;
use tokenizers::{ModelWrapper, PaddingParams, TokenizerImpl};

use super::bounded::{self, BoundedNormalizer, BoundedPreTokenizer, Unused};
use super::error::DataError;
use super::file;
use super::quiet::quietly;

/// The smallest number of bytes of a piece. If there is no good place to cut within [`LONGEST`] bytes, the piece is cut at any character.
/// Tests have smaller pieces, since the tokenizer's library is not optimised for them.
const PIECE: usize = if cfg!(test) { 1 << 13 } else { 1 << 18 };
const LONGEST: usize = 4 * PIECE;

/// The number of bytes of text on each side of a piece that are tokenised with it, if its tokens may depend on its surroundings.
const SURROUNDINGS: usize = 1 << 10;

/// The largest size of a `tokenizer.json` in bytes. The largest ones that come with models have 40 MB.
const LARGEST_FILE: usize = 256 << 20;

/// The largest number of tokens per byte of text. A tokenizer that makes more would make gigabytes from a small text.
const TOKENS_PER_BYTE: usize = 16;

/// The number of bytes of the first trial of a text. Each further trial has four times as many.
const FIRST_TRIAL: usize = 1 << 10;

/// The largest processor time of a trial. The common tokenizers take a tenth of a second for a whole piece.
const LONGEST_TRIAL: Duration = Duration::from_secs(4);

type Tokenizer = TokenizerImpl<ModelWrapper, BoundedNormalizer, BoundedPreTokenizer, Unused, Unused>;

/// A tokenizer that was read from a file.
#[derive(Clone, Debug)]
pub(super) struct TextTokenizer {
    path: PathBuf,
    tokenizer: Tokenizer,
    /// One more than the largest id that it makes.
    vocabulary: u64,
    /// Whether a step may treat the beginning or the end of a text differently from its middle.
    sees_ends: bool,
}

impl TextTokenizer {
    /// Reads a `tokenizer.json`. Options that make the tokens of a text vary, or that cut or fill them, are dropped: dropout of merges,
    /// truncation, padding.
    ///
    /// # Errors
    /// The file is missing, too large, or no tokenizer.
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let contents = file::map(path)?;
        let malformed = |reason: String| DataError::Tokenizer { path: path.to_owned(), reason };
        if contents.len() > LARGEST_FILE {
            let bytes = contents.len();
            return Err(malformed(format!("it has {bytes} bytes; the limit is {LARGEST_FILE}")));
        }
        let read = guarded(|| serde_json::from_slice(&contents).map_err(|error| error.to_string()));
        let mut tokenizer: Tokenizer = read.map_err(malformed)?;
        let model = match tokenizer.get_model() {
            ModelWrapper::BPE(bpe) if bpe.dropout.is_some() => Some(bpe.clone()),
            _ => None,
        };
        if let Some(mut bpe) = model {
            bpe.dropout = None;
            tokenizer.with_model(bpe);
        }
        tokenizer.with_truncation(None).map_err(|error| malformed(error.to_string()))?;
        tokenizer.with_padding(None::<PaddingParams>);
        let largest = tokenizer.get_vocab(true).into_values().max();
        let largest = largest.ok_or_else(|| malformed("it has no tokens".to_owned()))?;
        let steps: Steps = serde_json::from_slice(&contents).map_err(|error| malformed(error.to_string()))?;
        let sees_ends = !(leaves_ends(&steps.normalizer) && leaves_ends(&steps.pre_tokenizer));
        Ok(Self { path: path.to_owned(), tokenizer, vocabulary: u64::from(largest) + 1, sees_ends })
    }

    /// Refuses a tokenizer with more tokens than the model's vocabulary has.
    pub(super) fn check_vocabulary(&self, vocabulary: u64) -> Result<(), DataError> {
        if self.vocabulary <= vocabulary {
            return Ok(());
        }
        let (path, tokens) = (self.path.clone(), self.vocabulary);
        Err(DataError::TokenizerVocabulary { path, tokens, vocabulary })
    }

    /// Returns the tokens of the text in `contents`, little endian, and the bytes per token; `path` names the text in errors.
    ///
    /// # Errors
    /// The text is not UTF-8, or the tokenizer has no tokens for it.
    pub(super) fn tokens(&self, path: &Path, contents: &[u8]) -> Result<(Bytes, usize), DataError> {
        let malformed = |reason: String| DataError::Malformed { path: path.to_owned(), reason };
        let text = std::str::from_utf8(contents).map_err(|error| {
            malformed(format!(
                "it is not UTF-8 text at byte {}; a tokenizer needs UTF-8 text",
                error.valid_up_to()
            ))
        })?;
        let width = if self.vocabulary <= 1 << 16 { 2 } else { 4 };
        let encode = |piece: &Range<usize>| {
            let ids = self.ids(text, piece)?;
            if ids.len() / TOKENS_PER_BYTE > piece.len() {
                return Err(format!("it gives {} tokens for a text of {} bytes", ids.len(), piece.len()));
            }
            Ok(ids.iter().flat_map(|id| id.to_le_bytes().into_iter().take(width)).collect::<Vec<u8>>())
        };
        // Each piece is guarded by itself, because the record of a panic belongs to the thread on which it happens.
        let encode = |piece: Range<usize>| guarded(|| encode(&piece));
        let pieces = pieces(text);
        let pace =
            pieces.first().map_or(Ok(()), |piece| self.check_pace(&text[piece.clone()], LONGEST_TRIAL));
        let pieces = pace.and_then(|()| pieces.into_par_iter().map(encode).collect::<Result<Vec<_>, _>>());
        let pieces = pieces.map_err(|reason| {
            let reason = format!("it cannot tokenize `{}`: {reason}", path.display());
            DataError::Tokenizer { path: self.path.clone(), reason }
        })?;
        Ok((pieces.concat().into(), width))
    }

    /// Returns the tokens of a piece of a text, as they are among the tokens of the whole text.
    fn ids(&self, text: &str, piece: &Range<usize>) -> Result<Vec<u32>, String> {
        let told = |error: tokenizers::Error| error.to_string();
        if !self.sees_ends && is_clean(text, piece.start) && is_clean(text, piece.end) {
            let encoding = self.tokenizer.encode_fast(&text[piece.clone()], false).map_err(told)?;
            return Ok(encoding.get_ids().to_vec());
        }
        let before = piece.start.saturating_sub(SURROUNDINGS);
        let before = (before..piece.start).find(|&at| text.is_char_boundary(at)).unwrap_or(piece.start);
        let after = (piece.end + SURROUNDINGS).min(text.len());
        let after = (after..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
        let encoding = self.tokenizer.encode(&text[before..after], false).map_err(told)?;
        // A token belongs to the piece in which it begins. A space that a step adds before a text counts as its beginning.
        let last = piece.end == text.len();
        let is_in = |&start: &usize| before + start >= piece.start && (last || before + start < piece.end);
        let tokens = encoding.get_ids().iter().zip(encoding.get_offsets());
        Ok(tokens.filter(|(_, (start, _))| is_in(start)).map(|(&id, _)| id).collect())
    }

    /// Refuses a tokenizer that would take hours for a text: its time may grow with the cube of a word's length, or its regular expression
    /// may backtrack a million times at every character. Nothing can stop the library, so longer and longer beginnings of the text are
    /// tried, until one takes more than `most`.
    fn check_pace(&self, text: &str, most: Duration) -> Result<(), String> {
        let mut bytes = FIRST_TRIAL;
        while bytes < text.len() {
            let end = (bytes..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
            let taken = self.time_of(&text[..end])?;
            if taken > most {
                return Err(format!("it needs {:.1} s for the first {end} bytes", taken.as_secs_f64()));
            }
            bytes *= 4;
        }
        Ok(())
    }

    /// Returns the processor time that tokenising a text takes. Wall-clock time would include other work of the machine.
    fn time_of(&self, text: &str) -> Result<Duration, String> {
        let begun = thread_time();
        guarded(|| self.tokenizer.encode_fast(text, false).map_err(|error| error.to_string()))?;
        Ok(thread_time().saturating_sub(begun))
    }
}

/// Returns the processor time of this thread since it began.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs code of the library on a user's file. A panic becomes an error.
fn guarded<T>(compute: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let result = quietly(compute);
    let refusal = bounded::take_refusal();
    match (refusal, result) {
        // A refused step takes precedence over any result.
        (Some(refusal), _) => Err(refusal),
        (None, Ok(result)) => result,
        (None, Err(panic)) => Err(format!("the tokenizers library failed: {panic}")),
    }
}

/// The steps of a `tokenizer.json` before its model.
#[derive(Deserialize)]
struct Steps {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
}

/// Steps that treat every place of a text alike, whatever their options are.
const LEAVE_ENDS: [&str; 15] = [
    "Lowercase",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Nmt",
    "StripAccents",
    "ByteLevel",
    "BertNormalizer",
    "BertPreTokenizer",
    "Whitespace",
    "WhitespaceSplit",
    "Digits",
    "Punctuation",
    "UnicodeScripts",
];

/// Returns whether a step, or each step of a sequence, treats the beginning and the end of a text like its middle.
fn leaves_ends(step: &Value) -> bool {
    let all = |key: &str| step[key].as_array().map(|steps| steps.iter().all(leaves_ends));
    // A pattern may have anchors; a plain string has none.
    let finds_text = || step["pattern"]["String"].is_string();
    match step["type"].as_str() {
        None => step.is_null(),
        Some("Sequence") => all("normalizers").or_else(|| all("pretokenizers")).unwrap_or(false),
        Some("Replace") => finds_text(),
        Some("Split") => finds_text() || step["pattern"]["Regex"].as_str().is_some_and(has_no_anchor),
        Some(name) => LEAVE_ENDS.contains(&name) && step["add_prefix_space"] != Value::Bool(true),
    }
}

/// Returns whether a regular expression has no anchor to an end of a text. In `[^…]` the `^` has another meaning.
fn has_no_anchor(pattern: &str) -> bool {
    let outside = pattern.replace("[^", "[").replace("\\$", "").replace("\\^", "");
    !["^", "$", "\\A", "\\z", "\\Z", "\\G"].iter().any(|anchor| outside.contains(anchor))
}

/// Returns whether the text ends at this place, or is cut there after a line end or before a space, as [`cut`] prefers.
fn is_clean(text: &str, at: usize) -> bool {
    let mut before = text[..at].chars().rev();
    let mut after = text[at..].chars();
    let around = match (before.next(), after.next()) {
        (None, _) | (_, None) => return true,
        (Some('\n'), next) => (before.next(), next),
        (last, Some(' ')) => (last, after.next()),
        _ => return false,
    };
    matches!(around, (Some(last), Some(next)) if !last.is_whitespace() && next.is_alphanumeric())
}

/// Returns the ranges of the pieces of a text, none of which is empty.
fn pieces(text: &str) -> Vec<Range<usize>> {
    let (mut pieces, mut start) = (Vec::new(), 0);
    while text.len() - start > PIECE {
        let end = start + cut(&text[start..], PIECE, LONGEST);
        pieces.push(start..end);
        start = end;
    }
    if start < text.len() {
        pieces.push(start..text.len());
    }
    pieces
}

/// Returns a place to cut a text: after `least` and, if possible, before `most`.
fn cut(text: &str, least: usize, most: usize) -> usize {
    let boundary =
        |from: usize| (from..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    let least = boundary(least.max(1));
    let most = boundary(most.max(least));
    // The character before the place, the one at it, and the one after that.
    let around = |at: usize| {
        let before = text[..at].chars().next_back()?;
        let mut after = text[at..].chars();
        Some((before, after.next()?, after.next()?))
    };
    let places = |separator: char| {
        text[least..most].match_indices(separator).map(|(at, _)| least + at).filter(move |&at| {
            around(at).is_some_and(|(before, _, after)| !before.is_whitespace() && after.is_alphanumeric())
        })
    };
    let after_line = places('\n').next().map(|at| at + 1);
    after_line.or_else(|| places(' ').next()).unwrap_or(most)
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use super::*;

    /// Returns a byte-level BPE with all bytes, two merges and a special token.
    pub(crate) fn byte_level(dropout: &str) -> String {
        // Printable bytes stand for themselves; the others become characters from U+0100 on.
        let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let mut shifted = 256;
        let mut characters: Vec<char> = Vec::new();
        for byte in 0..256u32 {
            let code = if printable(byte) {
                byte
            } else {
                shifted += 1;
                shifted - 1
            };
            characters.extend(char::from_u32(code));
        }
        let mut vocabulary: serde_json::Map<String, serde_json::Value> =
            characters.iter().enumerate().map(|(id, c)| (c.to_string(), id.into())).collect();
        vocabulary.insert("th".into(), 256.into());
        vocabulary.insert("the".into(), 257.into());
        let vocabulary = serde_json::Value::Object(vocabulary);
        format!(
            r#"{{"version": "1.0", "truncation": {{"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}},
            "padding": {{"strategy": {{"Fixed": 9}}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "!"}},
            "added_tokens": [{{"id": 258, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}}],
            "normalizer": null, "pre_tokenizer": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}},
            "post_processor": null, "decoder": null,
            "model": {{"type": "BPE", "dropout": {dropout}, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "vocab": {vocabulary}, "merges": ["t h", "th e"]}}}}"#
        )
    }

    fn open(contents: &str) -> Result<TextTokenizer, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        fs::write(&path, contents).unwrap();
        TextTokenizer::open(&path)
    }

    fn ids(tokenizer: &TextTokenizer, text: &str) -> Vec<u16> {
        let (bytes, width) = tokenizer.tokens(Path::new("text.txt"), text.as_bytes()).unwrap();
        assert_eq!(width, 2);
        bytes.chunks(2).map(|id| u16::from_le_bytes([id[0], id[1]])).collect()
    }

    #[test]
    fn text_becomes_the_tokenizers_tokens_neither_cut_nor_padded_nor_dropped_at_random() {
        let tokenizer = open(&byte_level("0.9")).unwrap();
        assert_eq!(tokenizer.vocabulary, 259);
        assert_eq!(ids(&tokenizer, "the then<end>th"), [257, 32, 257, 110, 258, 256]);
        assert_eq!(ids(&tokenizer, "ä\n"), [0xc3, 0xa4, 10]);
        assert!(ids(&tokenizer, "").is_empty());
    }

    #[test]
    fn a_long_text_has_the_tokens_of_the_whole() {
        let tokenizer = open(&byte_level("null")).unwrap();
        let line = "the thing\nis  then there\n\n  they're 12 the\nthe äth. ";
        let text = line.repeat(3 * PIECE / line.len());
        assert!(pieces(&text).len() > 2 && !tokenizer.sees_ends);
        assert_eq!(pieces(&text).into_iter().map(|piece| &text[piece]).collect::<String>(), text);
        let whole = tokenizer.tokenizer.encode(text.as_str(), false).unwrap();
        let whole: Vec<u16> = whole.get_ids().iter().map(|&id| id as u16).collect();
        assert!(ids(&tokenizer, &text) == whole);
    }

    #[test]
    fn steps_at_the_ends_of_a_text_do_not_begin_anew_within_it() {
        let replace = r#"{"type": "Replace", "pattern": {"String": " "}, "content": "ä"}"#;
        let prepend = format!(
            r#"{{"type": "Sequence", "normalizers": [{{"type": "Prepend", "prepend": "ä"}}, {replace}]}}"#
        );
        let byte_level =
            r#"{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}"#;
        let metaspace = |scheme: &str| {
            format!(
                r#"{{"type": "Sequence", "pretokenizers": [{{"type": "Metaspace", "replacement": "_", "prepend_scheme": "{scheme}",
                "split": true}}, {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}}]}}"#
            )
        };
        let strip = r#"{"type": "Strip", "strip_left": true, "strip_right": true}"#;
        let anchored = r#"{"type": "Replace", "pattern": {"Regex": "^t"}, "content": "xx"}"#;
        let steps = [
            (prepend.as_str(), String::new()),
            ("null", byte_level.to_owned()),
            ("null", metaspace("first")),
            ("null", metaspace("always")),
            (strip, String::new()),
            (anchored, String::new()),
        ];
        // Pieces end at line ends, at spaces, and within a word that is longer than a piece.
        let lines = "the thing\nis  then there\n\n  they're 12 the\nthe äth. ";
        let words = "then there the other ";
        let texts = [
            lines.repeat(2 * PIECE / lines.len()),
            format!("  {}\n ", words.repeat(2 * PIECE / words.len())),
            format!("the {}", "th-e".repeat(LONGEST / 3)),
        ];
        for (normalizer, pre_tokenizer) in steps {
            let tokenizer = open(&with_steps(normalizer, &pre_tokenizer)).unwrap();
            for text in &texts {
                let whole = tokenizer.tokenizer.encode(text.as_str(), false).unwrap();
                let whole: Vec<u16> = whole.get_ids().iter().map(|&id| id as u16).collect();
                assert!(pieces(text).len() > 1);
                assert!(ids(&tokenizer, text) == whole, "{normalizer} {pre_tokenizer} {:?}", &text[..20]);
            }
        }
    }

    #[test]
    fn a_cut_is_after_a_line_before_a_word_or_between_characters() {
        assert_eq!(cut("ab cd\n\nef\ngh", 1, 12), 10);
        assert_eq!(cut("ab cd  ef", 1, 9), 2);
        assert_eq!(cut("ab  cd", 3, 4), 4);
        assert_eq!(cut("ääää", 1, 3), 4);
        assert_eq!(cut("ä", 1, 1), 2);
    }

    /// Returns the byte-level tokenizer with other steps before its model.
    fn with_steps(normalizer: &str, pre_tokenizer: &str) -> String {
        let mut file: serde_json::Value = serde_json::from_str(&byte_level("null")).unwrap();
        file["normalizer"] = serde_json::from_str(normalizer).unwrap();
        if !pre_tokenizer.is_empty() {
            file["pre_tokenizer"] = serde_json::from_str(pre_tokenizer).unwrap();
        }
        file.to_string()
    }

    fn refusal(contents: &str, text: &str) -> String {
        let tokens =
            open(contents).and_then(|tokenizer| tokenizer.tokens(Path::new("text.txt"), text.as_bytes()));
        tokens.map(drop).unwrap_err().to_string()
    }

    fn sequence(step: &str, times: usize) -> String {
        format!(r#"{{"type": "Sequence", "normalizers": [{}]}}"#, vec![step; times].join(", "))
    }

    const DOUBLE: &str = r#"{"type": "Replace", "pattern": {"String": "e"}, "content": "ee"}"#;

    #[test]
    fn steps_that_double_a_text_are_left_before_it_is_gigabytes() {
        // 2^40 bytes for each e, with the steps side by side and nested in each other.
        let nested = (0..20).fold(DOUBLE.to_owned(), |inner, _| sequence(&format!("{inner}, {DOUBLE}"), 1));
        for steps in [sequence(DOUBLE, 40), nested] {
            let error = refusal(&with_steps(&steps, ""), "the end");
            let expected = "it cannot tokenize `text.txt`: its normalizers turn 7 bytes into 8197 bytes or more; the limit is 16 times";
            assert!(error.contains(expected), "{error}");
        }
        let error = refusal(&with_steps(&sequence(DOUBLE, 65), ""), "the end");
        assert!(error.contains("it has more than 64 normalizers"), "{error}");
        // A long text is put before every text, though the step's type does not say so.
        for kind in ["Prepend", "Unknown"] {
            let prepend = |bytes| format!(r#"{{"type": "{kind}", "prepend": "{}"}}"#, "e".repeat(bytes));
            let error = refusal(&with_steps(&prepend(1 << 20), ""), "the end");
            assert!(error.contains("turn 7 bytes into 1048576 bytes or more"), "{error}");
            let error = refusal(&with_steps(&prepend((1 << 20) + 1), ""), "the end");
            assert!(error.contains(&format!("`{kind}` adds 1048577 bytes to a text")), "{error}");
        }
        let regex =
            format!(r#"{{"type": "Replace", "pattern": {{"Regex": ""}}, "content": "{}"}}"#, "e".repeat(999));
        let error = refusal(&with_steps(&regex, ""), "the end");
        assert!(error.contains("turn 7 bytes into"), "{error}");
    }

    #[test]
    fn a_tokenizer_that_gives_too_many_tokens_of_a_text_is_refused() {
        // The last step runs without a trial.
        let step = r#"{"type": "Replace", "pattern": {"String": "e"}, "content": "CONTENT"}"#;
        let step = step.replace("CONTENT", &"x".repeat(60));
        let error = refusal(&with_steps(&step, ""), &"e".repeat(10_000));
        assert!(error.contains("it gives 600000 tokens for a text of 10000 bytes"), "{error}");
    }

    #[test]
    fn an_added_token_is_no_way_around_the_bound() {
        let file = with_steps(&sequence(DOUBLE, 40), "");
        let file = file.replace("\"normalized\":false", "\"normalized\":true");
        let error = refusal(&file, "no such letter");
        assert!(
            error.contains("tokenizer.json` cannot be used as a tokenizer: its normalizers turn"),
            "{error}"
        );
    }

    #[test]
    fn a_tokenizer_that_would_take_hours_is_left_after_a_beginning_of_the_text() {
        // The model tries every part of each word, from the longest down.
        let file = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": null, "model": {"type": "WordPiece", "unk_token": "?",
            "continuing_subword_prefix": "", "max_input_chars_per_word": 1000000000, "vocab": {"?": 0, "a": 1}}}"#;
        let (slow, text) = (open(file).unwrap(), "a".repeat(1 << 16));
        let error = slow.check_pace(&text, Duration::from_millis(200)).unwrap_err();
        assert!(error.starts_with("it needs "), "{error}");
        let usual = open(&byte_level("null")).unwrap();
        assert_eq!(usual.check_pace(&"the end of it\n".repeat(5000), LONGEST_TRIAL), Ok(()));
    }

    #[test]
    fn pre_tokenizers_that_double_a_text_are_refused() {
        let bytes =
            r#"{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}"#;
        let steps = |times: usize| {
            format!(r#"{{"type": "Sequence", "pretokenizers": [{}]}}"#, vec![bytes; times].join(", "))
        };
        open(&with_steps("null", &steps(2))).unwrap();
        let error = refusal(&with_steps("null", &steps(30)), "");
        assert!(
            error.contains("can make a text 1152921504606846976 times longer; the limit is 16 times"),
            "{error}"
        );
    }

    #[test]
    fn the_steps_of_common_tokenizers_are_within_the_bounds() {
        // ALBERT's steps, with a map whose longest text has 33 bytes.
        let map = [&1024u32.to_le_bytes()[..], &[0; 1024], &[b'x'; 33], b"\0y\0"].concat();
        let map = base64::encode(map);
        let steps = format!(
            r#"{{"type": "Sequence", "normalizers": [
                {{"type": "Replace", "pattern": {{"String": "``"}}, "content": "\""}}, {{"type": "NFKD"}}, {{"type": "StripAccents"}},
                {{"type": "Lowercase"}}, {{"type": "Precompiled", "precompiled_charsmap": "{map}"}},
                {{"type": "Replace", "pattern": {{"Regex": " {{2,}}"}}, "content": " "}}]}}"#
        );
        let tokenizer = open(&with_steps(&steps, "")).unwrap();
        assert_eq!(ids(&tokenizer, "THE   then"), [257, 32, 257, 110]);
        // A ligature of three bytes that NFKD turns into 33.
        assert!(ids(&tokenizer, &"\u{fdfa}".repeat(1000)).len() > 10_000);
        let llama = r#"{"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "a"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}"#;
        let tokenizer = open(&with_steps(llama, "")).unwrap();
        assert_eq!(ids(&tokenizer, "b c").len(), 2 + 3 + 1);
    }

    #[test]
    fn a_panic_of_the_library_is_an_error_with_its_reason() {
        // The table of the map ends before the place that its first entry names.
        let map = base64::encode([&4u32.to_le_bytes()[..], &[0xff; 4], b"y\0"].concat());
        let step = format!(r#"{{"type": "Precompiled", "precompiled_charsmap": "{map}"}}"#);
        let error = refusal(&with_steps(&step, ""), "the end");
        assert!(error.contains("the tokenizers library failed: index out of bounds"), "{error}");
    }

    #[test]
    fn a_file_too_large_for_a_tokenizer_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        fs::File::create(&path).unwrap().set_len(LARGEST_FILE as u64 + 1).unwrap();
        let error = TextTokenizer::open(&path).unwrap_err().to_string();
        assert!(error.ends_with("it has 268435457 bytes; the limit is 268435456"), "{error}");
    }

    #[test]
    fn what_is_no_tokenizer_or_no_text_is_refused() {
        let error = open("{\"version\": \"1.0\"").unwrap_err().to_string();
        assert!(error.contains("tokenizer.json` cannot be used as a tokenizer"), "{error}");
        assert!(open("").is_err());
        assert!(open("[]").is_err());
        let tokenizer = open(&byte_level("null")).unwrap();
        let error = tokenizer.tokens(Path::new("text.txt"), b"ab\xff").unwrap_err().to_string();
        assert!(error.contains("not UTF-8 text at byte 2"), "{error}");
        tokenizer.check_vocabulary(259).unwrap();
        let error = tokenizer.check_vocabulary(258).unwrap_err().to_string();
        assert!(error.contains("gives ids up to 258") && error.contains("vocabulary of 258"), "{error}");
    }
}
