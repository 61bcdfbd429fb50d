//! Makes cubins of kernels: some are read from the cache, the others are compiled on several threads.

use super::cache::{Cache, Key};
use super::nvrtc::{self, Nvrtc, NvrtcError};
use super::program::Kernel;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Makes cubins for one architecture.
#[derive(Debug)]
pub struct Cubins {
    nvrtc: Nvrtc,
    cache: Cache,
    architecture: String,
}

impl Cubins {
    /// Returns a maker for an architecture such as `sm_90a`.
    pub fn new(nvrtc: Nvrtc, cache: Cache, architecture: impl Into<String>) -> Self {
        Self { nvrtc, cache, architecture: architecture.into() }
    }

    /// Returns the cubin of a kernel.
    ///
    /// # Errors
    /// The kernel does not compile.
    pub fn of(&self, kernel: &Kernel) -> Result<Vec<u8>, NvrtcError> {
        let options = nvrtc::options(&self.architecture).join(" ");
        let key = Key::of(&[self.nvrtc.version(), &options, &nvrtc::source(kernel)]);
        self.cache.get_or(key, || Ok(self.nvrtc.compile(kernel, &self.architecture)?.bytes))
    }

    /// Returns the cubins of many kernels, in their order.
    ///
    /// # Errors
    /// The first kernel that does not compile.
    pub fn of_all(&self, kernels: &[&Kernel]) -> Result<Vec<Vec<u8>>, NvrtcError> {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(kernels.len());
        let next = AtomicUsize::new(0);
        let take = || {
            let mut made = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(kernel) = kernels.get(index) else { return made };
                made.push((index, self.of(kernel)));
            }
        };
        let mut made: Vec<_> = thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(take)).collect();
            let mut made = take();
            for other in others {
                made.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            made
        });
        made.sort_by_key(|(index, _)| *index);
        made.into_iter().map(|(_, cubin)| cubin).collect()
    }

    /// Returns the first fault of the cache, which is no error of the kernels.
    pub fn trouble(&self) -> Option<&str> {
        self.cache.trouble()
    }

    /// Returns the first cubin that could not be kept.
    pub fn unkept(&self) -> Option<&str> {
        self.cache.unkept()
    }
}
