//! The options of passes as text: `(next-token, ignore=-1)`, with quotes around words that have special characters.

pub mod pattern;

use std::fmt;
use std::str::FromStr;

/// The options of one pass as text: `key=value` pairs, and values without a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// Key, empty if there is none, and value, in the order written.
    entries: Vec<(String, String)>,
}

impl Arguments {
    /// Adds `key=value`; an empty key adds a bare value.
    pub fn push(&mut self, key: &str, value: impl fmt::Display) {
        self.entries.push((key.into(), value.to_string()));
    }

    /// Adds `key=value` unless it is the default.
    pub fn push_unless<T: fmt::Display + PartialEq>(&mut self, default: &T, key: &str, value: &T) {
        if value != default {
            self.push(key, value);
        }
    }

    /// Adds the bare word if `set`.
    pub fn push_flag(&mut self, word: &str, set: bool) {
        if set {
            self.push("", word);
        }
    }

    /// Removes the first entry of a key, and returns its text.
    pub fn take(&mut self, key: &str) -> Option<String> {
        let at = self.entries.iter().position(|(k, _)| k == key)?;
        Some(self.entries.remove(at).1)
    }

    /// Removes all entries of a key, and returns their texts in order.
    pub fn take_all(&mut self, key: &str) -> Vec<String> {
        std::iter::from_fn(|| self.take(key)).collect()
    }

    /// Removes all entries that are left, and returns them with their keys.
    pub fn take_rest(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.entries)
    }

    /// Returns the key of the first entry that is left, or its value if it has no key.
    pub(crate) fn first_left(&self) -> Option<&str> {
        self.entries.first().map(|(key, value)| if key.is_empty() { &**value } else { &**key })
    }

    /// Removes a key and returns its value, or the default if the key is missing.
    pub fn value<T: FromStr>(&mut self, key: &str, default: T) -> Result<T, String> {
        match self.take(key) {
            Some(text) => value_of(key, &text),
            None => Ok(default),
        }
    }

    /// Removes the bare word, and returns whether it was there.
    pub fn flag(&mut self, word: &str) -> bool {
        match self.entries.iter().position(|(key, value)| key.is_empty() && value == word) {
            Some(at) => {
                self.entries.remove(at);
                true
            }
            None => false,
        }
    }

    /// Removes the first of these words that stands bare, and returns its meaning.
    pub fn word<T: Copy>(&mut self, words: &[(T, &str)]) -> Option<T> {
        words.iter().find(|(_, word)| self.flag(word)).map(|(meaning, _)| *meaning)
    }
}

/// The options of a pass while they are read from text, or written as text. [`crate::Transform::options`] names each option once, for
/// both. Reading starts from the pass's `Default`. A list or an optional value that is not given becomes empty.
pub struct Options<'a> {
    arguments: &'a mut Arguments,
    is_reading: bool,
    /// The first fault in the text.
    fault: Option<String>,
}

impl<'a> Options<'a> {
    /// Reads the options that `name` names. Options that it does not name stay in `arguments`.
    ///
    /// # Errors
    /// The first fault in the text.
    pub fn read(arguments: &'a mut Arguments, name: impl FnOnce(&mut Self)) -> Result<(), String> {
        let mut options = Self { arguments, is_reading: true, fault: None };
        name(&mut options);
        options.fault.map_or(Ok(()), Err)
    }

    /// Writes the options that `name` names.
    pub fn write(arguments: &'a mut Arguments, name: impl FnOnce(&mut Self)) {
        name(&mut Self { arguments, is_reading: false, fault: None });
    }

    /// Whether the options are read.
    pub fn is_reading(&self) -> bool {
        self.is_reading
    }

    /// Names an option of another form.
    pub fn custom<T>(
        &mut self,
        value: &mut T,
        read: impl FnOnce(&mut Arguments) -> Result<T, String>,
        write: impl FnOnce(&T, &mut Arguments),
    ) {
        if !self.is_reading {
            return write(value, self.arguments);
        }
        match read(self.arguments) {
            Ok(given) => *value = given,
            Err(fault) => drop(self.fault.get_or_insert(fault)),
        }
    }

    /// Names `key=value`.
    pub fn written<T: FromStr + fmt::Display + Clone>(&mut self, key: &str, value: &mut T) {
        let old = value.clone();
        self.custom(value, |from| from.value(key, old), |value, to| to.push(key, value));
    }

    /// Names `key=value`, which is not written if the value is `default`.
    pub fn value<T: FromStr + fmt::Display + Clone + PartialEq>(
        &mut self,
        key: &str,
        value: &mut T,
        default: T,
    ) {
        if self.is_reading || *value != default {
            self.written(key, value);
        }
    }

    /// Names `key=value`, which is not written if there is no value.
    pub fn optional<T: fmt::Display>(
        &mut self,
        key: &str,
        value: &mut Option<T>,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) {
        let read = |from: &mut Arguments| from.take(key).as_deref().map(read).transpose();
        self.custom(value, read, |value, to| {
            if let Some(value) = value {
                to.push(key, value);
            }
        });
    }

