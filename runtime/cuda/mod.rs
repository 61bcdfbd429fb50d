//! NVIDIA GPUs. CUDA's libraries are opened at run time, so one binary runs with and without them.

pub mod libraries;
pub mod probe;
