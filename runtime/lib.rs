//! Lowering of programs, the devices that run them, and the exchange between ranks.

// These macros panic where the stream is full or closed.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod backend;
pub mod calls;
pub mod check;
pub mod comm;
mod contraction;
mod convolution;
pub mod cpu;
pub mod cuda;
pub mod device;
mod kernel_contract;
pub mod layout;
pub mod lower;
pub mod profile;
pub mod program;
pub mod ranks;
pub mod room;
pub mod simulator;
pub mod target;
