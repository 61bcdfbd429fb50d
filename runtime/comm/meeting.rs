//! The meetings of ranks: a barrier for each group, which an error or a panic of any rank opens for all.
//!
//! A collective is a meeting in three steps. A rank arrives, says which collective it issues, lends the bytes that others may read, and
//! waits for its group. When all ranks have arrived, they are *inside*: each does bounded work on memory. A rank leaves when all ranks have
//! stopped reading. Waiting for a rank to arrive ends with an error when any rank fails, or when no rank is left that could arrive. Ranks
//! that are inside always leave, even after a panic. So no rank waits for ever, and no borrow is outlived.

use super::lent::Lent;
use super::mail::{Mail, Route};
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
    /// The reason why all ranks end, once they do.
    pub(super) ended: Option<CommError>,
    seats: Vec<Seat>,
    /// The meetings by group.
    meetings: BTreeMap<Vec<u64>, Meeting>,
    pub(super) mail: Mail,
}

/// The state of a rank.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Seat {
    /// Not at work: the rank will come to no meeting.
    Away,
    /// At work, and not waiting for others.
    Busy,
    /// Waiting for a group to be complete, or for a message.
    Waiting { issued: String },
}

/// A group that meets repeatedly.
#[derive(Default)]
struct Meeting {
    /// The posts of the ranks that have arrived, by their place in the group.
    posts: Vec<Option<Post>>,
    here: usize,
    /// The watchdog's time when it first saw ranks wait here.
    seen: Option<Duration>,
    /// The number of times that the group has been complete.
    opened: u64,
    /// The posts of the last time that the group was complete.
    agenda: Arc<Vec<Post>>,
    /// The number of ranks that have not left since then.
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
        // Nothing panics while it holds the lock. If it did, the ranks must still be able to end.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks every rank as at work, and forgets earlier errors.
    pub(super) fn begin(&self) {
        let mut board = self.board();
        board.ended = None;
        board.meetings.clear();
        board.mail = Mail::default();
        board.seats.fill(Seat::Busy);
    }

    /// Returns the reason why all ranks ended, if they did.
    pub(super) fn ended(&self) -> Option<CommError> {
        self.board().ended.clone()
    }

    /// Marks a rank as done. Ranks that still wait for it get an error.
    pub(super) fn leave(&self, rank: u64) {
        let mut board = self.board();
        board.sit(rank, Seat::Away);
        board.end_if_stuck();
        self.changed.notify_all();
    }

    /// Ends all ranks because this one failed.
    pub(super) fn end(&self, rank: u64) {
        let mut board = self.board();
        board.ended.get_or_insert(CommError::Ended { rank });
        self.changed.notify_all();
    }

    /// Returns an error that names ranks for which others have waited for at least `timeout`, at this time of the watchdog.
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
        // A missing rank may itself wait in another meeting. Only ranks that wait nowhere are named.
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
        let message = |(way, seen): (Route, Duration)| {
            let late = CommError::Late { rank: way.to, seconds: timeout.as_secs(), missing: vec![way.from] };
            (!is_waiting(way.from)).then_some((Some(seen), late))
        };
        let all = meetings.filter_map(one).chain(awaited.into_iter().filter_map(message));
        all.min_by_key(|(seen, _)| *seen).map(|(_, late)| late)
    }

    /// Meets the group. `inside` runs when all ranks have arrived, and reads the bytes that they lent.
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
        Ok(inside(&room)) // `room` leaves, also if this panics
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
                // No other rank has seen the post.
                meeting.posts[place] = None;
                meeting.here -= 1;
                board.sit(rank, Seat::Busy);
                return Err(ended);
            }
            board = self.pause(board, &mut turns);
        }
    }

    /// Lets other ranks change the board: for some turns, and then by sleeping until they do.
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

    /// Opens the meeting of a complete group, if all its ranks issued the same collective.
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

    /// Ends all ranks if every rank that is at work waits for others to arrive.
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

/// A rank's presence in a meeting whose group is complete. Dropping it waits until no rank reads any more; the lent bytes are not needed
/// after that.
pub(super) struct Inside<'w> {
    world: &'w World,
    group: &'w [u64],
    place: usize,
    agenda: Arc<Vec<Post>>,
}

impl Inside<'_> {
    /// Returns this rank's place in the group.
    pub(super) fn place(&self) -> usize {
        self.place
    }

    /// Returns the bytes that each rank of the group lent for a tensor, by place.
    pub(super) fn lent(&self, tensor: usize) -> Vec<&[Byte]> {
        // SAFETY: every member of the meeting keeps its lent bytes borrowed until it leaves, and it leaves only when all have
        // stopped reading. This reference ends before `self`, whose drop reports the end of reading.
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
