//! The delivery of messages between two ranks: the sender leaves a copy and goes on, and the receiver waits for it.

use super::mail::Route;
use super::meeting::{Board, Seat, World};
use super::{CommError, Terms};
use std::collections::VecDeque;

impl World {
    /// Leaves a copy of a message for its receiver.
    pub(super) fn post(&self, way: Route, bytes: &[u8]) -> Result<(), CommError> {
        let mut board = self.board();
        let mut copy = board.mail.spare.get_mut(&way).and_then(Vec::pop).unwrap_or_default();
        drop(board);
        copy.clear();
        copy.extend_from_slice(bytes);
        board = self.board();
        if let Some(ended) = &board.ended {
            return Err(ended.clone());
        }
        board.mail.sent.entry(way).or_default().push_back(copy);
        if board.mail.awaited.contains_key(&way) {
            board.sit(way.to, Seat::Busy);
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Waits for a message and copies it to `bytes`.
    pub(super) fn take(&self, way: Route, bytes: &mut [u8]) -> Result<(), CommError> {
        let mut board = self.board();
        let mut turns = 0;
        let message = loop {
            if let Some(message) = board.mail.sent.get_mut(&way).and_then(VecDeque::pop_front) {
                break message;
            }
            if let Some(ended) = &board.ended {
                let ended = ended.clone();
                board.awaits(way, false);
                return Err(ended);
            }
            if turns == 0 {
                board.awaits(way, true);
                let issued = Terms::of_message(way.from, way.to, bytes.len()).to_string();
                board.sit(way.to, Seat::Waiting { issued });
                if board.end_if_stuck() {
                    self.changed.notify_all();
                    continue;
                }
            }
            board = self.pause(board, &mut turns);
        };
        board.awaits(way, false);
        let is_due = message.len() == bytes.len();
        if !is_due {
            let told = |length| Terms::of_message(way.from, way.to, length).to_string();
            let (first, second) = ((way.from, told(message.len())), (way.to, told(bytes.len())));
            let different = CommError::Different { first, second };
            board.ended.get_or_insert(different.clone());
            self.changed.notify_all();
            return Err(different);
        }
        drop(board);
        bytes.copy_from_slice(&message);
        self.board().mail.spare.entry(way).or_default().push(message);
        Ok(())
    }
}

impl Board {
    /// Records whether the receiver of a way waits.
    fn awaits(&mut self, way: Route, waits: bool) {
        if waits {
            self.mail.awaited.insert(way, None);
        } else if self.mail.awaited.remove(&way).is_some() {
            self.sit(way.to, Seat::Busy);
        }
    }
}
