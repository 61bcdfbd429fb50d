//! Makes the stand-in, and variants of it for tests: with little memory, with faults, checked, or for the ends of huge tensors.

use super::capture::Warm;
use super::compile::Libraries;
use super::functions::HostThread;
use super::{Host, LaunchCheck, Order};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Host {
    /// Returns a device that has the memory of this machine.
    pub fn new(order: Order) -> Self {
        Self {
            order,
            size: None,
            compiled: vec![],
            tables: vec![],
            libraries: Libraries::default(),
            communicator: None,
            notes: None,
            capture: None,
            graphs: vec![],
            warm: Warm::default(),
            inside: BTreeSet::new(),
            corners: 0,
            is_checked: false,
            second_way: None,
            refuses_captures: false,
            declared: vec![],
            functions: HostThread::default(),
            state: RefCell::default(),
        }
    }

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
