//! Ranks that are processes of one MPI job: they exchange messages by MPI.
//!
//! This package stands outside of the workspace, since its binding is compiled against one MPI. The feature `mpi` of the
//! main package brings it in.

use ferrompi::{Mpi, Request, ThreadLevel};
use runtime::comm::messages::{ByMessages, Messages, Received, Sent};
use runtime::comm::{CommError, Communicator};
use std::sync::Arc;
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

    /// The communicator of this rank. An exchange whose other ranks do not come within `timeout` ends the job, after `give_up` was
    /// told of it: MPI cannot take back a message that was sent.
    ///
    /// # Errors
    /// MPI refuses.
    pub fn communicator(&self, timeout: Duration, give_up: GiveUp) -> Result<Arc<dyn Communicator>, String> {
        let world = self.mpi.world().duplicate().map_err(|error| error.to_string())?;
        Ok(Arc::new(ByMessages(Link { world, timeout, give_up })))
    }

    /// Ends all processes of the job.
    pub fn abort(&self, code: i32) -> ! {
        self.mpi.world().abort(code)
    }
}

/// The messages of a rank.
struct Link {
    world: ferrompi::Communicator,
    timeout: Duration,
    give_up: GiveUp,
}

/// The bytes of a message at most: MPI 3 counts them in 32 bits.
const LARGEST: usize = 1 << 30;

/// Between two ranks, messages of one tag keep their order.
const TAG: i32 = 1;

/// The time is looked at once in so many turns of waiting.
const TURNS: u32 = 256;

impl Messages for Link {
    fn rank(&self) -> u64 {
        self.world.rank() as u64
    }

    fn exchange(&self, sent: &[Sent<'_>], received: Vec<Received<'_>>) -> Result<(), CommError> {
        let done = ferrompi::scope(|scope| {
            let mut open = vec![];
            for (from, room) in received {
                for piece in room.chunks_mut(LARGEST) {
                    open.push((from, self.world.irecv(scope, piece, from as i32, TAG)?));
                }
            }
            for &(to, bytes) in sent {
                for piece in bytes.chunks(LARGEST) {
                    open.push((to, self.world.isend(scope, piece, to as i32, TAG)?));
                }
            }
            self.wait(open)
        });
        done.map_err(|error| CommError::Transport { rank: self.rank(), message: error.to_string() })
    }
}

impl Link {
    /// Waits for messages, each from or to a rank.
    fn wait(&self, mut open: Vec<(u64, Request<'_>)>) -> ferrompi::Result<()> {
        let begun = Instant::now();
        for turn in 1u32.. {
            let mut failed = None;
            open.retain_mut(|(_, request)| match request.test() {
                Ok(done) => done.is_none(),
                Err(error) => {
                    failed.get_or_insert(error);
                    false
                }
            });
            if let Some(error) = failed {
                return Err(error);
            }
            if open.is_empty() {
                break;
            }
            if turn.is_multiple_of(TURNS) && begun.elapsed() > self.timeout {
                self.end(&open);
            }
            thread::yield_now();
        }
        Ok(())
    }

    /// Ends the job, since ranks do not come.
    fn end(&self, open: &[(u64, Request<'_>)]) -> ! {
        let mut missing: Vec<u64> = open.iter().map(|(rank, _)| *rank).collect();
        missing.sort_unstable();
        missing.dedup();
        let late = CommError::Late { rank: self.rank(), seconds: self.timeout.as_secs(), missing };
        (self.give_up)(&late);
        self.world.abort(1)
    }
}
