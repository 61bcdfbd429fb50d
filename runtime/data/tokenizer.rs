//! Text to tokens by a user's `tokenizer.json`, the format of Hugging Face's `tokenizers`.
//!
//! A text is cut into pieces that are tokenised side by side, at places where the common tokenizers cut it themselves: after
//! a line's end that a word follows, else before a word. So memory stays bounded by the tokens, and the tokens depend on
//! the text alone, not on the number of threads.

use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rayon::prelude::*;
use tokenizers::{ModelWrapper, PaddingParams};

use super::error::DataError;
use super::file;

/// Bytes of a piece, at least; where no good cut comes within [`LONGEST`] it is cut at any character.
const PIECE: usize = 1 << 18;
const LONGEST: usize = 4 * PIECE;

/// A tokenizer that was read from a file.
#[derive(Clone, Debug)]
pub(super) struct TextTokenizer {
    path: PathBuf,
    tokenizer: tokenizers::Tokenizer,
    /// One more than the largest id that it gives.
    vocabulary: u64,
}

impl TextTokenizer {
    /// Reads a `tokenizer.json`. What makes tokens of one text differ from time to time, or cuts and fills them, is
    /// left out: dropout of merges, truncation, padding.
    ///
    /// # Errors
    /// A file that is missing, or no tokenizer.
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let contents = file::map(path)?;
        let malformed = |reason: String| DataError::Tokenizer { path: path.to_owned(), reason };
        let read =
            guarded(|| tokenizers::Tokenizer::from_bytes(&contents).map_err(|error| error.to_string()));
        let mut tokenizer = read.map_err(malformed)?;
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
        Ok(Self { path: path.to_owned(), tokenizer, vocabulary: u64::from(largest) + 1 })
    }

    /// Refuses a tokenizer with more tokens than a model's vocabulary has.
    pub(super) fn check_vocabulary(&self, vocabulary: u64) -> Result<(), DataError> {
        if self.vocabulary <= vocabulary {
            return Ok(());
        }
        let (path, tokens) = (self.path.clone(), self.vocabulary);
        Err(DataError::TokenizerVocabulary { path, tokens, vocabulary })
    }

    /// The tokens of the text in `contents`, little endian, and bytes a token; `path` names the text in errors.
    ///
    /// # Errors
    /// A text that is not UTF-8, or that the tokenizer has no tokens for.
    pub(super) fn tokens(&self, path: &Path, contents: &[u8]) -> Result<(Bytes, usize), DataError> {
        let malformed = |reason: String| DataError::Malformed { path: path.to_owned(), reason };
        let text = std::str::from_utf8(contents).map_err(|error| {
            malformed(format!(
                "it is not UTF-8 text at byte {}, which a tokenizer takes",
                error.valid_up_to()
            ))
        })?;
        let width = if self.vocabulary <= 1 << 16 { 2 } else { 4 };
        let encode = |piece: &str| {
            let encoding = self.tokenizer.encode_fast(piece, false).map_err(|error| error.to_string())?;
            let ids = encoding.get_ids().iter();
            Ok(ids.flat_map(|id| id.to_le_bytes().into_iter().take(width)).collect::<Vec<u8>>())
        };
        let pieces: Result<Vec<Vec<u8>>, String> =
            guarded(|| pieces(text).into_par_iter().map(encode).collect());
        let pieces = pieces.map_err(|error| malformed(format!("`{}`: {error}", self.path.display())))?;
        Ok((pieces.concat().into(), width))
    }
}

/// What another's code gives for a file that a user wrote: if it panics, an error.
fn guarded<T>(compute: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let unwound = panic::catch_unwind(AssertUnwindSafe(compute));
    unwound.unwrap_or_else(|_| Err("the library that reads tokenizers failed on it".to_owned()))
}

/// The text in pieces, none of them empty.
fn pieces(text: &str) -> Vec<&str> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while rest.len() > PIECE {
        let (piece, after) = rest.split_at(cut(rest, PIECE, LONGEST));
        pieces.push(piece);
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(rest);
    }
    pieces
}

/// Where to cut a text: from `least` on and, if that can be, before `most`.
fn cut(text: &str, least: usize, most: usize) -> usize {
    let boundary =
        |from: usize| (from..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    let least = boundary(least.max(1));
    let most = boundary(most.max(least));
    // The character at the place, and the two around it.
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

    /// A byte-level BPE of all bytes, two merges and a special token.
    pub(in crate::data) fn byte_level(dropout: &str) -> String {
        // Bytes that can be printed stand for themselves, the others for characters from U+0100 on.
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
        assert!(pieces(&text).len() > 2);
        assert_eq!(pieces(&text).concat(), text);
        let whole = tokenizer.tokenizer.encode(text.as_str(), false).unwrap();
        let whole: Vec<u16> = whole.get_ids().iter().map(|&id| id as u16).collect();
        assert!(ids(&tokenizer, &text) == whole);
    }

    #[test]
    fn a_cut_is_after_a_line_before_a_word_or_between_characters() {
        assert_eq!(cut("ab cd\n\nef\ngh", 1, 12), 10);
        assert_eq!(cut("ab cd  ef", 1, 9), 2);
        assert_eq!(cut("ab  cd", 3, 4), 4);
        assert_eq!(cut("ääää", 1, 3), 4);
        assert_eq!(cut("ä", 1, 1), 2);
    }

    #[test]
    fn what_is_no_tokenizer_or_no_text_is_refused() {
        let error = open("{\"version\": \"1.0\"").unwrap_err().to_string();
        assert!(error.contains("tokenizer.json` is no tokenizer that can be read"), "{error}");
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
