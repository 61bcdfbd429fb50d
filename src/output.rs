//! The output folder: what a compilation and a run leave behind.
//!
//! `program.ir`, `plan.json`, `config.toml`, `metrics.jsonl`, `checkpoints/step-N/`, `model.onnx`, `model.safetensors`, and
//! `model-training.onnx` where the model was exported in training mode. Every
//! file is written under a temporary name and renamed, so that a reader never sees half of one. Nothing in the folder is
//! touched before everything that can be refused has been looked at: [`Folder::check`] only reads.

use ir::Diagnostic;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What the folder holds; anything else in it is not ours and stays.
const CONTENTS: [&str; 10] = [
    "program.ir",
    "plan.json",
    "config.toml",
    "metrics.jsonl",
    "checkpoints",
    "model.onnx",
    "model.onnx.data",
    "model-training.onnx",
    "model-training.onnx.data",
    "model.safetensors",
];

/// An output folder, perhaps not made yet.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// The folder at a path.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf() }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file or folder in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether a path leads to this folder.
    pub fn is(&self, path: &Path) -> bool {
        let canonical = fs::canonicalize(&self.path).ok();
        path == self.path || (canonical.is_some() && canonical == fs::canonicalize(path).ok())
    }

    /// Refuses a folder for a new run that holds another one, unless that may be thrown away (`force`) and has none of
    /// the files that the new run reads.
    pub fn check(&self, force: bool, reads: &[&Path]) -> Result<(), Diagnostic> {
        if self.path.exists() && !self.path.is_dir() {
            return Err(Diagnostic::new(format!("{} is not a folder", self.path.display()))
                .note("give another one: -o ANOTHER_DIR"));
        }
        let found = self.found();
        if found.is_empty() {
            return Ok(());
        }
        if !force {
            let message = format!("{} holds another run ({})", self.path.display(), found.join(", "));
            return Err(Diagnostic::new(message)
                .note("go on with it: --resume")
                .note("throw it away: --force")
                .note("or keep both: -o ANOTHER_DIR"));
        }
        let lost = |path: &&&Path| {
            let path = fs::canonicalize(path).unwrap_or_default();
            let mut ours = found.iter().filter_map(|name| fs::canonicalize(self.join(name)).ok());
            ours.any(|ours| path.starts_with(ours))
        };
        reads.iter().find(lost).map_or(Ok(()), |path| {
            let message = format!("--force throws away {}, which this run reads", path.display());
            Err(Diagnostic::new(message).note("keep it: -o ANOTHER_DIR"))
        })
    }

    /// Removes what is there of a run.
    pub fn clear(&self) -> Result<(), Diagnostic> {
        let remove = |name: &str| {
            let path = self.join(name);
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(|error| cannot("remove", &path, &error))
        };
        self.found().into_iter().try_for_each(remove)
    }

    fn found(&self) -> Vec<&'static str> {
        CONTENTS.into_iter().filter(|name| self.join(name).exists()).collect()
    }

    /// Writes files, all of them or none; the folder is made if it is not there.
    pub fn write(&self, files: &[(&str, &[u8])]) -> Result<(), Diagnostic> {
        let is_new = !self.path.exists();
        fs::create_dir_all(&self.path).map_err(|error| cannot("make the folder", &self.path, &error))?;
        let temporary = |name: &str| self.join(&format!(".{name}.tmp"));
        let write = |&(name, bytes): &(&str, &[u8])| {
            let mut file = fs::File::create(temporary(name))?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        let rename = |&(name, _): &(&str, &[u8])| fs::rename(temporary(name), self.join(name));
        let tell = |&(name, _): &(&str, &[u8]), error: io::Error| cannot("write", &self.join(name), &error);
        let written = files.iter().try_for_each(|file| write(file).map_err(|error| tell(file, error)));
        let renamed = || files.iter().try_for_each(|file| rename(file).map_err(|error| tell(file, error)));
        written.and_then(|()| renamed()).inspect_err(|_| {
            // Half a file is of no use; if it cannot be removed either, the first error says more.
            files.iter().for_each(|(name, _)| drop(fs::remove_file(temporary(name))));
            if is_new {
                let _ = fs::remove_dir(&self.path);
            }
        })
    }
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Diagnostic {
    Diagnostic::new(format!("cannot {what} {}: {error}", path.display()))
}
