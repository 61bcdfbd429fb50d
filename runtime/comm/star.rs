//! Small messages between processes without MPI: every process has one TCP connection to rank 0.
//!
//! [`rendezvous`] makes the connections when a run starts. They carry NCCL's unique id and the messages of [`super::agreement`], but no
//! tensors. Rank 0 collects the bytes of all ranks and sends them to each.
//!
//! A connection also shows whether a process is alive: it closes when the process is killed, and a process that hangs sends no beats.
//! [`rendezvous::join`] takes a function that is called at once when a process is lost, on a thread of its own. The rank's own thread may
//! be waiting for a GPU, which would wait for the lost process for ever.

mod frames;
pub mod meeting_point;
pub mod rendezvous;
#[cfg(test)]
mod tests;

use super::{CollectiveKind, CommError, Communicator, Exchanged};
use frames::{Frame, Kind};
use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The reason why a process ends before its work is done.
#[derive(Clone, Debug, PartialEq)]
pub enum Loss {
    /// Another process is lost, and no process has told the user yet.
    Noticed(CommError),
    /// Another process failed, and has told the user.
    Told {
        /// Its rank.
        rank: u64,
    },
}

impl Loss {
    /// Returns the rank that is lost.
    fn rank(&self) -> u64 {
        match self {
            Self::Told { rank } | Self::Noticed(CommError::Ended { rank }) => *rank,
            Self::Noticed(CommError::Late { missing, .. }) => missing.first().copied().unwrap_or_default(),
            Self::Noticed(_) => 0,
        }
    }
}

/// A function that is called once when the run cannot go on.
pub type GiveUp = Box<dyn Fn(&Loss) + Send + Sync>;

/// The connections of a process. Dropping it tells the others that its work is done.
pub struct Star {
    shared: Arc<Shared>,
    /// The received messages of each connection: on rank 0 those of all other ranks in order, elsewhere those of rank 0.
    inboxes: Vec<Mutex<Receiver<Vec<u8>>>>,
    timeout: Duration,
}

/// The part of a star that its threads share.
struct Shared {
    rank: u64,
    ranks: u64,
    /// The rank at the other end of each connection, and the stream for writing.
    peers: Vec<(u64, Mutex<TcpStream>)>,
    give_up: GiveUp,
    /// Whether the run cannot go on, or the work of this process is done.
    is_over: AtomicBool,
}

/// The longest time between two beats of a process. With a short timeout it is shorter.
const BEAT: Duration = Duration::from_secs(5);

/// The additional time that ranks wait for rank 0 beyond the timeout. Rank 0 knows which rank is missing, and should report it first.
const GRACE: Duration = Duration::from_secs(5);

impl Star {
    /// Makes a star from connections to the other ranks. A process that sends nothing for `timeout` is lost.
    ///
    /// # Errors
    /// The system starts no threads, or refuses a timeout.
    pub fn connect(
        rank: u64,
        ranks: u64,
        connections: Vec<(u64, TcpStream)>,
        timeout: Duration,
        give_up: GiveUp,
    ) -> io::Result<Arc<Self>> {
        let mut readers = vec![];
        for (peer, stream) in &connections {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))?;
            readers.push((*peer, stream.try_clone()?));
        }
        let peers = connections.into_iter().map(|(peer, stream)| (peer, Mutex::new(stream))).collect();
        let shared = Arc::new(Shared { rank, ranks, peers, give_up, is_over: AtomicBool::new(false) });
        let mut inboxes = vec![];
        for (peer, stream) in readers {
            let (outlet, inbox) = channel();
            inboxes.push(Mutex::new(inbox));
            let shared = shared.clone();
            let read = move || shared.read(peer, stream, &outlet);
            small_thread(format!("from-rank-{peer}")).spawn(read)?;
        }
        let weak = Arc::downgrade(&shared);
        small_thread("beats".into()).spawn(move || {
            while let Some(shared) = weak.upgrade().filter(|shared| !shared.is_over()) {
                shared.send_to_all(Kind::Beat, &[]);
                drop(shared);
                thread::sleep(BEAT.min(timeout / 4));
            }
        })?;
        Ok(Arc::new(Self { shared, inboxes, timeout }))
    }

    /// Tells all ranks that this process has failed and has told the user.
    pub fn fail(&self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.shared.send_to_all(Kind::Failed, &self.shared.rank.to_le_bytes());
    }

    /// Concatenates the bytes of all ranks in the order of ranks. All ranks give the same number of bytes.
    fn gather(&self, own: &[u8], all: &mut [u8]) -> Result<(), CommError> {
        if self.shared.rank > 0 {
            self.shared.send(0, Kind::Message, own)?;
            let received = self.receive(0, self.timeout + GRACE)?;
            return copied(&received, all, 0);
        }
        let began = Instant::now();
        let (first, others) = all.split_at_mut(own.len());
        first.copy_from_slice(own);
        let mut missing = vec![];
        for (index, room) in others.chunks_mut(own.len().max(1)).enumerate() {
            match self.receive(index, self.timeout.saturating_sub(began.elapsed())) {
                Err(CommError::Late { missing: late, .. }) => missing.extend(late),
                received => copied(&received?, room, self.shared.peers[index].0)?,
            }
        }
        if !missing.is_empty() {
            return Err(self.shared.late(self.timeout, missing));
        }
        (0..self.inboxes.len()).try_for_each(|index| self.shared.send(index, Kind::Message, all))
    }

    /// Returns the next message of a connection.
    fn receive(&self, index: usize, timeout: Duration) -> Result<Vec<u8>, CommError> {
        let (peer, inbox) = (self.shared.peers[index].0, &self.inboxes[index]);
        let received = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(timeout);
        received.map_err(|error| match error {
            RecvTimeoutError::Timeout => self.shared.late(timeout, vec![peer]),
            RecvTimeoutError::Disconnected => CommError::Ended { rank: peer },
        })
    }

    fn refused(&self, what: &str) -> CommError {
        let message = format!("the connections between processes carry no tensors: {what}");
        CommError::Transport { rank: self.shared.rank, message }
    }
}

