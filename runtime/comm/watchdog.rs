//! A watchdog over the ranks of a process: a rank or a GPU that stands still does not let the others wait for ever.
//!
//! A rank cannot be ended from outside: it may be anywhere, even in a kernel that writes what others read. So the watchdog only tells, and
//! whoever it tells ends the process.

use super::CommError;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The act when something was waited for too long.
pub type GiveUp = Box<dyn FnOnce(&CommError) + Send>;

/// A thread that looks after ranks until it is dropped.
pub struct Watchdog {
    /// Dropped to end the thread.
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Looks again and again, and gives `look` a time that goes on while this process runs. If it tells of something that was waited
    /// for too long, `give_up` is told, once.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(crate) fn start(
        timeout: Duration,
        mut look: impl FnMut(Duration) -> Option<CommError> + Send + 'static,
        give_up: GiveUp,
    ) -> std::io::Result<Self> {
        let (alive, ended) = mpsc::channel();
        let look_after = move || {
            let interval = (timeout / 8).min(Duration::from_secs(1));
            // A process may be stopped and go on later. It waited for nobody meanwhile, so time is counted in looks.
            let mut time = Duration::ZERO;
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                time += interval;
                if let Some(late) = look(time) {
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
