//! A table of a description. Its keys are read one by one, and every key that was not read is an error.

use ir::Diagnostic;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::super::file::{describe, digits};
use super::super::nearest::nearest;
use super::super::text_file::TextFile;
use super::{Fields, Range};

/// A table of a file.
pub(super) struct Section<'a> {
    file: &'a TextFile,
    /// The keys of the enclosing tables, each with a dot: `node.device.`.
    path: String,
    table: &'a DeTable<'a>,
    /// The keys that were read.
    known: Vec<&'static str>,
    faults: Vec<Fault>,
}

/// A fault of a file: its byte in the text, and the error.
pub(super) type Fault = (usize, Diagnostic);

impl<'a> Section<'a> {
    /// The whole file.
    pub(super) fn new(file: &'a TextFile, table: &'a DeTable<'a>) -> Self {
        Self { file, path: String::new(), table, known: vec![], faults: vec![] }
    }

    /// Reads a name that the table must have. `None` if it is missing or unknown, which is an error.
    pub(super) fn required<T: Copy + PartialEq>(
        &mut self,
        key: &'static str,
        choices: &[(T, &str)],
    ) -> Option<T> {
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

    /// Returns the faults that were found, with one for each key that was not read and the nearest known key.
    pub(super) fn finish(mut self) -> Vec<Fault> {
        let known = std::mem::take(&mut self.known);
        for key in self.table.keys().filter(|key| !known.contains(&&**key.get_ref())) {
            let near = nearest(key.get_ref(), known.iter().copied()).unwrap_or_default();
            let error = Diagnostic::new(format!("unknown key `{}{}`", self.path, key.get_ref()))
                .note(format!("the nearest known key is `{}{near}`", self.path));
            self.add(key.span().start, error);
        }
        self.faults
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

impl Fields for Section<'_> {
    fn text(&mut self, key: &'static str, text: &mut String) {
        let Some(value) = self.value(key) else { return };
        match value.get_ref() {
            DeValue::String(given) => *text = given.to_string(),
            _ => self.refuse(key, value, "a string"),
        }
    }

    fn choice<T: Copy + PartialEq>(&mut self, key: &'static str, choices: &[(T, &str)], chosen: &mut T) {
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

    fn count(&mut self, key: &'static str, count: &mut u64) {
        let mut number = 0.0;
        let is_count = |number: f64| number >= 1.0 && number.fract() == 0.0 && number <= MOST;
        self.number(key, &mut number, ("a whole number from 1", is_count));
        if number > 0.0 {
            *count = number as u64;
        }
    }

    fn number(&mut self, key: &'static str, number: &mut f64, (wanted, is_valid): Range) {
        let Some(value) = self.value(key) else { return };
        let fits = |digits: &String| {
            !matches!(value.get_ref(), DeValue::Integer(_)) || digits.parse::<i64>().is_ok()
        };
        let given = digits(value.get_ref()).filter(fits).and_then(|digits| digits.parse::<f64>().ok());
        match given.filter(|given| is_valid(*given)) {
            Some(given) => *number = given,
            None => self.refuse(key, value, wanted),
        }
    }

    fn table(&mut self, key: &'static str, visit: impl FnOnce(&mut Self)) {
        let Some(value) = self.value(key) else { return };
        let DeValue::Table(table) = value.get_ref() else { return self.refuse(key, value, "a table") };
        let (path, faults) = (format!("{}{key}.", self.path), std::mem::take(&mut self.faults));
        let mut section = Section { file: self.file, path, table, known: vec![], faults };
        visit(&mut section);
        self.faults = section.finish();
    }
}

/// The largest number up to which an `f64` holds every whole number exactly.
const MOST: f64 = (1u64 << 53) as f64;
