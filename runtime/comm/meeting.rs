//! Where ranks meet: a barrier for each group, which an error or a panic of any rank opens for all.
//!
//! A collective is a meeting in three steps. A rank comes, says what it issues and lends the bytes that others may
//! read, and waits for its group. When all ranks have come, they are *inside*: each does bounded work on memory. A rank
//! goes when all ranks have stopped reading. Waiting for a rank to come ends, with an error, when any rank fails, and when nobody is left who could
//! come; ranks that are inside always go, a panic included. So nothing waits for ever, and no borrow is outlived.

use super::lent::Lent;
use super::mail::{Mail, Way};
use super::sync::{Byte, Condvar, Mutex, MutexGuard, TURNS, panicking, turn};
use super::{CommError, Terms};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The ranks of one process.
pub(super) struct World {
    board: Mutex<Board>,
    pub(super) changed: Condvar,
}

pub(super) struct Board {
    /// Why all ranks end, once they do.
    pub(super) ended: Option<CommError>,
    seats: Vec<Seat>,
    /// By group.
    meetings: BTreeMap<Vec<u64>, Meeting>,
    pub(super) mail: Mail,
}

/// What a rank is doing.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Seat {
    /// Nothing: it will come to no meeting.
    Away,
    /// Something that ends.
    Busy,
    /// Waiting for a group to come together.
    Waiting { issued: String },
}

/// A group that comes together again and again.
#[derive(Default)]
struct Meeting {
    /// What those who are there have posted, by their place in the group.
    posts: Vec<Option<Post>>,
    here: usize,
    /// The watchdog's time when it first saw them wait.
    seen: Option<Duration>,
    /// How often the group has been complete.
    opened: u64,
    /// What was posted when it last was.
    agenda: Arc<Vec<Post>>,
    /// How many have not gone since.
    inside: usize,
}

struct Post {
    terms: Terms,
    lent: Vec<Lent>,
}

impl World {
    pub(super) fn new(ranks: u64) -> Self {
        let seats = vec![Seat::Away; ranks as usize];
        Self {
            board: Mutex::new(Board { ended: None, seats, meetings: BTreeMap::new(), mail: Mail::default() }),
            changed: Condvar::new(),
        }
    }

    pub(super) fn board(&self) -> MutexGuard<'_, Board> {
        // Nothing panics while it holds the lock, but if it did the abort must still go through.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every rank is at work now; what went wrong before is forgotten.
    pub(super) fn begin(&self) {
        let mut board = self.board();
        board.ended = None;
        board.meetings.clear();
        board.mail = Mail::default();
        board.seats.fill(Seat::Busy);
    }

    /// Why all ranks ended, if they did.
    pub(super) fn ended(&self) -> Option<CommError> {
        self.board().ended.clone()
    }

    /// A rank has done all its work: who waits for it waits in vain.
    pub(super) fn leave(&self, rank: u64) {
        let mut board = self.board();
        board.sit(rank, Seat::Away);
        board.end_if_stuck();
        self.changed.notify_all();
    }

    /// Ends all ranks, since this one failed.
    pub(super) fn end(&self, rank: u64) {
        let mut board = self.board();
        board.ended.get_or_insert(CommError::Ended { rank });
        self.changed.notify_all();
    }

    /// The ranks that others have waited for this long, at this time of the watchdog's.
    pub(super) fn late(&self, time: Duration, timeout: Duration) -> Option<CommError> {
        let mut board = self.board();
        if board.ended.is_some() {
            return None;
        }
        let Board { seats, meetings, mail, .. } = &mut *board;
        let awaited = mail.late(time, timeout);
        let mut is_late = !awaited.is_empty();
        for meeting in meetings.values_mut().filter(|meeting| meeting.here > 0) {
            is_late |= time.saturating_sub(*meeting.seen.get_or_insert(time)) >= timeout;
        }
        // A missing rank may itself wait in another meeting. The one to name waits nowhere.
        let is_waiting = |rank: u64| matches!(seats.get(rank as usize), Some(Seat::Waiting { .. }));
        let one = |(group, meeting): (&Vec<u64>, &Meeting)| {
            let (here, missing): (Vec<_>, Vec<_>) =
                group.iter().zip(&meeting.posts).partition(|(_, post)| post.is_some());
            let missing: Vec<u64> =
                missing.into_iter().map(|(&rank, _)| rank).filter(|&rank| !is_waiting(rank)).collect();
            let rank = here.first().map(|(rank, _)| **rank).filter(|_| !missing.is_empty())?;
            Some((meeting.seen, CommError::Late { rank, seconds: timeout.as_secs(), missing }))
        };
        let meetings = meetings.iter().filter(|(_, meeting)| is_late && meeting.here > 0);
        let message = |(way, seen): (Way, Duration)| {
            let late = CommError::Late { rank: way.to, seconds: timeout.as_secs(), missing: vec![way.from] };
            (!is_waiting(way.from)).then_some((Some(seen), late))
        };
        let all = meetings.filter_map(one).chain(awaited.into_iter().filter_map(message));
        all.min_by_key(|(seen, _)| *seen).map(|(_, late)| late)
    }

