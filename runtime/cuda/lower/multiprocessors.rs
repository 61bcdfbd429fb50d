//! The size of a GPU, by which kernels whose blocks share work choose their number of blocks.

/// The number of a GPU's multiprocessors. Scratch is sized and grids are chosen for the same number, which a program
/// carries with it: a program for a small GPU runs on a large one too, but leaves a part of it idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiprocessors(pub u32);

impl Default for Multiprocessors {
    /// 132, as an H100 and an H200 have: for programs whose GPU is not known.
    fn default() -> Self {
        Self(132)
    }
}

impl Multiprocessors {
    /// The threads that all multiprocessors hold at once: 2,048 on each.
    pub(super) fn threads(self) -> usize {
        2048 * self.0.max(1) as usize
    }

    /// Blocks that keep all multiprocessors busy, at least: two on each.
    pub(super) fn blocks(self) -> usize {
        2 * self.0.max(1) as usize
    }
}
