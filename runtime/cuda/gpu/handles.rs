//! What the driver lends, each given back when it is dropped: a context, streams, marks, memory, modules.
//!
//! All calls are for the device whose context is current on the thread: whoever drops one sees to that.

use crate::cuda::driver::{Address, DriverError};
use cudarc::driver::{result, sys};
use std::ffi::{CString, c_void};
use std::ptr;

/// What the driver did not do, and why, in its own words.
pub(super) fn refused(what: &str) -> impl Fn(result::DriverError) -> DriverError {
    move |error| {
        let name = error.error_name().map(|name| name.to_string_lossy().into_owned());
        let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|_| format!("{:?}", error.0));
        let text = text.as_deref().unwrap_or("which CUDA does not explain");
        DriverError(format!("{what}: {name}, {text}"))
    }
}

/// The fault of the device that a query of a stream tells. Work that goes on is none, and neither is a stream that captures: the
/// device computes on.
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
    /// The context of a device, made current.
    #[allow(unsafe_code)]
    pub(super) fn new(ordinal: i32) -> Result<Self, DriverError> {
        let device = result::device::get(ordinal).map_err(refused("the GPU is not available"))?;
        // SAFETY: the driver gave the device just now.
        let context = unsafe { result::primary_ctx::retain(device) };
        let own = Self { device, context: context.map_err(refused("no context can be created on the GPU"))? };
        own.bind()?;
        Ok(own)
    }

    /// Makes it the current one of this thread, which is cheap if it is.
    #[allow(unsafe_code)]
    pub(super) fn bind(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained for as long as this value lives.
        unsafe { result::ctx::set_current(self.context) }.map_err(refused("the GPU's context"))
    }

    /// Bytes that are free, and all.
    pub(super) fn memory(&self) -> Result<(u64, u64), DriverError> {
        let (free, total) = result::mem_get_info().map_err(refused("the GPU's memory"))?;
        Ok((free as u64, total as u64))
    }
}

impl Drop for Context {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: it was retained once, by `new`, and everything that was made in it has been given back.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// A queue of the device's.
pub(super) struct Queue(pub(super) sys::CUstream);

impl Queue {
    /// One that waits for no other unless it is told to; of urgent ones, work begins first.
    pub(super) fn new(urgent: bool) -> Result<Self, DriverError> {
        let failed = refused("a stream");
        let (least, greatest) = result::stream::get_priority_range().map_err(&failed)?;
        let priority = if urgent { greatest } else { least };
        let kind = result::stream::StreamKind::NonBlocking;
        result::stream::create_with_priority(kind, priority).map(Self).map_err(failed)
    }

    /// Waits until it is empty; says what went wrong in it.
    #[allow(unsafe_code)]
    pub(super) fn finish(&self) -> Result<(), DriverError> {
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.0) }.map_err(refused("an earlier command of the GPU"))
    }

    /// Says what went wrong in its context so far; it waits for nothing.
    #[allow(unsafe_code)]
    pub(super) fn check(&self) -> Result<(), DriverError> {
        // SAFETY: the stream is alive.
        let answer = unsafe { sys::cuStreamQuery(self.0) };
        fault(answer).map_or(Ok(()), |error| Err(refused("an earlier command of the GPU")(error)))
    }

    /// Lets what comes from now on wait for a mark; one that was never made is passed.
    #[allow(unsafe_code)]
    pub(super) fn wait(&self, mark: &Mark) -> Result<(), DriverError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are alive.
        unsafe { result::stream::wait_event(self.0, mark.0, flags) }.map_err(refused("waiting for a stream"))
    }

    /// Sets so many bytes to zero.
    pub(super) fn clear(&self, at: Address, bytes: u64) -> Result<(), DriverError> {
        self.fill(at, 0, bytes)
    }

    /// Sets so many bytes to a number.
    #[allow(unsafe_code)]
    pub(super) fn fill(&self, at: Address, byte: u8, bytes: u64) -> Result<(), DriverError> {
        // SAFETY: the address is a program's, which keeps what lies there apart, or a scratch's.
        unsafe { result::memset_d8_async(at.0, byte, bytes as usize, self.0) }
            .map_err(refused("clearing the GPU's memory"))
    }
}

impl Drop for Queue {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: it was made by `new`, and is used no more.
        let _ = unsafe { result::stream::destroy(self.0) };
    }
}

/// A mark on a queue.
pub(super) struct Mark(sys::CUevent);

