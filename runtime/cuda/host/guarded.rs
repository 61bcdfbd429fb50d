//! The operands of a command that is checked, each in a mapping of its own between guard pages, which may not be touched.
//!
//! Operands and results that overlap share a mapping. An address that the command gets is moved with the operand in which it lies. An
//! address that the command does not declare is moved to guard pages.

use super::checked::{Declared, DeclaredTensor, WatchedBytes};
use super::fault::Fault;
use super::pages::Pages;
use super::{Queued, State};
use crate::driver::{Address, DriverError, MultiplyPlaces};
use crate::program::{Argument, Launch};
use std::ops::Range;
use std::sync::Arc;

/// The largest alignment of packs and copies. An operand keeps its address modulo this number.
const ALIGNMENT: usize = 16;

/// The arguments of a launch, each with its kind.
#[derive(Clone)]
pub(super) struct Words {
    /// The arguments, as a kernel gets them.
    pub(super) values: Vec<u64>,
    kinds: Vec<Kind>,
}

#[derive(Clone)]
enum Kind {
    Number,
    Address,
    /// The address of a table: whether each entry of the program's tables is an address, and the table's first entry.
    Table(Arc<[bool]>, usize),
}

impl Words {
    /// Returns the arguments of a launch of a program with these tables.
    pub(super) fn of(launch: &Launch, arguments: &[u64], tables: &Arc<[bool]>) -> Self {
        let kind = |argument: &Argument| match argument {
            Argument::Table(first) => Kind::Table(tables.clone(), *first),
            address if is_address(address) => Kind::Address,
            _ => Kind::Number,
        };
        Self { values: arguments.to_vec(), kinds: launch.arguments.iter().map(kind).collect() }
    }
}

/// Whether an argument is an address in the arena or the constants.
pub(super) fn is_address(argument: &Argument) -> bool {
    matches!(argument, Argument::Address(..) | Argument::AddressByRank(..))
}

/// The side on which operands touch the guard pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The last byte is next to the pages behind, except for alignment.
    Behind,
    /// The first byte is next to the pages before, except for alignment.
    Before,
}

/// The memory of a command that is checked.
#[derive(Default)]
pub(super) struct Guards {
    /// The operands and results.
    pub(super) mapped: Vec<Mapped>,
    /// The addresses that replace those of the other bytes of the memories.
    shadows: Vec<Shadow>,
    tables: Vec<Table>,
}

/// Operands and results that overlap.
pub(super) struct Mapped {
    declared: Declared,
    /// The range of their bytes in their memory.
    range: Range<u64>,
    pages: Pages,
    /// The index of their first byte in the pages.
    start: usize,
}

/// Addresses that replace those of a memory, and may not be touched.
struct Shadow {
    memory: Address,
    name: &'static str,
    bytes: usize,
    pages: Pages,
}

/// A copy of a table of arguments, in which addresses are moved.
struct Table {
    pages: Pages,
    start: usize,
}

impl Guards {
    /// Maps the memory that a command declares.
    pub(super) fn of(declared: &[Declared], state: &State) -> Result<Self, DriverError> {
        let mut guards = Self::default();
        for declared in declared {
            for range in merged(declared) {
                let bytes = (range.end - range.start) as usize + ALIGNMENT;
                let pages = Pages::new(bytes)?;
                guards.mapped.push(Mapped { declared: declared.clone(), range, pages, start: 0 });
            }
            let bytes = state.bytes(declared.memory, None)?.len();
            let pages = Pages::untouchable(bytes)?;
            guards.shadows.push(Shadow { memory: declared.memory, name: declared.name, bytes, pages });
        }
        Ok(guards)
    }

    /// Places the operands at one side of their mappings.
    pub(super) fn place(&mut self, side: Side) {
        self.tables.clear();
        for mapped in &mut self.mapped {
            let offset = mapped.original().0 as usize % ALIGNMENT;
            mapped.start = match side {
                Side::Before => offset,
                Side::Behind => {
                    let last = mapped.pages.len() - mapped.len();
                    last - (last + ALIGNMENT - offset) % ALIGNMENT
                }
            };
        }
    }

