//! Programs as lowering makes them for the processor and for GPUs. Nothing runs here.

mod contracts;
mod ranks;
mod room;
