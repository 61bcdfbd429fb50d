//! Checks that commands touch only the memory that they declare.
//!
//! A command runs twice. Each of its operands and results is moved into a mapping of its own (`guarded.rs`), between guard pages, which
//! may not be touched: it ends at the pages behind it in one run, and begins at the pages before it in the other. The few bytes between
//! it and the pages on its other side are filled with one byte, then with another. Results that differ between the runs were computed
//! from those bytes, and bytes that changed outside of the results are not the command's to write.
//!
//! Calls of libraries run in the device's memory itself. All bytes that the call does not declare as read are filled in the same way.

use super::guarded::{Guards, Side};
use super::pages::PagedBytes;
use super::{Host, Queued, State};
use crate::driver::{Address, DriverError, Touches};
use crate::program::{Kernel, TouchedBytes};
use program::Region;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

/// The fillings of the two runs: 0xff, which makes the integer -1 and numbers that are not finite, and zeros. Bytes that are written
/// and not read are filled with the other byte than bytes that are neither, so that a copy from elsewhere changes them.
pub(super) const FILLS: [[u8; 2]; 2] = [[0xff, 0], [0, 0xff]];

/// The bytes of a memory that a command declares.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Declared {
    /// The start of the memory.
    pub(super) memory: Address,
    /// The memory's name for messages.
    pub(super) name: &'static str,
    /// The operands that lie in it.
    pub(super) reads: Vec<DeclaredTensor>,
    /// The results that lie in it.
    pub(super) writes: Vec<DeclaredTensor>,
}

/// An operand or a result of a command.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct DeclaredTensor {
    /// Its number among the operands of the command, or among the results.
    pub(super) number: usize,
    /// Its bytes, counted from the memory's first byte.
    pub(super) bytes: Range<u64>,
}

impl Declared {
    /// Returns the bytes that a command declares, by memory.
    pub(super) fn of(touches: &Touches) -> Vec<Self> {
        let memories = [(Region::Arena, "the arena"), (Region::Constants, "the constants")];
        let of = |(region, name): (Region, _)| {
            let memory = touches.memories.of(region);
            let within = |places: &[TouchedBytes]| {
                let is_own = |place: &TouchedBytes| place.region.is_in_arena() == region.is_in_arena();
                let own = places.iter().enumerate().filter(|(_, place)| is_own(place));
                let tensor = |(number, place): (usize, &TouchedBytes)| {
                    let start = place.region.start(&touches.memories.blocks);
                    DeclaredTensor { number, bytes: start + place.bytes.start..start + place.bytes.end }
                };
                own.map(tensor).collect()
            };
            let (reads, writes) = (within(&touches.command.reads), within(&touches.command.writes));
            Self { memory, name, reads, writes }
        };
        memories.map(of).into()
    }
}

impl Queued {
    /// Returns a command that is checked against its declaration. Entries of a queue that are no commands stay as they are.
    pub(super) fn checked(self, declared: Vec<Declared>) -> Self {
        match self {
            Self::Launch { .. } | Self::Multiply { .. } | Self::Library { .. } => {
                Self::Checked { declared, command: Box::new(self) }
            }
            other => other,
        }
    }

    /// Returns the command's name for messages, and a text of all its arguments.
    pub(super) fn described(&self) -> (String, String) {
        match self {
            Self::Launch { sizes, words, kernel, .. } => {
                (kernel.name.clone(), format!("{sizes:?} {:?}", words.values))
            }
            Self::Multiply { multiply, places, add } => {
                let [m, k, n] = multiply.sizes;
                (format!("a multiplication [{m}, {k}] [{k}, {n}]"), format!("{multiply:?} {places:?} {add}"))
            }
            Self::Library { instruction, .. } => (instruction.name(), format!("{instruction:?}")),
            _ => unreachable!("nothing else is checked"),
        }
    }
}

