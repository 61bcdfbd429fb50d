//! The header of llm.c's token files (`dev/data/data_common.py` there). It has 256 integers of 32 bits, little endian: a magic number, a
//! version, the number of tokens, and zeros. The tokens follow.

use bytes::Bytes;

const HEADER_BYTES: usize = 1024;

/// A kind of file.
struct Kind {
    magic: u32,
    version: u32,
    /// Bytes per token.
    width: usize,
}

/// The kinds of files: GPT-2's tokens are u16, and Llama 3's are u32.
const KINDS: [Kind; 2] =
    [Kind { magic: 20_240_520, version: 1, width: 2 }, Kind { magic: 20_240_801, version: 7, width: 4 }];

/// Returns the tokens after the header, and the bytes per token; `None` for a file without a header. The error is a sentence about the
/// fault of the header.
pub(super) fn tokens(file: &Bytes) -> Result<Option<(Bytes, usize)>, String> {
    let words: Vec<u32> = file
        .chunks_exact(4)
        .take(HEADER_BYTES / 4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect();
    let [magic, version, count, ref rest @ ..] = words[..] else { return Ok(None) };
    let Some(kind) = KINDS.iter().find(|kind| kind.magic == magic) else { return Ok(None) };
    // Raw tokens may begin with these bytes by chance, but do not continue with a header's zeros.
    if version != kind.version {
        return if rest.iter().all(|&word| word == 0) {
            Err(format!(
                "it has llm.c's header in version {version}; only version {} is supported",
                kind.version
            ))
        } else {
            Ok(None)
        };
    }
    if file.len() < HEADER_BYTES {
        return Err(format!("it ends after {} of the {HEADER_BYTES} bytes of llm.c's header", file.len()));
    }
    let tokens = file.slice(HEADER_BYTES..);
    let promised = u64::from(count) * kind.width as u64;
    if promised != tokens.len() as u64 {
        let there = tokens.len() / kind.width;
        return Err(format!("llm.c's header announces {count} tokens, and the file has {there}"));
    }
    Ok(Some((tokens, kind.width)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(words: [u32; 3], tokens: &[u8]) -> Bytes {
        let mut file: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        file.resize(HEADER_BYTES, 0);
        file.extend(tokens);
        file.into()
    }

    #[test]
    fn both_kinds_of_tokens_are_read() {
        let (narrow, width) = tokens(&file([20_240_520, 1, 3], &[1, 0, 2, 0, 3, 1])).unwrap().unwrap();
        assert_eq!((&narrow[..], width), ([1, 0, 2, 0, 3, 1].as_slice(), 2));
        let (wide, width) = tokens(&file([20_240_801, 7, 1], &[1, 2, 0, 0])).unwrap().unwrap();
        assert_eq!((&wide[..], width), ([1, 2, 0, 0].as_slice(), 4));
    }

    #[test]
    fn a_file_without_the_header_is_left_to_others() {
        assert!(tokens(&Bytes::new()).unwrap().is_none());
        assert!(tokens(&Bytes::from_static(&[1, 2, 3])).unwrap().is_none());
        assert!(tokens(&file([20_240_521, 1, 0], &[])).unwrap().is_none());
        let mut raw = 20_240_520u32.to_le_bytes().to_vec();
        raw.extend([7; 2000]);
        assert!(tokens(&raw.into()).unwrap().is_none());
    }

    #[test]
    fn a_header_that_does_not_fit_its_file_is_refused() {
        let refused = |file: Bytes| tokens(&file).unwrap_err();
        let whole = file([20_240_520, 1, 3], &[1, 0, 2, 0, 3, 1]);
        assert_eq!(refused(whole.slice(..1028)), "llm.c's header announces 3 tokens, and the file has 2");
        assert_eq!(
            refused(file([20_240_520, 1, 2], &[0; 6])),
            "llm.c's header announces 2 tokens, and the file has 3"
        );
        assert_eq!(refused(whole.slice(..100)), "it ends after 100 of the 1024 bytes of llm.c's header");
        assert!(refused(file([20_240_801, 1, 0], &[])).contains("in version 1; only version 7 is supported"));
        for length in 12..whole.len() {
            assert!(tokens(&whole.slice(..length)).is_err(), "{length}");
        }
    }
}
