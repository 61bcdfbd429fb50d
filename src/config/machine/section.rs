//! A table of a description. Its keys are read one by one, and every key that was not read is an error.

use ir::Diagnostic;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::super::file::describe;
use super::super::nearest::nearest;
use super::super::text_file::TextFile;

/// A table of a file.
pub(super) struct Section<'a> {
    file: &'a TextFile,
    /// The keys of the enclosing tables, each with a dot: `node.device.`.
    path: String,
    table: &'a DeTable<'a>,
    /// The keys that were read.
    known: Vec<&'static str>,
    faults: &'a mut Vec<Fault>,
}

/// A fault of a file: its byte in the text, and the error.
pub(super) type Fault = (usize, Diagnostic);

impl<'a> Section<'a> {
    /// The whole file. The faults that are found are added to `faults`.
    pub(super) fn new(file: &'a TextFile, table: &'a DeTable<'a>, faults: &'a mut Vec<Fault>) -> Self {
        Self { file, path: String::new(), table, known: vec![], faults }
    }

    /// Reads the table of a key, if there is one.
    pub(super) fn table(&mut self, key: &'static str, read: impl FnOnce(&mut Section)) {
        let Some(value) = self.value(key) else { return };
        let DeValue::Table(table) = value.get_ref() else { return self.refuse(key, value, "a table") };
        let path = format!("{}{key}.", self.path);
        let mut section = Section { file: self.file, path, table, known: vec![], faults: self.faults };
        read(&mut section);
        section.finish();
    }

    /// Reads a text.
    pub(super) fn text(&mut self, key: &'static str, text: &mut String) {
        let Some(value) = self.value(key) else { return };
        match value.get_ref() {
            DeValue::String(given) => *text = given.to_string(),
            _ => self.refuse(key, value, "a string"),
        }
    }

    /// Reads a name from a list of names with their values.
    pub(super) fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(T, &str)], chosen: &mut T) {
        let Some(value) = self.value(key) else { return };
        let DeValue::String(given) = value.get_ref() else { return self.refuse(key, value, "a string") };
        match choices.iter().find(|(_, name)| *name == given.as_ref()) {
            Some((choice, _)) => *chosen = *choice,
            None => {
                let names: Vec<&str> = choices.iter().map(|(_, name)| *name).collect();
                let message =
                    format!("`{}{key}`: `{given}` is not known; there are {}", self.path, names.join(", "));
                self.add(value.span().start, Diagnostic::new(message));
            }
        }
    }

    /// Reads a name that the table must have. `None` if it is missing or unknown, which is an error.
    pub(super) fn required<T: Copy>(&mut self, key: &'static str, choices: &[(T, &str)]) -> Option<T> {
        if self.value(key).is_none() {
            let names: Vec<&str> = choices.iter().map(|(_, name)| *name).collect();
            let error = Diagnostic::new(format!("there is no key `{}{key}`", self.path))
                .note(format!("name the machine that the description starts from: {}", names.join(", ")));
            self.faults.push((0, error.at(self.file.name())));
            return None;
        }
        let mut chosen = None;
        let choices: Vec<(Option<T>, &str)> =
            choices.iter().map(|(choice, name)| (Some(*choice), *name)).collect();
        self.choice(key, &choices, &mut chosen);
        chosen
    }

    /// Reads a whole number from 1.
    pub(super) fn count(&mut self, key: &'static str, count: &mut u64) {
        let mut number = 0.0;
        self.number(key, &mut number, "a whole number from 1", |number| {
            number >= 1.0 && number.fract() == 0.0 && number <= MOST
        });
        if number > 0.0 {
            *count = number as u64;
        }
    }

    /// Reads a number above 0.
    pub(super) fn positive(&mut self, key: &'static str, number: &mut f64) {
        self.number(key, number, "a finite number above 0", |number| number.is_finite() && number > 0.0);
    }

    /// Reads a number that may be 0.
    pub(super) fn not_negative(&mut self, key: &'static str, number: &mut f64) {
        self.number(key, number, "a finite number, 0 or more", |number| number.is_finite() && number >= 0.0);
    }

    /// Reads a fraction of a peak.
    pub(super) fn fraction(&mut self, key: &'static str, number: &mut f64) {
        self.number(key, number, "a number above 0, at most 1", |number| number > 0.0 && number <= 1.0);
    }

    /// Adds an error for each key that was not read, with the nearest known key.
    pub(super) fn finish(mut self) {
        let known = self.known.clone();
        for key in self.table.keys().filter(|key| !known.contains(&&**key.get_ref())) {
            let near = nearest(key.get_ref(), known.iter().copied()).unwrap_or_default();
            let error = Diagnostic::new(format!("unknown key `{}{}`", self.path, key.get_ref()))
                .note(format!("the nearest known key is `{}{near}`", self.path));
            self.add(key.span().start, error);
        }
    }

    fn number(&mut self, key: &'static str, number: &mut f64, wanted: &str, is_valid: impl Fn(f64) -> bool) {
        let Some(value) = self.value(key) else { return };
        let given = match value.get_ref() {
            DeValue::Integer(given) => {
                i64::from_str_radix(given.as_str(), given.radix()).ok().map(|given| given as f64)
            }
            DeValue::Float(given) => given.as_str().parse::<f64>().ok(),
            _ => None,
        };
        match given.filter(|given| is_valid(*given)) {
            Some(given) => *number = given,
            None => self.refuse(key, value, wanted),
        }
    }

    fn value(&mut self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.known.push(key);
        self.table.get(key)
    }

    fn refuse(&mut self, key: &str, value: &Spanned<DeValue<'_>>, wanted: &str) {
        let given = describe(value.get_ref());
        let error = Diagnostic::new(format!("`{}{key}` wants {wanted}, not {given}", self.path));
        self.add(value.span().start, error);
    }

    fn add(&mut self, byte: usize, error: Diagnostic) {
        self.faults.push((byte, error.at(self.file.line(byte))));
    }
}

/// The largest number up to which an `f64` holds every whole number exactly.
const MOST: f64 = (1u64 << 53) as f64;
