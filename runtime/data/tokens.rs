//! A stream of tokens from files, one after the other: text, as bytes or by a tokenizer, or little-endian u16 or u32 files, raw or with
//! llm.c's header.

use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::error::DataError;
use super::file::{self, Format};
use super::llmc;
use super::tokenizer::TextTokenizer;

/// The largest vocabulary for which text is taken as bytes: 256, and room for special tokens.
const LARGEST_BYTE_VOCABULARY: u64 = 512;

/// The way in which text becomes tokens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Text<'a> {
    /// Each byte is a token, if the vocabulary can be one of bytes or this is forced.
    Bytes {
        /// Whether bytes are used whatever the vocabulary is.
        forced: bool,
    },
    /// The tokens come from a tokenizer.
    Tokenizer(&'a TextTokenizer),
}

/// The tokens of some files, one after the other.
#[derive(Clone, Debug)]
pub(super) struct TokenStream {
    /// The name in messages.
    pub(super) name: String,
    segments: Vec<Segment>,
}

/// One file.
#[derive(Clone, Debug)]
struct Segment {
    path: PathBuf,
    bytes: Bytes,
    /// Bytes per token: 1, 2 or 4.
    width: usize,
    /// The index of its first token in the stream.
    start: u64,
}

impl Segment {
    fn tokens(&self) -> impl Iterator<Item = u32> + '_ {
        self.bytes.chunks_exact(self.width).map(token)
    }

    fn len(&self) -> u64 {
        (self.bytes.len() / self.width) as u64
    }
}

fn token(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |value, &byte| (value << 8) | u32::from(byte))
}

impl TokenStream {
    /// Opens a text file, a `.bin` file, or a folder with one kind of them, sorted by name. Raw tokens are u16 if `vocabulary` fits (or is
    /// unknown), else u32.
    ///
    /// # Errors
    /// Files that cannot be read or that end within a token; text that `text` cannot tokenise.
    pub(super) fn open(path: &Path, vocabulary: Option<u64>, text: Text<'_>) -> Result<Self, DataError> {
        let (files, format) = file::files(path)?;
        let mut segments: Vec<Segment> = Vec::new();
        let mut start = 0;
        for path in files {
            let contents = file::map(&path)?;
            let (bytes, width) = match format {
                Format::Text => of_text(&path, contents, vocabulary, text)?,
                _ => stored(&path, contents, vocabulary)?,
            };
            let segment = Segment { path, bytes, width, start };
            start += segment.len();
            segments.push(segment);
        }
        Ok(Self { name: path.display().to_string(), segments })
    }

    /// Returns the tokens of some texts, one after the other, each with the file that it comes from.
    ///
    /// # Errors
    /// Text that `text` cannot tokenise.
    pub(super) fn of_texts(
        path: &Path,
        texts: Vec<(PathBuf, Bytes)>,
        vocabulary: Option<u64>,
        text: Text<'_>,
    ) -> Result<Self, DataError> {
        let mut segments: Vec<Segment> = Vec::new();
        let mut start = 0;
        for (path, contents) in texts {
            let (bytes, width) = of_text(&path, contents, vocabulary, text)?;
            let segment = Segment { path, bytes, width, start };
            start += segment.len();
            segments.push(segment);
        }
        Ok(Self { name: path.display().to_string(), segments })
    }

    /// Returns the number of tokens.
    pub(super) fn len(&self) -> u64 {
        self.segments.last().map_or(0, |segment| segment.start + segment.len())
    }

    /// Calls `each` with the tokens `range`, in order.
    pub(super) fn read(&self, range: Range<u64>, mut each: impl FnMut(u32)) {
        assert!(range.end <= self.len(), "tokens {range:?} of {}", self.len());
        let (mut at, end) = (range.start, range.end);
        let mut index = self.segments.partition_point(|segment| segment.start + segment.len() <= at);
        while at < end {
            let segment = &self.segments[index];
            let upto = end.min(segment.start + segment.len());
            let bytes = (at - segment.start) as usize * segment.width
                ..(upto - segment.start) as usize * segment.width;
            segment.bytes[bytes].chunks_exact(segment.width).map(token).for_each(&mut each);
            at = upto;
            index += 1;
        }
    }

