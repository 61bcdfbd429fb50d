//! Memory of the host that a GPU reaches by itself for copies, and functions of the host in the GPU's streams.

use super::handles::{Queue, refused};
use crate::driver::{Address, CopyTask, DriverError, HostTask};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::pin::Pin;
use std::{mem, process, ptr};

/// Memory of the host that is lent to a GPU: the driver keeps its pages in place until this is dropped.
pub(super) struct Lent {
    pub(super) at: Address,
    start: *mut u8,
}

impl Lent {
    /// Registers memory, which the caller keeps for as long as this value lives.
    #[allow(unsafe_code)]
    pub(super) fn new(start: *mut u8, bytes: usize) -> Result<Self, DriverError> {
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE;
        // SAFETY: this number of bytes begins there, and the caller keeps them.
        let registered = unsafe { sys::cuMemHostRegister_v2(start.cast::<c_void>(), bytes, flags) };
        let failed = format!(
            "{bytes} bytes of the host's memory cannot be kept in place for the GPU (a smaller --memory host=BYTES, or a higher limit of locked memory, may help)"
        );
        registered.result().map_err(refused(&failed))?;
        Ok(Self { at: Address(start.expose_provenance() as u64), start })
    }
}

impl Drop for Lent {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the memory was registered once, by `new`, and copies from and to it have ended.
        let _ = unsafe { sys::cuMemHostUnregister(self.start.cast::<c_void>()) };
    }
}

/// The tasks of the host that are in graphs, each at a fixed address.
#[derive(Default)]
pub(super) struct HostTasks {
    captured: Vec<Pin<Box<HostTask>>>,
    is_capturing: bool,
}

impl HostTasks {
    /// Lets tasks be captured from now on.
    pub(super) fn begin_capture(&mut self) {
        self.is_capturing = true;
    }

    /// Lets tasks run from now on.
    pub(super) fn end_capture(&mut self) {
        self.is_capturing = false;
    }

    /// Gives a task to a queue.
    pub(super) fn give(&mut self, queue: &Queue, task: HostTask) -> Result<(), DriverError> {
        if !self.is_capturing {
            return queue.run_once(task);
        }
        let task = Box::pin(task);
        queue.capture(&task)?;
        self.captured.push(task);
        Ok(())
    }

    /// Leaves the tasks and the memory that they share for the rest of the process: after a failure one of them may still run.
    pub(super) fn leave(&mut self) {
        mem::forget(mem::take(&mut self.captured));
    }
}

impl Queue {
    /// Copies bytes from or to the host. Host and device share addresses, so the driver finds the direction itself.
    #[allow(unsafe_code)]
    pub(super) fn copy(&self, CopyTask { from, to, bytes }: CopyTask) -> Result<(), DriverError> {
        // SAFETY: both places belong to a program, which keeps its commands in order, and lent memory outlives the queue.
        let copied = unsafe { sys::cuMemcpyAsync(to.0, from.0, bytes as usize, self.0) };
        copied.result().map_err(refused(&format!("copying {bytes} bytes between host and GPU")))
    }

    /// Runs a task of the host once.
    #[allow(unsafe_code)]
    fn run_once(&self, task: HostTask) -> Result<(), DriverError> {
        let task = Box::into_raw(Box::new(task));
        // SAFETY: `once` takes the box back, and the driver calls it once.
        let launched = unsafe { sys::cuLaunchHostFunc(self.0, Some(once), task.cast::<c_void>()) };
        launched.result().map_err(|error| {
            // SAFETY: the driver has refused the function, so it is never called.
            drop(unsafe { Box::from_raw(task) });
            refused("an instruction of the host")(error)
        })
    }

    /// Captures a task of the host. The caller keeps it for as long as the graph.
    #[allow(unsafe_code)]
    fn capture(&self, task: &Pin<Box<HostTask>>) -> Result<(), DriverError> {
        let task = ptr::from_ref::<HostTask>(task).cast_mut().cast::<c_void>();
        // SAFETY: the task is pinned for as long as the caller keeps it.
        let launched = unsafe { sys::cuLaunchHostFunc(self.0, Some(again), task) };
        launched.result().map_err(refused("an instruction of the host"))
    }
}

/// Runs a task, and frees it.
#[allow(unsafe_code)]
unsafe extern "C" fn once(task: *mut c_void) {
    // SAFETY: `run_once` gave the box to this call alone.
    let task = unsafe { Box::from_raw(task.cast::<HostTask>()) };
    run(&task);
}

/// Runs a task of a graph, which stays.
#[allow(unsafe_code)]
unsafe extern "C" fn again(task: *mut c_void) {
    // SAFETY: the task outlives the graph that this call belongs to.
    run(unsafe { &*task.cast::<HostTask>() });
}

/// Runs a task on a thread of the driver, which no panic may cross. After a panic states are half written, so the process ends.
fn run(task: &HostTask) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| task())).is_err() {
        process::abort();
    }
}
