//! Holds commands to the memory that they say they read and write.
//!
//! A command runs twice, on memory of which everything that it does not say it reads was filled: with one byte, then with
//! another. What comes out differently was made from memory that is not its to read. What is no longer as it was filled,
//! outside of what it says it writes, is not its to write. Memories have guards at both ends, so that what is beyond them
//! is seen as well.

use super::{Host, Memory, Queued, State};
use crate::cuda::driver::{Address, DriverError, Touches};
use crate::cuda::program::Place;
use crate::program::Region;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

/// What memory is filled with: numbers that are not finite, and the integer -1, and then zeros. What is written, and not
/// read, is filled with the other one, so that what was copied from elsewhere is no longer as it was.
pub(super) const FILLS: [[u8; 2]; 2] = [[0xff, 0], [0, 0xff]];

/// Bytes before and after each memory that are nobody's.
pub(super) const GUARD: usize = 4096;

/// What a command says it touches of one memory, counted from the memory's first byte.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Declared {
    /// Where the memory begins.
    pub(super) memory: Address,
    /// What the memory is, for people.
    pub(super) name: &'static str,
    /// The bytes that it reads.
    pub(super) reads: Vec<Range<u64>>,
    /// The bytes that it writes.
    pub(super) writes: Vec<Range<u64>>,
}

impl Declared {
    /// What a command says of each memory.
    pub(super) fn of(touches: &Touches) -> Vec<Self> {
        let memories = [
            (Region::Arena, touches.arena, "the arena"),
            (Region::Constants, touches.constants, "the constants"),
        ];
        let of = |(region, memory, name)| {
            let within = |places: &[Place]| {
                let own = places.iter().filter(|place| place.region == region);
                own.map(|place| place.bytes.clone()).collect()
            };
            let (reads, writes) = (within(&touches.command.reads), within(&touches.command.writes));
            Self { memory, name, reads, writes }
        };
        memories.map(of).into()
    }
}

impl Queued {
    /// A command that is held to what it says; what is not one goes its way.
    pub(super) fn checked(self, declared: Vec<Declared>) -> Self {
        match self {
            Self::Launch { .. } | Self::Multiply { .. } | Self::Library { .. } => {
                Self::Checked { declared, command: Box::new(self) }
            }
            other => other,
        }
    }

    /// What it is, for people; and all that it is given.
    fn described(&self) -> (String, String) {
        match self {
            Self::Launch { sizes, words, name, .. } => (name.clone(), format!("{sizes:?} {words:?}")),
            Self::Multiply { multiply, places, add } => {
                let [m, k, n] = multiply.sizes;
                (format!("a multiplication [{m}, {k}] [{k}, {n}]"), format!("{multiply:?} {places:?} {add}"))
            }
            Self::Library { instruction, add, .. } => (instruction.name(), format!("{instruction:?} {add}")),
            _ => unreachable!("nothing else is checked"),
        }
    }
}

impl Host {
    /// Runs a command, twice if it is new.
    pub(super) fn run_checked(
        &self,
        state: &mut State,
        declared: &[Declared],
        command: &Queued,
    ) -> Result<(), DriverError> {
        let (name, given) = command.described();
        let mut hasher = DefaultHasher::new();
        (&name, &given, declared).hash(&mut hasher);
        if !state.checked.insert(hasher.finish()) {
            return self.run(state, command.clone());
        }
        let told = |stray: Stray| DriverError(format!("{name} {stray}"));
        let mut held = Vec::new();
        for declared in declared {
            held.push(Held::of(declared, state.guarded(declared.memory)?));
        }
        for _ in FILLS {
            for held in &mut held {
                held.fill(state.guarded(held.memory)?);
            }
            self.run(state, command.clone())?;
            for held in &mut held {
                held.look(state.guarded(held.memory)?).map_err(told)?;
            }
        }
        for held in held {
            let bytes = state.guarded(held.memory)?;
            held.restore(bytes).map_err(told)?;
        }
        Ok(())
    }
}

impl State {
    /// The memory that begins at an address, with its guards.
    fn guarded<'a>(&self, at: Address) -> Result<&'a mut [u8], DriverError> {
        let memory = self.memory.iter().find(|memory| memory.start() == at);
        let none = || DriverError(format!("no memory begins at {:#x}", at.0));
        memory.map(Memory::guarded).ok_or_else(none)
    }
}

/// What a command did that it does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stray {
    /// It writes this byte of a memory.
    Writes(&'static str, i64),
    /// What it writes there is made from what it does not say it reads.
    Reads(&'static str, i64),
}

impl fmt::Display for Stray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writes(memory, byte) => {
                write!(f, "writes byte {byte} of {memory}, which is none of its own")
            }
            Self::Reads(memory, byte) => {
                write!(f, "makes byte {byte} of {memory} from memory that it does not say it reads")
            }
        }
    }
}

