//! A fault on purpose, for tests.

use crate::comm::{CommError, Communicator, Exchanged};
use ir::PartialKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a rank communicates through that fails at one of its collectives, counted from 0.
pub(crate) struct Faulty {
    inner: Arc<dyn Communicator>,
    issued: AtomicUsize,
    fails_at: usize,
    panics: bool,
}

impl Faulty {
    pub(crate) fn within(
        inner: Arc<dyn Communicator>,
        fails_at: usize,
        panics: bool,
    ) -> Arc<dyn Communicator> {
        Arc::new(Self { inner, issued: AtomicUsize::new(0), fails_at, panics })
    }

    fn count(&self) -> Result<(), CommError> {
        if self.issued.fetch_add(1, Ordering::Relaxed) != self.fails_at {
            return Ok(());
        }
        assert!(!self.panics, "as the test asks for");
        Err(CommError::Outside { rank: self.rank(), group: vec![] })
    }
}

impl Communicator for Faulty {
    fn rank(&self) -> u64 {
        self.inner.rank()
    }

    fn all_reduce(
        &self,
        group: &[u64],
        kind: PartialKind,
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError> {
        self.count()?;
        self.inner.all_reduce(group, kind, tensors)
    }

    fn all_gather(&self, group: &[u64], tensors: &mut [Exchanged]) -> Result<(), CommError> {
        self.count()?;
        self.inner.all_gather(group, tensors)
    }

    fn reduce_scatter(
        &self,
        group: &[u64],
        kind: PartialKind,
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError> {
        self.count()?;
        self.inner.reduce_scatter(group, kind, tensors)
    }

    fn all_to_all(&self, group: &[u64], tensors: &mut [Exchanged]) -> Result<(), CommError> {
        self.count()?;
        self.inner.all_to_all(group, tensors)
    }

    fn send(&self, to: u64, bytes: &[u8]) -> Result<(), CommError> {
        self.count()?;
        self.inner.send(to, bytes)
    }

    fn receive(&self, from: u64, bytes: &mut [u8]) -> Result<(), CommError> {
        self.count()?;
        self.inner.receive(from, bytes)
    }
}
