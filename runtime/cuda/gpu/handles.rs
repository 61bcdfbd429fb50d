//! Handles of the driver: a context, streams, marks, memory, modules. Each is released when it is dropped.
//!
//! All calls are for the device whose context is current on the thread. The caller makes sure of that, also when a handle is dropped.

use crate::driver::{Address, DriverError};
use cudarc::driver::{result, sys};
use std::ffi::{CString, c_void};
use std::ptr;

/// Returns the error of a failed call, in the driver's own words. `what` names the call.
pub(super) fn refused(what: &str) -> impl Fn(result::DriverError) -> DriverError {
    move |error| {
        let name = error.error_name().map(|name| name.to_string_lossy().into_owned());
        let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|_| format!("{:?}", error.0));
        let text = text.as_deref().unwrap_or("which CUDA does not explain");
        DriverError(format!("{what}: {name}, {text}"))
    }
}

/// Returns the fault of the device that a query of a stream reports. Unfinished work is no fault, and neither is a stream that
/// captures, because the device goes on computing.
fn fault(answer: sys::CUresult) -> Option<result::DriverError> {
    use sys::CUresult as Answer;
    match answer {
        Answer::CUDA_SUCCESS | Answer::CUDA_ERROR_NOT_READY => None,
        Answer::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        | Answer::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        | Answer::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD => None,
        fault => Some(result::DriverError(fault)),
    }
}

/// A device's primary context, which other libraries of the process share.
pub(super) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

impl Context {
    /// Creates the context of a device, and makes it current.
    #[allow(unsafe_code)]
    pub(super) fn new(ordinal: i32) -> Result<Self, DriverError> {
        let device = result::device::get(ordinal).map_err(refused("the GPU is not available"))?;
        // SAFETY: the driver has just returned the device.
        let context = unsafe { result::primary_ctx::retain(device) };
        let own = Self { device, context: context.map_err(refused("no context can be created on the GPU"))? };
        own.bind()?;
        Ok(own)
    }

    /// Makes it the current context of this thread, which is cheap if it already is.
    #[allow(unsafe_code)]
    pub(super) fn bind(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained for as long as this value lives.
        unsafe { result::ctx::set_current(self.context) }.map_err(refused("the GPU's context"))
    }

    /// Returns the free bytes and all bytes.
    pub(super) fn memory(&self) -> Result<(u64, u64), DriverError> {
        let (free, total) = result::mem_get_info().map_err(refused("the GPU's memory"))?;
        Ok((free as u64, total as u64))
    }
}

impl Drop for Context {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the context was retained once, by `new`, and everything that was made in it is released.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// A queue of the device.
pub(super) struct Queue(pub(super) sys::CUstream);

impl Queue {
    /// Creates a queue, which waits for no other queue unless told to. Work of urgent queues begins first.
    pub(super) fn new(urgent: bool) -> Result<Self, DriverError> {
        let failed = refused("a stream");
        let (least, greatest) = result::stream::get_priority_range().map_err(&failed)?;
        let priority = if urgent { greatest } else { least };
        let kind = result::stream::StreamKind::NonBlocking;
        result::stream::create_with_priority(kind, priority).map(Self).map_err(failed)
    }

    /// Waits until the queue is empty. Returns the error of a command that failed.
    #[allow(unsafe_code)]
    pub(super) fn finish(&self) -> Result<(), DriverError> {
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.0) }.map_err(refused("an earlier command of the GPU"))
    }

    /// Returns the error of a command in its context that has failed so far. Waits for nothing.
    #[allow(unsafe_code)]
    pub(super) fn check(&self) -> Result<(), DriverError> {
        // SAFETY: the stream is alive.
        let answer = unsafe { sys::cuStreamQuery(self.0) };
        fault(answer).map_or(Ok(()), |error| Err(refused("an earlier command of the GPU")(error)))
    }

    /// Lets later commands wait for a mark. A mark that was never recorded does not block them.
    #[allow(unsafe_code)]
    pub(super) fn wait(&self, mark: &Mark) -> Result<(), DriverError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both handles are alive.
        unsafe { result::stream::wait_event(self.0, mark.0, flags) }.map_err(refused("waiting for a stream"))
    }

    /// Sets this number of bytes to zero.
    pub(super) fn clear(&self, at: Address, bytes: u64) -> Result<(), DriverError> {
        self.fill(at, 0, bytes)
    }

    /// Sets this number of bytes to a value.
    #[allow(unsafe_code)]
    pub(super) fn fill(&self, at: Address, byte: u8, bytes: u64) -> Result<(), DriverError> {
        // SAFETY: the address belongs to a program, which keeps its tensors apart, or to scratch.
        unsafe { result::memset_d8_async(at.0, byte, bytes as usize, self.0) }
            .map_err(refused("clearing the GPU's memory"))
    }
}

impl Drop for Queue {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the stream was created by `new`, and is not used any more.
        let _ = unsafe { result::stream::destroy(self.0) };
    }
}

/// A mark on a queue: an event of CUDA.
pub(super) struct Mark(sys::CUevent);

