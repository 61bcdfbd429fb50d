//! The memory of the CPU backend: an anonymous mapping for each tier, from which every instruction borrows its slices.
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

/// Zeroed memory of the device and of the host. Pages are taken when they are first touched. Clones are the same memory.
#[derive(Clone)]
pub(super) struct Arena {
    device: Arc<MmapRaw>,
    host: Option<Arc<MmapRaw>>,
}

/// The constants of a program.
pub(super) struct Constants(MmapMut);

impl Arena {
    /// So many bytes for the device, and for the host.
    pub(super) fn new(device: u64, host: u64) -> std::io::Result<Self> {
        let shared = |bytes| Ok::<_, std::io::Error>(Arc::new(MmapRaw::from(map(bytes)?)));
        let host = (host > 0).then(|| shared(host)).transpose()?;
        Ok(Self { device: shared(device)?, host })
    }

    /// Bytes of the device's memory.
    pub(super) fn len(&self) -> u64 {
        self.device.len() as u64
    }

    /// Bytes of the host's memory.
    pub(super) fn host_len(&self) -> u64 {
        self.host.as_ref().map_or(0, |host| host.len() as u64)
    }

    fn memories<'a>(&self, constants: &'a Constants) -> Memories<'a> {
        let [device, host] = [Region::Arena, Region::Host].map(|region| self.memory(region));
        Memories { device, host, constants: &constants.0 }
    }

    /// The memory of a region of values that change.
    fn memory(&self, region: Region) -> Memory {
        match &self.host {
            Some(host) if region.is_on_host() => Memory::of_map(host),
            // A view of the host then has no bytes, which the checks of ranges find.
            None if region.is_on_host() => Memory::of(&mut []),
            _ => Memory::of_map(&self.device),
        }
    }

    /// The bytes of a dense view. The caller makes sure that no instruction writes them meanwhile; this holds for all methods below.
    #[allow(unsafe_code)]
    pub(super) fn bytes(&self, view: &View, bases: &[u64]) -> &[u8] {
        // SAFETY: the mapping lives as long as `self`. Instructions run only in `Cpu`, which gives up its arena to nobody else while
        // one of them runs.
        unsafe { self.memory(view.region).slice(range(view, bases)) }
    }

    /// Sets a dense view.
    #[allow(unsafe_code)]
    pub(super) fn write(&mut self, view: &View, bases: &[u64], bytes: &[u8]) {
        // SAFETY: as in `bytes`.
        unsafe { self.memory(view.region).slice_mut(range(view, bases)) }.copy_from_slice(bytes);
    }

    /// The elements of a view in row-major order.
    pub(super) fn read(&self, constants: &Constants, view: &View, bases: &[u64]) -> Vec<u8> {
        let mut dense = vec![0; view.layout.len() * view.dtype.bytes() as usize];
        copy::gather(self.span(constants, view, bases), view, &mut dense);
        dense
    }

    /// The bytes that a view spans.
    pub(super) fn span<'a>(&'a self, constants: &'a Constants, view: &View, bases: &[u64]) -> &'a [u8] {
        match view.region {
            Region::Constants => &constants.0[range(view, bases)],
            _ => self.bytes(view, bases),
        }
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
        // SAFETY: the mappings live as long as `self`; the caller promises the rest.
        unsafe { borrow(self.memories(constants), instruction, add, place) }
    }
}

/// The memories that an instruction may use.
#[derive(Clone, Copy)]
pub(super) struct Memories<'a> {
    pub(super) device: Memory,
    pub(super) host: Memory,
    pub(super) constants: &'a [u8],
}

impl Memories<'_> {
    /// The memory of a region of values that change.
    fn of(&self, region: Region) -> Memory {
        if region.is_on_host() { self.host } else { self.device }
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

    fn of_map(map: &MmapRaw) -> Self {
        Self { start: map.as_mut_ptr(), len: map.len() }
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

/// What an instruction reads and writes, of all memories. An operand that is the place of a result has no
/// slice of its own: the result's holds it. Panics if a result overlaps anything else, which the memory plan excludes.
///
/// # Safety
/// While the call is used the memory is there, nothing else writes what its operands span, and nothing else reads or writes its
/// results and its scratch.
#[allow(unsafe_code)]
pub(super) unsafe fn borrow<'a>(
    memories: Memories<'a>,
    instruction: &'a Instruction,
    add: bool,
    place: Place<'a>,
) -> Call<'a> {
    let written = instruction.results.iter().chain(&instruction.scratch);
    let range = |view: &View| range(view, place.bases);
    let written: SmallVec<[(Region, Range<usize>); 4]> =
        written.map(|view| (memory_of(view), range(view))).collect();
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
            return Some(&memories.constants[range]);
        }
        let place = (memory_of(view), range.clone());
        let is_clear = written.iter().all(|other| !overlap(&place, other));
        assert!(is_clear, "the memory plan keeps operands clear of results");
        // SAFETY: this call writes no byte of the range; the caller promises that nothing else does.
        Some(unsafe { memories.of(view.region).slice(range) })
    };
    let operands = instruction.operands.iter().enumerate().map(operand).collect();
    // SAFETY: the ranges do not overlap each other or an operand; the caller promises that nothing else touches them.
    let mut results: SmallVec<[&mut [u8]; 4]> =
        written.iter().map(|(region, range)| unsafe { memories.of(*region).slice_mut(range.clone()) }).collect();
    let scratch = instruction.scratch.as_ref().and_then(|_| results.pop());
    Call { instruction, operands, scratch: scratch.unwrap_or_default(), results, add, place }
}

/// The memory of a view, by the region that is all of it.
fn memory_of(view: &View) -> Region {
    match view.region {
        Region::Block(_) => Region::Arena,
        Region::HostBlock(_) => Region::Host,
        region => region,
    }
}

/// Whether two ranges of memories share a byte.
fn overlap(one: &(Region, Range<usize>), other: &(Region, Range<usize>)) -> bool {
    one.0 == other.0 && one.1.start.max(other.1.start) < one.1.end.min(other.1.end)
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
