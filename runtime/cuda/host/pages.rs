//! Memory between pages that may not be touched: an access outside of it is a fault.

use crate::driver::{Address, DriverError};
use std::io;
use std::ptr;

/// Bytes before and after a memory that may not be touched. They take only addresses, so they can be many: an index that is wrong by a
/// row or a matrix still meets them.
const GUARD: usize = 1 << 28;

/// Zeroed memory from the system, between two guards. A page takes memory when it is first written.
pub(super) struct Pages {
    /// The first byte of the guard before the memory.
    first: usize,
    /// The bytes that may be touched, a multiple of a page's.
    bytes: usize,
}

/// The bytes of a page.
const PAGE: usize = 4096;

impl Pages {
    /// Maps memory of at least this number of bytes.
    pub(super) fn new(bytes: usize) -> Result<Self, DriverError> {
        let pages = Self::untouchable(bytes)?;
        pages.open()?;
        Ok(pages)
    }

    /// Reserves addresses for at least this number of bytes, none of which may be touched.
    #[allow(unsafe_code)]
    pub(super) fn untouchable(bytes: usize) -> Result<Self, DriverError> {
        let bytes = bytes.next_multiple_of(PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the system chooses addresses that nothing else uses.
        let first = unsafe { libc::mmap(ptr::null_mut(), bytes + 2 * GUARD, libc::PROT_NONE, flags, -1, 0) };
        if first == libc::MAP_FAILED {
            return Err(refused(bytes));
        }
        Ok(Self { first: first.expose_provenance(), bytes })
    }

    /// Allows accesses to the bytes between the guards.
    #[allow(unsafe_code)]
    fn open(&self) -> Result<(), DriverError> {
        let start = ptr::with_exposed_provenance_mut(self.start());
        // SAFETY: the pages are this mapping's own, and no reference to them exists yet.
        let opened = unsafe { libc::mprotect(start, self.bytes, libc::PROT_READ | libc::PROT_WRITE) };
        if opened == 0 || self.bytes == 0 { Ok(()) } else { Err(refused(self.bytes)) }
    }

    /// Returns the address of the first byte after the guard.
    pub(super) fn start(&self) -> usize {
        self.first + GUARD
    }

    /// Whether an address is in the memory or its guards.
    pub(super) fn contains(&self, address: usize) -> bool {
        (self.first..self.first + self.bytes + 2 * GUARD).contains(&address)
    }

    /// Returns the number of bytes that may be touched.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes between the guards, of memory that was made by [`Self::new`].
    #[allow(unsafe_code)]
    pub(super) fn all<'a>(&self) -> &'a mut [u8] {
        // SAFETY: the mapping stays until it is dropped, which no user of a slice outlives: the driver keeps its memories for its life,
        // and a check keeps its mappings until its command is done. Only one command at a time uses slices.
        unsafe { std::slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(self.start()), self.bytes) }
    }
}

/// A part of the device's memory.
pub(super) struct PagedBytes {
    pub(super) pages: Pages,
    pub(super) bytes: u64,
}

impl PagedBytes {
    /// Allocates this number of bytes.
    pub(super) fn new(bytes: u64) -> Result<Self, DriverError> {
        Ok(Self { pages: Pages::new(bytes as usize)?, bytes })
    }

    /// Returns the address of the first byte.
    pub(super) fn start(&self) -> Address {
        Address(self.pages.start() as u64)
    }

    /// Returns all bytes.
    pub(super) fn all<'a>(&self) -> &'a mut [u8] {
        &mut self.pages.all()[..self.bytes as usize]
    }
}

fn refused(bytes: usize) -> DriverError {
    DriverError(format!("{bytes} bytes between guards: {}", io::Error::last_os_error()))
}

impl Drop for Pages {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let first = ptr::with_exposed_provenance_mut(self.first);
        // SAFETY: the mapping was made by `untouchable` with these sizes, and nothing uses it any more.
        unsafe { libc::munmap(first, self.bytes + 2 * GUARD) };
    }
}
