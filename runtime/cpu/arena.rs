//! The memory of the CPU backend: one anonymous mapping that every instruction borrows its slices from.

use super::call::{Call, Place};
use super::kernels::copy;
use crate::program::{Instruction, Program, Region, View};
use memmap2::MmapMut;
use smallvec::SmallVec;
use std::ops::Range;

/// Zeroed memory. Pages are taken when they are first touched.
pub(super) struct Arena(MmapMut);

/// The constants of a program.
pub(super) struct Constants(MmapMut);

impl Arena {
    pub(super) fn new(bytes: u64) -> std::io::Result<Self> {
        map(bytes).map(Self)
    }

    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// The bytes of a dense view.
    pub(super) fn bytes(&self, view: &View) -> &[u8] {
        &self.0[range(view)]
    }

    /// Sets a dense view.
    pub(super) fn write(&mut self, view: &View, bytes: &[u8]) {
        self.0[range(view)].copy_from_slice(bytes);
    }

    /// The elements of a view in row-major order.
    pub(super) fn read(&self, constants: &Constants, view: &View) -> Vec<u8> {
        let mut dense = vec![0; view.layout.len() * view.dtype.bytes() as usize];
        copy::gather(self.span(constants, view), view, &mut dense);
        dense
    }

    /// The bytes that a view spans.
    pub(super) fn span<'a>(&'a self, constants: &'a Constants, view: &View) -> &'a [u8] {
        let memory = if view.region == Region::Arena { &self.0 } else { &constants.0 };
        &memory[range(view)]
    }

    /// What an instruction reads and writes; see [`borrow`].
    pub(super) fn borrow<'a>(
        &'a mut self,
        constants: &'a Constants,
        instruction: &'a Instruction,
        first: bool,
        place: Place<'a>,
    ) -> Call<'a> {
        borrow((&mut self.0, &constants.0), instruction, instruction.accumulates && !first, place)
    }
}

/// What an instruction reads and writes, of the arena and the constants. An operand that is the place of a result has no
/// slice of its own: the result's holds it. Panics if a result overlaps anything else, which the memory plan excludes.
pub(super) fn borrow<'a>(
    (arena, constants): (&'a mut [u8], &'a [u8]),
    instruction: &'a Instruction,
    add: bool,
    place: Place<'a>,
) -> Call<'a> {
    let written = instruction.results.iter().chain(&instruction.scratch);
    let mut order: SmallVec<[(Range<usize>, usize); 4]> =
        written.map(range).enumerate().map(|(index, range)| (range, index)).collect();
    order.sort_by_key(|(range, index)| (range.start, range.end, *index));
    let mut results: SmallVec<[Option<&mut [u8]>; 4]> = order.iter().map(|_| None).collect();
    // Cut the arena at the results and the scratch; operands lie between.
    let mut between: SmallVec<[(usize, &[u8]); 5]> = SmallVec::new();
    let (mut rest, mut at): (&mut [u8], usize) = (arena, 0);
    for (range, index) in order {
        let (before, tail) = rest.split_at_mut(range.start - at);
        let (result, tail) = tail.split_at_mut(range.len());
        between.push((at, before));
        results[index] = Some(result);
        (rest, at) = (tail, range.end);
    }
    between.push((at, rest));
    let operand = |(index, view): (usize, &View)| {
        let range = range(view);
        if instruction.in_place.iter().any(|(operand, _)| *operand == index as u32) {
            return None;
        }
        if view.region == Region::Constants {
            return Some(&constants[range]);
        }
        let whole = |(start, slice): &(usize, &'a [u8])| {
            let slice: &'a [u8] = slice;
            slice.get(range.start.checked_sub(*start)?..range.end - start)
        };
        Some(between.iter().find_map(whole).expect("the memory plan keeps operands clear of results"))
    };
    let operands = instruction.operands.iter().enumerate().map(operand).collect();
    let scratch = instruction.scratch.as_ref().and_then(|_| results.pop().flatten());
    Call {
        instruction,
        operands,
        scratch: scratch.unwrap_or_default(),
        results: results.into_iter().flatten().collect(),
        add,
        place,
    }
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
    MmapMut::map_anon(bytes.max(1))
}

fn range(view: &View) -> Range<usize> {
    let bytes = view.bytes();
    bytes.start as usize..bytes.end as usize
}