    /// Meets the group: `inside` runs when all have come, and sees what they lent.
    pub(super) fn meet<R>(
        &self,
        rank: u64,
        group: &[u64],
        terms: Terms,
        lent: &[&[Byte]],
        inside: impl FnOnce(&Inside) -> R,
    ) -> Result<R, CommError> {
        let outside = || CommError::Outside { rank, group: group.to_vec() };
        let place = group.iter().position(|&member| member == rank).ok_or_else(outside)?;
        let lent = lent.iter().map(|bytes| Lent::new(bytes)).collect();
        let agenda = self.come(rank, group, place, Post { terms, lent })?;
        let room = Inside { world: self, group, place, agenda };
        Ok(inside(&room)) // `room` goes, also when this panics
    }

    /// Waits for the group to be complete.
    fn come(&self, rank: u64, group: &[u64], place: usize, post: Post) -> Result<Arc<Vec<Post>>, CommError> {
        let mut board = self.board();
        if let Some(ended) = &board.ended {
            return Err(ended.clone());
        }
        let meeting = board.meeting(group);
        let before = meeting.opened;
        if meeting.here == 0 {
            meeting.seen = None;
        }
        meeting.here += 1;
        if meeting.here == group.len() {
            meeting.posts[place] = Some(post);
            board.open(group);
            self.changed.notify_all();
        } else {
            let issued = post.terms.to_string();
            meeting.posts[place] = Some(post);
            board.sit(rank, Seat::Waiting { issued });
            if board.end_if_stuck() {
                self.changed.notify_all();
            }
        }
        let mut turns = 0;
        loop {
            let ended = board.ended.clone();
            let meeting = board.meeting(group);
            if meeting.opened > before {
                return Ok(meeting.agenda.clone());
            }
            if let Some(ended) = ended {
                // Nobody has seen it.
                meeting.posts[place] = None;
                meeting.here -= 1;
                board.sit(rank, Seat::Busy);
                return Err(ended);
            }
            board = self.pause(board, &mut turns);
        }
    }

    /// Lets others change the board: for some turns, then until they do.
    pub(super) fn pause<'b>(
        &'b self,
        board: MutexGuard<'b, Board>,
        turns: &mut u32,
    ) -> MutexGuard<'b, Board> {
        if *turns == TURNS {
            return self.changed.wait(board).unwrap_or_else(PoisonError::into_inner);
        }
        *turns += 1;
        drop(board);
        turn();
        self.board()
    }
}

impl Board {
    fn meeting(&mut self, group: &[u64]) -> &mut Meeting {
        let new = || Meeting { posts: group.iter().map(|_| None).collect(), ..Meeting::default() };
        self.meetings.entry(group.to_vec()).or_insert_with(new)
    }

    pub(super) fn sit(&mut self, rank: u64, seat: Seat) {
        if let Some(place) = self.seats.get_mut(rank as usize) {
            *place = seat;
        }
    }

    /// Lets a complete group in, if all of it issued the same.
    fn open(&mut self, group: &[u64]) {
        let meeting = self.meeting(group);
        let posts: Vec<&Post> = meeting.posts.iter().flatten().collect();
        if let Some(other) = posts.iter().position(|post| post.terms != posts[0].terms) {
            let said = |place: usize| (group[place], posts[place].terms.to_string());
            let different = CommError::Different { first: said(0), second: said(other) };
            self.ended.get_or_insert(different);
            return;
        }
        meeting.agenda = Arc::new(meeting.posts.iter_mut().filter_map(Option::take).collect());
        meeting.opened += 1;
        meeting.here = 0;
        meeting.inside = group.len();
        group.iter().for_each(|&member| self.sit(member, Seat::Busy));
    }

    /// Ends all ranks if those that are not away all wait for others to come.
    pub(super) fn end_if_stuck(&mut self) -> bool {
        if self.ended.is_some() || self.seats.contains(&Seat::Busy) {
            return false;
        }
        let waiting = |(rank, seat): (usize, &Seat)| match seat {
            Seat::Waiting { issued } => Some((rank as u64, issued.clone())),
            _ => None,
        };
        let waiting: Vec<_> = self.seats.iter().enumerate().filter_map(waiting).collect();
        let stuck = !waiting.is_empty();
        if stuck {
            self.ended = Some(CommError::Stuck(waiting));
        }
        stuck
    }
}

/// A rank's presence in a meeting whose group is complete. Dropping it waits until nobody reads any more; what was
/// lent is not needed after that.
pub(super) struct Inside<'w> {
    world: &'w World,
    group: &'w [u64],
    place: usize,
    agenda: Arc<Vec<Post>>,
}

impl Inside<'_> {
    /// This rank's place in the group.
    pub(super) fn place(&self) -> usize {
        self.place
    }

    /// What each rank of the group lent of a tensor, by place.
    pub(super) fn lent(&self, tensor: usize) -> Vec<&[Byte]> {
        // SAFETY: every member of the meeting keeps what it lent borrowed until it goes, and it goes only when all
        // have stopped reading: this reference ends before `self`, whose drop says so.
        #[allow(unsafe_code)]
        self.agenda.iter().map(|post| unsafe { post.lent[tensor].get() }).collect()
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut board = self.world.board();
        if panicking() {
            board.ended.get_or_insert(CommError::Ended { rank: self.group[self.place] });
        }
        board.meeting(self.group).inside -= 1;
        self.world.changed.notify_all();
        let mut turns = 0;
        while board.meeting(self.group).inside > 0 {
            board = self.world.pause(board, &mut turns);
        }
    }
}
