//! The driver of Trainyard: the command line, its settings, and the code that connects import, passes and runtime.

// These macros panic where the stream is full or closed.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod cli;
pub mod compilation;
pub mod compiler;
pub mod config;
pub mod diagnostics;
pub mod export;
pub mod failure;
pub mod feed;
pub mod fit;
pub mod hardware;
pub mod inspection;
pub mod log;
pub mod lowering;
pub mod manager;
pub mod memory;
pub mod output;
pub mod pipeline;
pub mod plan;
pub mod processes;
pub mod signals;
pub mod sizes;
pub mod state_dict;
pub mod targets;
pub mod training;
pub mod verification;
