//! Since when a device has been in a call: a device that never answers is told of, and not waited for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A clock that a device sets when a call begins, for who looks after it from another thread.
#[derive(Clone, Debug, Default)]
pub struct CallClock(Arc<Mutex<Option<Instant>>>);

/// A call. It ends when this is dropped.
pub(crate) struct Call(CallClock);

impl CallClock {
    /// Begins a call. Within another call it counts as a part of that one.
    pub(crate) fn begin(&self) -> Option<Call> {
        let mut since = self.since();
        if since.is_some() {
            return None;
        }
        *since = Some(Instant::now());
        Some(Call(self.clone()))
    }

    /// Whether the device has been in a call for this long.
    pub fn has_run_for(&self, time: Duration) -> bool {
        self.since().is_some_and(|since| since.elapsed() >= time)
    }

    fn since(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        *self.0.since() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_lasts_until_the_outermost_ends() {
        let clock = CallClock::default();
        assert!(!clock.has_run_for(Duration::ZERO));
        let outer = clock.begin();
        drop(clock.begin());
        assert!(clock.has_run_for(Duration::ZERO) && !clock.has_run_for(Duration::from_secs(60)));
        drop(outer);
        assert!(!clock.has_run_for(Duration::ZERO));
    }
}
