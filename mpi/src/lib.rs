//! Ranks that are processes of one MPI job: they exchange messages by MPI.
//!
//! This package stands outside of the workspace, since its binding is compiled against one MPI. The feature `mpi` of the
//! main package brings it in.

use comm::messages::{ByMessages, Messages, Received, Sent};
use comm::{CommError, Communicator};
use ferrompi::{Mpi, PersistentRequest, Request, Scope, ThreadLevel};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Told of the error that ends the job.
pub type GiveUp = Box<dyn Fn(&CommError) + Send + Sync>;

/// This process as a rank of an MPI job. When it is dropped, MPI ends.
pub struct World {
    mpi: Mpi,
}

impl World {
    /// Starts MPI. Ranks make their calls on any thread, one call at a time.
    ///
    /// # Errors
    /// MPI does not start, or knows fewer threads.
    pub fn start() -> Result<Self, String> {
        let mpi = Mpi::init_thread(ThreadLevel::Serialized).map_err(|error| error.to_string())?;
        if mpi.thread_level() < ThreadLevel::Serialized {
            return Err(
                "this MPI lets only one thread of a process make calls (MPI_THREAD_SERIALIZED)".into()
            );
        }
        Ok(Self { mpi })
    }

    /// The number of this rank.
    pub fn rank(&self) -> u64 {
        self.mpi.world().rank() as u64
    }

    /// The number of ranks.
    pub fn size(&self) -> u64 {
        self.mpi.world().size() as u64
    }

    /// The communicator of this rank. An exchange that fails, or whose other ranks do not come within `timeout`, ends the job after
    /// `give_up` was told of it: MPI cannot take back a message that was sent.
    ///
    /// # Errors
    /// MPI refuses.
    pub fn communicator(&self, timeout: Duration, give_up: GiveUp) -> Result<Arc<dyn Communicator>, String> {
        let world = self.mpi.world();
        let messages = world.duplicate().map_err(|error| error.to_string())?;
        let posted = Mutex::new(BTreeMap::new());
        Ok(Arc::new(ByMessages(Link { world, messages, timeout, give_up, posted })))
    }

    /// Ends all processes of the job.
    pub fn abort(&self, code: i32) -> ! {
        end_job(&self.mpi.world(), code)
    }
}

/// The time that a launcher has to pass on the last lines of a process: MPICH's drops what it has not read when a job is ended.
const LAST_LINES: Duration = Duration::from_millis(500);

/// Ends all processes of a job, after the user could be told.
fn end_job(world: &ferrompi::Communicator, code: i32) -> ! {
    thread::sleep(LAST_LINES);
    world.abort(code)
}

/// Requests of messages that were sent by themselves, by receiver, tag and length.
type Posted = BTreeMap<(u64, i32, usize), Vec<PersistentRequest<u8>>>;

/// The messages of a rank.
struct Link {
    /// All processes of the job. MPICH ends them all only by this communicator.
    world: ferrompi::Communicator,
    /// The same processes: no messages of others are among those of this communicator.
    messages: ferrompi::Communicator,
    timeout: Duration,
    give_up: GiveUp,
    /// MPI reads the memory of a message until it is sent; then another message takes the request with its memory.
    posted: Mutex<Posted>,
}

/// The bytes of a message at most: MPI 3 counts them in 32 bits.
const LARGEST: usize = 1 << 30;

/// Between two ranks, messages of one tag keep their order.
const TAG: i32 = 1;

/// The tag of the first channel. Each channel has its own, so that a message is received before an earlier one of another channel.
const FIRST_CHANNEL: i32 = 2;

/// The time is looked at once in so many turns of waiting.
const TURNS: u32 = 256;

impl Messages for Link {
    fn rank(&self) -> u64 {
        self.world.rank() as u64
    }

    fn exchange(&self, sent: &[Sent<'_>], received: Vec<Received<'_>>) -> Result<(), CommError> {
        let done = ferrompi::scope(|scope| {
            let open = self.open(scope, sent, received);
            // An error that left this scope would wait for the other requests, and their ranks may never come.
            open.and_then(|open| self.wait(open)).unwrap_or_else(|error| self.end(&error));
            Ok(())
        });
        done.map_err(|error| self.refused(error))
    }

    fn post(&self, to: u64, channel: u32, bytes: &[u8]) -> Result<(), CommError> {
        let tag = self.tag(channel)?;
        for piece in bytes.chunks(LARGEST) {
            self.post_piece(to, tag, piece).unwrap_or_else(|error| self.end(&self.refused(error)));
        }
        Ok(())
    }

    fn take(&self, from: u64, channel: u32, room: &mut [u8]) -> Result<usize, CommError> {
        let tag = self.tag(channel)?;
        let length = room.len();
        let done = ferrompi::scope(|scope| {
            let mut open = vec![];
            for piece in room.chunks_mut(LARGEST) {
                let room = Some(piece.len());
                let request = match self.messages.irecv(scope, piece, from as i32, tag) {
                    Ok(request) => request,
                    Err(error) => self.end(&self.refused(error)),
                };
                open.push(Open { rank: from, room, request });
            }
            self.wait(open).unwrap_or_else(|error| self.end(&error));
            Ok(())
        });
        done.map(|()| length).map_err(|error| self.refused(error))
    }
}

/// A message on its way.
struct Open<'scope> {
    /// The other rank.
    rank: u64,
    /// Bytes that are to be received; `None` of a message that is sent.
    room: Option<usize>,
    request: Request<'scope>,
}

