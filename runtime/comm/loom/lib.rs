//! Models of `runtime/comm`: ranks meet, lend bytes, fail, panic and leave, in every order that loom finds.
//!
//! The files of the meeting are compiled here unchanged, with the [`sync`] of this folder in place of theirs. Loom switches between the
//! threads at every lock. It reports a byte that is written while another rank may read it, and ranks that wait for ever.
#![cfg(test)]
#![allow(dead_code, reason = "the models call less of these files than the collectives do")]

#[path = "../at_work.rs"]
mod at_work;
#[path = "../delivery.rs"]
mod delivery;
#[path = "../../program/device/comm_error.rs"]
mod error;
#[path = "../lent.rs"]
mod lent;
#[path = "../mail.rs"]
mod mail;
#[path = "../meeting.rs"]
mod meeting;
mod models;
mod ranks;
mod sync;

use error::CommError;
use std::fmt;

/// The terms of the collective that a rank issues. The collectives themselves are not part of the models.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Terms(&'static str);

impl Terms {
    fn of_message(_: u64, _: u64, _: usize) -> Self {
        Self("send")
    }
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
