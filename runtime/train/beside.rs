//! Checkpoints that are written beside the steps: a copy of the states, and the thread that writes it.

use super::finite::{FiniteStates, Refused};
use checkpoint::{CheckpointError, Checkpoints, Description, Shard, StateSource};
use ir::Module;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread::{Scope, ScopedJoinHandle};

/// The checkpoints of a run while its steps go on. At most one is being written at a time.
pub(super) struct Saves<'scope, 'env> {
    /// The scope of the threads that write; `None` if all steps wait for the disk.
    pub(super) scope: Option<&'scope Scope<'scope, 'env>>,
    pub(super) open: Option<OpenSave<'scope>>,
    /// The number of completed steps at the last save, if there is one.
    pub(super) last: Option<u64>,
    /// Memory for a copy of the states, which is reused.
    pub(super) copy: StateCopy,
}

/// A checkpoint that is being written.
pub(super) struct OpenSave<'scope> {
    pub(super) begun: BegunSave<'scope>,
    pub(super) thread: ScopedJoinHandle<'scope, (Result<Written, CheckpointError>, StateCopy)>,
}

impl<'scope, 'env> Saves<'scope, 'env> {
    /// Makes the record of a run without a checkpoint in progress. `last` is the number of completed steps at the last save.
    pub(super) fn new(scope: Option<&'scope Scope<'scope, 'env>>, last: Option<u64>) -> Self {
        Self { scope, open: None, last, copy: StateCopy::default() }
    }

    /// Whether this rank's part of a checkpoint is still being written.
    pub(super) fn are_pending(&self) -> bool {
        self.open.as_ref().is_some_and(|open| !open.thread.is_finished())
    }
}

/// A checkpoint whose writing has begun.
#[derive(Clone)]
pub(super) struct BegunSave<'m> {
    pub(super) module: &'m Module,
    pub(super) checkpoints: Checkpoints,
    /// The number of completed steps.
    pub(super) done: u64,
    pub(super) rank: u64,
    /// The description, on rank 0.
    pub(super) description: Option<Description>,
    /// The folder for the parts of several ranks; `None` if the rank is alone.
    pub(super) temporary: Option<PathBuf>,
}

/// A written checkpoint, or a rank's written part of it.
pub(super) enum Written {
    Whole(PathBuf),
    Part(Shard),
}

impl BegunSave<'_> {
    /// Writes the whole checkpoint, or the rank's part. If a state has no value, this returns an error.
    pub(super) fn write(&self, states: &dyn StateSource) -> Result<Written, CheckpointError> {
        match (&self.temporary, &self.description) {
            (Some(temporary), _) => {
                let part = self.checkpoints.write_shard(temporary, self.done, self.module, self.rank, states);
                part.map(Written::Part)
            }
            (None, Some(description)) => {
                self.checkpoints.save(self.module, description, states).map(Written::Whole)
            }
            // A rank that is alone is the lead, so this does not happen.
            (None, None) => Ok(Written::Whole(self.checkpoints.path(self.done))),
        }
    }

    /// Gives the checkpoint its final name after all ranks have written. Rank 0 calls this.
    pub(super) fn commit(&self, parts: Vec<Shard>) -> Result<PathBuf, CheckpointError> {
        match (&self.temporary, &self.description) {
            (Some(temporary), Some(description)) => self.checkpoints.commit(temporary, description, parts),
            _ => Ok(self.checkpoints.path(self.done)),
        }
    }

    /// Removes the folder of parts, on rank 0 only.
    pub(super) fn abandon(&self) {
        if let (Some(temporary), Some(_)) = (&self.temporary, &self.description) {
            self.checkpoints.abandon(temporary);
        }
    }
}

/// A copy of the rank's parts of all states after a step.
#[derive(Default)]
pub(super) struct StateCopy(BTreeMap<String, Vec<u8>>);

impl StateCopy {
    /// Copies the states. If a state has no value, returns the reason.
    pub(super) fn take(&mut self, module: &Module, states: FiniteStates) -> Option<Refused> {
        for state in module.states.values() {
            let Some(part) = states.state(&state.name) else { continue };
            let copy = self.0.entry(state.name.clone()).or_default();
            copy.clear();
            copy.extend_from_slice(&part);
        }
        states.refused()
    }
}

impl StateSource for StateCopy {
    fn state(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        self.0.get(name).map(|part| Cow::Borrowed(&part[..]))
    }
}
