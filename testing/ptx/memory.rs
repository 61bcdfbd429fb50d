//! The memory of a launch, and the order of the accesses to each of its bytes.
//!
//! Two accesses of a byte race if one of them writes, they are of different threads, and no wait of both threads lies between them. A
//! wait for the block orders the threads of a block; a wait for the warp orders the threads of a warp. Nothing orders blocks. So an
//! access carries the numbers of waits that its block and its warp have passed, its epochs: accesses of equal epochs are not ordered.

use super::instruction::Space;
use std::fmt;

/// The first generic addresses of shared memory, of a thread's variables and of the module's variables. No address of the host's memory
/// is that large.
pub(super) const SHARED_WINDOW: u64 = 1 << 56;
pub(super) const LOCAL_WINDOW: u64 = 2 << 56;
pub(super) const MODULE_WINDOW: u64 = 3 << 56;

/// A thread at the time of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accessor {
    pub(super) block: u32,
    pub(super) thread: u32,
    /// The numbers of waits that the block and the warp have passed.
    pub(super) block_epoch: u32,
    pub(super) warp_epoch: u32,
}

impl Accessor {
    fn warp(self) -> u32 {
        self.thread / 32
    }

    /// Whether an earlier access of the same byte is ordered before this one.
    fn follows(self, earlier: Self) -> bool {
        let same_block = earlier.block == self.block;
        let same_warp = earlier.warp() == self.warp() && earlier.warp_epoch != self.warp_epoch;
        same_block && (earlier.thread == self.thread || earlier.block_epoch != self.block_epoch || same_warp)
    }
}

/// The threads that have read a byte since it was last written, as far as later writes need to know.
#[derive(Clone, Copy, Debug, Default)]
enum Readers {
    #[default]
    None,
    Thread(Accessor),
    /// Several threads of a warp.
    Warp(Accessor),
    /// Several warps of a block.
    Block(Accessor),
    Blocks,
}

impl Readers {
    fn with(self, reader: Accessor) -> Self {
        match self {
            Self::None => Self::Thread(reader),
            Self::Blocks => Self::Blocks,
            Self::Thread(earlier) | Self::Warp(earlier) | Self::Block(earlier)
                if earlier.block != reader.block =>
            {
                Self::Blocks
            }
            // The accesses before a wait are ordered before all later accesses, so the new reader replaces them.
            Self::Thread(earlier) | Self::Warp(earlier) | Self::Block(earlier)
                if earlier.block_epoch != reader.block_epoch =>
            {
                Self::Thread(reader)
            }
            Self::Block(earlier) => Self::Block(earlier),
            Self::Thread(earlier) | Self::Warp(earlier) if earlier.warp() != reader.warp() => {
                Self::Block(reader)
            }
            Self::Thread(earlier) | Self::Warp(earlier) if earlier.warp_epoch != reader.warp_epoch => {
                Self::Thread(reader)
            }
            Self::Thread(earlier) if earlier.thread == reader.thread => Self::Thread(reader),
            _ => Self::Warp(reader),
        }
    }

    /// Whether a write is ordered after all these reads.
    fn are_before(self, writer: Accessor) -> bool {
        match self {
            Self::None => true,
            Self::Thread(reader) => writer.follows(reader),
            Self::Warp(reader) => {
                let other_epoch = reader.block_epoch != writer.block_epoch
                    || reader.warp() == writer.warp() && reader.warp_epoch != writer.warp_epoch;
                reader.block == writer.block && other_epoch
            }
            Self::Block(reader) => reader.block == writer.block && reader.block_epoch != writer.block_epoch,
            Self::Blocks => false,
        }
    }
}

/// The last write of a byte, and its readers since.
#[derive(Clone, Copy, Debug, Default)]
struct Shadow {
    writer: Option<Accessor>,
    readers: Readers,
    /// Whether a thread has written the byte; only shared memory needs this.
    is_written: bool,
    /// Whether a copy into it is under way.
    is_under_way: bool,
}

/// Bytes with consecutive addresses.
pub(super) struct Region {
    pub(super) address: u64,
    pub(super) bytes: Vec<u8>,
    shadows: Vec<Shadow>,
}

impl Region {
    pub(super) fn new(address: u64, bytes: Vec<u8>) -> Self {
        let shadows = vec![Shadow::default(); bytes.len()];
        Self { address, bytes, shadows }
    }

    /// Returns the index of some bytes in the region, if the region has them all.
    fn place(&self, address: u64, count: usize) -> Option<usize> {
        let place = usize::try_from(address.checked_sub(self.address)?).ok()?;
        (place.checked_add(count)? <= self.bytes.len()).then_some(place)
    }

