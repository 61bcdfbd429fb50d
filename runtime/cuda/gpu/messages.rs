//! Messages between the ranks of a pipeline: each channel has a queue, a communicator and a mailbox of its own, so that messages travel
//! beside everything else, and no channel waits for another.
//!
//! A sender copies a message into its mailbox and goes on; the next message of the channel waits until this one has left. A receiver copies
//! a message from its mailbox when its turn comes, and asks for the next one at once, if there is one.

use super::handles::{Allocation, Mark, Queue, refused};
use super::nccl::Seat;
use crate::driver::{Address, DriverError, MessageTask};
use cudarc::driver::result;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The mailboxes of a rank.
#[derive(Default)]
pub(super) struct Mailboxes(BTreeMap<MailboxKey, Mailbox>);

/// The key of a mailbox. Programs number their channels separately, so channels of the same number may lead to different ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct MailboxKey {
    channel: u32,
    other: u64,
    /// Whether this rank sends.
    sends: bool,
}

struct Mailbox {
    memory: Allocation,
    bytes: u64,
    /// The queue on which NCCL works.
    queue: Queue,
    /// Recorded when the mailbox passes to the queue: it has a message to send, or its received message was taken.
    given: Mark,
    /// Recorded when the mailbox passes to the program: its message was sent, or a message has come.
    done: Mark,
    /// Whether NCCL was asked for a message that was not taken yet.
    is_asked: bool,
}

impl Mailboxes {
    /// Copies a message into its mailbox, in its turn on `main`. From there it leaves by itself.
    pub(super) fn send(&mut self, main: &Queue, seat: &Seat, task: MessageTask) -> Result<(), DriverError> {
        let mailbox = self.of(task, true)?;
        main.wait(&mailbox.done)?;
        copy(main, task.at, mailbox.memory.at, task.bytes)?;
        mailbox.given.record(main)?;
        mailbox.queue.wait(&mailbox.given)?;
        seat.send(&mailbox.queue, mailbox.memory.at, task)?;
        mailbox.done.record(&mailbox.queue)
    }

    /// Copies the message that has come to its place, in its turn on `main`.
    pub(super) fn receive(
        &mut self,
        main: &Queue,
        seat: &Seat,
        task: MessageTask,
        another: bool,
    ) -> Result<(), DriverError> {
        let mailbox = self.of(task, false)?;
        mailbox.ask(seat, task)?;
        main.wait(&mailbox.done)?;
        copy(main, mailbox.memory.at, task.at, task.bytes)?;
        mailbox.given.record(main)?;
        mailbox.is_asked = false;
        if another { mailbox.ask(seat, task) } else { Ok(()) }
    }

    /// Waits until every message that was sent has left.
    pub(super) fn finish(&self) -> Result<(), DriverError> {
        let sent = self.0.iter().filter(|(way, _)| way.sends);
        sent.into_iter().try_for_each(|(_, mailbox)| mailbox.queue.finish())
    }

    /// Returns the mailbox of a message, with room for it.
    fn of(&mut self, task: MessageTask, sends: bool) -> Result<&mut Mailbox, DriverError> {
        let key = MailboxKey { channel: task.channel, other: task.other, sends };
        if self.0.get(&key).is_some_and(|mailbox| mailbox.bytes < task.bytes)
            && let Some(small) = self.0.remove(&key)
        {
            // The message in the small mailbox has to leave first. It waits for no other message, because a step asks for none of
            // another step.
            small.queue.finish()?;
        }
        match self.0.entry(key) {
            Entry::Occupied(mailbox) => Ok(mailbox.into_mut()),
            Entry::Vacant(free) => Ok(free.insert(Mailbox::new(task.bytes)?)),
        }
    }
}

impl Mailbox {
    fn new(bytes: u64) -> Result<Self, DriverError> {
        let (given, done) = (Mark::new()?, Mark::new()?);
        Ok(Self {
            memory: Allocation::new(bytes)?,
            bytes,
            queue: Queue::new(true)?,
            given,
            done,
            is_asked: false,
        })
    }

    /// Asks for the next message, unless it was asked for already.
    fn ask(&mut self, seat: &Seat, task: MessageTask) -> Result<(), DriverError> {
        if self.is_asked {
            return Ok(());
        }
        self.queue.wait(&self.given)?;
        seat.receive(&self.queue, self.memory.at, task)?;
        self.done.record(&self.queue)?;
        self.is_asked = true;
        Ok(())
    }
}

#[allow(unsafe_code)]
fn copy(main: &Queue, from: Address, to: Address, bytes: u64) -> Result<(), DriverError> {
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: this number of bytes is at both places: in a mailbox, and in a tensor of the program. The marks keep the queues in order.
    unsafe { result::memcpy_dtod_async(to.0, from.0, bytes as usize, main.0) }
        .map_err(refused("copying a message"))
}
