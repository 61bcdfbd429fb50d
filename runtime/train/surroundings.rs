//! The files and the folder of a run, which must not change while the run goes on.

use super::error::TrainError;
use checkpoint::PendingFingerprint;
use files::{Change, FileChanged, FolderLock};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The time between two checks, as a multiple of the time of a check: data can be a million files.
const REST: u32 = 50;
/// The shortest time between two checks: a step can take a millisecond.
const LEAST_REST: Duration = Duration::from_secs(1);
/// The longest time between two checks, after a check that hashed data for an hour.
const MOST_REST: Duration = Duration::from_secs(600);

/// The files that a run reads, and the folder that it writes.
#[derive(Debug, Default)]
pub struct Surroundings {
    /// Files of training and evaluation data, or folders of them.
    data: Vec<PathBuf>,
    /// The model's files, or folders of them.
    model: Vec<PathBuf>,
    /// The lock of the output folder. `None` if the file system has no locks.
    lock: Option<FolderLock>,
    /// The time of the next check. `None` means now.
    next_check: Option<Instant>,
}

impl Surroundings {
    /// Makes the surroundings of a run that reads its samples from `data`, maps the files of `model`, and writes into the folder of the
    /// lock. A file in both lists counts as data.
    pub fn new(data: Vec<PathBuf>, model: Vec<PathBuf>, lock: Option<FolderLock>) -> Self {
        Self { data, model, lock, next_check: None }
    }

    /// Checks the folder and the model's files, but not the data, which a completed run no longer needs. `kept` is the newest checkpoint.
    ///
    /// # Errors
    /// A file of the model was written to or cut off; the folder was moved or removed.
    pub fn check_after_training(&self, kept: Option<&PathBuf>) -> Result<(), TrainError> {
        self.check_folder()?;
        self.accept_model(kept).map(drop)
    }

    /// Checks the folder and all files. Returns the harmless changes, after which the mapped bytes are still those of the beginning.
    ///
    /// # Errors
    /// The mapped bytes of a file are lost or may have changed; the folder was moved or removed; data cannot be read.
    pub(super) fn check(
        &mut self,
        fingerprints: [&mut PendingFingerprint; 2],
        kept: Option<&PathBuf>,
    ) -> Result<Vec<FileChanged>, TrainError> {
        let begun = Instant::now();
        self.check_folder()?;
        let mut accepted = self.accept_model(kept)?;
        accepted.extend(self.accept_data(fingerprints, kept)?);
        let rest = begun.elapsed().saturating_mul(REST).clamp(LEAST_REST, MOST_REST);
        self.next_check = Some(Instant::now() + rest);
        Ok(accepted)
    }

    /// Returns whether the last check was long enough ago for the next one.
    pub(super) fn are_due(&self) -> bool {
        self.next_check.is_none_or(|next| Instant::now() >= next)
    }

    /// Checks the output folder.
    ///
    /// # Errors
    /// The folder was moved or removed, or another run may write into it.
    pub(super) fn check_folder(&self) -> Result<(), TrainError> {
        match &self.lock {
            Some(lock) if !lock.is_in_place() => {
                Err(TrainError::FolderGone { path: lock.folder().to_owned() })
            }
            Some(lock) if !lock.is_held() => Err(TrainError::LockGone { path: lock.folder().to_owned() }),
            _ => Ok(()),
        }
    }

    /// Accepts model files that were replaced or removed, because a mapped file then keeps its bytes. The checksum of a model file is not
    /// known, so any other change is an error.
    fn accept_model(&self, kept: Option<&PathBuf>) -> Result<Vec<FileChanged>, TrainError> {
        let mut changes = files::changes(&self.model);
        changes.retain(|changed| !self.data.iter().any(|data| changed.path().starts_with(data)));
        accept(changes, kept, |changed| changed.change == Change::Replaced)
    }

    /// Accepts changes of data files whose mapped bytes have a checksum of the fingerprints, for which this waits. A fingerprint is never
    /// that of a file that changed after it was mapped.
    fn accept_data(
        &self,
        fingerprints: [&mut PendingFingerprint; 2],
        kept: Option<&PathBuf>,
    ) -> Result<Vec<FileChanged>, TrainError> {
        let changes = files::changes(&self.data);
        // A file that is cut off must not be read.
        let is_cut = |changed: &FileChanged| matches!(changed.change, Change::Cut { .. });
        if changes.is_empty() || changes.iter().any(is_cut) {
            return accept(changes, kept, |changed| !is_cut(changed));
        }
        let mut known = BTreeSet::new();
        for fingerprint in fingerprints {
            known.extend(fingerprint.wait()?.files.iter().map(|file| file.hash.as_str()));
        }
        accept(changes, kept, |changed| known.contains(&*changed.mapped_sum()))
    }
}

/// Accepts these changes if all are harmless, and returns them.
fn accept(
    changes: Vec<FileChanged>,
    kept: Option<&PathBuf>,
    is_harmless: impl Fn(&FileChanged) -> bool,
) -> Result<Vec<FileChanged>, TrainError> {
    for changed in &changes {
        if !is_harmless(changed) {
            return Err(TrainError::Changed { changed: changed.clone(), kept: kept.cloned() });
        }
        changed.accept();
    }
    Ok(changes)
}