impl Mark {
    pub(super) fn new() -> Result<Self, DriverError> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        result::event::create(flags).map(Self).map_err(refused("an event"))
    }

    /// Creates a mark that records the time.
    pub(super) fn timed() -> Result<Self, DriverError> {
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        result::event::create(flags).map(Self).map_err(refused("an event"))
    }

    /// Returns the seconds from another mark to this one. Both record the time, and the GPU has passed them.
    #[allow(unsafe_code)]
    pub(super) fn seconds_after(&self, other: &Self) -> Result<f64, DriverError> {
        // SAFETY: both events are alive.
        let milliseconds = unsafe { result::event::elapsed(other.0, self.0) };
        milliseconds.map(|time| f64::from(time) / 1e3).map_err(refused("the time between two events"))
    }

    /// Marks the end of the queue's commands so far.
    #[allow(unsafe_code)]
    pub(super) fn record(&self, queue: &Queue) -> Result<(), DriverError> {
        // SAFETY: both handles are alive.
        unsafe { result::event::record(self.0, queue.0) }.map_err(refused("marking a stream"))
    }

    /// Waits until the queue has reached the mark.
    #[allow(unsafe_code)]
    pub(super) fn reached(&self) -> Result<(), DriverError> {
        // SAFETY: the event is alive.
        unsafe { result::event::synchronize(self.0) }.map_err(refused("an earlier command of the GPU"))
    }
}

impl Drop for Mark {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the event was created by `new`, and is not used any more.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

/// The device's memory, which begins at a multiple of 256.
pub(super) struct Allocation {
    pub(super) at: Address,
}

impl Allocation {
    /// Allocates this number of bytes, with undefined contents.
    #[allow(unsafe_code)]
    pub(super) fn new(bytes: u64) -> Result<Self, DriverError> {
        let count = usize::try_from(bytes).map_err(|error| DriverError(error.to_string()))?;
        // SAFETY: the memory is written before it is read. The driver refuses a request for no bytes.
        let at = unsafe { result::malloc_sync(count.max(1)) };
        at.map(|at| Self { at: Address(at) }).map_err(refused(&format!("{bytes} bytes of the GPU's memory")))
    }

    /// Fills the memory with zeros, on a queue.
    #[allow(unsafe_code)]
    pub(super) fn clear(&self, bytes: u64, queue: &Queue) -> Result<(), DriverError> {
        // SAFETY: this number of bytes was allocated, and no command has used them yet.
        unsafe { result::memset_d8_async(self.at.0, 0, bytes as usize, queue.0) }
            .map_err(refused("clearing the GPU's memory"))
    }
}

impl Drop for Allocation {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the memory was allocated by `new`; the driver waits for commands that use it.
        let _ = unsafe { result::free_sync(self.at.0) };
    }
}

/// Memory of the host that the device reaches by itself for copies.
pub(super) struct Pinned {
    start: *mut u8,
    length: usize,
}

impl Pinned {
    /// Allocates this number of zeros.
    #[allow(unsafe_code)]
    pub(super) fn new(length: usize) -> Result<Self, DriverError> {
        // SAFETY: the memory is written just below.
        let start = unsafe { result::malloc_host(length, 0) };
        let start = start.map_err(refused(&format!("{length} bytes of pinned memory")))?.cast::<u8>();
        // SAFETY: `length` bytes begin there.
        unsafe { ptr::write_bytes(start, 0, length) };
        Ok(Self { start, length })
    }

    /// Returns the bytes, for use while the device does not use them.
    #[allow(unsafe_code)]
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `length` bytes begin there and were written; they are borrowed together with this value.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

impl Drop for Pinned {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the memory was allocated by `new`, and copies from and to it have ended.
        let _ = unsafe { result::free_host(self.start.cast::<c_void>()) };
    }
}

/// Code on the device.
pub(super) struct Module(sys::CUmodule);

impl Module {
    /// Loads a cubin.
    #[allow(unsafe_code)]
    pub(super) fn load(cubin: &[u8], name: &str) -> Result<Self, DriverError> {
        // SAFETY: a cubin contains its own length, and these are whole: they come from the compiler, or were compared with a checksum.
        let module = unsafe { result::module::load_data(cubin.as_ptr().cast()) };
        module.map(Self).map_err(refused(&format!("loading the kernel `{name}`")))
    }

    /// Returns a function, which lives as long as the module.
    #[allow(unsafe_code)]
    pub(super) fn function(&self, name: &str) -> Result<Function, DriverError> {
        let text = CString::new(name).map_err(|error| DriverError(error.to_string()))?;
        // SAFETY: the module is alive.
        let function = unsafe { result::module::get_function(self.0, text) };
        function.map(Function).map_err(refused(&format!("the kernel `{name}`")))
    }
}

impl Drop for Module {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the module was loaded once, and its kernels have ended.
        let _ = unsafe { result::module::unload(self.0) };
    }
}

/// A kernel on the device.
#[derive(Clone, Copy)]
pub(super) struct Function(pub(super) sys::CUfunction);

#[cfg(test)]
mod tests {
    use super::*;
    use sys::CUresult as Answer;

    /// Among the faults: a kernel that wrote outside its memory, that was ended, or that trapped, and an error of the GPU's memory.
    #[test]
    fn a_query_of_a_stream_tells_of_a_fault_but_not_of_work_that_goes_on() {
        for answer in [
            Answer::CUDA_ERROR_ILLEGAL_ADDRESS,
            Answer::CUDA_ERROR_MISALIGNED_ADDRESS,
            Answer::CUDA_ERROR_LAUNCH_FAILED,
            Answer::CUDA_ERROR_LAUNCH_TIMEOUT,
            Answer::CUDA_ERROR_ECC_UNCORRECTABLE,
            Answer::CUDA_ERROR_ASSERT,
            Answer::CUDA_ERROR_UNKNOWN,
        ] {
            assert_eq!(fault(answer).map(|error| error.0), Some(answer));
        }
        let goes_on = [
            Answer::CUDA_SUCCESS,
            Answer::CUDA_ERROR_NOT_READY,
            Answer::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        ];
        assert!(goes_on.into_iter().all(|answer| fault(answer).is_none()));
    }
}
