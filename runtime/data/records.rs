//! The records of a comma-separated text (RFC 4180): quoted cells may hold delimiters, line ends, and doubled quotes.

use std::borrow::Cow;

/// The largest number of columns of a record. A cell takes more memory than its text, and a line of 1 GB may have a billion cells.
const MOST_COLUMNS: usize = 1 << 24;

/// The remaining records of a text.
#[derive(Clone, Debug)]
pub(super) struct Records<'a> {
    rest: &'a [u8],
    delimiter: u8,
    /// The number of lines before `rest`.
    lines: u64,
}

impl<'a> Records<'a> {
    /// Returns all records of `text` without its byte order mark, if it has one.
    pub(super) fn new(text: &'a [u8], delimiter: u8) -> Self {
        let rest = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        Self { rest, delimiter, lines: 0 }
    }

    /// Puts the cells of the next record into `cells`. Returns the line on which it starts, counted from 1, or `None` at the end. Empty
    /// lines are skipped. The error is a sentence about the fault.
    pub(super) fn next(&mut self, cells: &mut Vec<Cow<'a, str>>) -> Result<Option<u64>, String> {
        cells.clear();
        loop {
            if self.rest.is_empty() {
                return Ok(None);
            }
            let line = self.lines + 1;
            let record = self.take_record().ok_or_else(|| format!("a quote on line {line} is not closed"))?;
            if record.is_empty() {
                continue;
            }
            let text = std::str::from_utf8(record).map_err(|_| format!("line {line} is not UTF-8 text"))?;
            let columns = record.iter().filter(|&&byte| byte == self.delimiter).count();
            if columns >= MOST_COLUMNS {
                return Err(format!("line {line} has more than {MOST_COLUMNS} columns"));
            }
            if record.contains(&b'"') {
                self.quoted(text, cells).map_err(|reason| format!("line {line}: {reason}"))?
            } else {
                cells.extend(text.split(char::from(self.delimiter)).map(Cow::Borrowed))
            }
            return Ok(Some(line));
        }
    }

    /// Returns the next record without its line end; `None` if a quote is not closed.
    fn take_record(&mut self) -> Option<&'a [u8]> {
        let (mut end, mut quotes) = (0, 0usize);
        loop {
            let line = self.rest[end..].iter().position(|&byte| byte == b'\n');
            let stop = line.map_or(self.rest.len(), |line| end + line);
            quotes += self.rest[end..stop].iter().filter(|&&byte| byte == b'"').count();
            self.lines += 1;
            let is_whole = quotes.is_multiple_of(2);
            if is_whole || line.is_none() {
                let record = &self.rest[..stop];
                self.rest = self.rest.get(stop + 1..).unwrap_or_default();
                return is_whole.then(|| record.strip_suffix(b"\r").unwrap_or(record));
            }
            end = stop + 1;
        }
    }

    fn quoted(&self, record: &str, cells: &mut Vec<Cow<'a, str>>) -> Result<(), &'static str> {
        let delimiter = char::from(self.delimiter);
        let mut rest = record;
        loop {
            let Some(mut inside) = rest.strip_prefix('"') else {
                let (cell, after) =
                    rest.split_once(delimiter).map_or((rest, None), |(cell, after)| (cell, Some(after)));
                if cell.contains('"') {
                    return Err("a quote stands within a cell that does not begin with a quote");
                }
                cells.push(Cow::Owned(cell.to_owned()));
                match after {
                    Some(after) => rest = after,
                    None => return Ok(()),
                }
                continue;
            };
            let mut cell = String::new();
            loop {
                let (part, after) = inside.split_once('"').ok_or("a quote is not closed")?;
                cell += part;
                inside = after;
                match inside.strip_prefix('"') {
                    Some(after) => {
                        cell.push('"');
                        inside = after;
                    }
                    None => break,
                }
            }
            cells.push(Cow::Owned(cell));
            match inside.strip_prefix(delimiter) {
                Some(after) => rest = after,
                None if inside.is_empty() => return Ok(()),
                None => return Err("a closing quote is followed by other characters"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(text: &str) -> Result<Vec<(u64, Vec<String>)>, String> {
        let mut records = Records::new(text.as_bytes(), b',');
        let (mut cells, mut found) = (Vec::new(), Vec::new());
        while let Some(line) = records.next(&mut cells)? {
            found.push((line, cells.iter().map(|cell| cell.to_string()).collect()));
        }
        Ok(found)
    }

    fn records(text: &str) -> Vec<(u64, Vec<String>)> {
        all(text).unwrap()
    }

    fn owned(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|cell| (*cell).to_owned()).collect()
    }

    #[test]
    fn lines_of_either_end_become_records_with_their_numbers() {
        let expected = [(1, owned(&["a", "b"])), (2, owned(&["1", ""])), (4, owned(&["", "2"]))];
        assert_eq!(records("\u{feff}a,b\r\n1,\r\n\r\n,2"), expected);
        assert_eq!(records("a,b\n1,\n\n,2\n"), expected);
        assert!(records("").is_empty());
        assert!(records("\n\r\n").is_empty());
    }

    #[test]
    fn a_quoted_cell_may_hold_anything() {
        let expected = [(1, owned(&["a,b", "say \"x\"", "two\nlines", ""])), (3, owned(&["c"]))];
        assert_eq!(records("\"a,b\",\"say \"\"x\"\"\",\"two\nlines\",\"\"\nc"), expected);
    }

    #[test]
    fn a_line_of_too_many_columns_is_told() {
        let most = ",".repeat(MOST_COLUMNS - 1);
        assert_eq!(records(&most)[0].1.len(), MOST_COLUMNS);
        assert_eq!(all(&format!("a\n{most},")).unwrap_err(), "line 2 has more than 16777216 columns");
    }

    #[test]
    fn a_quote_out_of_place_is_told_with_its_line() {
        assert_eq!(all("a\n\"b,c\nd").unwrap_err(), "a quote on line 2 is not closed");
        assert_eq!(
            all("a\"\"b").unwrap_err(),
            "line 1: a quote stands within a cell that does not begin with a quote"
        );
        assert_eq!(all("\"a\"b,c").unwrap_err(), "line 1: a closing quote is followed by other characters");
    }

    proptest! {
        #[test]
        fn what_is_quoted_reads_back(cells in proptest::collection::vec("[a\",\n ]{0,4}", 1..5)) {
            let quote = |cell: &String| format!("\"{}\"", cell.replace('"', "\"\""));
            let text = cells.iter().map(quote).collect::<Vec<_>>().join(",");
            prop_assert_eq!(records(&text), [(1, cells)]);
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "[a\",\r\n]{0,30}") {
            let _ = all(&text);
        }
    }
}
