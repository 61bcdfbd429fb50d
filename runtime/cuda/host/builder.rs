//! Variants of the stand-in for tests: with little memory, with faults, checked, or for the ends of huge tensors.

use super::{Host, LaunchCheck};
use std::sync::Arc;

impl Host {
    /// Returns a stand-in that holds this number of bytes.
    pub fn holding(self, bytes: u64) -> Self {
        Self { size: Some(bytes), ..self }
    }

    /// Returns a stand-in whose memory fails as a device's does, after this number of kernels: from then on nothing goes on.
    pub fn failing_after(mut self, kernels: u64) -> Self {
        self.state.get_mut().left = Some(kernels);
        self
    }

    /// Returns a stand-in that refuses captures, as a driver or a library may.
    pub fn refusing_captures(self) -> Self {
        Self { refuses_captures: true, ..self }
    }

    /// Returns a stand-in that checks each command when it first runs: it may touch only the memory that it declares.
    pub fn checked(self) -> Self {
        Self { is_checked: true, ..self }
    }

    /// Returns a checked stand-in that compares each launch with a second way of running it when it first runs.
    pub fn checked_by(self, second_way: Arc<dyn LaunchCheck>) -> Self {
        Self { is_checked: true, second_way: Some(second_way), ..self }
    }

    /// Returns a stand-in that runs this number of blocks at each end of a grid, and no block between them: for tensors whose memory is
    /// touched only at their ends.
    pub fn corners(self, blocks: u32) -> Self {
        Self { corners: blocks, ..self }
    }
}
