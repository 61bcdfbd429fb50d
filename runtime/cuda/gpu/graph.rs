//! CUDA graphs: what was given to a queue while it captured, given again at once.

use super::handles::{Queue, refused};
use crate::cuda::driver::DriverError;
use cudarc::driver::{result, sys};

/// A graph that can be launched.
pub(super) struct Executable(sys::CUgraphExec);

impl Queue {
    /// Keeps what it is given from now on, and what queues are given that wait for it. Other threads are not kept from
    /// anything.
    #[allow(unsafe_code)]
    pub(super) fn begin_capture(&self) -> Result<(), DriverError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        unsafe { result::stream::begin_capture(self.0, mode) }.map_err(refused("beginning a CUDA graph"))
    }

    /// What was kept.
    #[allow(unsafe_code)]
    pub(super) fn end_capture(&self) -> Result<Executable, DriverError> {
        // SAFETY: the stream is alive. After an error there is no graph, and it captures no more.
        let graph =
            unsafe { result::stream::end_capture(self.0) }.map_err(refused("capturing a CUDA graph"))?;
        // SAFETY: the graph was given just now, and is used no more when it has been instantiated.
        unsafe {
            let executable = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            let _ = result::graph::destroy(graph);
            executable.map(Executable).map_err(refused("making a CUDA graph ready"))
        }
    }

    /// Does it all, after what it was given before.
    #[allow(unsafe_code)]
    pub(super) fn replay(&self, executable: &Executable) -> Result<(), DriverError> {
        // SAFETY: both are alive, and so are the kernels and the memory that were captured, as long as the driver is.
        unsafe { result::graph::launch(executable.0, self.0) }.map_err(refused("launching a CUDA graph"))
    }
}

impl Drop for Executable {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: it was instantiated once; the driver waits for its launches.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}