    /// Refuses the first token that is not below `vocabulary`. Reads all files once, unless the width of their tokens makes that
    /// unnecessary.
    pub(super) fn check_vocabulary(&self, vocabulary: u64) -> Result<(), DataError> {
        for segment in &self.segments {
            if vocabulary >= 1 << (8 * segment.width) {
                continue;
            }
            let outside = segment.tokens().enumerate().find(|(_, token)| u64::from(*token) >= vocabulary);
            if let Some((position, value)) = outside {
                return Err(DataError::OutsideVocabulary {
                    data: segment.path.display().to_string(),
                    position: position as u64,
                    value: value.into(),
                    vocabulary,
                });
            }
        }
        Ok(())
    }

    /// Returns a warning if u16 tokens look like wider ones: every second token is zero.
    pub(super) fn looks_wider(&self) -> Option<String> {
        let segment = self.segments.iter().find(|segment| segment.width == 2 && segment.len() >= 64)?;
        let high = segment.tokens().take(4096).skip(1).step_by(2);
        let low = segment.tokens().take(4096).step_by(2);
        (high.into_iter().all(|token| token == 0) && low.into_iter().any(|token| token != 0)).then(|| {
            format!(
                "every second token of `{}` is 0: was the file written as u32 or i64? Tokens of this \
                 vocabulary are read as u16",
                segment.path.display()
            )
        })
    }
}

/// Returns the tokens of a text, and the bytes per token.
fn of_text(
    path: &Path,
    contents: Bytes,
    vocabulary: Option<u64>,
    text: Text<'_>,
) -> Result<(Bytes, usize), DataError> {
    match text {
        Text::Tokenizer(tokenizer) => {
            vocabulary.map_or(Ok(()), |vocabulary| tokenizer.check_vocabulary(vocabulary))?;
            tokenizer.tokens(path, &contents)
        }
        Text::Bytes { forced } => {
            check_bytes(path, vocabulary, forced)?;
            Ok((contents, 1))
        }
    }
}

fn check_bytes(path: &Path, vocabulary: Option<u64>, forced: bool) -> Result<(), DataError> {
    match vocabulary {
        Some(vocabulary) if vocabulary > LARGEST_BYTE_VOCABULARY && !forced => {
            Err(DataError::TextNeedsTokenizer { path: path.to_owned(), vocabulary })
        }
        _ => Ok(()),
    }
}

