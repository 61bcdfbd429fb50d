//! Exchanges between GPUs by NCCL. The ranks are threads of one process, each with a GPU, or the process is one rank (`process`).
//!
//! NCCL's kernels wait for the kernels of the other GPUs. So that nobody waits for ever after a rank's failure, NCCL's calls return
//! before they are done, and whoever notices a failure aborts all communicators: then the kernels end, and the commands that wait for
//! them go on. The rank itself notices the errors of its calls; a separate thread looks for faults on the GPUs.
//!
//! NCCL frees the memory of a group when the last of its communicators is aborted, and waits there until no graph with a collective of
//! the group is left.

mod library;
mod process;

pub(super) use self::process::Lone;

use self::library::{Communicator, Config, Functions, IN_PROGRESS, Status};
use super::handles::{Allocation, Context, Queue};
use crate::driver::{Address, CollectiveTask, DriverError, MessageTask};
use crate::libraries::Folders;
use crate::nccl::calls::{self, Call, Element};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// The time between two questions whether a call is done.
const SOON: Duration = Duration::from_micros(20);
/// The time between two questions whether there is a fault on the GPUs.
const NOW_AND_THEN: Duration = Duration::from_millis(50);

/// The GPUs that exchange with each other.
pub(super) struct Team {
    functions: Functions,
    /// The ranks of this process, by their numbers.
    members: BTreeMap<u64, Mutex<Member>>,
    /// The rank that failed first, and the reason.
    failed: OnceLock<(u64, String)>,
}

/// The ranks that use a communicator together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    /// The ranks, in the order of their places.
    pub(super) ranks: Vec<u64>,
    /// For a rank that sends messages to another: the channel of these messages.
    pub(super) channel: Option<u32>,
}

impl Group {
    /// Returns the group of a collective.
    pub(super) fn of(ranks: &[u64]) -> Self {
        Self { ranks: ranks.to_vec(), channel: None }
    }
}

/// A rank of a team.
struct Member {
    /// The communicators, by their groups.
    communicators: BTreeMap<Group, Communicator>,
    /// A queue without commands, and its context. A query of the queue reports the faults of the context.
    watched: Option<(Queue, Context)>,
}

impl Member {
    /// Returns a rank on the GPU of this number, without communicators.
    fn on(ordinal: i32) -> Result<Self, DriverError> {
        let context = Context::new(ordinal)?;
        let watched = Some((Queue::new(false)?, context));
        Ok(Self { communicators: BTreeMap::new(), watched })
    }
}

// SAFETY: NCCL's communicators and CUDA's streams may be used on any thread, by one at a time; a lock makes sure of that.
#[allow(unsafe_code)]
unsafe impl Send for Member {}

/// A communicator that no rank has any more.
#[derive(Clone, Copy)]
struct Left(Communicator);

// SAFETY: see `Member`.
#[allow(unsafe_code)]
unsafe impl Send for Left {}

/// A rank's place in a team. Its communicators are aborted when it is dropped; the rank's graphs have to be dropped before.
pub(super) struct Seat {
    team: Arc<Team>,
    rank: u64,
}

impl Team {
    /// Makes a team of the first GPUs of a machine, each of which is a rank. They exchange in these groups.
    ///
    /// # Errors
    /// NCCL is not installed, or refuses.
    pub(super) fn new(
        ranks: i32,
        groups: &BTreeSet<Group>,
        folders: &Folders,
    ) -> Result<Arc<Self>, DriverError> {
        let member = |ordinal: i32| Ok((ordinal as u64, Member::on(ordinal)?.into()));
        let members = (0..ranks).map(member).collect::<Result<_, DriverError>>()?;
        let team = Arc::new(Self { functions: Functions::open(folders)?, members, failed: OnceLock::new() });
        for group in groups {
            if let Err(error) = team.gather(group) {
                team.end(0, "NCCL did not start");
                return Err(error);
            }
        }
        team.watched()
    }