impl Link {
    /// The tag of a channel.
    fn tag(&self, channel: u32) -> Result<i32, CommError> {
        let tag = i32::try_from(channel).ok().and_then(|channel| channel.checked_add(FIRST_CHANNEL));
        let message = format!("MPI has no tag for the channel {channel}");
        tag.ok_or(CommError::Transport { rank: self.rank(), message })
    }

    /// Sends a copy of bytes, in memory of a message that was sent, or in new memory.
    fn post_piece(&self, to: u64, tag: i32, bytes: &[u8]) -> ferrompi::Result<()> {
        let mut posted = self.posted.lock().unwrap_or_else(PoisonError::into_inner);
        let posted = posted.entry((to, tag, bytes.len())).or_default();
        let mut free = None;
        for (index, message) in posted.iter_mut().enumerate() {
            if !message.is_active() || message.test()?.is_some() {
                free = Some(index);
                break;
            }
        }
        let index = match free {
            Some(index) => index,
            None => {
                posted.push(self.messages.send_init(vec![0u8; bytes.len()], to as i32, tag)?);
                posted.len() - 1
            }
        };
        posted[index].buffer_mut()?.copy_from_slice(bytes);
        posted[index].start()
    }

    /// Begins to send and to receive messages.
    fn open<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        sent: &[Sent<'scope>],
        received: Vec<Received<'scope>>,
    ) -> Result<Vec<Open<'scope>>, CommError> {
        let mut open = vec![];
        for (rank, room) in received {
            for piece in room.chunks_mut(LARGEST) {
                let room = Some(piece.len());
                let request = self.messages.irecv(scope, piece, rank as i32, TAG);
                open.push(Open { rank, room, request: request.map_err(|error| self.refused(error))? });
            }
        }
        for &(rank, bytes) in sent {
            for piece in bytes.chunks(LARGEST) {
                let request = self.messages.isend(scope, piece, rank as i32, TAG);
                open.push(Open { rank, room: None, request: request.map_err(|error| self.refused(error))? });
            }
        }
        Ok(open)
    }

    /// Waits for messages.
    fn wait(&self, mut open: Vec<Open<'_>>) -> Result<(), CommError> {
        let begun = Instant::now();
        for turn in 1u32.. {
            let mut failed = Ok(());
            open.retain_mut(|message| match self.is_done(message) {
                Ok(is_done) => !is_done,
                Err(error) => {
                    failed = Err(error);
                    false
                }
            });
            failed?;
            if open.is_empty() {
                break;
            }
            if turn.is_multiple_of(TURNS) && begun.elapsed() > self.timeout {
                return Err(self.late(&open));
            }
            thread::yield_now();
        }
        Ok(())
    }

    /// Whether a message has arrived whole, or has been sent.
    fn is_done(&self, message: &mut Open<'_>) -> Result<bool, CommError> {
        let Some(status) = message.request.test().map_err(|error| self.refused(error))? else {
            return Ok(false);
        };
        match message.room {
            Some(room) if status.count != Some(room) => {
                let (rank, sent) = (message.rank, status.count.unwrap_or_default());
                let message = format!("rank {rank} sent {sent} bytes where {room} are due");
                Err(CommError::Transport { rank: self.rank(), message })
            }
            _ => Ok(true),
        }
    }

    fn late(&self, open: &[Open<'_>]) -> CommError {
        let mut missing: Vec<u64> = open.iter().map(|message| message.rank).collect();
        missing.sort_unstable();
        missing.dedup();
        CommError::Late { rank: self.rank(), seconds: self.timeout.as_secs(), missing }
    }

    fn refused(&self, error: ferrompi::Error) -> CommError {
        CommError::Transport { rank: self.rank(), message: error.to_string() }
    }

    /// Ends the job, since an exchange failed.
    fn end(&self, error: &CommError) -> ! {
        (self.give_up)(error);
        end_job(&self.world, 1)
    }
}
