//! NVIDIA GPUs. CUDA's libraries are opened at run time, so one binary runs with and without them.
//!
//! `lower` writes a program as commands and kernels (`program`), and `backend` answers the questions of lowering before that. `device`
//! gives the commands to a `driver`: the real one (`gpu`) or its stand-in on the processor (`host`). Kernels are compiled by NVRTC
//! (`nvrtc`) and kept on disk (`cache`).

mod as_device;
mod backend;
pub mod cache;
pub mod check;
mod clock;
pub mod commands;
pub mod cubins;
pub mod cudnn;
pub mod device;
pub mod driver;
pub mod found;
pub mod gpu;
mod graphs;
pub mod host;
pub mod launches;
pub mod libraries;
pub mod limits;
pub mod lower;
pub mod nccl;
mod non_finite;
pub mod nvrtc;
mod pace;
mod platform;
pub mod probe;
pub mod program;
pub mod ranks;
mod ready;
mod room;
mod symbols;

pub use backend::TARGET;
pub use pace::Pace;
pub use platform::Gpus;