    /// Returns the team, with a thread that looks for faults on its GPUs.
    fn watched(self: Arc<Self>) -> Result<Arc<Self>, DriverError> {
        let team = self;
        let watcher = Arc::downgrade(&team);
        let watch = move || {
            while let Some(team) = watcher.upgrade() {
                team.look();
                drop(team);
                thread::sleep(NOW_AND_THEN);
            }
        };
        let started = thread::Builder::new().name("watch-gpus".into()).spawn(watch);
        started.map_err(|error| {
            DriverError(format!("the thread that watches the GPUs cannot start: {error}"))
        })?;
        Ok(team)
    }

    /// Returns the place of a rank.
    pub(super) fn seat(self: &Arc<Self>, rank: u64) -> Seat {
        Seat { team: self.clone(), rank }
    }

    /// Makes the communicators of a group, all of whose ranks this thread represents.
    #[allow(unsafe_code)]
    fn gather(&self, group: &Group) -> Result<(), DriverError> {
        let refused = |status: Status| self.functions.refused("joining a group", status);
        let mut id = std::mem::MaybeUninit::uninit();
        // SAFETY: the function writes the id.
        checked(unsafe { (self.functions.unique_id)(id.as_mut_ptr()) }).map_err(refused)?;
        // SAFETY: the id was written.
        let id = unsafe { id.assume_init() };
        let mut config = Config::of_calls_that_return();
        let mut communicators = vec![ptr::null_mut(); group.ranks.len()];
        // SAFETY: calls between these two begin together.
        checked(unsafe { (self.functions.begin)() }).map_err(refused)?;
        let mut joined = Ok(());
        for (place, (&rank, communicator)) in group.ranks.iter().zip(&mut communicators).enumerate() {
            joined = joined.and_then(|()| self.bind(rank)).and_then(|()| {
                // SAFETY: the communicator is written by the end of the group at the latest, and the configuration is read by then; the
                // context of the rank's GPU is current.
                let join = unsafe {
                    (self.functions.join)(
                        communicator,
                        group.ranks.len() as c_int,
                        id,
                        place as c_int,
                        &mut config,
                    )
                };
                checked(join).map_err(refused)
            });
        }
        // SAFETY: see above.
        let ended = checked(unsafe { (self.functions.end)() }).map_err(refused);
        for (&rank, &communicator) in group.ranks.iter().zip(&communicators).filter(|(_, one)| !one.is_null())
        {
            self.lock(rank).communicators.insert(group.clone(), communicator);
        }
        joined.and(ended)?;
        group.ranks.iter().try_for_each(|&rank| self.done(rank, group, "joining a group"))?;
        self.connect(group, &group.ranks)
    }

    /// Sends a byte over a channel. NCCL connects two ranks at their first message, and waits for both. Later the rank that sends does
    /// not wait for the rank that receives. `members` are the ranks of the channel in this process.
    #[allow(unsafe_code)]
    fn connect(&self, group: &Group, members: &[u64]) -> Result<(), DriverError> {
        const WHAT: &str = "connecting two pipeline ranks";
        if group.channel.is_none() {
            return Ok(());
        }
        let refused = |status: Status| self.functions.refused(WHAT, status);
        let bytes: Vec<Allocation> = members
            .iter()
            .map(|&rank| self.bind(rank).and_then(|()| Allocation::new(1)))
            .collect::<Result<_, _>>()?;
        // SAFETY: calls between these two go together.
        checked(unsafe { (self.functions.begin)() }).map_err(refused)?;
        let call = |(&rank, memory): (&u64, &Allocation)| {
            self.bind(rank)?;
            let member = self.lock(rank);
            let communicator = self.communicator(&member, group)?;
            let (at, count, ty) = (memory.at, 1, Element::U8);
            let call = if rank == group.ranks[SENDER as usize] {
                Call::Send { from: at, count, ty, peer: RECEIVER }
            } else {
                Call::Receive { to: at, count, ty, peer: SENDER }
            };
            let Some((queue, _)) = &member.watched else { return Ok(()) };
            self.functions.issue(&call, communicator, queue).map_err(refused)
        };
        let called = members.iter().zip(&bytes).try_for_each(call);
        // SAFETY: see above.
        let ended = checked(unsafe { (self.functions.end)() }).map_err(refused);
        called.and(ended)?;
        for &rank in members {
            self.done(rank, group, WHAT)?;
            self.bind(rank)?;
            self.lock(rank).watched.as_ref().map_or(Ok(()), |(queue, _)| queue.finish())?;
        }
        Ok(())
    }

