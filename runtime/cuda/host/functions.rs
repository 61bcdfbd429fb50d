//! Functions of the host in the stand-in's streams. CUDA's driver may run the functions of all streams on one thread, one after the
//! other. So does the stand-in, on a thread of its own. A function that waits for another function, or for a lock of the thread that
//! gives commands, would keep a GPU waiting for ever, and is an error here.

use crate::driver::{DriverError, HostTask};
use files::fault::{self, LentFault};
use std::cell::OnceCell;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// A time many times longer than any function takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A function, the fault that a test injects into its operations on files, and the channel that reports its end.
type FunctionCall = (HostTask, LentFault, Sender<LentFault>);

/// The thread that runs functions. It starts with the first function.
pub(super) struct HostThread {
    given: OnceCell<Sender<FunctionCall>>,
    patience: Duration,
}

impl Default for HostThread {
    fn default() -> Self {
        Self { given: OnceCell::new(), patience: PATIENCE }
    }
}

impl HostThread {
    /// Runs a function to its end.
    ///
    /// # Errors
    /// The function does not end, or it panicked.
    pub(super) fn run(&self, task: HostTask) -> Result<(), DriverError> {
        let (end, ended) = channel();
        let panicked = || DriverError("a function of the host panicked".into());
        self.given.get_or_init(start).send((task, fault::lend(), end)).map_err(|_| panicked())?;
        let fault = ended.recv_timeout(self.patience).map_err(|error| match error {
            RecvTimeoutError::Disconnected => panicked(),
            RecvTimeoutError::Timeout => DriverError(format!(
                "a function of the host still runs after {} s; it may wait for another function",
                self.patience.as_secs_f64()
            )),
        })?;
        fault.give_back();
        Ok(())
    }
}

/// Starts a thread that runs functions until the last sender of functions is dropped.
fn start() -> Sender<FunctionCall> {
    let (give, given): (_, Receiver<FunctionCall>) = channel();
    thread::spawn(move || {
        for (task, fault, end) in given {
            let fault = fault.during(|| task());
            // The stand-in may no longer wait for it.
            let _ = end.send(fault);
        }
    });
    give
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Driver;
    use crate::host::{Host, Order};
    use crate::program::Stream;
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    fn first(stream: Stream) -> Host {
        Host::new(Order { threads: 0, first: Some(stream) })
    }

    #[test]
    fn functions_of_all_streams_run_one_after_the_other_on_one_thread() {
        let mut host = first(Stream::Disk);
        let (is_busy, threads) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(vec![])));
        for stream in Stream::ALL {
            let (is_busy, threads) = (is_busy.clone(), threads.clone());
            let task = move || {
                assert!(!is_busy.swap(true, Ordering::SeqCst), "two functions at once");
                thread::yield_now();
                threads.lock().unwrap().push(format!("{:?}", thread::current().id()));
                is_busy.store(false, Ordering::SeqCst);
            };
            host.on_host(stream, Arc::new(task)).unwrap();
        }
        host.finish().unwrap();
        let threads = threads.lock().unwrap();
        assert_eq!(threads.len(), Stream::ALL.len());
        let different: BTreeSet<&String> = threads.iter().collect();
        assert_eq!(different.len(), 1, "{different:?}");
        assert!(!different.contains(&format!("{:?}", thread::current().id())));
    }

    /// Runs two functions: that of one stream sends the message for which the function of the other stream waits.
    fn two_that_meet(mut host: Host) -> Result<(), DriverError> {
        host.functions.patience = Duration::from_millis(200);
        let (give, given) = channel();
        let given = Mutex::new(given);
        let waits = move || drop(given.lock().map(|given| given.recv()));
        host.on_host(Stream::Host, Arc::new(waits)).unwrap();
        host.on_host(Stream::Disk, Arc::new(move || give.send(()).unwrap_or_default())).unwrap();
        host.finish()
    }

    #[test]
    fn a_function_that_waits_for_one_of_another_stream_is_an_error() {
        let error = two_that_meet(first(Stream::Host)).unwrap_err().to_string();
        assert!(error.contains("still runs after 0.2 s; it may wait for another function"), "{error}");
        assert_eq!(two_that_meet(first(Stream::Disk)), Ok(()), "in this order nothing is waited for");
    }

    #[test]
    fn a_function_that_panics_is_an_error() {
        let mut host = Host::new(Order::default());
        host.on_host(Stream::Host, Arc::new(|| panic!("as planted"))).unwrap();
        let error = host.finish().unwrap_err().to_string();
        assert_eq!(error, "a function of the host panicked");
        assert!(host.has_failed());
    }
}
