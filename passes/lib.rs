//! The passes: everything that changes a program between its import and its lowering.
//!
//! [`registry`] lists them, one line each; [`manager`] runs them, verifies after each and shows what they did; every
//! other module is one pass. A pass decides first (pure, the decision prints) and then applies what it decided.

// These macros panic where the stream is full or closed.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod absorb;
pub mod autodiff;
pub mod bind;
pub mod buckets;
pub mod canonicalize;
pub mod collectives;
mod constants;
pub mod dead;
pub mod dropout;
mod egraph;
pub mod evaluation;
pub mod fold;
pub mod initialize;
pub mod join;
pub mod keep;
mod local;
pub mod loss;
pub mod manager;
mod numbers;
pub mod optimizer;
pub mod parameters;
pub mod pass;
pub mod pattern;
pub mod pipeline;
pub mod precision;
pub mod registry;
pub mod schedule;
pub mod simplify;
pub mod spmd;
pub mod update;

pub use manager::{Failure, Manager, Timing};
pub use pass::{PassContext, Transform};
pub use pipeline::{Arguments, Pipeline};
pub use registry::Pass;
