//! The memories of a device: bytes, of which views are read and written whole.

use program::layout::Layout;
use program::{Program, Region, Turn, View};
use std::sync::Arc;

/// The memories that programs share. A file of values is memory too.
pub(super) struct Memory {
    device: Vec<u8>,
    host: Vec<u8>,
    disk: Vec<u8>,
}

impl Memory {
    /// Makes zeroed memories in which each of the programs fits.
    pub(super) fn new(programs: &[Arc<Program>]) -> Self {
        let zeroed = |bytes: fn(&program::Memory) -> u64| {
            let most = programs.iter().map(|program| bytes(&program.memory)).max().unwrap_or(0);
            vec![0; most as usize]
        };
        Self {
            device: zeroed(|memory| memory.arena),
            host: zeroed(|memory| memory.host.total),
            disk: zeroed(|memory| memory.disk.total),
        }
    }

    /// Returns the number of bytes.
    pub(super) fn len(&self) -> u64 {
        (self.device.len() + self.host.len() + self.disk.len()) as u64
    }

    /// Returns the elements of a view in row-major order. `bases` has the start of each block.
    pub(super) fn read(&self, constants: &[u8], view: &View, bases: &[u64]) -> Vec<u8> {
        let memory = match view.region {
            Region::Constants => constants,
            Region::Arena | Region::Block(_) => &self.device,
            Region::Host | Region::HostBlock(_) => &self.host,
            Region::Disk => &self.disk,
        };
        let width = view.dtype.bytes() as usize;
        positions(view, bases).into_iter().flat_map(|at| &memory[at..at + width]).copied().collect()
    }

    /// Writes the elements of a view, given in row-major order.
    pub(super) fn write(&mut self, view: &View, bases: &[u64], bytes: &[u8]) {
        let memory = match view.region {
            Region::Arena | Region::Block(_) => &mut self.device,
            Region::Host | Region::HostBlock(_) => &mut self.host,
            Region::Disk => &mut self.disk,
            Region::Constants => panic!("no instruction writes a constant"),
        };
        let width = view.dtype.bytes() as usize;
        let elements = positions(view, bases).into_iter().zip(bytes.chunks_exact(width));
        elements.for_each(|(at, element)| memory[at..at + width].copy_from_slice(element));
    }
}

/// Returns the place of each element of a view in its memory, in bytes, in row-major order.
fn positions(view: &View, bases: &[u64]) -> Vec<usize> {
    let start = view.region.start(bases);
    assert!(start != Turn::NOWHERE, "a block is alive where it is used");
    let Layout { sizes, strides, offset } = &view.layout;
    let mut elements = vec![*offset];
    for (&size, &stride) in sizes.iter().zip(strides) {
        let along = |&at: &isize| (0..size as isize).map(move |index| at + index * stride);
        elements = elements.iter().flat_map(along).collect();
    }
    let (start, width) = ((start + view.base) as usize, view.dtype.bytes() as usize);
    elements.into_iter().map(|element| start + element as usize * width).collect()
}