    /// Names `key=value key=value`.
    pub fn list<T: FromStr<Err: fmt::Display> + fmt::Display>(&mut self, key: &str, values: &mut Vec<T>) {
        let parse = |text: &String| text.parse::<T>().map_err(|error| error.to_string());
        let read = |from: &mut Arguments| from.take_all(key).iter().map(parse).collect();
        self.custom(values, read, |values, to| values.iter().for_each(|value| to.push(key, value)));
    }

    /// Names `key=value/value`, with any separator. An empty list is not written.
    pub fn joined<T: fmt::Display>(
        &mut self,
        key: &str,
        separator: char,
        values: &mut Vec<T>,
        read: impl FnMut(&str) -> Result<T, String>,
    ) {
        let split = |from: &mut Arguments| {
            let text = from.take(key).unwrap_or_default();
            text.split(separator).filter(|text| !text.is_empty()).map(read).collect()
        };
        self.custom(values, split, |values, to| {
            let texts: Vec<String> = values.iter().map(T::to_string).collect();
            to.push_unless(&String::new(), key, &texts.join(&separator.to_string()));
        });
    }

    /// Names a bare word that stands for `true`.
    pub fn flag(&mut self, word: &str, value: &mut bool) {
        let old = *value;
        self.custom(value, |from| Ok(from.flag(word) || old), |value, to| to.push_flag(word, *value));
    }

    /// Names a bare word for each meaning. The word of `unwritten` is not written.
    pub fn word<T: Copy + PartialEq>(&mut self, words: &[(T, &str)], value: &mut T, unwritten: Option<T>) {
        let old = *value;
        let read = |from: &mut Arguments| Ok(from.word(words).unwrap_or(old));
        self.custom(value, read, |value, to| {
            let own = words.iter().find(|(meaning, _)| meaning == value);
            if let Some((_, word)) = own.filter(|_| unwritten != Some(*value)) {
                to.push("", word);
            }
        });
    }

    /// Refuses the options that were read, if there is a fault.
    pub fn check(&mut self, fault: impl FnOnce() -> Option<String>) {
        if self.is_reading && self.fault.is_none() {
            self.fault = fault();
        }
    }
}

/// Reads the value of an option.
///
/// # Errors
/// The text has another form.
pub fn value_of<T: FromStr>(key: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is not a value of `{key}`"))
}

impl fmt::Display for Arguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.entries.is_empty() {
            return Ok(());
        }
        let text = |(key, value): &(String, String)| {
            if key.is_empty() { quoted(value) } else { format!("{}={}", quoted(key), quoted(value)) }
        };
        write!(f, "({})", self.entries.iter().map(text).collect::<Vec<_>>().join(", "))
    }
}

/// Characters that end a bare word.
fn is_special(c: char) -> bool {
    matches!(c, ',' | '(' | ')' | '"' | '=') || c.is_whitespace()
}

fn quoted(text: &str) -> String {
    if !text.is_empty() && !text.contains(is_special) {
        return text.into();
    }
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}

/// Reads the text of passes, one after the other.
pub(crate) struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    /// Starts before the first pass of the text.
    pub(crate) fn new(text: &'a str) -> Self {
        Self { rest: text.trim_start() }
    }

    /// Whether no pass is left.
    pub(crate) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads the next pass: its name and its options.
    pub(crate) fn pass(&mut self) -> Result<(String, Arguments), String> {
        let name = self.word()?;
        let mut arguments = Arguments::default();
        if self.eat('(') {
            while !self.eat(')') {
                let first = self.word()?;
                if self.eat('=') {
                    arguments.entries.push((first, self.word()?));
                } else {
                    arguments.entries.push((String::new(), first));
                }
                if !self.eat(',') && !self.rest.starts_with(')') {
                    return Err(format!(
                        "pass `{name}`: `,` or `)` should follow its options, not `{}`",
                        self.rest
                    ));
                }
            }
        }
        Ok((name, arguments))
    }

    fn eat(&mut self, c: char) -> bool {
        let rest = self.rest.strip_prefix(c);
        self.rest = rest.unwrap_or(self.rest).trim_start();
        rest.is_some()
    }

    fn word(&mut self) -> Result<String, String> {
        if let Some(rest) = self.rest.strip_prefix('"') {
            self.rest = rest;
            return self.quoted();
        }
        let end = self.rest.find(is_special).unwrap_or(self.rest.len());
        if end == 0 {
            return Err(format!("a word should stand before `{}`", self.rest));
        }
        let word = self.rest[..end].to_string();
        self.rest = self.rest[end..].trim_start();
        Ok(word)
    }

    fn quoted(&mut self) -> Result<String, String> {
        let (mut word, mut escaped) = (String::new(), false);
        for (at, c) in self.rest.char_indices() {
            match c {
                '"' if !escaped => {
                    self.rest = self.rest[at + 1..].trim_start();
                    return Ok(word);
                }
                '\\' if !escaped => escaped = true,
                _ => {
                    word.push(c);
                    escaped = false;
                }
            }
        }
        Err("a `\"` is not closed".into())
    }
}
