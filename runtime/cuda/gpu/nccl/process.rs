//! The communicators of a process that is one rank: one of all ranks, made with an id that rank 0 sends, and one for each of the rank's
//! groups, split off from the first.
//!
//! All ranks must split in the same order, and a rank that is in none of the split-off groups takes part as well. A group of all ranks
//! in their order needs no split.

use super::library::{Communicator, Config, Functions, UniqueId};
use super::{Group, Member, Team, checked};
use crate::driver::DriverError;
use crate::libraries::Folders;
use comm::CommError;
use comm::agreement::Agreement;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr;
use std::sync::{Arc, OnceLock};

/// NCCL in a process that is one rank, before the ranks have met.
pub(in crate::gpu) struct Lone {
    functions: Functions,
    member: Member,
    /// The id by which the ranks find each other. Until it is shared, only rank 0 has it.
    id: Option<UniqueId>,
}

impl Lone {
    /// Opens NCCL for the GPU of this number.
    ///
    /// # Errors
    /// NCCL is not installed, or refuses.
    #[allow(unsafe_code)]
    pub(in crate::gpu) fn open(
        ordinal: usize,
        is_first: bool,
        folders: &Folders,
    ) -> Result<Self, DriverError> {
        let functions = Functions::open(folders)?;
        let ordinal = i32::try_from(ordinal).map_err(|error| DriverError(error.to_string()))?;
        let member = Member::on(ordinal)?;
        let mut id = None;
        if is_first {
            let mut made = std::mem::MaybeUninit::uninit();
            // SAFETY: the function writes the id, which is read only if it was written.
            id = Some(unsafe {
                checked((functions.unique_id)(made.as_mut_ptr()))
                    .map_err(|status| functions.refused("making an id", status))?;
                made.assume_init()
            });
        }
        Ok(Self { functions, member, id })
    }

    /// Sends the id of rank 0 to all ranks.
    ///
    /// # Errors
    /// A rank failed.
    pub(in crate::gpu) fn share_id(&mut self, agreement: &Agreement) -> Result<(), CommError> {
        let own = self.id.map_or_else(Vec::new, |id| id.bytes());
        let all = agreement.gather_bytes(&own)?;
        let id = all.first().and_then(|bytes| UniqueId::of_bytes(bytes));
        self.id = Some(id.ok_or_else(|| CommError::Message { message: "rank 0 sent no id of NCCL".into() })?);
        Ok(())
    }

    /// Meets all other ranks, and makes the communicators of this rank's groups. All ranks do this at the same time.
    ///
    /// # Errors
    /// NCCL refuses.
    pub(in crate::gpu) fn meet(
        self,
        rank: u64,
        ranks: u64,
        groups: &[Option<Group>],
    ) -> Result<Arc<Team>, DriverError> {
        let Self { functions, member, id } = self;
        let id = id.ok_or_else(|| DriverError("NCCL's id was not shared".into()))?;
        let members = BTreeMap::from([(rank, member.into())]);
        let team = Arc::new(Team { functions, members, failed: OnceLock::new() });
        let all = Group::of(&(0..ranks).collect::<Vec<_>>());
        let met = team.join_all(rank, &all, id).and_then(|()| {
            let apart = groups.iter().filter(|group| group.as_ref() != Some(&all));
            apart.into_iter().try_for_each(|group| team.split(rank, &all, group.as_ref()))
        });
        match met {
            Ok(()) => team.watched(),
            Err(error) => {
                team.end(rank, "NCCL did not start");
                Err(error)
            }
        }
    }
}

/// Returns a place for a communicator. NCCL writes it from another thread and perhaps late, so it is never freed.
fn place() -> *mut Communicator {
    Box::into_raw(Box::new(ptr::null_mut()))
}

impl Team {
    /// Makes the communicator of all ranks.
    #[allow(unsafe_code)]
    fn join_all(&self, rank: u64, all: &Group, id: UniqueId) -> Result<(), DriverError> {
        const WHAT: &str = "joining all ranks";
        self.bind(rank)?;
        let (place, mut config) = (place(), Config::of_calls_that_return());
        // SAFETY: the place stays, the configuration is read before the call returns, and the rank's GPU is current.
        let joined =
            unsafe { (self.functions.join)(place, all.ranks.len() as c_int, id, rank as c_int, &mut config) };
        checked(joined).map_err(|status| self.functions.refused(WHAT, status))?;
        // SAFETY: the place is written before the call returns.
        let communicator = unsafe { place.read_volatile() };
        self.lock(rank).communicators.insert(all.clone(), communicator);
        self.done(rank, all, WHAT)
    }

    /// Makes the communicator of a group, or takes part without a group. The other ranks make the communicators of their groups at the
    /// same time.
    #[allow(unsafe_code)]
    fn split(&self, rank: u64, all: &Group, group: Option<&Group>) -> Result<(), DriverError> {
        const WHAT: &str = "splitting off a group";
        let (color, key) = group.map_or((NO_COLOR, 0), |group| color_and_key(rank, &group.ranks));
        self.bind(rank)?;
        let (place, mut config) = (place(), Config::of_calls_that_return());
        {
            let member = self.lock(rank);
            let parent = self.communicator(&member, all)?;
            // SAFETY: the parent is alive while its member is locked; for the others see `join_all`.
            let split = unsafe { (self.functions.split)(parent, color, key, place, &mut config) };
            checked(split).map_err(|status| self.functions.refused(WHAT, status))?;
        }
        self.done(rank, all, WHAT)?;
        let Some(group) = group else { return Ok(()) };
        // SAFETY: NCCL has written the place, atomically, when the parent is done.
        let communicator = unsafe { ptr::read_volatile(place) };
        if communicator.is_null() {
            return Err(DriverError("NCCL, splitting off a group: it made no communicator".into()));
        }
        self.lock(rank).communicators.insert(group.clone(), communicator);
        self.done(rank, group, WHAT)?;
        self.connect(group, &[rank])
    }
}

/// The color of a rank that is in no group: NCCL_SPLIT_NOCOLOR.
const NO_COLOR: c_int = -1;

/// Returns the number of a rank's group among the groups of a split, and the rank's place in its group. Groups share no rank, so the
/// smallest rank of each is unique.
fn color_and_key(rank: u64, group: &[u64]) -> (c_int, c_int) {
    let smallest = group.iter().copied().min().unwrap_or(rank);
    let place = group.iter().position(|&member| member == rank).unwrap_or_default();
    (smallest as c_int, place as c_int)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_group_have_its_color_and_their_place() {
        let groups = [[0, 2], [3, 1]];
        let of = |rank: u64| {
            let group = groups.iter().find(|group| group.contains(&rank)).unwrap();
            color_and_key(rank, group)
        };
        assert_eq!([0, 1, 2, 3].map(of), [(0, 0), (1, 1), (0, 1), (1, 0)]);
    }
}
