//! The messages that are in transit between two ranks, and the receivers that wait.
//!
//! Messages of one channel arrive in the order in which they were sent. The memory of a received message is reused for the next message of
//! its channel. So the ranks of a pipeline hold as many copies as were ever in transit at once.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The sender, receiver and channel of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Route {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) channel: u32,
}

/// The messages between all ranks.
#[derive(Default)]
pub(super) struct Mail {
    /// Messages that were sent and not yet received.
    pub(super) sent: BTreeMap<Route, VecDeque<Vec<u8>>>,
    /// The memory of received messages, for reuse.
    pub(super) spare: BTreeMap<Route, Vec<Vec<u8>>>,
    /// The ways on which a rank waits, with the watchdog's time when it first saw that rank wait.
    pub(super) awaited: BTreeMap<Route, Option<Duration>>,
}

impl Mail {
    /// Returns the ways on which a rank has waited for at least `timeout`, each with the time when the watchdog first saw it wait.
    pub(super) fn late(&mut self, time: Duration, timeout: Duration) -> Vec<(Route, Duration)> {
        let mut late = vec![];
        for (way, seen) in &mut self.awaited {
            let seen = *seen.get_or_insert(time);
            late.extend((time.saturating_sub(seen) >= timeout).then_some((*way, seen)));
        }
        late
    }
}