    fn note(&mut self, place: usize, count: usize, writes: bool, by: Accessor) -> Result<(), Problem> {
        for shadow in &mut self.shadows[place..place + count] {
            if let Some(writer) = shadow.writer
                && !by.follows(writer)
            {
                return Err(Problem::Race { writes, other: Some(writer) });
            }
            if writes {
                if !shadow.readers.are_before(by) {
                    return Err(Problem::Race { writes, other: None });
                }
                *shadow = Shadow { writer: Some(by), is_written: true, ..Shadow::default() };
            } else {
                shadow.readers = shadow.readers.with(by);
            }
        }
        Ok(())
    }
}

/// The fault of an access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    Outside(Space, u64),
    Misaligned(u64),
    /// Another thread accessed the byte, and no wait lies between. `other` is that thread, if it wrote.
    Race {
        writes: bool,
        other: Option<Accessor>,
    },
    /// Shared memory that no thread of the block has written.
    Unwritten(u64),
    /// Shared memory into which a copy is under way.
    UnderWay(u64),
    /// The source of a copy was written while the copy was under way.
    Changed(u64),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outside(Space::Shared, address) => {
                write!(f, "byte {address} lies outside of shared memory")
            }
            Self::Outside(Space::Local, address) => {
                write!(f, "byte {address} lies outside of the thread's variables")
            }
            Self::Outside(_, address) => {
                write!(f, "the address {address:#x} lies outside of the launch's operands")
            }
            Self::Misaligned(address) => {
                write!(f, "the address {address:#x} is not a multiple of the access's bytes")
            }
            Self::Race { writes: true, other: Some(Accessor { block, thread, .. }) } => {
                write!(
                    f,
                    "a race: thread {thread} of block {block} wrote there, and no wait lies between the two writes"
                )
            }
            Self::Race { writes: true, other: None } => {
                write!(f, "a race: another thread read there, and no wait lies before the write")
            }
            Self::Race { other, .. } => {
                let (block, thread) = other.map_or((0, 0), |by| (by.block, by.thread));
                write!(
                    f,
                    "a race: thread {thread} of block {block} wrote there, and no wait lies before the read"
                )
            }
            Self::Unwritten(address) => {
                write!(f, "byte {address} of shared memory is read, and no thread has written it")
            }
            Self::UnderWay(address) => {
                write!(f, "byte {address} of shared memory is accessed while a copy into it is under way")
            }
            Self::Changed(address) => {
                write!(f, "the 16 bytes at {address:#x} change while a copy of them is under way")
            }
        }
    }
}

/// The memory that the threads of a launch see.
pub(super) struct LaunchMemory {
    /// Operands and results, tables, variables of the module.
    pub(super) regions: Vec<Region>,
    /// The index of the region that was accessed last.
    last: usize,
    /// The memory that the threads of the block share. It begins at 0.
    shared: Region,
    /// The variables of each thread of the block.
    local: Vec<Vec<u8>>,
}

impl LaunchMemory {
    pub(super) fn new(regions: Vec<Region>) -> Self {
        Self { regions, last: 0, shared: Region::new(0, vec![]), local: vec![] }
    }

    /// Begins a block. The variables of its threads are filled with a byte, and its shared memory with 0xff.
    pub(super) fn begin_block(&mut self, shared: usize, local: usize, threads: usize, unset: u8) {
        self.shared = Region::new(0, vec![0xff; shared]);
        self.local = vec![vec![unset; local]; threads];
    }

    /// Returns the bytes at an address that a thread accesses.
    ///
    /// # Errors
    /// An address outside of all memory, or not aligned; a race; a read of shared memory that no thread wrote.
    pub(super) fn access(
        &mut self,
        space: Space,
        address: u64,
        count: usize,
        writes: bool,
        by: Accessor,
    ) -> Result<&mut [u8], Problem> {
        if !address.is_multiple_of(count as u64) {
            return Err(Problem::Misaligned(address));
        }
        let (space, address) = match (space, address >> 56) {
            (Space::Generic, 1) => (Space::Shared, address - SHARED_WINDOW),
            (Space::Generic, 2) => (Space::Local, address - LOCAL_WINDOW),
            _ => (space, address),
        };
        let outside = Problem::Outside(space, address);
        match space {
            Space::Shared => {
                let place = self.shared.place(address, count).ok_or(outside)?;
                if self.shared.shadows[place..place + count].iter().any(|shadow| shadow.is_under_way) {
                    return Err(Problem::UnderWay(address));
                }
                if !writes
                    && self.shared.shadows[place..place + count].iter().any(|shadow| !shadow.is_written)
                {
                    return Err(Problem::Unwritten(address));
                }
                self.shared.note(place, count, writes, by)?;
                Ok(&mut self.shared.bytes[place..place + count])
            }
            Space::Local => {
                let own = &mut self.local[by.thread as usize];
                let start = address as usize;
                own.get_mut(start..start.saturating_add(count)).ok_or(outside)
            }
            Space::Global | Space::Generic => {
                let within = |region: &Region| region.place(address, count);
                if self.regions.get(self.last).and_then(within).is_none() {
                    self.last =
                        self.regions.iter().position(|region| within(region).is_some()).ok_or(outside)?;
                }
                let region = &mut self.regions[self.last];
                let place = within(region).ok_or(outside)?;
                region.note(place, count, writes, by)?;
                Ok(&mut region.bytes[place..place + count])
            }
        }
    }

