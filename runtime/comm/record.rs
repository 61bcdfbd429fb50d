//! A flight record: the last exchanges of a rank, to diagnose a run that ends badly.

use super::{CollectiveKind, CommError, Communicator, Exchanged, Terms};
use ir::timetable::Task;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The number of exchanges that are kept.
const LENGTH: usize = 1000;

/// The last exchanges of a rank.
#[derive(Clone)]
pub struct FlightRecord(Arc<Mutex<Exchanges>>);

/// An operation, with the ranks that take part.
enum Operation {
    Collective(Terms),
    Send { bytes: usize, to: u64 },
    Receive { bytes: usize, from: u64 },
}

struct Exchanges {
    began: Instant,
    /// The node whose exchange comes next.
    origin: Option<Arc<str>>,
    /// The task of a pipeline that the rank runs.
    task: Option<Task>,
    /// The number of exchanges before the first that is kept.
    before: u64,
    kept: VecDeque<OneExchange>,
}

struct OneExchange {
    operation: Operation,
    /// The node of the program that needs the exchange, if there is one.
    origin: Option<Arc<str>>,
    /// The task of a pipeline that the exchange belongs to.
    task: Option<Task>,
    start: Duration,
    /// The time of its end; `None` while it runs.
    end: Option<Duration>,
}

impl FlightRecord {
    /// Makes an empty record. Times count from now.
    #[allow(clippy::new_without_default, reason = "it begins to count time")]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Exchanges {
            began: Instant::now(),
            origin: None,
            task: None,
            before: 0,
            kept: VecDeque::new(),
        })))
    }

    /// Returns the exchange that the rank waits in, if there is one.
    pub fn open(&self) -> Option<String> {
        let exchanges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        exchanges.kept.back().filter(|last| last.end.is_none()).map(OneExchange::to_string)
    }

    /// Returns the exchange that the rank waits in, if it has lasted at least this long.
    pub fn open_for(&self, time: Duration) -> Option<String> {
        let exchanges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |start: Duration| exchanges.began.elapsed().saturating_sub(start) >= time;
        let last = exchanges.kept.back()?;
        (last.end.is_none() && is_old(last.start)).then(|| last.to_string())
    }

    /// Returns the task of a pipeline that the rank runs, if there is one.
    pub fn task(&self) -> Option<Task> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).task
    }

    /// Runs an exchange and records it.
    fn keep<R>(
        &self,
        operation: Operation,
        exchange: impl FnOnce() -> Result<R, CommError>,
    ) -> Result<R, CommError> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut exchanges = lock();
            if exchanges.kept.len() == LENGTH {
                exchanges.kept.pop_front();
                exchanges.before += 1;
            }
            let start = exchanges.began.elapsed();
            let (origin, task) = (exchanges.origin.take(), exchanges.task);
            exchanges.kept.push_back(OneExchange { operation, origin, task, start, end: None });
        }
        let result = exchange()?;
        let mut exchanges = lock();
        let now = exchanges.began.elapsed();
        if let Some(last) = exchanges.kept.back_mut() {
            last.end = Some(now);
        }
        Ok(result)
    }
}

/// One line for each exchange: its number, its start in seconds, its duration in microseconds, the operation, and the ranks.
impl fmt::Display for FlightRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exchanges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, exchange) in (exchanges.before..).zip(&exchanges.kept) {
            let OneExchange { start, end, .. } = exchange;
            write!(f, "{number:>9} {:>12.6} s  ", start.as_secs_f64())?;
            match end {
                Some(end) => write!(f, "{:>9} us", (*end - *start).as_micros())?,
                None => f.write_str("   not done")?,
            }
            writeln!(f, "  {exchange}")?;
        }
        Ok(())
    }
}

/// `` `receive` of 32 bytes from rank 1, for node "/fc/Gemm" (Gemm, opset 20), in backward of stage 0, microbatch 3 ``
impl fmt::Display for OneExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.operation {
            Operation::Collective(terms) => write!(f, "{terms}")?,
            Operation::Send { bytes, to } => write!(f, "`send` of {bytes} bytes to rank {to}")?,
            Operation::Receive { bytes, from } => write!(f, "`receive` of {bytes} bytes from rank {from}")?,
        }
        if let Some(origin) = self.origin.as_ref().filter(|origin| !origin.is_empty()) {
            write!(f, ", for {origin}")?;
        }
        self.task.map_or(Ok(()), |task| write!(f, ", in {}", task.in_words()))
    }
}

