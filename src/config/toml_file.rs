//! The text of a TOML file, with the line of each place in it for errors.

use std::path::Path;

use ir::Diagnostic;
use toml::Spanned;
use toml::de::DeTable;

/// The text of a TOML file.
pub(super) struct TomlFile {
    /// Its name in errors.
    name: String,
    text: String,
}

impl TomlFile {
    /// The text of a file in memory.
    pub(super) fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into() }
    }

    /// Reads a file; errors call it `what`.
    pub(super) fn read(path: &Path, what: &str) -> Result<Self, Diagnostic> {
        let name = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self { name, text }),
            Err(error) => Err(Diagnostic::new(format!("cannot read {what}: {error}")).at(name)),
        }
    }

    /// Its name in errors.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its keys with their values. Errors: the text is not TOML.
    pub(super) fn table(&self) -> Result<Spanned<DeTable<'_>>, Diagnostic> {
        DeTable::parse(&self.text).map_err(|error| {
            let origin = error.span().map_or(self.name.clone(), |span| self.line(span.start));
            Diagnostic::new(format!("not TOML: {}", error.message())).at(origin)
        })
    }

    /// The line of a byte of the text, as `FILE:LINE`.
    pub(super) fn line(&self, byte: usize) -> String {
        let newlines_before = self.text.bytes().take(byte).filter(|byte| *byte == b'\n').count();
        format!("{}:{}", self.name, newlines_before + 1)
    }
}