    /// Makes the context of a rank's GPU current on this thread.
    fn bind(&self, rank: u64) -> Result<(), DriverError> {
        self.lock(rank).watched.as_ref().map_or(Ok(()), |(_, context)| context.bind())
    }

    fn lock(&self, rank: u64) -> MutexGuard<'_, Member> {
        self.members[&rank].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a rank's communicator has taken its calls, which does not mean that the GPU has run them.
    #[allow(unsafe_code)]
    fn done(&self, rank: u64, group: &Group, what: &str) -> Result<(), DriverError> {
        loop {
            {
                let member = self.lock(rank);
                let communicator = self.communicator(&member, group)?;
                // SAFETY: the communicator is alive while its member is locked; the function writes a number.
                let (asked, state) = unsafe {
                    let mut state = IN_PROGRESS;
                    ((self.functions.state)(communicator, &mut state), state)
                };
                let status = if asked == 0 { state } else { asked };
                if status != IN_PROGRESS {
                    return checked(status).map_err(|status| self.functions.refused(what, status));
                }
            }
            thread::sleep(SOON);
        }
    }

    /// Returns a rank's communicator, unless all were aborted.
    fn communicator(&self, member: &Member, group: &Group) -> Result<Communicator, DriverError> {
        self.alive()?;
        let unknown = || DriverError(format!("there is no communicator of {group:?}"));
        member.communicators.get(group).copied().ok_or_else(unknown)
    }

    /// Returns an error if a rank has failed.
    fn alive(&self) -> Result<(), DriverError> {
        match self.failed.get() {
            Some((rank, why)) => {
                Err(DriverError(format!("rank {rank} failed, and therefore all ranks ended: {why}")))
            }
            None => Ok(()),
        }
    }

    /// Ends everything for which ranks wait from each other, because one rank has failed. Each communicator is aborted on a thread for
    /// which nobody waits: all of them have to be told, and the last one of a group waits for the ranks' graphs.
    pub(super) fn end(self: &Arc<Self>, rank: u64, why: &str) {
        if self.failed.set((rank, why.to_owned())).is_err() {
            return;
        }
        for left in self.members.keys().flat_map(|&member| self.leave(member)) {
            let team = self.clone();
            let started = thread::Builder::new().name("leave-group".into()).spawn(move || team.abort(left));
            if started.is_err() {
                // Waiting here is better than that all ranks wait for ever.
                self.abort(left);
            }
        }
    }

    /// Takes a rank's communicators from it.
    fn leave(&self, rank: u64) -> Vec<Left> {
        // The lock is released here.
        let communicators = std::mem::take(&mut self.lock(rank).communicators);
        communicators.into_values().map(Left).collect()
    }

    /// Aborts a communicator: the kernels that use it end.
    #[allow(unsafe_code)]
    fn abort(&self, left: Left) {
        // SAFETY: nobody else has the communicator any more. The answer changes nothing.
        unsafe { (self.functions.abort)(left.0) };
    }

    /// Ends all ranks if there is a fault on a GPU or between two.
    fn look(self: &Arc<Self>) {
        for &rank in self.members.keys() {
            if let Err(error) = self.health(rank) {
                self.end(rank, &error.0);
            }
        }
    }

    #[allow(unsafe_code)]
    fn health(&self, rank: u64) -> Result<(), DriverError> {
        let member = self.lock(rank);
        if let Some((watched, context)) = &member.watched {
            context.bind()?;
            watched.check()?;
        }
        for &communicator in member.communicators.values() {
            let mut state = 0;
            // SAFETY: the communicator is alive while its member is locked; the function writes a number.
            checked(unsafe { (self.functions.state)(communicator, &mut state) })
                .and(checked(state))
                .map_err(|status| self.functions.refused("exchanging", status))?;
        }
        Ok(())
    }
}

/// Accepts success, and a call that is in progress.
fn checked(status: Status) -> Result<(), Status> {
    if status == 0 || status == IN_PROGRESS { Ok(()) } else { Err(status) }
}

/// The places of a channel's ranks in its communicator.
const SENDER: i32 = 0;
const RECEIVER: i32 = 1;

