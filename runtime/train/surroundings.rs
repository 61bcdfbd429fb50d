//! What a run takes for granted while it goes on: the files that it reads stay as they are, and its folder stays its own.

use super::error::TrainError;
use files::FolderLock;
use std::path::PathBuf;

/// The files and the folder of a run.
#[derive(Debug, Default)]
pub struct Surroundings {
    /// Files that the run reads, or folders of them: the model and the data.
    pub inputs: Vec<PathBuf>,
    /// The lock of the folder that the run writes. `None` where the file system has no locks.
    pub lock: Option<FolderLock>,
}

impl Surroundings {
    /// Looks whether everything is as it was when the run began.
    ///
    /// # Errors
    /// A file that was changed or cut off; a folder that was moved or removed.
    pub fn check(&self) -> Result<(), TrainError> {
        files::unchanged(&self.inputs)?;
        match &self.lock {
            Some(lock) if !lock.is_in_place() => {
                Err(TrainError::FolderGone { path: lock.folder().to_owned() })
            }
            _ => Ok(()),
        }
    }
}