/// A communicator whose exchanges are kept in a record.
pub struct Recorded {
    inner: Arc<dyn Communicator>,
    record: FlightRecord,
}

impl Recorded {
    /// Makes a communicator that keeps its exchanges in `record`.
    pub fn new(inner: Arc<dyn Communicator>, record: FlightRecord) -> Self {
        Self { inner, record }
    }
}

impl Communicator for Recorded {
    fn rank(&self) -> u64 {
        self.inner.rank()
    }

    fn comes_from(&self, origin: &Arc<str>) {
        let mut exchanges = self.record.0.lock().unwrap_or_else(PoisonError::into_inner);
        exchanges.origin = Some(origin.clone());
    }

    fn turns_to(&self, task: Option<Task>) {
        let mut exchanges = self.record.0.lock().unwrap_or_else(PoisonError::into_inner);
        exchanges.task = task;
    }

    fn collective(
        &self,
        kind: CollectiveKind,
        group: &[u64],
        tensors: &mut [Exchanged],
    ) -> Result<(), CommError> {
        let terms = Terms::of(kind, group, tensors);
        self.record.keep(Operation::Collective(terms), || self.inner.collective(kind, group, tensors))
    }

    fn send(&self, to: u64, channel: u32, bytes: &[u8]) -> Result<(), CommError> {
        self.record.keep(Operation::Send { bytes: bytes.len(), to }, || self.inner.send(to, channel, bytes))
    }

    fn receive(&self, from: u64, channel: u32, bytes: &mut [u8]) -> Result<(), CommError> {
        self.record.keep(Operation::Receive { bytes: bytes.len(), from }, || {
            self.inner.receive(from, channel, bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::PartialKind;

    /// A communicator that fails at every exchange.
    struct Failing;

    impl Communicator for Failing {
        fn rank(&self) -> u64 {
            0
        }

        fn collective(&self, _: CollectiveKind, _: &[u64], _: &mut [Exchanged]) -> Result<(), CommError> {
            Err(CommError::Alone)
        }

        fn send(&self, _: u64, _: u32, _: &[u8]) -> Result<(), CommError> {
            Ok(())
        }

        fn receive(&self, _: u64, _: u32, _: &mut [u8]) -> Result<(), CommError> {
            Err(CommError::Alone)
        }
    }

    #[test]
    fn the_last_exchanges_are_kept_and_the_one_that_is_not_done_is_named() {
        let record = FlightRecord::new();
        let communicator = Recorded::new(Arc::new(Failing), record.clone());
        for _ in 0..LENGTH + 7 {
            communicator.send(1, 0, &[1, 2]).unwrap();
        }
        assert_eq!(record.open(), None);
        let node: Arc<str> = "node \"/fc/Gemm\" (Gemm, opset 20)".into();
        communicator.comes_from(&node);
        communicator.collective(CollectiveKind::AllReduce(PartialKind::Sum), &[0, 1], &mut []).unwrap_err();
        assert_eq!(record.open_for(Duration::from_secs(3600)), None);
        assert_eq!(record.open_for(Duration::ZERO), record.open());
        let text = "`all_reduce` (sum) among the ranks [0, 1], for node \"/fc/Gemm\" (Gemm, opset 20)";
        assert_eq!(record.open().as_deref(), Some(text));
        let mut room = [0; 3];
        communicator.receive(1, 0, &mut room).unwrap_err();
        assert_eq!(record.open().as_deref(), Some("`receive` of 3 bytes from rank 1"));
        let text = record.to_string();
        assert_eq!(text.lines().count(), LENGTH);
        assert!(text.lines().next().unwrap().starts_with("        9 "), "{text}");
        let last = text.lines().last().unwrap();
        assert!(last.ends_with("not done  `receive` of 3 bytes from rank 1"), "{last}");
    }
}
