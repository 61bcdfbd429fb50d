//! Exchanges that run beside computation: a thread runs the exchanges that a rank starts, in the order of their starts.
//!
//! All exchanges of a rank keep one order, so a rank that exchanges outside of the queue waits for the queue first
//! ([`ExchangeQueue::finish`]). All ranks start the same exchanges in the same order, so each exchange finds its partners, whatever else
//! the ranks compute meanwhile.

use super::sync::{TURNS, turn};
use super::{CommError, Communicator};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// An exchange, as a function to run.
pub type Job = Box<dyn FnOnce(&dyn Communicator) -> Result<(), CommError> + Send>;

/// The exchanges of a rank that run beside its computation. After a failed exchange, no further one runs. Dropping the queue waits for the
/// exchange that runs, and drops the others.
pub struct ExchangeQueue {
    communicator: Arc<dyn Communicator>,
    shared: Arc<Shared>,
    /// The thread of the exchanges, which the first exchange starts.
    worker: Option<JoinHandle<()>>,
}

/// The number of an exchange that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Started(u64);

#[derive(Default)]
struct Shared {
    board: Mutex<Board>,
    changed: Condvar,
}

#[derive(Default)]
struct Board {
    waiting: VecDeque<Job>,
    started: u64,
    ended: u64,
    /// The first failure. No exchange runs after it.
    failed: Option<CommError>,
    /// The panic of an exchange, until the rank resumes it.
    panic: Option<Box<dyn Any + Send>>,
    closed: bool,
}

impl ExchangeQueue {
    /// Makes a queue without exchanges.
    pub fn new(communicator: Arc<dyn Communicator>) -> Self {
        Self { communicator, shared: Arc::default(), worker: None }
    }

    /// Returns the communicator of the exchanges. [`Self::finish`] must be called before it is used.
    pub fn communicator(&self) -> &dyn Communicator {
        &*self.communicator
    }

    /// Starts an exchange after all others. If no thread can be started, the exchange runs here.
    pub fn start(&mut self, job: Job) -> Started {
        let number = {
            let mut board = self.shared.board();
            board.waiting.push_back(job);
            board.started += 1;
            board.started
        };
        self.shared.changed.notify_all();
        if self.worker.is_none() {
            let (communicator, shared) = (self.communicator.clone(), self.shared.clone());
            let name = format!("rank-{}-exchange", communicator.rank());
            let worker = thread::Builder::new().name(name).spawn(move || shared.work(&*communicator, false));
            match worker {
                Ok(worker) => self.worker = Some(worker),
                Err(_) => self.shared.work(&*self.communicator, true),
            }
        }
        Started(number)
    }

    /// Waits until an exchange, and all exchanges that were started before it, are done.
    ///
    /// # Errors
    /// One of these exchanges failed, or an earlier one did.
    ///
    /// # Panics
    /// One of these exchanges panicked: this thread resumes the panic.
    pub fn wait(&self, started: Started) -> Result<(), CommError> {
        let mut board = self.ended(started);
        if let Some(panic) = board.panic.take() {
            drop(board);
            resume_unwind(panic);
        }
        board.failed.clone().map_or(Ok(()), Err)
    }

    /// Returns the board once an exchange has ended.
    fn ended(&self, Started(number): Started) -> MutexGuard<'_, Board> {
        let mut board = self.shared.board();
        let mut turns = 0;
        while board.ended < number {
            if turns < TURNS {
                turns += 1;
                drop(board);
                turn();
                board = self.shared.board();
            } else {
                board = self.shared.changed.wait(board).unwrap_or_else(PoisonError::into_inner);
            }
        }
        board
    }

    /// Waits until all exchanges are done.
    ///
    /// # Errors
    /// An exchange failed.
    ///
    /// # Panics
    /// Those of [`Self::wait`].
    pub fn finish(&self) -> Result<(), CommError> {
        self.wait(self.newest())
    }

    /// Waits until all exchanges have ended, with or without an error.
    pub fn settle(&self) {
        drop(self.ended(self.newest()));
    }

    fn newest(&self) -> Started {
        Started(self.shared.board().started)
    }
}