impl Functions {
    /// Makes one call of a group.
    #[allow(unsafe_code)]
    fn issue(&self, call: &Call, communicator: Communicator, queue: &Queue) -> Result<(), Status> {
        let place = |address: Address| address.0 as *mut c_void;
        // SAFETY: the communicator and the queue are alive; the memory belongs to a program, which keeps it for this call alone until
        // the queue has run it.
        let status = unsafe {
            match *call {
                Call::AllReduce { from, to, count, ty, operation } => (self.all_reduce)(
                    place(from),
                    place(to),
                    count,
                    ty as c_int,
                    operation as c_int,
                    communicator,
                    queue.0,
                ),
                Call::ReduceScatter { from, to, count, ty, operation } => (self.reduce_scatter)(
                    place(from),
                    place(to),
                    count,
                    ty as c_int,
                    operation as c_int,
                    communicator,
                    queue.0,
                ),
                Call::AllGather { from, to, count, ty } => {
                    (self.all_gather)(place(from), place(to), count, ty as c_int, communicator, queue.0)
                }
                Call::Send { from, count, ty, peer } => {
                    (self.send)(place(from), count, ty as c_int, peer, communicator, queue.0)
                }
                Call::Receive { to, count, ty, peer } => {
                    (self.receive)(place(to), count, ty as c_int, peer, communicator, queue.0)
                }
            }
        };
        checked(status)
    }
}

impl Seat {
    /// Runs a collective, on a queue.
    ///
    /// # Errors
    /// NCCL refuses; another rank has failed.
    pub(super) fn exchange(&self, queue: &Queue, task: CollectiveTask) -> Result<(), DriverError> {
        let group = Group::of(task.group);
        self.together(queue, &group, &calls::of(&task)?, &task.collective.to_string())
    }

    /// Sends the bytes at an address to another rank, on a queue.
    ///
    /// # Errors
    /// NCCL refuses; another rank has failed.
    pub(super) fn send(&self, queue: &Queue, from: Address, task: MessageTask) -> Result<(), DriverError> {
        let group = Group { ranks: vec![self.rank, task.other], channel: Some(task.channel) };
        let call = Call::Send { from, count: task.bytes as usize, ty: Element::U8, peer: RECEIVER };
        self.together(queue, &group, &[call], "sending a message")
    }

    /// Receives bytes from another rank at an address, on a queue.
    ///
    /// # Errors
    /// NCCL refuses; another rank has failed.
    pub(super) fn receive(&self, queue: &Queue, to: Address, task: MessageTask) -> Result<(), DriverError> {
        let group = Group { ranks: vec![task.other, self.rank], channel: Some(task.channel) };
        let call = Call::Receive { to, count: task.bytes as usize, ty: Element::U8, peer: SENDER };
        self.together(queue, &group, &[call], "receiving a message")
    }

    /// Makes calls that go together, on a queue.
    #[allow(unsafe_code)]
    fn together(&self, queue: &Queue, group: &Group, calls: &[Call], what: &str) -> Result<(), DriverError> {
        let functions = &self.team.functions;
        {
            let member = self.team.lock(self.rank);
            let communicator = self.team.communicator(&member, group)?;
            // SAFETY: calls between these two go together. The communicator is alive while its member is locked.
            let begun = checked(unsafe { (functions.begin)() });
            let issue = |call: &Call| functions.issue(call, communicator, queue);
            let issued = begun.and_then(|()| calls.iter().try_for_each(issue));
            // SAFETY: see above.
            let ended = checked(unsafe { (functions.end)() });
            issued.and(ended).map_err(|status| functions.refused(what, status))?;
        }
        self.team.done(self.rank, group, what)
    }

    /// Returns an error if a rank has failed: results since then mean nothing.
    pub(super) fn alive(&self) -> Result<(), DriverError> {
        self.team.alive()
    }

    /// Ends all ranks, because this one has failed.
    pub(super) fn end(&self, why: &str) {
        self.team.end(self.rank, why);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.team.leave(self.rank).into_iter().for_each(|left| self.team.abort(left));
        // NCCL may have made another GPU's context current on this thread.
        let _ = self.team.bind(self.rank);
        self.team.lock(self.rank).watched = None;
    }
}
