//! The fingerprint of a run's data, computed beside the training.

use super::fingerprint::{DataFiles, DataFingerprint};
use crate::data::DataError;
use std::panic;
use std::thread::{self, JoinHandle};

/// A fingerprint that a thread may still be at. It is needed first for a checkpoint.
#[derive(Debug)]
pub struct PendingFingerprint {
    known: Option<DataFingerprint>,
    /// The thread that reads the files, until it was waited for.
    thread: Option<JoinHandle<Result<DataFingerprint, DataError>>>,
}

impl PendingFingerprint {
    /// Begins to read the files, on a thread of its own.
    pub fn start(files: DataFiles) -> Self {
        Self { known: None, thread: Some(thread::spawn(move || files.fingerprint(&[]))) }
    }

    /// Tells of files that could not be read, as soon as that is known: before steps are done that no checkpoint could be
    /// made of. Does not wait.
    ///
    /// # Errors
    /// A file that cannot be read, or that changed while it was read.
    pub fn check(&mut self) -> Result<(), DataError> {
        match self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            true => self.wait().map(drop),
            false => Ok(()),
        }
    }

    /// The fingerprint. Waits until all files are read.
    ///
    /// # Errors
    /// A file that cannot be read, or that changed while it was read.
    ///
    /// # Panics
    /// Where an earlier call failed: the run ends with its error.
    pub fn wait(&mut self) -> Result<&DataFingerprint, DataError> {
        if let Some(thread) = self.thread.take() {
            self.known = Some(thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))?);
        }
        Ok(self.known.as_ref().expect("the run ended with the error that the thread gave"))
    }
}

impl From<DataFingerprint> for PendingFingerprint {
    fn from(fingerprint: DataFingerprint) -> Self {
        Self { known: Some(fingerprint), thread: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_is_told_by_whoever_asks_first() {
        let files = DataFiles { train: Some("/nowhere/corpus.txt".into()), ..DataFiles::default() };
        let error = PendingFingerprint::start(files.clone()).wait().unwrap_err().to_string();
        assert!(error.starts_with("cannot read `/nowhere/corpus.txt`"), "{error}");
        let mut pending = PendingFingerprint::start(files);
        let error = loop {
            if let Err(error) = pending.check() {
                break error.to_string();
            }
            thread::yield_now();
        };
        assert!(error.starts_with("cannot read `/nowhere/corpus.txt`"), "{error}");
    }

    #[test]
    fn the_fingerprint_is_that_of_the_files_each_time() {
        let mut pending = PendingFingerprint::start(DataFiles::default());
        assert_eq!(pending.wait().unwrap(), &DataFingerprint::synthetic());
        pending.check().unwrap();
        assert_eq!(pending.wait().unwrap(), &DataFingerprint::synthetic());
    }
}
