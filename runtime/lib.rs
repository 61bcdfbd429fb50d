//! What runs a program: lowering, devices, data, checkpoints, and the training loop.

// These macros panic where the stream is full or closed.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod check;
pub mod checkpoint;
pub mod comm;
mod contraction;
mod convolution;
pub mod cpu;
pub mod cuda;
pub mod data;
pub mod device;
pub mod layout;
pub mod lower;
pub mod memory;
pub mod metrics;
pub mod profile;
pub mod program;
pub mod progress;
pub mod ranks;
mod rewrites;
pub mod room;
pub mod train;
