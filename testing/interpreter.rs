//! A backend that runs programs by the interpreter of the IR, operator by operator: the least that a backend has.
//!
//! `backend` answers lowering, `device` runs a program over its memory, `execution` runs an instruction, and `ranks` opens devices. Tests
//! compare its steps with those of other backends. So an error of lowering is told from an error of a kernel.

mod backend;
mod device;
mod execution;
mod memory;
mod ranks;

pub use backend::TARGET;
pub use ranks::Interpreters;
