//! The fingerprint of a run's data, computed beside the training.

use super::fingerprint::{DataFiles, DataFingerprint, HashRule};
use super::sampled;
use data::DataError;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that all checkpoints of a run together wait for the hash of all bytes. Ten seconds are short enough after Ctrl-C.
/// Gigabytes are read in that time; a terabyte takes an hour.
const PATIENCE: Duration = Duration::from_secs(10);

/// A fingerprint that a thread may still be computing. The first checkpoint is the first to need it.
#[derive(Debug)]
pub struct PendingFingerprint {
    /// The fingerprint of samples, and later that of all bytes.
    known: Option<DataFingerprint>,
    /// The thread's results, until the last of them has arrived.
    results: Option<Receiver<Result<DataFingerprint, DataError>>>,
    /// The remaining time for which checkpoints may wait.
    patience: Duration,
}

impl PendingFingerprint {
    /// Starts to read the files, on a thread of its own.
    pub fn start(files: DataFiles) -> Self {
        if files == DataFiles::default() {
            return DataFingerprint::synthetic().into();
        }
        let (sender, results) = mpsc::channel();
        let told = sender.clone();
        let thread = thread::Builder::new().name("fingerprint".to_owned());
        if let Err(source) = thread.spawn(move || compute(&files, &sender)) {
            let _ = told.send(Err(DataError::Thread { source }));
        }
        Self::of_results(results)
    }

    fn of_results(results: Receiver<Result<DataFingerprint, DataError>>) -> Self {
        Self { known: None, results: Some(results), patience: PATIENCE }
    }

    /// Returns the fingerprint of all bytes of the files: `found`, or a computation on a thread if `found` is of samples.
    pub(super) fn whole(found: DataFingerprint, files: &DataFiles) -> Self {
        match found.rule {
            HashRule::Whole => found.into(),
            HashRule::Samples | HashRule::SamplesOfFormat1 => Self::start(files.clone()),
        }
    }

    /// Reports files that could not be read, as soon as this is known, before more steps are done that no checkpoint could save. Does not
    /// wait.
    ///
    /// # Errors
    /// A file cannot be read, or changed while it was read.
    pub fn check(&mut self) -> Result<(), DataError> {
        self.receive(Duration::ZERO)
    }

    /// Returns the fingerprint for a checkpoint: the hash of all bytes if it is ready in time, and otherwise the hash of samples.
    ///
    /// # Errors
    /// A file cannot be read, or changed while it was read.
    ///
    /// # Panics
    /// Panics if an earlier call failed: the run ends with its error.
    pub fn for_checkpoint(&mut self) -> Result<&DataFingerprint, DataError> {
        let begin = Instant::now();
        self.receive(self.patience)?;
        self.patience = self.patience.saturating_sub(begin.elapsed());
        if self.known.is_none() {
            self.receive_one()?;
        }
        Ok(self.get())
    }

    /// Returns the fingerprint of all bytes. Waits until they are read.
    ///
    /// # Errors
    /// A file cannot be read, or changed while it was read.
    ///
    /// # Panics
    /// Panics if an earlier call failed: the run ends with its error.
    pub fn wait(&mut self) -> Result<&DataFingerprint, DataError> {
        while self.results.is_some() {
            self.receive_one()?;
        }
        Ok(self.get())
    }

    fn get(&self) -> &DataFingerprint {
        self.known.as_ref().expect("the run ended with the error that the thread gave")
    }

    /// Takes all results that arrive within this time.
    fn receive(&mut self, time: Duration) -> Result<(), DataError> {
        let begin = Instant::now();
        while let Some(results) = &self.results {
            match results.recv_timeout(time.saturating_sub(begin.elapsed())) {
                Ok(result) => self.take(result)?,
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => self.results = None,
            }
        }
        Ok(())
    }

    fn receive_one(&mut self) -> Result<(), DataError> {
        let Some(results) = &self.results else { return Ok(()) };
        match results.recv() {
            Ok(result) => self.take(result),
            Err(_) => {
                self.results = None;
                Ok(())
            }
        }
    }

    fn take(&mut self, result: Result<DataFingerprint, DataError>) -> Result<(), DataError> {
        if !matches!(&result, Ok(found) if found.rule == HashRule::Samples) {
            self.results = None;
        }
        self.known = Some(result?);
        Ok(())
    }
}

/// Sends the fingerprint of samples, which is quick, and then that of all bytes.
fn compute(files: &DataFiles, results: &Sender<Result<DataFingerprint, DataError>>) {
    let samples = sampled::fingerprint(files);
    let is_readable = samples.is_ok();
    // The receiver may be gone if the run has ended.
    let _ = results.send(samples);
    if is_readable {
        let _ = results.send(files.fingerprint(None));
    }
}

impl From<DataFingerprint> for PendingFingerprint {
    fn from(fingerprint: DataFingerprint) -> Self {
        Self { known: Some(fingerprint), results: None, patience: Duration::ZERO }
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
        let error = PendingFingerprint::start(files.clone()).for_checkpoint().unwrap_err().to_string();
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
        assert_eq!(pending.for_checkpoint().unwrap(), &DataFingerprint::synthetic());
        assert_eq!(pending.wait().unwrap(), &DataFingerprint::synthetic());
    }

    /// Acts as if the data were a terabyte: the hash of all bytes is sent when the test decides.
    #[test]
    fn a_checkpoint_does_not_wait_long_for_the_hash_of_all_bytes() {
        let (sender, results) = mpsc::channel();
        let whole = DataFingerprint { bytes: 1 << 40, ..DataFingerprint::synthetic() };
        let samples = DataFingerprint { rule: HashRule::Samples, ..whole.clone() };
        let mut pending = PendingFingerprint::of_results(results);
        pending.patience = Duration::from_millis(20);
        let begin = Instant::now();
        thread::scope(|scope| {
            // Samples are waited for even if no patience is left.
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(60));
                sender.send(Ok(samples.clone())).unwrap();
            });
            assert_eq!(pending.for_checkpoint().unwrap(), &samples);
        });
        pending.patience = Duration::from_millis(20);
        assert_eq!(pending.for_checkpoint().unwrap(), &samples);
        assert_eq!(pending.patience, Duration::ZERO, "a run waits once");
        assert!(begin.elapsed() < PATIENCE);
        sender.send(Ok(whole.clone())).unwrap();
        pending.check().unwrap();
        assert_eq!(pending.for_checkpoint().unwrap(), &whole);
    }
}
