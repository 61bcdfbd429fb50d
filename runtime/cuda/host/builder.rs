//! The stand-ins that tests ask for: of little memory, with faults, checked, or for the ends of huge tensors.

use super::{Host, Ptx};

impl Host {
    /// One that holds so many bytes.
    pub fn holding(self, bytes: u64) -> Self {
        Self { size: Some(bytes), ..self }
    }

    /// One whose memory fails as a device's does, after so many kernels: from then on nothing goes on.
    pub fn failing_after(mut self, kernels: u64) -> Self {
        self.state.get_mut().left = Some(kernels);
        self
    }

    /// One that refuses captures, as a driver or a library may.
    pub fn refusing_captures(self) -> Self {
        Self { refuses_captures: true, ..self }
    }

    /// One that holds each command, the first time that it runs, to what it says it reads and writes.
    pub fn checked(self) -> Self {
        Self { is_checked: true, ..self }
    }

    /// One that is checked, and runs each launch by its PTX the first time.
    pub fn checked_by_ptx(self, ptx: Ptx) -> Self {
        Self { is_checked: true, ptx: Some(ptx), ..self }
    }

    /// One that runs so many blocks at each end of a grid, and no block between them: for tensors whose memory is never
    /// touched but at their ends.
    pub fn corners(self, blocks: u32) -> Self {
        Self { corners: blocks, ..self }
    }
}
