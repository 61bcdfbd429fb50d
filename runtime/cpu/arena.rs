//! The memory of the CPU backend: an anonymous mapping for each memory, from which every instruction borrows its slices.
//!
//! A collective may run on another thread beside the following instructions. So no reference spans the whole mapping while instructions
//! run. Each instruction has slices of its own operands and results, and [`super::beside`] keeps instructions that run at once apart.

use super::call::{Call, OnDevice};
use super::kernels::copy;
use files::scratch::ScratchFile;
use memmap2::{MmapMut, MmapRaw};
use program::device::DeviceError;
use program::layout::Layout;
use program::{Instruction, Program, Region, Turn, View};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Zeroed memory of the device and of the host, and a file. The system provides pages when they are first touched. Clones share the memory.
#[derive(Clone)]
pub(super) struct Arena {
    device: Arc<MmapRaw>,
    host: Option<Arc<MmapRaw>>,
    disk: Option<Arc<ScratchFile>>,
}

/// The bytes of each memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    pub(super) device: u64,
    pub(super) host: u64,
    pub(super) disk: u64,
}

/// The constants of a program.
pub(super) struct Constants(MmapMut);

impl Arena {
    /// Allocates memories of these sizes. The file is in `folder`.
    pub(super) fn new(sizes: Sizes, folder: Option<&Path>) -> Result<Self, DeviceError> {
        let memory = |bytes| map(bytes).map_err(|source| DeviceError::Memory { bytes, source });
        let shared = |bytes| Ok::<_, DeviceError>(Arc::new(MmapRaw::from(memory(bytes)?)));
        let Sizes { device, host, disk } = sizes;
        let host = (host > 0).then(|| shared(host)).transpose()?;
        let file = |folder: &Path| {
            let error = |source| DeviceError::NoFile { bytes: disk, folder: folder.into(), source };
            Ok::<_, DeviceError>(Arc::new(ScratchFile::new(folder, disk).map_err(error)?))
        };
        let disk = match (disk, folder) {
            (0, _) => None,
            (_, Some(folder)) => Some(file(folder)?),
            (_, None) => Some(file(&std::env::temp_dir())?),
        };
        Ok(Self { device: shared(device)?, host, disk })
    }

    /// Returns the bytes of the device's memory.
    pub(super) fn len(&self) -> u64 {
        self.device.len() as u64
    }

    /// Returns the start and the length of the host's memory, if there is any.
    pub(super) fn host(&self) -> Option<(*mut u8, usize)> {
        self.host.as_ref().map(|host| (host.as_mut_ptr(), host.len()))
    }

    /// Returns the bytes of the host's memory.
    pub(super) fn host_len(&self) -> u64 {
        self.host.as_ref().map_or(0, |host| host.len() as u64)
    }

    /// Returns the file. Programs with values in it have one.
    fn disk(&self) -> &ScratchFile {
        self.disk.as_deref().expect("a program with values in a file has one")
    }

