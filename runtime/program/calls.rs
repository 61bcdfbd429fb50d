//! The time that a device has spent in a call, so that another thread can report a device that never answers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The state of a device, for a watchdog on another thread.
#[derive(Clone, Debug, Default)]
pub struct CallClock(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_called: bool,
    /// The watchdog's time when it first saw the call.
    seen: Option<Duration>,
}

/// A call in progress. It ends when this is dropped.
pub struct Call(CallClock);

impl CallClock {
    /// Begins a call. Returns `None` within another call, which then includes this one.
    pub fn begin(&self) -> Option<Call> {
        let mut state = self.state();
        if state.is_called {
            return None;
        }
        *state = State { is_called: true, seen: None };
        Some(Call(self.clone()))
    }

    /// Returns whether the device has been in one call for at least `timeout` at `time`, by the watchdog's clock. The watchdog asks
    /// repeatedly; the time of a call counts from the first time that it was asked about.
    pub fn is_late(&self, time: Duration, timeout: Duration) -> bool {
        let mut state = self.state();
        state.is_called && time.saturating_sub(*state.seen.get_or_insert(time)) >= timeout
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        *self.0.state() = State::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_lasts_until_the_outermost_ends() {
        let clock = CallClock::default();
        let is_late = |seconds| clock.is_late(Duration::from_secs(seconds), Duration::from_secs(10));
        let outer = clock.begin();
        assert!(!is_late(100), "it was not seen before");
        drop(clock.begin());
        assert!(!is_late(109) && is_late(110));
        drop(outer);
        assert!(!is_late(200));
        let _next = clock.begin();
        assert!(!is_late(300) && !is_late(305) && is_late(310));
    }
}
