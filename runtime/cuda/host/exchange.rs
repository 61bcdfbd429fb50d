//! Collectives and messages by NCCL, on the processor: ranks are threads, and exchange the contents of their memories.

use super::compile::Libraries;
use super::{Host, Order, State};
use crate::driver::{Address, CollectiveTask, DriverError, MessageTask};
use crate::nccl::sequence;
use crate::program::{Collective, Stream};
use comm::{CollectiveKind, CommError, Communicator, Exchanged};
use ir::ops::collective::Collective as Kind;
use std::sync::{Arc, Mutex, PoisonError};

/// The calls of NCCL that a rank would make, as [`sequence`] writes them.
pub type Notes = Arc<Mutex<Vec<String>>>;

impl Host {
    /// Returns a stand-in for each rank, with its communicator. Kernels are compiled once for all of them.
    pub(crate) fn ranks(order: Order, communicators: Vec<Arc<dyn Communicator>>) -> Vec<Self> {
        let libraries = Libraries::default();
        let one = |communicator| Self {
            libraries: libraries.clone(),
            communicator: Some(communicator),
            ..Self::new(order)
        };
        communicators.into_iter().map(one).collect()
    }

    /// Returns the stand-in with a list for the calls of NCCL that a GPU would make, in their order. A graph that is replayed makes
    /// none.
    pub(crate) fn noting(self, notes: Notes) -> Self {
        Self { notes: Some(notes), ..self }
    }

    /// Notes a call.
    pub(super) fn note(&self, stream: Stream, task: &CollectiveTask) -> Result<(), DriverError> {
        if let Some(notes) = &self.notes {
            let text = sequence::text(stream, task.collective, task.group.len())?;
            notes.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        }
        Ok(())
    }
}

impl Host {
    /// Notes the call of NCCL that sends or receives a message.
    pub(super) fn note_message(&self, call: &str, task: &MessageTask) {
        if let Some(notes) = &self.notes {
            let MessageTask { channel, other, bytes, .. } = task;
            let text = format!("channel {channel}: {call} of u8 x {bytes}, rank {other}");
            notes.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        }
    }
}

/// Messages, in their turn.
impl Host {
    pub(super) fn send_now(&self, state: &State, task: MessageTask) -> Result<(), DriverError> {
        let bytes = state.bytes(task.at, Some(task.bytes as usize))?;
        self.carried(|communicator| communicator.send(task.other, task.channel, bytes))
    }

    pub(super) fn receive_now(&self, state: &State, task: MessageTask) -> Result<(), DriverError> {
        let bytes = state.bytes(task.at, Some(task.bytes as usize))?;
        self.carried(|communicator| communicator.receive(task.other, task.channel, bytes))
    }

    fn carried(
        &self,
        carry: impl FnOnce(&dyn Communicator) -> Result<(), CommError>,
    ) -> Result<(), DriverError> {
        let communicator = self.communicator.as_deref().ok_or(CommError::Alone);
        communicator.and_then(carry).map_err(|error| DriverError(error.to_string()))
    }
}

/// A collective that waits for its turn.
#[derive(Clone)]
pub(super) struct Exchange {
    collective: Collective,
    group: Vec<u64>,
    places: Vec<[Address; 2]>,
}

impl Exchange {
    pub(super) fn of(task: CollectiveTask) -> Self {
        let CollectiveTask { collective, group, places } = task;
        Self { collective: collective.clone(), group: group.to_vec(), places: places.to_vec() }
    }

    /// Runs the collective, when all ranks of the group have come to it.
    pub(super) fn run(
        &self,
        state: &State,
        communicator: Option<&dyn Communicator>,
    ) -> Result<(), DriverError> {
        let told = |error: CommError| DriverError(format!("{}: {error}", self.collective));
        let communicator = communicator.ok_or_else(|| told(CommError::Alone))?;
        let (collective, group) = (&self.collective, &self.group[..]);
        let ranks = group.len();
        // Pieces of a tensor are one after the other, so the tensor is cut and gathered along its only dim.
        let (gathers, splits) = match collective.kind {
            Kind::AllReduce | Kind::AllSlice => (false, false),
            Kind::AllGather => (true, false),
            Kind::ReduceScatter => (false, true),
            Kind::AllToAll => (true, true),
        };
        let elements = |count: usize, pieces: bool| if pieces { count * ranks } else { count };
        let sizes: Vec<[usize; 1]> =
            collective.tensors.iter().map(|tensor| [elements(tensor.count, splits)]).collect();
        let mut tensors = Vec::new();
        for (index, tensor) in collective.tensors.iter().enumerate() {
            let [from, to] = self.places[index];
            let bytes = |count: usize| Some(count * tensor.dtype.bytes() as usize);
            tensors.push(Exchanged {
                dtype: tensor.dtype,
                sizes: &sizes[index],
                gathered: gathers.then_some(0),
                split: splits.then_some(0),
                // A sum may take the place of its addend.
                operand: (from != to)
                    .then(|| state.bytes(from, bytes(sizes[index][0])))
                    .transpose()?
                    .map(|own| &*own),
                result: state.bytes(to, bytes(elements(tensor.count, gathers)))?,
            });
        }
        let kind = CollectiveKind::of(collective.kind, collective.reduced);
        let kind = kind.ok_or_else(|| DriverError("an all_slice is not an exchange".into()))?;
        communicator.collective(kind, group, &mut tensors).map_err(told)
    }
}
