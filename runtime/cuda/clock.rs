//! Measures when a device runs each command of a step: moments are stamped on its streams before and after each command.

use super::driver::{Driver, DriverError};
use super::program::{Command, Stream};
use program::Section;
use program::profile::{Profile, Span};
use std::time::Duration;

/// The number of the stamp at a step's beginning. The stamps of commands follow.
const BEGINNING: usize = 0;

/// Stamps commands, and reports to a profile when they ran.
pub(super) struct Clock {
    profile: Profile,
    /// The commands that were stamped since the last report.
    stamped: Vec<(Section, usize, Stream)>,
}

impl Clock {
    pub(super) fn new(profile: Profile) -> Self {
        Self { profile, stamped: vec![] }
    }

    /// Begins a step.
    pub(super) fn begin(&mut self, driver: &mut impl Driver) -> Result<(), DriverError> {
        self.stamped.clear();
        self.profile.begin_step();
        driver.stamp(Stream::Main, BEGINNING)
    }

    /// Stamps the moment before a command, after all its waits.
    pub(super) fn before(&self, driver: &mut impl Driver, command: &Command) -> Result<(), DriverError> {
        driver.stamp(command.stream, BEGINNING + 1 + 2 * self.stamped.len())
    }

    /// Stamps the moment after a command.
    pub(super) fn after(
        &mut self,
        driver: &mut impl Driver,
        section: Section,
        command: &Command,
    ) -> Result<(), DriverError> {
        driver.stamp(command.stream, BEGINNING + 2 + 2 * self.stamped.len())?;
        self.stamped.push((section, command.instructions.start, command.stream));
        Ok(())
    }

    /// Waits for all commands, and reports when they ran. A command of several instructions counts as its first instruction.
    pub(super) fn tell(&mut self, driver: &impl Driver) -> Result<(), DriverError> {
        driver.finish()?;
        let since = |stamp| driver.seconds(BEGINNING, stamp).map(|seconds| seconds.max(0.0));
        for (number, (section, instruction, stream)) in self.stamped.drain(..).enumerate() {
            let [start, end] = [since(BEGINNING + 1 + 2 * number)?, since(BEGINNING + 2 + 2 * number)?];
            let [start, time] = [start, (end - start).max(0.0)].map(Duration::from_secs_f64);
            let track = stream.described();
            self.profile.add_span(Span { section, instruction, track, start, time });
        }
        Ok(())
    }
}