/// A second way of running launches, which has to leave the memory that the stand-in leaves.
pub trait LaunchCheck: fmt::Debug + Send + Sync {
    /// Runs a launch again and compares the memory. It is called once for each side on which operands touch the guard pages.
    ///
    /// # Errors
    /// A text that continues `KERNEL, `: the second way, then the fault of a thread or the result that differs.
    fn check(&self, launch: &CheckedLaunch, side: Side) -> Result<(), String>;
}

/// A launch on the stand-in: the kernel, its blocks along x, y and z with their threads, and its arguments.
pub struct CheckedLaunch<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// The blocks along x, y and z, and the threads of a block.
    pub sizes: [u32; 4],
    /// The arguments.
    pub words: &'a [u64],
    /// The memory that the launch may touch, before the launch: the addresses of operands and tables, and their bytes.
    pub before: &'a [(u64, Vec<u8>)],
    /// The bytes of each part of the memory after the launch.
    pub after: Vec<&'a [u8]>,
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
        match command {
            Queued::Library { .. } => self.run_in_place(state, declared, command),
            _ => self.run_between_guards(state, declared, command),
        }
        .map_err(|stray| stray.of(&name))
    }

    /// Runs a command twice, with its operands between guards.
    fn run_between_guards(
        &self,
        state: &mut State,
        declared: &[Declared],
        command: &Queued,
    ) -> Result<(), Error> {
        state.guards = Guards::of(declared, state)?;
        let originals: Vec<Address> = state.guards.mapped.iter().map(|mapped| mapped.original()).collect();
        let mut held = Vec::new();
        for mapped in &state.guards.mapped {
            held.push(mapped.held(state.bytes(mapped.original(), Some(mapped.len()))?));
        }
        for side in [Side::Behind, Side::Before] {
            state.guards.place(side);
            let moved = command.between(state)?;
            for (held, mapped) in held.iter_mut().zip(&state.guards.mapped) {
                held.fill(mapped.all(), mapped.start());
            }
            let before = self.second_way.is_some().then(|| state.snapshot(declared));
            self.run(state, moved.clone())?;
            for (held, mapped) in held.iter_mut().zip(&state.guards.mapped) {
                held.look(mapped.all(), mapped.start())?;
            }
            if let (Some(second_way), Some(before)) = (&self.second_way, before) {
                state.compare(&**second_way, &moved, &before, side)?;
            }
        }
        state.guards = Guards::default();
        for (held, original) in held.into_iter().zip(originals) {
            let count = held.len();
            held.restore(state.bytes(original, Some(count))?)?;
        }
        Ok(())
    }

    /// Runs a command twice in the device's memory.
    fn run_in_place(&self, state: &mut State, declared: &[Declared], command: &Queued) -> Result<(), Error> {
        let mut held = Vec::new();
        for declared in declared {
            let memory = state.whole(declared.memory)?;
            held.push((WatchedBytes::of(declared, &(0..memory.len() as u64), memory), memory));
        }
        for _ in FILLS {
            held.iter_mut().for_each(|(held, memory)| held.fill(memory, 0));
            self.run(state, command.clone())?;
            held.iter_mut().try_for_each(|(held, memory)| held.look(memory, 0))?;
        }
        held.into_iter().try_for_each(|(held, memory)| held.restore(memory))?;
        Ok(())
    }
}

/// The error of a check.
enum Error {
    Driver(DriverError),
    Stray(Stray),
}

impl Error {
    /// Returns the driver's error for a command of this name.
    fn of(self, name: &str) -> DriverError {
        match self {
            Self::Driver(error) => error,
            Self::Stray(stray) => DriverError(format!("{name} {stray}")),
        }
    }
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

impl From<Stray> for Error {
    fn from(stray: Stray) -> Self {
        Self::Stray(stray)
    }
}

impl State {
    /// Returns the memory that a launch between guards may touch: its operands, its tables, and memory of the device that commands do
    /// not declare, such as the word that halts the device.
    fn snapshot(&self, declared: &[Declared]) -> Vec<(u64, Vec<u8>)> {
        let is_declared =
            |memory: &&PagedBytes| declared.iter().any(|declared| declared.memory == memory.start());
        let others = self.memory.iter().filter(|memory| !is_declared(memory));
        let others = others.map(|memory| (memory.start().0, memory.all().to_vec()));
        let operands = self.guards.memories().map(|(address, bytes)| (address.0, bytes.to_vec()));
        operands.chain(others).collect()
    }