    /// Begins a copy into shared memory: the bytes there are lost, and nothing may access them until the copy has arrived.
    pub(super) fn begin_copy(&mut self, address: u64, count: usize, by: Accessor) -> Result<(), Problem> {
        self.access(Space::Shared, address, count, true, by)?.fill(0xee);
        let place = address as usize;
        self.shared.shadows[place..place + count].iter_mut().for_each(|shadow| shadow.is_under_way = true);
        Ok(())
    }

    /// Lets a copy arrive.
    pub(super) fn end_copy(&mut self, address: u64, bytes: &[u8], by: Accessor) -> Result<(), Problem> {
        let place = address as usize;
        self.shared.shadows[place..place + bytes.len()]
            .iter_mut()
            .for_each(|shadow| shadow.is_under_way = false);
        self.access(Space::Shared, address, bytes.len(), true, by)?.copy_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(thread: u32, block_epoch: u32, warp_epoch: u32) -> Accessor {
        Accessor { block: 0, thread, block_epoch, warp_epoch }
    }

    /// Whether the last of these accesses of a byte races; none before it does.
    fn races(accesses: &[(bool, Accessor)]) -> bool {
        let mut memory = LaunchMemory::new(vec![Region::new(64, vec![0; 4])]);
        let (last, before) = accesses.split_last().expect("an access");
        for &(writes, by) in before {
            memory.access(Space::Global, 64, 1, writes, by).expect("no race");
        }
        memory.access(Space::Global, 64, 1, last.0, last.1).is_err()
    }

    #[test]
    fn waits_order_accesses() {
        let [reads, writes] = [false, true];
        assert!(races(&[(writes, thread(0, 0, 0)), (reads, thread(1, 0, 0))]));
        assert!(!races(&[(writes, thread(0, 0, 0)), (reads, thread(0, 0, 0))]));
        assert!(!races(&[(writes, thread(0, 0, 0)), (reads, thread(1, 0, 1))]), "the warp waits");
        assert!(races(&[(writes, thread(0, 0, 0)), (reads, thread(32, 0, 1))]), "another warp does not");
        assert!(!races(&[(writes, thread(0, 0, 0)), (reads, thread(32, 1, 1))]), "the block waits");
        assert!(races(&[(reads, thread(0, 0, 0)), (writes, thread(1, 0, 0))]));
        assert!(races(&[(reads, thread(0, 0, 0)), (reads, thread(1, 0, 0)), (writes, thread(0, 0, 0))]));
        assert!(races(&[(reads, thread(0, 0, 0)), (reads, thread(40, 0, 0)), (writes, thread(0, 0, 1))]));
        assert!(!races(&[(reads, thread(0, 0, 0)), (reads, thread(40, 0, 0)), (writes, thread(0, 1, 0))]));
        assert!(!races(&[(reads, thread(0, 0, 0)), (reads, thread(1, 0, 0)), (writes, thread(0, 0, 1))]));
    }

    #[test]
    fn blocks_are_never_ordered() {
        let other = |by: Accessor| Accessor { block: 1, block_epoch: 7, ..by };
        assert!(races(&[(true, thread(0, 0, 0)), (true, other(thread(0, 0, 0)))]));
        assert!(races(&[(false, thread(0, 0, 0)), (true, other(thread(0, 0, 0)))]));
        assert!(!races(&[(false, thread(0, 0, 0)), (false, other(thread(0, 0, 0)))]));
    }

    #[test]
    fn addresses_are_held_to_memory_and_alignment() {
        let mut memory = LaunchMemory::new(vec![Region::new(64, vec![0; 8])]);
        memory.begin_block(16, 8, 2, 0);
        let by = thread(1, 0, 0);
        let mut access =
            |space, address, count, writes| memory.access(space, address, count, writes, by).map(drop);
        assert_eq!(access(Space::Global, 72, 4, false), Err(Problem::Outside(Space::Global, 72)));
        assert_eq!(access(Space::Generic, 66, 4, false), Err(Problem::Misaligned(66)));
        assert_eq!(access(Space::Generic, SHARED_WINDOW, 4, false), Err(Problem::Unwritten(0)));
        assert_eq!(access(Space::Generic, SHARED_WINDOW, 4, true), Ok(()));
        assert_eq!(access(Space::Shared, 0, 4, false), Ok(()));
        assert_eq!(access(Space::Generic, LOCAL_WINDOW + 8, 4, true), Err(Problem::Outside(Space::Local, 8)));
    }
}