/// Copies a message to its room. Returns an error if their lengths differ.
fn copied(message: &[u8], room: &mut [u8], rank: u64) -> Result<(), CommError> {
    if message.len() != room.len() {
        let (length, expected) = (message.len(), room.len());
        let message = format!("rank {rank} sent {length} bytes, and {expected} were expected");
        return Err(CommError::Message { message });
    }
    room.copy_from_slice(message);
    Ok(())
}

impl Drop for Star {
    fn drop(&mut self) {
        if !self.shared.is_over.swap(true, Ordering::SeqCst) {
            self.shared.send_to_all(Kind::Done, &[]);
        }
    }
}

/// Returns the builder of a thread that only waits and needs little stack.
fn small_thread(name: String) -> thread::Builder {
    thread::Builder::new().name(name).stack_size(256 << 10)
}

impl Shared {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn late(&self, waited: Duration, missing: Vec<u64>) -> CommError {
        CommError::Late { rank: self.rank, seconds: waited.as_secs(), missing }
    }

    fn stream(&self, index: usize) -> MutexGuard<'_, TcpStream> {
        self.peers[index].1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, index: usize, kind: Kind, bytes: &[u8]) -> Result<(), CommError> {
        let sent = frames::write(&mut *self.stream(index), kind, bytes);
        sent.map_err(|_| CommError::Ended { rank: self.peers[index].0 })
    }

    /// Sends to every connection. A failure is ignored, because the reader of that connection reports it.
    fn send_to_all(&self, kind: Kind, bytes: &[u8]) {
        (0..self.peers.len()).for_each(|index| drop(self.send(index, kind, bytes)));
    }

    /// Reads a connection to its end.
    fn read(&self, peer: u64, mut stream: TcpStream, outlet: &Sender<Vec<u8>>) {
        let loss = loop {
            match frames::read(&mut stream) {
                Ok(Frame { kind: Kind::Beat, .. }) => {}
                Ok(Frame { kind: Kind::Message, bytes }) => drop(outlet.send(bytes)),
                Ok(Frame { kind: Kind::Done, .. }) => return,
                Ok(Frame { kind: Kind::Failed, bytes }) => {
                    let rank = bytes.try_into().map_or(peer, u64::from_le_bytes);
                    break Loss::Told { rank };
                }
                Err(error) if is_timeout(&error) => {
                    let waited = stream.read_timeout().ok().flatten().unwrap_or_default();
                    break Loss::Noticed(self.late(waited, vec![peer]));
                }
                Err(_) => break Loss::Noticed(CommError::Ended { rank: peer }),
            }
        };
        self.lose(&loss);
    }

    /// Reports a loss, unless one was reported before. Rank 0 tells all other ranks.
    fn lose(&self, loss: &Loss) {
        if self.is_over.swap(true, Ordering::SeqCst) {
            return;
        }
        if self.rank == 0 {
            self.send_to_all(Kind::Failed, &loss.rank().to_le_bytes());
        }
        (self.give_up)(loss);
    }
}

/// Returns whether a read ended because nothing arrived in time.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

impl Communicator for Star {
    fn rank(&self) -> u64 {
        self.shared.rank
    }

    /// Gathers from all ranks in order along the first dim, as agreement needs it.
    fn collective(
        &self,
        kind: CollectiveKind,
        group: &[u64],
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError> {
        if kind != CollectiveKind::AllGather {
            return Err(self.refused(&format!("`{}`", kind.name())));
        }
        if !group.iter().copied().eq(0..self.shared.ranks) {
            return Err(self.refused("`all_gather` of a part of the ranks"));
        }
        for tensor in tensors {
            if tensor.gathered != Some(0) {
                return Err(self.refused("`all_gather` along another dim than the first"));
            }
            self.gather(tensor.operand(), tensor.result)?;
        }
        Ok(())
    }

    fn send(&self, _: u64, _: u32, _: &[u8]) -> Result<(), CommError> {
        Err(self.refused("`send`"))
    }

    fn receive(&self, _: u64, _: u32, _: &mut [u8]) -> Result<(), CommError> {
        Err(self.refused("`receive`"))
    }
}