    /// Compares a launch with a second way of running it. Other commands have no second way.
    fn compare(
        &self,
        second_way: &dyn LaunchCheck,
        command: &Queued,
        before: &[(u64, Vec<u8>)],
        side: Side,
    ) -> Result<(), DriverError> {
        let Queued::Launch { kernel, sizes, words, .. } = command else { return Ok(()) };
        let place =
            |(address, bytes): &(u64, Vec<u8>)| Ok(&*self.bytes(Address(*address), Some(bytes.len()))?);
        let after = before.iter().map(place).collect::<Result<Vec<&[u8]>, DriverError>>()?;
        let launch = CheckedLaunch { kernel, sizes: *sizes, words: &words.values, before, after };
        let checked = second_way.check(&launch, side);
        checked.map_err(|problem| DriverError(format!("{}, {problem}", kernel.name)))
    }

    /// Returns the memory that begins at an address.
    fn whole<'a>(&self, at: Address) -> Result<&'a mut [u8], DriverError> {
        let memory = self.memory.iter().find(|memory| memory.start() == at);
        let none = || DriverError(format!("no memory begins at {:#x}", at.0));
        memory.map(PagedBytes::all).ok_or_else(none)
    }
}

/// An access that a command does not declare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stray {
    /// The command writes this byte of a memory.
    Writes(&'static str, i64),
    /// The command computes this byte of a memory from bytes that it does not declare as read.
    Reads(&'static str, i64),
}

impl fmt::Display for Stray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writes(memory, byte) => {
                write!(f, "writes byte {byte} of {memory}, which it does not declare as written")
            }
            Self::Reads(memory, byte) => {
                write!(f, "computes byte {byte} of {memory} from memory that it does not declare as read")
            }
        }
    }
}

/// Bytes of a memory while a command is checked. Ranges are counted from the first of these bytes.
pub(super) struct WatchedBytes {
    name: &'static str,
    /// The index of the first byte in its memory.
    first: u64,
    reads: Vec<Range<usize>>,
    writes: Vec<Range<usize>>,
    /// The bytes before the check.
    saved: Vec<u8>,
    /// The expected bytes after a run, with those around them.
    filled: Vec<u8>,
    runs: Vec<WrittenBytes>,
}

/// The bytes that the command writes, one range after the other.
struct WrittenBytes {
    before: Vec<u8>,
    after: Vec<u8>,
}

impl WatchedBytes {
    /// Watches a range of a memory, which has these bytes.
    pub(super) fn of(declared: &Declared, range: &Range<u64>, bytes: &[u8]) -> Self {
        let within = |parts: &[DeclaredTensor]| {
            let own = parts
                .iter()
                .map(|part| &part.bytes)
                .filter(|own| range.start <= own.start && own.end <= range.end);
            own.map(|own| (own.start - range.start) as usize..(own.end - range.start) as usize).collect()
        };
        Self {
            name: declared.name,
            first: range.start,
            reads: within(&declared.reads),
            writes: within(&declared.writes),
            saved: bytes.to_vec(),
            filled: vec![],
            runs: vec![],
        }
    }

    /// Returns the number of bytes.
    pub(super) fn len(&self) -> usize {
        self.saved.len()
    }