    /// Returns the operands and the tables of arguments, at their present places.
    pub(super) fn memories<'a>(&self) -> impl Iterator<Item = (Address, &'a mut [u8])> {
        let operands = self.mapped.iter().map(|mapped| {
            let own = mapped.start..mapped.start + mapped.len();
            (&mapped.pages, own)
        });
        let tables = self.tables.iter().map(|table| (&table.pages, table.start..table.pages.len()));
        operands.chain(tables).map(|(pages, own)| {
            let address = Address((pages.start() + own.start) as u64);
            (address, &mut pages.all()[own])
        })
    }

    /// Returns the moved address of a byte of an operand, if the command declares one there.
    fn operand(&self, at: Address) -> Option<Address> {
        let contains = |mapped: &&Mapped| {
            let first = mapped.original().0;
            (first..first + mapped.len() as u64).contains(&at.0)
        };
        let mapped = self.mapped.iter().find(contains)?;
        let start = (mapped.pages.start() + mapped.start) as u64;
        Some(Address(start + at.0 - mapped.original().0))
    }

    /// Returns the moved address of a byte: in an operand, or else among the bytes that may not be touched.
    fn moved(&self, at: u64) -> u64 {
        if let Some(operand) = self.operand(Address(at)) {
            return operand.0;
        }
        let in_shadow = |shadow: &Shadow| {
            let offset = at.checked_sub(shadow.memory.0)?;
            (offset <= shadow.bytes as u64).then_some(shadow.pages.start() as u64 + offset)
        };
        self.shadows.iter().find_map(in_shadow).unwrap_or(at)
    }

    /// Copies a table, in which addresses are moved. The copy ends at guard pages.
    fn table(&mut self, bytes: &[u8], are_addresses: &[bool]) -> Result<u64, DriverError> {
        let pages = Pages::new(bytes.len())?;
        let start = pages.len() - bytes.len();
        let entries = bytes.chunks_exact(8).zip(pages.all()[start..].chunks_exact_mut(8));
        for ((from, to), is_address) in entries.zip(are_addresses) {
            let word: u64 = bytemuck::pod_read_unaligned(from);
            let word = if *is_address { self.moved(word) } else { word };
            to.copy_from_slice(&word.to_le_bytes());
        }
        let at = (pages.start() + start) as u64;
        self.tables.push(Table { pages, start });
        Ok(at)
    }
}

/// Returns the ranges of a memory in which operands and results lie. Ranges that overlap are merged.
fn merged(declared: &Declared) -> Vec<Range<u64>> {
    let parts = declared.reads.iter().chain(&declared.writes);
    let mut all: Vec<_> = parts.map(|part| part.bytes.clone()).filter(|bytes| !bytes.is_empty()).collect();
    all.sort_by_key(|range| range.start);
    let mut result: Vec<Range<u64>> = Vec::new();
    for range in all {
        match result.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => result.push(range),
        }
    }
    result
}

impl Mapped {
    /// Returns their address outside of checks.
    pub(super) fn original(&self) -> Address {
        Address(self.declared.memory.0 + self.range.start)
    }

    /// Returns the number of their bytes.
    pub(super) fn len(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }

    /// Returns the index of their first byte among all bytes that may be touched.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// Returns all bytes that may be touched.
    pub(super) fn all<'a>(&self) -> &'a mut [u8] {
        self.pages.all()
    }

    /// Returns the bytes as they are watched while the command runs.
    pub(super) fn held(&self, bytes: &[u8]) -> WatchedBytes {
        WatchedBytes::of(&self.declared, &self.range, bytes)
    }

    /// Describes an address outside of these bytes: `4 bytes behind operand 1`.
    fn described(&self, address: usize) -> String {
        let first = self.pages.start() + self.start;
        let (distance, side, nearest) = if address < first {
            (first - address, "before", self.part(|bytes| bytes.start == self.range.start))
        } else {
            (address - first - self.len() + 1, "behind", self.part(|bytes| bytes.end == self.range.end))
        };
        let plural = if distance == 1 { "" } else { "s" };
        format!("{distance} byte{plural} {side} {nearest}")
    }