impl Mark {
    pub(super) fn new() -> Result<Self, DriverError> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        result::event::create(flags).map(Self).map_err(refused("an event"))
    }

    /// One that knows the time.
    pub(super) fn timed() -> Result<Self, DriverError> {
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        result::event::create(flags).map(Self).map_err(refused("an event"))
    }

    /// The time from another mark to this one, in seconds. Both know it, and the GPU has passed them.
    #[allow(unsafe_code)]
    pub(super) fn seconds_after(&self, other: &Self) -> Result<f64, DriverError> {
        // SAFETY: both events are alive.
        let milliseconds = unsafe { result::event::elapsed(other.0, self.0) };
        milliseconds.map(|time| f64::from(time) / 1e3).map_err(refused("the time between two events"))
    }

    /// Marks what the queue was given so far.
    #[allow(unsafe_code)]
    pub(super) fn record(&self, queue: &Queue) -> Result<(), DriverError> {
        // SAFETY: both are alive.
        unsafe { result::event::record(self.0, queue.0) }.map_err(refused("marking a stream"))
    }

    /// Waits until the queue has come here.
    #[allow(unsafe_code)]
    pub(super) fn reached(&self) -> Result<(), DriverError> {
        // SAFETY: the event is alive.
        unsafe { result::event::synchronize(self.0) }.map_err(refused("an earlier command of the GPU"))
    }
}

impl Drop for Mark {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: it was made by `new`, and is used no more.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

/// The device's memory, which begins at a multiple of 256.
pub(super) struct Memory {
    pub(super) at: Address,
}

impl Memory {
    /// So many bytes, of which nothing is known.
    #[allow(unsafe_code)]
    pub(super) fn new(bytes: u64) -> Result<Self, DriverError> {
        let count = usize::try_from(bytes).map_err(|error| DriverError(error.to_string()))?;
        // SAFETY: whoever reads it writes it first. The driver takes no request for nothing.
        let at = unsafe { result::malloc_sync(count.max(1)) };
        at.map(|at| Self { at: Address(at) }).map_err(refused(&format!("{bytes} bytes of the GPU's memory")))
    }

    /// Fills it with zeros, on a queue.
    #[allow(unsafe_code)]
    pub(super) fn clear(&self, bytes: u64, queue: &Queue) -> Result<(), DriverError> {
        // SAFETY: so many bytes were allocated, and nothing else was given them yet.
        unsafe { result::memset_d8_async(self.at.0, 0, bytes as usize, queue.0) }
            .map_err(refused("clearing the GPU's memory"))
    }
}

impl Drop for Memory {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: it was made by `new`; the driver waits for what uses it.
        let _ = unsafe { result::free_sync(self.at.0) };
    }
}

/// Memory of the host that the device copies to and from by itself.
pub(super) struct Pinned {
    start: *mut u8,
    length: usize,
}

impl Pinned {
    /// So many zeros.
    #[allow(unsafe_code)]
    pub(super) fn new(length: usize) -> Result<Self, DriverError> {
        // SAFETY: it is written just below.
        let start = unsafe { result::malloc_host(length, 0) };
        let start = start.map_err(refused(&format!("{length} bytes of pinned memory")))?.cast::<u8>();
        // SAFETY: so many bytes begin there.
        unsafe { ptr::write_bytes(start, 0, length) };
        Ok(Self { start, length })
    }

    /// It, while the device does not use it.
    #[allow(unsafe_code)]
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: so many bytes begin there and were written; they are lent with this value alone.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

impl Drop for Pinned {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: it was made by `new`, and copies from or to it have come to their end.
        let _ = unsafe { result::free_host(self.start.cast::<c_void>()) };
    }
}

/// Code on the device.
pub(super) struct Module(sys::CUmodule);

impl Module {
    /// Loads a cubin.
    #[allow(unsafe_code)]
    pub(super) fn load(cubin: &[u8], name: &str) -> Result<Self, DriverError> {
        // SAFETY: a cubin says itself how long it is, and these are whole: of the compiler, or compared with a checksum.
        let module = unsafe { result::module::load_data(cubin.as_ptr().cast()) };
        module.map(Self).map_err(refused(&format!("loading the kernel `{name}`")))
    }

    /// A function, which lives as long as the module.
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
        // SAFETY: it was loaded once, and its kernels have come to their end.
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

    /// A kernel that wrote beside its memory, one that was ended, a GPU that fell off the bus, a kernel that trapped.
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
