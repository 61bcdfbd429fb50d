//! What runs a program: lowering, devices, data, checkpoints, and the training loop.

// These macros panic where the stream is full or closed.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod backend;
pub mod calls;
pub mod check;
pub mod checkpoint;
pub mod comm;
mod contraction;
mod convolution;
pub mod cpu;
pub mod cuda;
pub mod data;
pub mod device;
mod kernel_contract;
pub mod layout;
pub mod lower;
pub mod memory;
pub mod metrics;
pub mod profile;
pub mod program;
pub mod progress;
pub mod ranks;
pub mod room;
mod safetensors_types;
pub mod simulator;
pub mod target;
pub mod train;
