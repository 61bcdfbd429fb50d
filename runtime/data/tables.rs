//! Named arrays of one file, or of the files of a folder. Each key runs through all files.

use std::path::{Path, PathBuf};

use super::column::Column;
use super::error::DataError;
use super::table::Table;
use super::table_array::Named;

/// The files, at least one, sorted by name.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    /// The file or folder.
    pub(super) path: PathBuf,
    files: Vec<Table>,
}

impl Tables {
    /// Opens the files. Errors: a file is missing or damaged.
    pub(super) fn open(path: &Path, files: &[PathBuf]) -> Result<Self, DataError> {
        let files = files.iter().map(|file| Table::open(file)).collect::<Result<_, _>>()?;
        Ok(Self { path: path.to_owned(), files })
    }

    /// Returns the keys of the first file, sorted.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.files.iter().take(1).flat_map(Table::keys)
    }

    /// Returns whether the first file has this key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.keys().any(|known| known == key)
    }

    /// Returns the key that feeds input `name`: the name itself, or `input.NAME`.
    pub(super) fn key_for_input(&self, name: &str) -> Option<String> {
        self.files.first()?.key_for_input(name)
    }

    /// Returns the key of a file that has only one.
    pub(super) fn only_key(&self) -> Option<String> {
        let mut keys = self.keys();
        let only = keys.next()?;
        keys.next().is_none().then(|| only.to_owned())
    }

    /// Returns the arrays at `key` for `column`, one for each file; `hint` names an alternative if there is none.
    ///
    /// # Errors
    /// A file has no such key; an array does not fit the column, is damaged, or takes too much memory.
    pub(super) fn arrays(&self, key: &str, hint: &str, column: &Column) -> Result<Vec<Named>, DataError> {
        self.files.iter().map(|table| table.named(key, hint, column)).collect()
    }

    /// Returns the reason why there is nothing at `key`; `hint` names an alternative.
    pub(super) fn missing(&self, key: &str, hint: &str) -> DataError {
        match self.files.first() {
            Some(first) => first.missing(key, hint),
            None => DataError::NoSamples { data: self.path.display().to_string() },
        }
    }

    /// Returns the reason why the array of input `name` cannot be used, if the file has one.
    pub(super) fn unusable_input(&self, name: &str) -> Option<DataError> {
        self.files.first()?.unusable_input(name)
    }
}
