//! A watchdog over ranks that are threads: a rank that stands still does not let the others wait for ever.
//!
//! A meeting cannot end by itself when a rank does not come: the rank may be anywhere, even in a kernel that writes what it lent.
//! So the watchdog only tells, and whoever it tells ends the process.

use super::CommError;
use super::meeting::World;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What is done when a rank does not come in time.
pub type GiveUp = Box<dyn FnOnce(&CommError) + Send>;

/// A thread that looks after ranks until it is dropped.
pub struct Watchdog {
    /// Dropped to end the thread.
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Looks after the ranks of a world: `give_up` is told, once, of a rank that others have waited for this long.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(super) fn start(world: Arc<World>, timeout: Duration, give_up: GiveUp) -> std::io::Result<Self> {
        let (alive, ended) = mpsc::channel();
        let look_after = move || {
            let interval = (timeout / 8).min(Duration::from_secs(1));
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                if let Some(late) = world.late(timeout) {
                    return give_up(&late);
                }
            }
        };
        let thread = thread::Builder::new().name("watchdog".into()).spawn(look_after)?;
        Ok(Self { alive: Some(alive), thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.alive.take());
        if let Some(thread) = self.thread.take() {
            // A panic while it told of a rank was printed.
            let _ = thread.join();
        }
    }
}
