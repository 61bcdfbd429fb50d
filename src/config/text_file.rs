//! The text of a file, with the line of each place in it for errors.

use std::path::Path;

use ir::Diagnostic;

/// The text of a file. `toml_file` and `json_file` parse it.
pub(super) struct TextFile {
    /// The file's name in errors.
    name: String,
    text: String,
}

impl TextFile {
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

    /// The file's name in errors.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The whole text.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The line of a byte of the text, as `FILE:LINE`.
    pub(super) fn line(&self, byte: usize) -> String {
        let newlines_before = self.text.bytes().take(byte).filter(|byte| *byte == b'\n').count();
        format!("{}:{}", self.name, newlines_before + 1)
    }
}