/// Returns the tokens in the contents of a `.bin` file, and the bytes per token.
fn stored(path: &Path, contents: Bytes, vocabulary: Option<u64>) -> Result<(Bytes, usize), DataError> {
    let malformed = |reason| DataError::Malformed { path: path.to_owned(), reason };
    if let Some(tokens) = llmc::tokens(&contents).map_err(malformed)? {
        return Ok(tokens);
    }
    let width = if vocabulary.is_none_or(|vocabulary| vocabulary <= 1 << 16) { 2 } else { 4 };
    if !contents.len().is_multiple_of(width) {
        let (path, bytes, width) = (path.to_owned(), contents.len() as u64, width as u64);
        return Err(DataError::OddLength { path, bytes, width, vocabulary: vocabulary.unwrap_or(1 << 16) });
    }
    Ok((contents, width))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const BYTES: Text<'static> = Text::Bytes { forced: false };

    fn all(stream: &TokenStream) -> Vec<u32> {
        part(stream, 0..stream.len())
    }

    fn part(stream: &TokenStream, range: Range<u64>) -> Vec<u32> {
        let mut tokens = Vec::new();
        stream.read(range, |token| tokens.push(token));
        tokens
    }

    #[test]
    fn a_folder_is_read_in_the_order_of_its_names_across_files() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("b.txt"), "de").unwrap();
        fs::write(folder.path().join("a.txt"), "abc").unwrap();
        fs::write(folder.path().join("aa.txt"), "").unwrap();
        let stream = TokenStream::open(folder.path(), Some(256), BYTES).unwrap();
        assert_eq!(all(&stream), b"abcde".map(u32::from));
        assert_eq!(part(&stream, 2..4), b"cd".map(u32::from));
        assert_eq!(part(&stream, 3..5), b"de".map(u32::from));
        assert!(part(&stream, 5..5).is_empty());
    }

    #[test]
    fn raw_tokens_are_as_wide_as_the_vocabulary_needs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.bin");
        fs::write(&path, [1, 2, 0, 0, 255, 1, 0, 0]).unwrap();
        let narrow = TokenStream::open(&path, Some(65536), BYTES).unwrap();
        assert_eq!(all(&narrow), [513, 0, 511, 0]);
        assert_eq!(all(&TokenStream::open(&path, Some(65537), BYTES).unwrap()), [513, 511]);
        let error = narrow.check_vocabulary(512).unwrap_err().to_string();
        assert!(error.starts_with("token 513 at position 0 of"), "{error}");
        assert!(error.ends_with("outside the vocabulary of 512 (0 to 511)"), "{error}");
        narrow.check_vocabulary(514).unwrap();
    }

    #[test]
    fn a_file_that_ends_within_a_token_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.bin");
        fs::write(&path, [0; 6]).unwrap();
        TokenStream::open(&path, Some(50257), BYTES).unwrap();
        let error = TokenStream::open(&path, Some(100_000), BYTES).unwrap_err().to_string();
        assert!(error.contains("has 6 bytes, which is not a multiple of 4"), "{error}");
    }

    #[test]
    fn text_needs_a_byte_vocabulary_or_to_be_forced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("corpus.txt");
        fs::write(&path, "text").unwrap();
        let error = TokenStream::open(&path, Some(513), BYTES).unwrap_err().to_string();
        assert!(error.contains("--tokenizer bytes"), "{error}");
        assert_eq!(TokenStream::open(&path, Some(513), Text::Bytes { forced: true }).unwrap().len(), 4);
        assert_eq!(TokenStream::open(&path, Some(512), BYTES).unwrap().len(), 4);
    }

    #[test]
    fn u32_tokens_that_were_read_as_u16_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.bin");
        fs::write(&path, (1u32..100).flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap();
        assert!(TokenStream::open(&path, Some(256), BYTES).unwrap().looks_wider().is_some());
        fs::write(&path, (1u16..100).flat_map(u16::to_le_bytes).collect::<Vec<_>>()).unwrap();
        assert!(TokenStream::open(&path, Some(256), BYTES).unwrap().looks_wider().is_none());
    }

    #[test]
    fn tokens_with_a_header_are_as_wide_as_it_says() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, words: [u32; 3], tokens: &[u8]| {
            let mut file: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            file.resize(1024, 0);
            file.extend(tokens);
            fs::write(folder.path().join(name), file).unwrap();
        };
        write("a.bin", [20_240_520, 1, 2], &[1, 0, 2, 1]);
        write("b.bin", [20_240_801, 7, 1], &[3, 0, 0, 0]);
        let stream = TokenStream::open(folder.path(), Some(100_000), BYTES).unwrap();
        assert_eq!(all(&stream), [1, 258, 3]);
        write("b.bin", [20_240_801, 7, 2], &[3, 0, 0, 0]);
        let error = TokenStream::open(folder.path(), Some(100_000), BYTES).unwrap_err().to_string();
        assert!(
            error.contains("b.bin") && error.contains("announces 2 tokens, and the file has 1"),
            "{error}"
        );
    }
}
