//! CUDA graphs: the commands that queues were given during a capture, launched again at once.

use super::handles::{Queue, refused};
use crate::driver::DriverError;
use cudarc::driver::{result, sys};

/// A graph that can be launched.
pub(super) struct Executable(sys::CUgraphExec);

impl Queue {
    /// Records the commands that this queue is given from now on, and those of queues that wait for it, instead of running them. Other
    /// threads are not restricted.
    #[allow(unsafe_code)]
    pub(super) fn begin_capture(&self) -> Result<(), DriverError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        unsafe { result::stream::begin_capture(self.0, mode) }.map_err(refused("beginning a CUDA graph"))
    }

    /// Ends the capture and returns its graph.
    #[allow(unsafe_code)]
    pub(super) fn end_capture(&self) -> Result<Executable, DriverError> {
        // SAFETY: the stream is alive. After an error there is no graph, and the capture has ended.
        let graph =
            unsafe { result::stream::end_capture(self.0) }.map_err(refused("capturing a CUDA graph"))?;
        // SAFETY: the graph was returned just above.
        let executable = with_priorities(|flags| unsafe { result::graph::instantiate(graph, flags) });
        // SAFETY: the graph is not used any more.
        let _ = unsafe { result::graph::destroy(graph) };
        executable.map(Executable).map_err(refused("making a CUDA graph ready"))
    }

    /// Launches the graph, after the queue's earlier commands.
    #[allow(unsafe_code)]
    pub(super) fn replay(&self, executable: &Executable) -> Result<(), DriverError> {
        // SAFETY: both are alive, and so are the captured kernels and memory, as long as the driver is.
        unsafe { result::graph::launch(executable.0, self.0) }.map_err(refused("launching a CUDA graph"))
    }
}

/// Instantiates a graph whose kernels keep the priorities of the streams that they were captured on. A driver that does not
/// know the flag instantiates it without.
fn with_priorities<T, E>(
    mut instantiate: impl FnMut(sys::CUgraphInstantiate_flags) -> Result<T, E>,
) -> Result<T, E> {
    use sys::CUgraphInstantiate_flags as Flags;
    instantiate(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY).or_else(|_| instantiate(Flags(0)))
}

impl Drop for Executable {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the graph was instantiated once; the driver waits for its launches.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the flags of each call, and the last answer, for a driver that accepts the flags of which `accepts` is true.
    fn flags(accepts: impl Fn(u32) -> bool) -> (Vec<u32>, Result<u32, u32>) {
        let mut asked = vec![];
        let made = with_priorities(|flags| {
            asked.push(flags.0);
            if accepts(flags.0) { Ok(flags.0) } else { Err(flags.0) }
        });
        (asked, made)
    }

    #[test]
    fn nodes_keep_their_priorities_where_the_driver_knows_the_flag() {
        assert_eq!(flags(|_| true), (vec![8], Ok(8)));
        assert_eq!(flags(|flags| flags == 0), (vec![8, 0], Ok(0)));
        assert_eq!(flags(|_| false), (vec![8, 0], Err(0)));
    }
}