    /// Returns the bytes of a dense view, in memory or read from the file.
    pub(super) fn read_dense(&self, view: &View) -> Result<Cow<'_, [u8]>, DeviceError> {
        if view.region != Region::Disk {
            return Ok(self.bytes(view, &[]).into());
        }
        self.read_file(view).map(Cow::from).map_err(DeviceError::Disk)
    }

    /// Returns the bytes of a view of the file, which is dense.
    fn read_file(&self, view: &View) -> io::Result<Vec<u8>> {
        let range = view.bytes();
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.disk().read(range.start, &mut bytes)?;
        Ok(bytes)
    }

    /// Writes a dense view, in memory or in the file.
    pub(super) fn write_dense(&mut self, view: &View, bytes: &[u8]) -> Result<(), DeviceError> {
        match view.region {
            Region::Disk => self.disk().write(view.bytes().start, bytes).map_err(DeviceError::Disk),
            _ => {
                self.write(view, &[], bytes);
                Ok(())
            }
        }
    }

    /// Runs a copy from the file or to it. Views in the file are dense.
    ///
    /// # Errors
    /// Errors of the disk.
    ///
    /// # Safety
    /// See [`borrow`].
    #[allow(unsafe_code)]
    pub(super) unsafe fn copy_with_file(
        &self,
        constants: &Constants,
        instruction: &Instruction,
        bases: &[u64],
    ) -> io::Result<()> {
        let (from, to) = (&instruction.operands[0], &instruction.results[0]);
        if to.region == Region::Disk {
            let is_dense = from.layout == Layout::dense(&from.layout.sizes);
            let bytes: Cow<'_, [u8]> = match from.region {
                Region::Disk => self.read_file(from)?.into(),
                _ if is_dense => self.span(constants, from, bases).into(),
                _ => dense(self.span(constants, from, bases), from).into(),
            };
            return self.disk().write(to.bytes().start, &bytes);
        }
        // SAFETY: the mappings live as long as `self`; the caller promises the rest.
        let bytes = unsafe { self.memory(to.region).slice_mut(range(to, bases)) };
        self.disk().read(from.bytes().start, bytes)
    }

    fn memories<'a>(&self, constants: &'a Constants) -> Memories<'a> {
        let [device, host] = [Region::Arena, Region::Host].map(|region| self.memory(region));
        Memories { device, host, constants: &constants.0 }
    }

    /// Returns the memory of a region of values that change.
    fn memory(&self, region: Region) -> RawBytes {
        match &self.host {
            Some(host) if region.is_on_host() => RawBytes::of_map(host),
            // A view of the host has no bytes in this case. The checks of ranges find other views.
            None if region.is_on_host() => RawBytes::of(&mut []),
            _ => RawBytes::of_map(&self.device),
        }
    }

    /// Returns the bytes of a dense view. Here and in all methods below, the caller makes sure that no instruction writes them meanwhile.
    #[allow(unsafe_code)]
    pub(super) fn bytes(&self, view: &View, bases: &[u64]) -> &[u8] {
        // SAFETY: the mapping lives as long as `self`. Instructions run in two places: in `Cpu`, which gives its arena to nobody else while
        // an
        // instruction runs, and in `HostTask`, whose caller orders the commands that touch the same bytes (`cuda::lower`).
        unsafe { self.memory(view.region).slice(range(view, bases)) }
    }

    /// Writes a dense view.
    #[allow(unsafe_code)]
    pub(super) fn write(&mut self, view: &View, bases: &[u64], bytes: &[u8]) {
        // SAFETY: as in `bytes`.
        unsafe { self.memory(view.region).slice_mut(range(view, bases)) }.copy_from_slice(bytes);
    }

    /// Returns the elements of a view in row-major order, from memory or from the file.
    pub(super) fn read(
        &self,
        constants: &Constants,
        view: &View,
        bases: &[u64],
    ) -> Result<Vec<u8>, DeviceError> {
        match view.region {
            Region::Constants => Ok(dense(&constants.0[range(view, bases)], view)),
            _ => self.read_changing(view, bases),
        }
    }

    /// Returns the elements of a view that is no constant, in row-major order, from memory or from the file.
    pub(super) fn read_changing(&self, view: &View, bases: &[u64]) -> Result<Vec<u8>, DeviceError> {
        match view.region {
            Region::Disk => self.read_file(view).map_err(DeviceError::Disk),
            _ => Ok(dense(self.bytes(view, bases), view)),
        }
    }

    /// Returns the bytes that a view of memory spans.
    pub(super) fn span<'a>(&'a self, constants: &'a Constants, view: &View, bases: &[u64]) -> &'a [u8] {
        match view.region {
            Region::Constants => &constants.0[range(view, bases)],
            _ => self.bytes(view, bases),
        }
    }

    /// Borrows the memory that an instruction reads and writes.
    ///
    /// # Safety
    /// See [`borrow`].
    #[allow(unsafe_code)]
    pub(super) unsafe fn borrow<'a>(
        &'a self,
        constants: &'a Constants,
        instruction: &'a Instruction,
        first: bool,
        device: OnDevice<'a>,
    ) -> Call<'a> {
        let add = instruction.accumulates && !first;
        // SAFETY: the mappings live as long as `self`; the caller promises the rest.
        unsafe { borrow(self.memories(constants), instruction, add, device) }
    }
}