    /// Fills memory for the next run. The watched bytes begin at `start` in it.
    pub(super) fn fill(&mut self, memory: &mut [u8], start: usize) {
        let [foreign, written] = FILLS[self.runs.len()];
        memory.fill(foreign);
        let bytes = &mut memory[start..];
        for range in self.writes.iter().cloned() {
            bytes[range].fill(written);
        }
        for range in self.reads.iter().cloned() {
            bytes[range.clone()].copy_from_slice(&self.saved[range]);
        }
        self.filled = memory.to_vec();
    }

    /// Compares the memory after a run with the expected bytes.
    pub(super) fn look(&mut self, memory: &[u8], start: usize) -> Result<(), Stray> {
        let (filled, bytes) = (&mut self.filled[start..], &memory[start..]);
        let written =
            |bytes: &[u8]| self.writes.iter().flat_map(|range| &bytes[range.clone()]).copied().collect();
        self.runs.push(WrittenBytes { before: written(filled), after: written(bytes) });
        for range in self.writes.iter().cloned() {
            filled[range.clone()].copy_from_slice(&bytes[range]);
        }
        if self.filled == memory {
            return Ok(());
        }
        let at = self.filled.iter().zip(memory).position(|(filled, found)| filled != found);
        Err(Stray::Writes(self.name, self.first as i64 + at.unwrap_or_default() as i64 - start as i64))
    }

    /// Writes the results into the memory of these bytes, and restores the other bytes.
    pub(super) fn restore(self, bytes: &mut [u8]) -> Result<(), Stray> {
        bytes.copy_from_slice(&self.saved);
        let [first, second] = &self.runs[..] else { unreachable!("there are two fills") };
        for (i, at) in self.writes.iter().cloned().flatten().enumerate() {
            let [before, after] = [[first.before[i], second.before[i]], [first.after[i], second.after[i]]];
            if after[0] == after[1] {
                bytes[at] = after[0];
            } else if after != before {
                return Err(Stray::Reads(self.name, self.first as i64 + at as i64));
            }
            // Otherwise nothing was written there: between strided rows lie other bytes.
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes before and after the memory.
    const GUARD: usize = 32;

    /// Returns the result of a command on a memory of 16 bytes, which declares that it reads bytes 0 to 4 and writes bytes 8 to 12.
    fn held(command: impl Fn(&mut [u8])) -> Result<Vec<u8>, Stray> {
        let [reads, writes] = [0..4, 8..12].map(|bytes| vec![DeclaredTensor { number: 0, bytes }]);
        let declared = Declared { memory: Address(0), name: "the arena", reads, writes };
        let mut bytes: Vec<u8> = (0..16).collect();
        let mut memory = vec![0; 2 * GUARD + 16];
        let mut held = WatchedBytes::of(&declared, &(0..16), &bytes);
        for _ in FILLS {
            held.fill(&mut memory, GUARD);
            command(&mut memory[GUARD..]);
            held.look(&memory, GUARD)?;
        }
        held.restore(&mut bytes)?;
        Ok(bytes)
    }

    #[test]
    fn results_stay_and_nothing_else_changes() {
        let result = held(|bytes| {
            bytes[8] = bytes[3] + 40;
            bytes[11] = 0xff;
        });
        assert_eq!(result, Ok(vec![0, 1, 2, 3, 4, 5, 6, 7, 43, 9, 10, 0xff, 12, 13, 14, 15]));
    }

    #[test]
    fn a_byte_beyond_the_results_is_found() {
        for (at, byte) in [(12, 0), (7, 0xff), (0, 9), (16, 1), (GUARD + 15, 1)] {
            let found = held(|bytes| bytes[at] = byte);
            assert_eq!(found, Err(Stray::Writes("the arena", at as i64)));
        }
    }

    #[test]
    fn results_that_are_made_from_a_byte_that_is_not_read_are_found() {
        for from in [4, 15, 16] {
            assert_eq!(held(|bytes| bytes[9] = bytes[from]), Err(Stray::Reads("the arena", 9)));
            assert_eq!(held(|bytes| bytes[9] = bytes[from] & 1), Err(Stray::Reads("the arena", 9)));
        }
    }
}
