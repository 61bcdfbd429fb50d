//! The memory of the CPU backend: one anonymous mapping that every instruction borrows its slices from.
//!
//! A collective may run beside the instructions behind it, on another thread. So no reference spans the whole mapping while
//! instructions run: each has slices of its own operands and results, and [`super::beside`] keeps those apart that run at once.

use super::call::{Call, Place};
use super::kernels::copy;
use crate::program::{Instruction, Program, Region, Turn, View};
use memmap2::{MmapMut, MmapRaw};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// Zeroed memory. Pages are taken when they are first touched. Clones are the same memory.
#[derive(Clone)]
pub(super) struct Arena(Arc<MmapRaw>);

/// The constants of a program.
pub(super) struct Constants(MmapMut);

impl Arena {
    pub(super) fn new(bytes: u64) -> std::io::Result<Self> {
        Ok(Self(Arc::new(map(bytes)?.into())))
    }

    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn memory(&self) -> Memory {
        Memory { start: self.0.as_mut_ptr(), len: self.0.len() }
    }

    /// The bytes of a dense view. The caller makes sure that no instruction writes them meanwhile; this holds for all methods below.
    #[allow(unsafe_code)]
    pub(super) fn bytes(&self, view: &View, bases: &[u64]) -> &[u8] {
        // SAFETY: the mapping lives as long as `self`. Instructions run only in `Cpu`, which gives up its arena to nobody else while
        // one of them runs.
        unsafe { self.memory().slice(range(view, bases)) }
    }

    /// Sets a dense view.
    #[allow(unsafe_code)]
    pub(super) fn write(&mut self, view: &View, bases: &[u64], bytes: &[u8]) {
        // SAFETY: as in `bytes`.
        unsafe { self.memory().slice_mut(range(view, bases)) }.copy_from_slice(bytes);
    }

    /// The elements of a view in row-major order.
    pub(super) fn read(&self, constants: &Constants, view: &View, bases: &[u64]) -> Vec<u8> {
        let mut dense = vec![0; view.layout.len() * view.dtype.bytes() as usize];
        copy::gather(self.span(constants, view, bases), view, &mut dense);
        dense
    }

    /// The bytes that a view spans.
    pub(super) fn span<'a>(&'a self, constants: &'a Constants, view: &View, bases: &[u64]) -> &'a [u8] {
        if view.region.is_in_arena() { self.bytes(view, bases) } else { &constants.0[range(view, bases)] }
    }

    /// What an instruction reads and writes.
    ///
    /// # Safety
    /// As of [`borrow`].
    #[allow(unsafe_code)]
    pub(super) unsafe fn borrow<'a>(
        &'a self,
        constants: &'a Constants,
        instruction: &'a Instruction,
        first: bool,
        place: Place<'a>,
    ) -> Call<'a> {
        let add = instruction.accumulates && !first;
        // SAFETY: the mapping lives as long as `self`; the caller promises the rest.
        unsafe { borrow((self.memory(), &constants.0), instruction, add, place) }
    }
}

/// Memory that instructions change: where it begins, and its bytes.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    start: *mut u8,
    len: usize,
}

impl Memory {
    /// Memory that the caller has for itself.
    pub(super) fn of(bytes: &mut [u8]) -> Self {
        Self { start: bytes.as_mut_ptr(), len: bytes.len() }
    }

    /// The bytes of a range.
    ///
    /// # Safety
    /// The memory is there, and nothing writes the range while the slice is used.
    #[allow(unsafe_code)]
    unsafe fn slice<'a>(self, range: Range<usize>) -> &'a [u8] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range lies in the memory; the caller promises the rest.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// The bytes of a range, to be changed.
    ///
    /// # Safety
    /// The memory is there, and nothing else reads or writes the range while the slice is used.
    #[allow(unsafe_code)]
    unsafe fn slice_mut<'a>(self, range: Range<usize>) -> &'a mut [u8] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range lies in the memory; the caller promises the rest.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// What an instruction reads and writes, of the arena and the constants. An operand that is the place of a result has no
/// slice of its own: the result's holds it. Panics if a result overlaps anything else, which the memory plan excludes.
///
/// # Safety
/// While the call is used the memory is there, nothing else writes what its operands span, and nothing else reads or writes its
/// results and its scratch.
#[allow(unsafe_code)]
pub(super) unsafe fn borrow<'a>(
    (memory, constants): (Memory, &'a [u8]),
    instruction: &'a Instruction,
    add: bool,
    place: Place<'a>,
) -> Call<'a> {
    let written = instruction.results.iter().chain(&instruction.scratch);
    let range = |view: &View| range(view, place.bases);
    let written: SmallVec<[Range<usize>; 4]> = written.map(range).collect();
    for (index, one) in written.iter().enumerate() {
        let is_alone = written[..index].iter().all(|other| !overlap(one, other));
        assert!(is_alone, "the memory plan keeps results apart");
    }
    let operand = |(index, view): (usize, &View)| {
        let range = range(view);
        if instruction.in_place.iter().any(|(operand, _)| *operand == index as u32) {
            return None;
        }
        if view.region == Region::Constants {
            return Some(&constants[range]);
        }
        let is_clear = written.iter().all(|other| !overlap(&range, other));
        assert!(is_clear, "the memory plan keeps operands clear of results");
        // SAFETY: this call writes no byte of the range; the caller promises that nothing else does.
        Some(unsafe { memory.slice(range) })
    };
    let operands = instruction.operands.iter().enumerate().map(operand).collect();
    // SAFETY: the ranges do not overlap each other or an operand; the caller promises that nothing else touches them.
    let mut results: SmallVec<[&mut [u8]; 4]> =
        written.iter().map(|range| unsafe { memory.slice_mut(range.clone()) }).collect();
    let scratch = instruction.scratch.as_ref().and_then(|_| results.pop());
    Call { instruction, operands, scratch: scratch.unwrap_or_default(), results, add, place }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

impl Constants {
    pub(super) fn new(program: &Program) -> std::io::Result<Self> {
        let mut memory = map(program.memory.constants)?;
        for constant in &program.constants {
            memory[constant.base as usize..][..constant.bytes.len()].copy_from_slice(&constant.bytes);
        }
        Ok(Self(memory))
    }
}

fn map(bytes: u64) -> std::io::Result<MmapMut> {
    let bytes = usize::try_from(bytes).map_err(std::io::Error::other)?;
    let memory = MmapMut::map_anon(bytes.max(1))?;
    // Tensors are read and written as a whole, from end to end. A kernel without huge pages refuses, and nothing is lost.
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    Ok(memory)
}

/// The bytes that a view spans. `bases` says where the blocks begin.
fn range(view: &View, bases: &[u64]) -> Range<usize> {
    let (bytes, base) = (view.bytes(), view.region.start(bases));
    assert!(base != Turn::NOWHERE, "a block is alive where it is used");
    (base + bytes.start) as usize..(base + bytes.end) as usize
}