/// The memories that an instruction may use.
#[derive(Clone, Copy)]
pub(super) struct Memories<'a> {
    pub(super) device: RawBytes,
    pub(super) host: RawBytes,
    pub(super) constants: &'a [u8],
}

impl Memories<'_> {
    /// Returns the memory of a region of values that change.
    fn of(&self, region: Region) -> RawBytes {
        if region.is_on_host() { self.host } else { self.device }
    }
}

/// Memory that instructions change: its start and its length.
#[derive(Clone, Copy)]
pub(super) struct RawBytes {
    start: *mut u8,
    len: usize,
}

impl RawBytes {
    /// Returns memory that belongs to the caller alone.
    pub(super) fn of(bytes: &mut [u8]) -> Self {
        Self { start: bytes.as_mut_ptr(), len: bytes.len() }
    }

    fn of_map(map: &MmapRaw) -> Self {
        Self { start: map.as_mut_ptr(), len: map.len() }
    }

    /// Returns the bytes of a range.
    ///
    /// # Safety
    /// The memory is valid, and nothing writes the range while the slice is used.
    #[allow(unsafe_code)]
    unsafe fn slice<'a>(self, range: Range<usize>) -> &'a [u8] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range lies in the memory; the caller promises the rest.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// Returns the bytes of a range for writing.
    ///
    /// # Safety
    /// The memory is valid, and nothing else reads or writes the range while the slice is used.
    #[allow(unsafe_code)]
    unsafe fn slice_mut<'a>(self, range: Range<usize>) -> &'a mut [u8] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range lies in the memory; the caller promises the rest.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// Borrows the operands, the results and the scratch of an instruction from the memories. An operand in the place of a result has no slice
/// of its own: the result's slice holds it. Panics if a result overlaps anything else, which the memory plan excludes.
///
/// # Safety
/// While the call is used, the memory is valid, nothing else writes the bytes of its operands, and nothing else reads or writes its results
/// and its scratch.
#[allow(unsafe_code)]
pub(super) unsafe fn borrow<'a>(
    memories: Memories<'a>,
    instruction: &'a Instruction,
    add: bool,
    device: OnDevice<'a>,
) -> Call<'a> {
    let written = instruction.results.iter().chain(&instruction.scratch);
    let range = |view: &View| range(view, device.bases);
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
    let mut results: SmallVec<[&mut [u8]; 4]> = written
        .iter()
        .map(|(region, range)| unsafe { memories.of(*region).slice_mut(range.clone()) })
        .collect();
    let scratch = instruction.scratch.as_ref().and_then(|_| results.pop());
    Call { instruction, operands, scratch: scratch.unwrap_or_default(), results, add, device }
}

/// Returns the memory of a view, as the region that spans the whole memory.
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
    /// Returns an empty list of constants.
    pub(super) fn none() -> io::Result<Self> {
        Ok(Self(map(0)?))
    }

    pub(super) fn new(program: &Program) -> io::Result<Self> {
        let mut memory = map(program.memory.constants)?;
        for constant in &program.constants {
            memory[constant.base as usize..][..constant.bytes.len()].copy_from_slice(&constant.bytes);
        }
        Ok(Self(memory))
    }
}

fn map(bytes: u64) -> io::Result<MmapMut> {
    let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
    let memory = MmapMut::map_anon(bytes.max(1))?;
    // Tensors are read and written from end to end, so huge pages help. If the system has none, the advice fails without harm.
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    Ok(memory)
}

/// Returns the elements of a view in row-major order, given all bytes that it spans.
fn dense(bytes: &[u8], view: &View) -> Vec<u8> {
    let mut dense = vec![0; view.layout.len() * view.dtype.bytes() as usize];
    copy::gather(bytes, view, &mut dense);
    dense
}

/// Returns the bytes that a view spans. `bases` has the start of each block.
fn range(view: &View, bases: &[u64]) -> Range<usize> {
    let (bytes, base) = (view.bytes(), view.region.start(bases));
    assert!(base != Turn::NOWHERE, "a block is alive where it is used");
    (base + bytes.start) as usize..(base + bytes.end) as usize
}