/// A memory while a command is held to what it says of it. Ranges count the guard before it.
pub(super) struct Held {
    memory: Address,
    name: &'static str,
    reads: Vec<Range<usize>>,
    writes: Vec<Range<usize>>,
    /// What was there before.
    saved: Vec<u8>,
    /// What should be there after a run, where nothing is written.
    filled: Vec<u8>,
    runs: Vec<Run>,
}

/// What is where the command writes, one range after the other.
struct Run {
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Held {
    /// Of a memory with its guards.
    pub(super) fn of(declared: &Declared, bytes: &[u8]) -> Self {
        let all = |ranges: &[Range<u64>]| {
            let guarded = |range: &Range<u64>| GUARD + range.start as usize..GUARD + range.end as usize;
            ranges.iter().map(guarded).collect()
        };
        let (reads, writes) = (all(&declared.reads), all(&declared.writes));
        Self {
            memory: declared.memory,
            name: declared.name,
            reads,
            writes,
            saved: bytes.to_vec(),
            filled: bytes.to_vec(),
            runs: vec![],
        }
    }

    /// Fills the memory for the next run.
    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        let [foreign, written] = FILLS[self.runs.len()];
        bytes.fill(foreign);
        for range in self.writes.iter().cloned() {
            bytes[range].fill(written);
        }
        for range in self.reads.iter().cloned() {
            bytes[range.clone()].copy_from_slice(&self.saved[range]);
        }
        self.filled.copy_from_slice(bytes);
    }

    /// Looks at what a run left.
    pub(super) fn look(&mut self, bytes: &[u8]) -> Result<(), Stray> {
        let before = self.written(&self.filled);
        for range in self.writes.iter().cloned() {
            self.filled[range.clone()].copy_from_slice(&bytes[range]);
        }
        self.runs.push(Run { before, after: self.written(bytes) });
        if self.filled == bytes {
            return Ok(());
        }
        let at = self.filled.iter().zip(bytes).position(|(filled, found)| filled != found);
        Err(Stray::Writes(self.name, at.unwrap_or_default() as i64 - GUARD as i64))
    }

    fn written(&self, bytes: &[u8]) -> Vec<u8> {
        self.writes.iter().flat_map(|range| &bytes[range.clone()]).copied().collect()
    }

    /// Puts back what was there before the runs, and what they wrote.
    pub(super) fn restore(self, bytes: &mut [u8]) -> Result<(), Stray> {
        bytes.copy_from_slice(&self.saved);
        let [first, second] = &self.runs[..] else { unreachable!("there are two fills") };
        for (i, at) in self.writes.iter().cloned().flatten().enumerate() {
            let [before, after] = [[first.before[i], second.before[i]], [first.after[i], second.after[i]]];
            if after[0] == after[1] {
                bytes[at] = after[0];
            } else if after != before {
                return Err(Stray::Reads(self.name, at as i64 - GUARD as i64));
            }
            // Else nothing was written there: rows that lie apart have others between them.
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a command makes of a memory of 16 bytes, of which it says that it reads 0 to 4 and writes 8 to 12.
    fn held(command: impl Fn(&mut [u8])) -> Result<Vec<u8>, Stray> {
        let [reads, writes] = [0..4, 8..12].map(|range| std::iter::once(range).collect());
        let declared = Declared { memory: Address(0), name: "the arena", reads, writes };
        let mut bytes = vec![0; 2 * GUARD + 16];
        (0..16).for_each(|i| bytes[GUARD + i] = i as u8);
        let mut held = Held::of(&declared, &bytes);
        for _ in FILLS {
            held.fill(&mut bytes);
            command(&mut bytes[GUARD..]);
            held.look(&bytes)?;
        }
        held.restore(&mut bytes)?;
        Ok(bytes[GUARD..GUARD + 16].to_vec())
    }

    #[test]
    fn what_is_written_stays_and_nothing_else_changes() {
        let result = held(|bytes| {
            bytes[8] = bytes[3] + 40;
            bytes[11] = 0xff;
        });
        assert_eq!(result, Ok(vec![0, 1, 2, 3, 4, 5, 6, 7, 43, 9, 10, 0xff, 12, 13, 14, 15]));
    }

    #[test]
    fn a_byte_beyond_what_is_written_is_found() {
        for (at, byte) in [(12, 0), (7, 0xff), (0, 9), (16, 1), (GUARD + 15, 1)] {
            let found = held(|bytes| bytes[at] = byte);
            assert_eq!(found, Err(Stray::Writes("the arena", at as i64)));
        }
    }

    #[test]
    fn what_is_made_from_a_byte_that_is_not_read_is_found() {
        for from in [4, 15, 16] {
            assert_eq!(held(|bytes| bytes[9] = bytes[from]), Err(Stray::Reads("the arena", 9)));
            assert_eq!(held(|bytes| bytes[9] = bytes[from] & 1), Err(Stray::Reads("the arena", 9)));
        }
    }
}
