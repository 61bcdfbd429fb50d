//! The folders of a run's checkpoints.

use super::error::CheckpointError;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The checkpoints of one run, in DIR/checkpoints.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    pub(super) folder: PathBuf,
}

impl Checkpoints {
    /// Makes the checkpoints in `folder` (DIR/checkpoints). Nothing is created before the first save.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Returns the folder that has a folder for each checkpoint.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the checkpoint of a step.
    pub fn path(&self, step: u64) -> PathBuf {
        self.folder.join(format!("step-{step}"))
    }
}

/// Returns the step in the name `step-N` of a folder.
pub(super) fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.parse().ok()
}

/// Returns the folders `step-N`, sorted by N.
pub(super) fn folders(folder: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let read = |source| CheckpointError::Read { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(read)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(read)?;
        let step = entry.file_name().to_str().and_then(step_of);
        found.extend(step.map(|step| (step, entry.path())));
    }
    found.sort();
    Ok(found)
}
