//! TOML files.

use ir::Diagnostic;
use toml::Spanned;
use toml::de::DeTable;

use super::text_file::TextFile;

impl TextFile {
    /// The keys of the file with their values. Errors: the text is not TOML.
    pub(super) fn table(&self) -> Result<Spanned<DeTable<'_>>, Diagnostic> {
        DeTable::parse(self.text()).map_err(|error| {
            let origin = error.span().map_or(self.name().to_owned(), |span| self.line(span.start));
            Diagnostic::new(format!("not TOML: {}", error.message())).at(origin)
        })
    }
}
