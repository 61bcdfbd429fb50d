//! The pace of a device: its commands run one by one, or stretches of them as graphs.

use super::driver::Graph;
use program::Part;
use program::device::ProgramId;
use std::sync::Arc;

/// The way in which commands reach the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// One by one the first time, because a library's first call may load a module, allocate memory or choose an algorithm, which CUDA
    /// refuses in a capture. The second time the commands are captured as a CUDA graph, which is replayed from then on.
    #[default]
    Graphs,
    /// One by one each time.
    Commands,
    /// One by one, with a wait after each, so that an error belongs to the last command. It is slow.
    Synchronous,
}

/// Instructions that run together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stretch {
    pub(super) program: ProgramId,
    pub(super) part: Part,
    /// The start and the end of the range of instructions in the part's section.
    pub(super) instructions: [usize; 2],
    /// Whether accumulating instructions add to their results.
    pub(super) adds: bool,
    /// In a pipeline, the starts of the microbatch's blocks: a graph has the addresses of its slots.
    pub(super) blocks: Arc<[u64]>,
}

/// The state of a stretch that has run.
#[derive(Clone, Copy, Debug)]
pub(super) enum StretchState {
    /// The stretch ran once.
    Run,
    /// The stretch was captured.
    As(Graph),
}