    /// Returns the name of the operand or result whose bytes satisfy `is_it`.
    fn part(&self, is_it: impl Fn(&Range<u64>) -> bool) -> String {
        let Declared { name, reads, writes, .. } = &self.declared;
        let named = |of: &str, parts: &[DeclaredTensor]| {
            let part = parts.iter().find(|part| is_it(&part.bytes))?;
            let Range { start, end } = part.bytes;
            Some(format!("{of} {} (bytes {start} to {end} of {name})", part.number))
        };
        named("operand", reads).or_else(|| named("result", writes)).unwrap_or_default()
    }
}

impl Queued {
    /// Returns the command with its operands between guards.
    pub(super) fn between(&self, state: &mut State) -> Result<Self, DriverError> {
        let mut moved = self.clone();
        match &mut moved {
            Self::Launch { words, .. } => {
                for (word, kind) in words.values.iter_mut().zip(&words.kinds) {
                    match kind {
                        Kind::Number => {}
                        Kind::Address => *word = state.guards.moved(*word),
                        Kind::Table(tables, first) => {
                            let entries = &tables[*first..];
                            let table = state.bytes(Address(*word), Some(8 * entries.len()))?;
                            *word = state.guards.table(table, entries)?;
                        }
                    }
                }
            }
            Self::Multiply { places, .. } => {
                let move_one = |place: &mut Address| {
                    let silent =
                        || DriverError(format!("{} {}", self.described().0, state.undeclared(*place)));
                    *place = state.guards.operand(*place).ok_or_else(silent)?;
                    Ok(())
                };
                let MultiplyPlaces { lhs, rhs, out, bias, addend, aux, sums } = places;
                let others = [bias, addend, aux, sums].into_iter().flatten();
                [lhs, rhs, out].into_iter().chain(others).try_for_each(move_one)?;
            }
            _ => unreachable!("nothing else runs between guards"),
        }
        Ok(moved)
    }
}

impl State {
    /// Describes the fault of an address that a command gets and does not declare.
    fn undeclared(&self, at: Address) -> String {
        let of = |shadow: &Shadow| Some((shadow.name, at.0.checked_sub(shadow.memory.0)?));
        let within = |(_, byte): &(&str, u64), shadow: &Shadow| *byte <= shadow.bytes as u64;
        let place =
            self.guards.shadows.iter().find_map(|shadow| of(shadow).filter(|place| within(place, shadow)));
        match place {
            Some((name, byte)) => {
                format!("is given byte {byte} of {name}, which it does not declare as read or written")
            }
            None => format!("is given {:#x}, which is not in the device's memory", at.0),
        }
    }

    /// Describes a fault of a kernel, as the end of a sentence about the kernel.
    pub(super) fn described(&self, fault: Fault) -> String {
        let Fault::Access { address, writes } = fault else {
            return "accesses an address that is not a multiple of its type's alignment".into();
        };
        let verb = if writes { "writes" } else { "reads" };
        let Guards { mapped, shadows, tables } = &self.guards;
        if let Some(mapped) = mapped.iter().find(|mapped| mapped.pages.contains(address)) {
            return format!("{verb} {}", mapped.described(address));
        }
        if let Some(shadow) = shadows.iter().find(|shadow| shadow.pages.contains(address)) {
            let byte = address as i64 - shadow.pages.start() as i64;
            return format!("{verb} byte {byte} of {}, which it does not say it {verb}", shadow.name);
        }
        if let Some(table) = tables.iter().find(|table| table.pages.contains(address)) {
            let byte = address as i64 - (table.pages.start() + table.start) as i64;
            return format!("{verb} byte {byte} of its table of arguments");
        }
        if let Some(memory) = self.memory.iter().find(|memory| memory.pages.contains(address)) {
            let byte = address as i64 - memory.start().0 as i64;
            return format!("{verb} byte {byte} of a memory of {} bytes", memory.bytes);
        }
        format!("{verb} at {address:#x}, where the device has no memory")
    }
}
