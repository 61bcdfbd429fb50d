//! Exchanges that fail or are late on purpose, to test the code that waits for them.

use super::{CollectiveKind, CommError, Communicator, Exchanged};
use ir::timetable::Task;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// A communicator that is disturbed before each exchange.
pub struct Disturbed {
    inner: Arc<dyn Communicator>,
    issued: AtomicUsize,
    /// A function that is called before each exchange with its number, from 0.
    disturb: Box<dyn Fn(usize) -> Result<(), CommError> + Send + Sync>,
}

impl Disturbed {
    /// Makes a communicator that fails or panics at the exchange with the number `fails_at`.
    pub fn within(inner: Arc<dyn Communicator>, fails_at: usize, panics: bool) -> Arc<dyn Communicator> {
        let rank = inner.rank();
        let disturb = move |number| {
            if number != fails_at {
                return Ok(());
            }
            assert!(!panics, "as the test asks for");
            Err(CommError::Outside { rank, group: vec![] })
        };
        Arc::new(Self { inner, issued: AtomicUsize::new(0), disturb: Box::new(disturb) })
    }

    /// Makes a communicator that begins each exchange after a delay.
    pub fn late(inner: Arc<dyn Communicator>, by: Duration) -> Arc<dyn Communicator> {
        let disturb = move |_| {
            thread::sleep(by);
            Ok(())
        };
        Arc::new(Self { inner, issued: AtomicUsize::new(0), disturb: Box::new(disturb) })
    }

    /// Makes a communicator that begins the exchange with the number `at` only after a message on `told`.
    pub fn once(inner: Arc<dyn Communicator>, at: usize, told: Receiver<()>) -> Arc<dyn Communicator> {
        let told = Mutex::new(told);
        let disturb = move |number| {
            if number == at {
                // If the test has failed, the sender is gone.
                let _ = told.lock().unwrap_or_else(PoisonError::into_inner).recv();
            }
            Ok(())
        };
        Arc::new(Self { inner, issued: AtomicUsize::new(0), disturb: Box::new(disturb) })
    }

    fn count(&self) -> Result<(), CommError> {
        (self.disturb)(self.issued.fetch_add(1, Ordering::Relaxed))
    }
}

impl Communicator for Disturbed {
    fn rank(&self) -> u64 {
        self.inner.rank()
    }

    fn comes_from(&self, origin: &Arc<str>) {
        self.inner.comes_from(origin);
    }

    fn turns_to(&self, task: Option<Task>) {
        self.inner.turns_to(task);
    }

    fn collective(
        &self,
        kind: CollectiveKind,
        group: &[u64],
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError> {
        self.count()?;
        self.inner.collective(kind, group, tensors)
    }

    fn send(&self, to: u64, channel: u32, bytes: &[u8]) -> Result<(), CommError> {
        self.count()?;
        self.inner.send(to, channel, bytes)
    }

    fn receive(&self, from: u64, channel: u32, bytes: &mut [u8]) -> Result<(), CommError> {
        self.count()?;
        self.inner.receive(from, channel, bytes)
    }
}
