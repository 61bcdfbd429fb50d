//! Programs: a module of the IR, lowered to instructions over the memory of a device, and the devices that run them.
//!
//! `instructions` has the program; its types are those of this package. `lower` makes it, for a `backend` that answers by contracts of
//! kernels (`kernel_contract`, with `layout`, `contraction` and `convolution`). A `device` runs it, within the memory that `room` finds;
//! `profile` keeps its times, `simulator` predicts them, and `check` compares its results with the interpreter's.

// These macros panic where the stream is full or closed.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod backend;
pub mod calls;
pub mod check;
pub mod commands;
pub mod contraction;
pub mod convolution;
pub mod device;
mod instructions;
pub mod kernel_contract;
pub mod layout;
pub mod lower;
pub mod profile;
pub mod room;
pub mod simulator;

pub use backend::Target;
pub use instructions::{
    Activation, Block, BlockId, Chain, ChainSource, ChainStep, ConstantSlot, Exchange, FusedContract,
    InputSlot, Instruction, InstructionValues, Kernel, LocalPart, Memory, MemoryByClass, Message,
    Microbatches, Moved, OutputSlot, Part, Program, RankPipeline, RankStep, RankSteps, Region, Section,
    StagePrograms, StateSlot, TierMemory, Turn, UpdateTime, Values, View,
};
pub use kernel_contract::Multiprocessors;
