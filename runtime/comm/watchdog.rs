//! A watchdog over the ranks of a process: it reports a rank or a GPU that hangs, so that the others do not wait for ever.
//!
//! A rank cannot be ended from outside: it may be anywhere, even in a kernel that writes bytes that others read. So the watchdog only
//! reports, and the function that it calls ends the process.

use super::CommError;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A function that is called after too long a wait.
pub type GiveUp = Box<dyn FnOnce(&CommError) + Send>;

/// A thread that watches ranks until it is dropped.
pub struct Watchdog {
    /// The sender that ends the thread when it is dropped.
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Calls `look` repeatedly, with a time that only advances while this process runs. If `look` returns an error about too long a wait,
    /// `give_up` is called once with it.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn start(
        timeout: Duration,
        mut look: impl FnMut(Duration) -> Option<CommError> + Send + 'static,
        give_up: GiveUp,
    ) -> std::io::Result<Self> {
        let (alive, ended) = mpsc::channel();
        let look_after = move || {
            let interval = (timeout / 8).min(Duration::from_secs(1));
            // A process may be stopped and continued later. Ranks do not wait meanwhile, so time is counted in looks.
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
            // If `give_up` panicked, the panic was already printed.
            let _ = thread.join();
        }
    }
}
