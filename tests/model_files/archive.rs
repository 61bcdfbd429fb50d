//! The archive of the tests: a gzipped tar (POSIX ustar) of regular files and hard links, as `pack_node_tests.py`
//! writes it.

use bytes::Bytes;
use flate2::read::GzDecoder;
use std::collections::BTreeMap;
use std::io::Read;

/// A test's files by their path in the test's folder.
pub(crate) type Files = BTreeMap<String, Bytes>;

/// Tar's unit.
const BLOCK: usize = 512;

/// The files of each test.
pub(crate) fn unpack(archive: &[u8]) -> Result<BTreeMap<String, Files>, String> {
    let mut tar = Vec::new();
    GzDecoder::new(archive).read_to_end(&mut tar).map_err(|error| error.to_string())?;
    let tar = Bytes::from(tar);
    let mut all: BTreeMap<String, Bytes> = BTreeMap::new();
    let mut at = 0;
    while let Some(header) = tar.get(at..at + BLOCK).filter(|header| header[0] != 0) {
        let (name, link) = (text(&header[..100]), text(&header[157..257]));
        let size = usize::from_str_radix(text(&header[124..136]).trim(), 8)
            .map_err(|_| format!("{name}: its size is no number"))?;
        let start = at + BLOCK;
        let content = match header[156] {
            b'0' if start + size <= tar.len() => tar.slice(start..start + size),
            b'1' => all.get(&link).cloned().ok_or_else(|| format!("{name} is a link to nothing"))?,
            _ => return Err(format!("{name} is neither a whole file nor a link")),
        };
        all.insert(name, content);
        at = start + size.next_multiple_of(BLOCK);
    }
    let mut tests: BTreeMap<String, Files> = BTreeMap::new();
    for (path, content) in all {
        let (test, file) = path.split_once('/').ok_or_else(|| format!("{path} is in no test"))?;
        tests.entry(test.to_owned()).or_default().insert(file.to_owned(), content);
    }
    Ok(tests)
}

/// A field's text, up to its end or the first zero.
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}