impl Drop for ExchangeQueue {
    fn drop(&mut self) {
        self.shared.board().closed = true;
        self.shared.changed.notify_all();
        if let Some(worker) = self.worker.take() {
            // Panics of exchanges were caught already.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn board(&self) -> MutexGuard<'_, Board> {
        // Nothing panics while it holds the lock.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs exchanges until the queue is closed, or only until it is empty.
    fn work(&self, communicator: &dyn Communicator, until_empty: bool) {
        loop {
            let mut board = self.board();
            while board.waiting.is_empty() && !board.closed && !until_empty {
                board = self.changed.wait(board).unwrap_or_else(PoisonError::into_inner);
            }
            if board.closed {
                return;
            }
            let Some(job) = board.waiting.pop_front() else { return };
            let failed = board.failed.is_some();
            drop(board);
            let carried_out =
                if failed { Ok(Ok(())) } else { catch_unwind(AssertUnwindSafe(|| job(communicator))) };
            let mut board = self.board();
            board.ended += 1;
            match carried_out {
                Ok(Ok(())) => {}
                Ok(Err(error)) => board.failed = Some(error),
                Err(panic) => {
                    board.failed = Some(CommError::Ended { rank: communicator.rank() });
                    board.panic = Some(panic);
                }
            }
            drop(board);
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::local::Local;
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;

    fn alone() -> ExchangeQueue {
        let local = Local::new(1);
        local.begin().into_iter().for_each(std::mem::forget);
        ExchangeQueue::new(Arc::new(local.communicator(0)))
    }

    #[test]
    fn exchanges_run_in_order_beside_the_rank_that_started_them() {
        let mut queue = alone();
        let (go, wait) = mpsc::channel::<()>();
        let order = Arc::new(Mutex::new(vec![]));
        let note = |number: u64, order: &Arc<Mutex<Vec<u64>>>| {
            let order = order.clone();
            move || order.lock().unwrap().push(number)
        };
        let first = note(1, &order);
        let first = queue.start(Box::new(move |_| {
            wait.recv().unwrap();
            first();
            Ok(())
        }));
        let second = note(2, &order);
        let second = queue.start(Box::new(move |_| {
            second();
            Ok(())
        }));
        assert!(first < second);
        assert!(order.lock().unwrap().is_empty());
        go.send(()).unwrap();
        queue.wait(second).unwrap();
        assert_eq!(*order.lock().unwrap(), [1, 2]);
    }

    #[test]
    fn nothing_is_exchanged_after_a_panic_which_the_rank_takes_over() {
        let mut queue = alone();
        let ran = Arc::new(AtomicU64::new(0));
        queue.start(Box::new(|_| panic!("a planted fault")));
        let later = ran.clone();
        let started = queue.start(Box::new(move |_| {
            later.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }));
        let panic = catch_unwind(AssertUnwindSafe(|| queue.wait(started))).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"a planted fault"));
        assert_eq!(queue.finish(), Err(CommError::Ended { rank: 0 }));
        assert_eq!(ran.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn nothing_is_exchanged_after_a_failure() {
        let mut queue = alone();
        let ran = Arc::new(AtomicU64::new(0));
        let failed = queue.start(Box::new(|_| Err(CommError::Alone)));
        let later = ran.clone();
        queue.start(Box::new(move |_| {
            later.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }));
        assert_eq!(queue.wait(failed), Err(CommError::Alone));
        assert_eq!(queue.finish(), Err(CommError::Alone));
        assert_eq!(ran.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_queue_that_is_dropped_waits_for_the_exchange_that_runs() {
        let ran = Arc::new(AtomicU64::new(0));
        let mut queue = alone();
        let (began, begun) = mpsc::channel();
        let inside = ran.clone();
        queue.start(Box::new(move |_| {
            began.send(()).unwrap();
            thread::sleep(std::time::Duration::from_millis(20));
            inside.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }));
        begun.recv().unwrap();
        drop(queue);
        assert_eq!(ran.load(Ordering::Relaxed), 1);
    }
}
